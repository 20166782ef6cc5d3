"""A process that is started, watched, and ended together with what it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from openenv.errors import LaunchFailed
from openenv.providers.process import Process
from openenv.providers.redaction import TAIL_LINES

from ..server.wires import eventually

pytestmark = pytest.mark.real

VARIABLES = {"PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs, and ends them with the test."""
    with ExitStack() as started:

        def run(program: str, **variables: str) -> Process:
            process = Process([sys.executable, "-c", program], VARIABLES | variables)
            started.callback(process.stop)
            return process

        yield run


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_its_end_and_its_last_words(start: Start) -> None:
    process = start("import sys; print('so long', file=sys.stderr); sys.exit(3)")
    assert process.wait_for("so long", 10.0)
    eventually(lambda: process.end is not None)
    assert process.end == "ended with exit code 3"
    assert process.tail == "so long"


def test_one_that_was_killed(start: Start) -> None:
    process = start("import time; print('here'); time.sleep(60)")
    assert process.wait_for("here", 10.0)
    assert process.end is None
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: process.end is not None)
    assert process.end == "was killed by SIGKILL"


def test_waiting_for_a_line(start: Start) -> None:
    process = start("import time; print('on http://127.0.0.1:4711 now'); time.sleep(60)")
    found = process.wait_for(r"on http://[\d.]+:(\d+)", 10.0)
    assert found is not None
    assert found[1] == "4711"
    assert process.wait_for("never said", 0.01) is None


def test_waiting_ends_with_the_process(start: Start) -> None:
    began = time.monotonic()
    assert start("print('nothing')").wait_for("something", 30.0) is None
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_waiting_ends_with_the_process_and_not_with_what_it_has_left_behind(start: Start) -> None:
    child = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"  # holds the log open
    process = start(f"import subprocess, sys; {child}; print('bye'); sys.exit(3)")
    began = time.monotonic()
    assert process.wait_for("something", 50.0) is None
    assert time.monotonic() - began < 30
    assert (process.end, process.tail) == ("ended with exit code 3", "bye")


def test_only_the_end_of_a_log_is_kept_and_no_secret(start: Start) -> None:
    process = start("for n in range(1000): print('line', n, 'of', 'hush' + '-hush')", MY_TOKEN="hush-hush")
    eventually(lambda: process.end is not None)
    lines = process.tail.splitlines()
    assert (len(lines), lines[-1]) == (TAIL_LINES, "line 999 of ***")


def test_bytes_that_are_no_text(start: Start) -> None:
    process = start("import sys; sys.stdout.buffer.write(bytes(range(256)) + b'\\nend\\n')")
    assert process.wait_for("^end", 10.0)


@pytest.mark.parametrize("stubborn", [False, True])
def test_what_it_has_started_ends_with_it(start: Start, stubborn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.providers.process.GRACE_S", 0.2)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
    process = start(
        f"import signal, subprocess, sys, time; {ignore}"
        f"child = subprocess.Popen([sys.executable, '-c', 'import signal, time; {ignore} time.sleep(60)']);"
        "print('child', child.pid); time.sleep(60)"
    )
    found = process.wait_for(r"child (\d+)", 10.0)
    assert found is not None
    process.stop()
    process.stop()
    assert not lives(process.pid)
    eventually(lambda: not lives(int(found[1])))


def test_after_its_end_no_thread_is_left(start: Start, no_threads_left: None) -> None:
    process = start("print('x')")
    eventually(lambda: process.end is not None)
    process.stop()


def test_what_cannot_be_started(no_threads_left: None) -> None:
    process = Process(["/nowhere/program"], VARIABLES)
    eventually(lambda: process.end is not None)
    assert "No such file" in process.tail
    process.stop()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="could not be started"):
        Process([sys.executable, "-c", ""], VARIABLES, tmp_path / "nowhere")


@pytest.mark.parametrize("variables", [{"A": "b\0c"}, {"A=B": "c"}])
def test_variables_that_there_cannot_be(variables: dict[str, str], no_threads_left: None) -> None:
    with pytest.raises(LaunchFailed, match=r"could not be started: .*(null byte|variable name)"):
        Process([sys.executable, "-c", ""], VARIABLES | variables)


PARENT = """
import os, sys, threading
from openenv.providers.process import Process
def start():
    process = Process([sys.executable, "-c", "import time; print('up'); time.sleep(60)"], dict(os.environ))
    process.wait_for("up", 10.0)
    print(process.pid, flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
END
"""


@pytest.mark.parametrize("end", ["sys.exit()", "raise KeyboardInterrupt", "os.kill(os.getpid(), 9)", "os.fork()"])
def test_it_ends_with_the_process_that_started_it(end: str) -> None:
    """However that ends; and not with the thread that started it."""
    program = PARENT.replace("END", end)
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    pid = int(parent.stdout.split()[0])
    eventually(lambda: not lives(pid))


def test_it_outlives_the_thread_that_started_it() -> None:
    program = PARENT.replace("print(process.pid, flush=True)", "global kept; kept = process")
    program = program.replace("END", "print(kept.wait_for('never', 0.2), kept.end)")
    parent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert parent.stdout.split() == ["None", "None"]
