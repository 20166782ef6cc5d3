from __future__ import annotations

import asyncio

from openenv.server.timers import AppKeepalive, Keepalive


class Patient:
    def __init__(self):
        self.heard = True
        self.pings = 0
        self.cuts = 0

    def silent(self):
        heard, self.heard = self.heard, False
        return not heard

    def ping(self):
        self.pings += 1

    def cut(self):
        self.cuts += 1


def beating(scenario, interval=60.0):
    async def run():
        heartbeat = Keepalive(interval)
        await scenario(heartbeat)

    asyncio.run(run())


def test_a_silent_connection_is_cut_at_the_second_beat():
    async def scenario(heartbeat):
        patient = Patient()
        heartbeat.watch(patient)
        heartbeat.beat()
        assert (patient.pings, patient.cuts) == (1, 0)
        heartbeat.beat()
        assert (patient.pings, patient.cuts) == (1, 1)
        heartbeat.beat()
        assert patient.cuts == 1

    beating(scenario)


def test_a_connection_that_answers_lives_on():
    async def scenario(heartbeat):
        patient = Patient()
        heartbeat.watch(patient)
        for beats in range(1, 6):
            heartbeat.beat()
            patient.heard = True
            assert (patient.pings, patient.cuts) == (beats, 0)

    beating(scenario)


def test_a_forgotten_connection_hears_nothing_and_the_timer_ends_with_the_last():
    async def scenario(heartbeat):
        patient, other = Patient(), Patient()
        heartbeat.watch(patient)
        heartbeat.watch(other)
        heartbeat.forget(patient)
        assert heartbeat.ticking
        heartbeat.beat()
        assert (patient.pings, other.pings) == (0, 1)
        heartbeat.forget(other)
        heartbeat.forget(other)
        assert not heartbeat.ticking

    beating(scenario)


def test_the_timer_beats_by_itself_and_stops_when_nobody_is_left():
    async def scenario(heartbeat):
        cut = asyncio.Event()
        patient = Patient()
        patient.cut = cut.set
        heartbeat.watch(patient)
        await asyncio.wait_for(cut.wait(), 20)
        assert patient.pings == 1
        assert not heartbeat.ticking

    beating(scenario, interval=0.005)


def test_without_an_interval_nothing_is_watched():
    async def scenario(heartbeat):
        patient = Patient()
        heartbeat.watch(patient)
        assert not heartbeat.ticking
        heartbeat.beat()
        assert patient.pings == 0

    beating(scenario, interval=None)


def test_words_are_missed_after_seven_quarters_of_two_periods():
    async def scenario(heartbeat):
        patient = Patient()
        words = AppKeepalive(patient.silent, lambda: setattr(patient, "cuts", patient.cuts + 1))
        heartbeat.watch(words)
        for _ in range(8):
            assert patient.cuts == 0
            heartbeat.beat()
        assert patient.cuts == 1

    async def run():
        await scenario(Keepalive.of_words(60.0))

    asyncio.run(run())


def test_a_word_at_any_time_begins_the_count_anew():
    async def run():
        heartbeat = Keepalive.of_words(60.0)
        patient = Patient()
        words = AppKeepalive(patient.silent, lambda: setattr(patient, "cuts", patient.cuts + 1))
        heartbeat.watch(words)
        for beat in range(40):
            patient.heard = beat % 7 == 0
            heartbeat.beat()
        assert patient.cuts == 0
        heartbeat.forget(words)
        assert not heartbeat.ticking

    asyncio.run(run())


def test_one_that_ends_together_with_another_is_not_cut():
    async def scenario(heartbeat):
        first, second = Patient(), Patient()
        first.heard = second.heard = False
        first.cut = lambda: heartbeat.forget(second)
        heartbeat.watch(first)
        heartbeat.watch(second)
        heartbeat.beat()
        assert second.cuts == 0

    beating(scenario)
