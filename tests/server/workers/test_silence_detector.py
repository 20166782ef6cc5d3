from __future__ import annotations

from openenv.server.workers.process import SilenceDetector


def test_one_that_beats_is_not_silent():
    watch = SilenceDetector(4.0, now=0.0)
    assert not any(watch.silent(beat=now, now=float(now)) for now in range(1, 20))


def test_one_that_does_not_beat_is_silent_after_its_time():
    watch = SilenceDetector(4.0, now=0.0)
    assert [now for now in range(1, 9) if watch.silent(beat=7, now=float(now))] == [6, 7, 8]


def test_it_is_heard_again():
    watch = SilenceDetector(2.0, now=0.0)
    assert [watch.silent(1, float(now)) for now in range(1, 5)] == [False, False, False, True]
    assert not watch.silent(2, 5.0)


def test_a_watcher_that_was_away_blames_nobody():
    watch = SilenceDetector(4.0, now=0.0)
    assert not watch.silent(1, 1.0)
    assert not watch.silent(1, 100.0)
    assert not watch.silent(1, 101.0)
