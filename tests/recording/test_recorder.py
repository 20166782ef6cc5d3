"""Lines on their way to a folder."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from openenv.errors import InvalidArgument
from openenv.recording import Recorder, RecordingLimits, Subject
from openenv.recording.compactor import SMALL_BYTES
from openenv.recording.storage import array_path
from openenv.telemetry.metrics import Count, Gauge, Meter

from .lines import lines_in

pytestmark = pytest.mark.usefixtures("no_threads_left")

SUBJECT = Subject("counter", None, None)


def line(number: int, size: int = 0) -> bytes:
    return json.dumps({"step": number, "observation": "x" * size}).encode() + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process grows beyond 10,000 bytes: what a full disk is like."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_taken_is_on_disk_when_it_is_closed(folder: Path) -> None:
    recorder = Recorder(folder)
    for number in range(5000):
        recorder.append(line(number))
    recorder.close()
    assert [found["step"] for found in lines_in(folder)] == list(range(5000))
    assert (recorder.written, recorder.dropped) == (5000, 0)


def test_lines_are_written_by_themselves_while_it_runs(folder: Path) -> None:
    recorder = Recorder(folder)
    recorder.append(line(1))
    moment = threading.Event()
    for _ in range(1000):
        if folder.exists() and lines_in(folder):
            break
        moment.wait(0.03)
    assert len(lines_in(folder)) == 1
    recorder.close()


def test_nothing_recorded_leaves_no_file(folder: Path) -> None:
    recorder = Recorder(folder)
    recorder.start()
    recorder.close()
    recorder.close()
    assert list(folder.iterdir()) == []


def test_after_its_end_a_line_begins_another_file(folder: Path) -> None:
    recorder = Recorder(folder)
    for number in range(2):
        recorder.append(line(number))
        recorder.close()
    assert [found["step"] for found in lines_in(folder)] == [0, 1]
    assert len(list(folder.glob("*.jsonl"))) == 2


def test_two_recorders_share_a_folder(folder: Path) -> None:
    recorders = [Recorder(folder) for _ in range(2)]
    for number in range(10):
        recorders[number % 2].append(line(number))
    for recorder in recorders:
        recorder.close()
    assert sorted(found["step"] for found in lines_in(folder)) == list(range(10))


def test_lines_of_many_threads_are_all_there(folder: Path) -> None:
    recorder = Recorder(folder)

    def write(start: int) -> None:
        for number in range(start, start + 500):
            recorder.append(line(number))

    threads = [threading.Thread(target=write, args=(500 * index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert sorted(found["step"] for found in lines_in(folder)) == list(range(2000))


def test_a_file_that_is_large_enough_becomes_parquet(folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    recorder = Recorder(folder, RecordingLimits(file_bytes=SMALL_BYTES))
    text = line(0, SMALL_BYTES // 4)
    for _ in range(5):
        recorder.append(text)
        recorder.flush()
    recorder.close(patience_s=60.0)
    rotated, rest = sorted(folder.iterdir())
    assert [rotated.name[-14:], rest.name[-12:]] == ["000001.parquet", "000002.jsonl"]
    assert parquet.read_table(rotated).num_rows == 4
    assert len(lines_in(folder)) == 1


def test_without_pyarrow_files_stay_lines_and_that_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("openenv.recording.compactor.can_convert", lambda: False)
    recorder = Recorder(folder, RecordingLimits(file_bytes=SMALL_BYTES))
    text = line(0, SMALL_BYTES)
    for _ in range(3):
        recorder.append(text)
        recorder.flush()
    recorder.close()
    assert [path.suffix for path in folder.iterdir()] == [".jsonl"] * 3
    (warning,) = caplog.records
    assert "openenv[recording]" in warning.getMessage()


def test_a_rotation_that_fails_leaves_the_lines_and_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyarrow")
    recorder = Recorder(folder, RecordingLimits(file_bytes=SMALL_BYTES))
    recorder.append(b'{"step":"%b"}\n' % (b"x" * SMALL_BYTES))
    recorder.close(patience_s=60.0)
    (path,) = folder.iterdir()
    assert path.suffix == ".jsonl"
    (warning,) = caplog.records
    assert "line 1 is not a transition" in warning.getMessage()


def test_a_folder_that_is_removed_while_it_is_written_stops_it(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(folder)
    recorder.append(line(0))
    recorder.flush()
    shutil.rmtree(folder)
    recorder.append(line(1))
    recorder.close()
    assert (recorder.written, recorder.dropped) == (1, 1)
    assert "the file was removed" in caplog.text


def test_large_arrays_are_stored_once(folder: Path) -> None:
    recorder = Recorder(folder)
    tap = recorder.tap_factory(SUBJECT)("a")
    assert tap is not None
    screen = np.zeros((64, 64), dtype="<f4")
    for _ in range(3):
        tap.do({})
        tap.ended({"screen": screen, "raw": bytes(5000), "reward": None, "done": False}, None)
    recorder.close()
    again = Recorder(folder)
    other = again.tap_factory(SUBJECT)("b")
    assert other is not None
    other.do({"screen": screen})
    other.ended({"reward": None, "done": False}, None)
    again.close()
    found = lines_in(folder)
    hashes = {line["observation"]["screen"]["$array"]["sha256"] for line in found[:3]}
    hashes.add(found[3]["action"]["screen"]["$array"]["sha256"])
    (name,) = hashes
    assert (np.load(array_path(folder, name, ".npy")) == screen).all()
    raw = found[0]["observation"]["raw"]["$bytes"]
    assert raw["size"] == 5000
    assert array_path(folder, raw["sha256"], ".bin").read_bytes() == bytes(5000)
    assert len(list(folder.glob("arrays/*/*"))) == 2


def test_large_arrays_of_calls_that_run_at_the_same_time_are_each_with_its_own(folder: Path) -> None:
    recorder = Recorder(folder)
    tap = recorder.tap_factory(SUBJECT)("a")
    assert tap is not None
    calls = []
    for number in range(2):
        tap.do({"screen": np.full(2000, number, dtype="<f4")})
        calls.append(tap.asked)
    for asked in calls:
        assert asked is not None
        tap.answered(asked, {"observation": {}, "reward": None, "done": False})
    recorder.close()
    hashes = [line["action"]["screen"]["$array"]["sha256"] for line in lines_in(folder)]
    assert [np.load(array_path(folder, name, ".npy"))[0] for name in hashes] == [0.0, 1.0]


def test_where_no_thread_can_be_started_nothing_is_recorded_and_nobody_is_harmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    recorder = Recorder(folder)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    recorder.append(line(0))
    recorder.append(line(1))
    recorder.close()
    assert recorder.dropped == 2
    assert "can't start new thread" in caplog.text


def test_a_share_of_the_sessions_is_always_the_same_one(folder: Path) -> None:
    names = [f"session-{number}" for number in range(2000)]
    chosen = []
    for _ in range(2):
        tap = Recorder(folder, RecordingLimits(share=0.25)).tap_factory(SUBJECT)
        chosen.append([name for name in names if tap(name) is not None])
    assert chosen[0] == chosen[1]
    assert 400 < len(chosen[0]) < 600
    assert not any(map(Recorder(folder, RecordingLimits(share=0)).tap_factory(SUBJECT), names))
    assert all(map(Recorder(folder).tap_factory(SUBJECT), names))


def test_a_full_disk_stops_it_with_one_error_and_leaves_whole_lines(
    folder: Path, small_files: None, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter()
    recorder = Recorder(folder, meter=meter)
    with caplog.at_level(logging.WARNING, "openenv.recording"):
        for number in range(100):
            recorder.append(line(number, 300))
            if number % 10 == 0:
                recorder.flush()
        recorder.close()
    (error,) = caplog.records
    assert "has stopped" in error.getMessage()
    assert os.strerror(errno.EFBIG) in error.getMessage()
    found = [each["step"] for each in lines_in(folder)]
    assert found == list(range(len(found)))
    assert 0 < len(found) < 100
    assert (recorder.written, recorder.dropped) == (len(found), 100 - len(found))
    value = meter.reading().value
    assert [value(Count.RECORDS), value(Count.RECORDS_DROPPED)] == [len(found), 100 - len(found)]
    assert value(Count.RECORD_BYTES) == sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    assert value(Gauge.RECORDING_STOPPED) == 1


def test_sessions_that_open_after_that_are_not_recorded(folder: Path, small_files: None) -> None:
    recorder = Recorder(folder)
    recorder.append(line(0, 20_000))
    recorder.close()
    assert recorder.stopped is not None
    assert recorder.tap_factory(SUBJECT)("late") is None
    recorder.append(line(1))
    recorder.close()
    assert recorder.dropped == 2


def test_an_array_that_cannot_be_stored_stops_it_too(folder: Path, small_files: None) -> None:
    recorder = Recorder(folder)
    tap = recorder.tap_factory(SUBJECT)("a")
    assert tap is not None
    tap.do({})
    tap.ended({"screen": np.zeros(20_000), "reward": None, "done": False}, None)
    recorder.close()
    assert recorder.stopped is not None
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_folder_that_holds_the_most_it_may_takes_no_more(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(folder, RecordingLimits(folder_bytes=3000))
    for number in range(30):
        recorder.append(line(number, 300))
        recorder.flush()
    recorder.close()
    assert "OPENENV_RECORD_MAX_MB" in caplog.text
    assert 2500 < sum(path.stat().st_size for path in folder.iterdir()) < 3500
    again = Recorder(folder, RecordingLimits(folder_bytes=3000))
    again.append(line(99))
    again.close()
    assert (again.written, again.dropped) == (0, 1)


def test_large_arrays_that_wait_together_are_kept_within_the_bound_too(folder: Path) -> None:
    recorder = Recorder(folder, RecordingLimits(folder_bytes=100_000))
    tap = recorder.tap_factory(SUBJECT)("a")
    assert tap is not None
    with recorder._writing:
        for number in range(50):
            tap.do({"screen": np.full(10_000, number, dtype="|u1")})
            tap.ended({"reward": None, "done": False}, None)
    recorder.close()
    assert recorder.stopped is not None
    assert 80_000 < sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 120_000


def test_more_than_may_wait_for_a_slow_disk_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.recording.recorder.MOST_WAITING", 1000)
    recorder = Recorder(folder)
    with recorder._writing:  # the disk takes its time
        for number in range(10):
            recorder.append(line(number, 300))
    recorder.close()
    assert [recorder.written, recorder.dropped] == [4, 6]
    recorder.append(line(10))
    recorder.close()
    assert [found["step"] for found in lines_in(folder)] == [0, 1, 2, 3, 10]


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_folder_that_is_none_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" if kind == "a file" else tmp_path / "file" / "records"
    with pytest.raises(InvalidArgument, match="OPENENV_RECORD"):
        Recorder(place)


FORKING = """
import os, sys
from openenv.recording import Recorder

recorder = Recorder(sys.argv[1])
recorder.append(b'{"step":0}\\n')
recorder.flush()
recorder.append(b'{"step":1}\\n')
child = os.fork()
recorder.append(b'{"step":%d}\\n' % (2 if child else 3))
if not child:
    recorder.close()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_child_writes_a_file_of_its_own_and_the_end_of_a_process_is_no_loss(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKING, str(folder)], check=True, timeout=30)
    files = [[json.loads(text)["step"] for text in path.read_text().splitlines()] for path in folder.iterdir()]
    assert sorted(files) == [[0, 1, 2], [3]]
