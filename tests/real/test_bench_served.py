"""Servers that live as long as a measurement, and leave nothing."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from openenv.bench import served
from openenv.bench.machine import process_tree
from openenv.bench.served import ServedProcess, ServedTarget, probe
from openenv.errors import ConnectionFailed, LaunchFailed, NotReady, UsageError

from .bench_processes import left_of

pytestmark = pytest.mark.real
HERE = Path(__file__).parent


@pytest.mark.slow
def test_a_target_is_ready_on_entering_and_gone_on_leaving():
    with ServedTarget("echo", workers=2, max_sessions=10) as server:
        probe(server.url)
        pids = server.pids()
        assert len(pids) >= 3
        assert server.cpu_seconds() > 0
        assert server.resident_bytes() > 50_000_000
        with urllib.request.urlopen(f"{server.url}/health") as answer:
            assert answer.status == 200
    assert left_of(pids) == []
    with pytest.raises(ConnectionFailed):
        probe(server.url)
    server.close()


def test_it_runs_where_and_on_what_it_is_told(tmp_path):
    core = min(os.sched_getaffinity(0))
    with ServedTarget("bench_environments:Moody", cpus={core}, cwd=HERE) as server:
        (pid,) = server.pids()
        assert os.sched_getaffinity(pid) == {core}
        assert Path(f"/proc/{pid}/cwd").resolve() == HERE


def test_an_exception_within_ends_the_server_too():
    with pytest.raises(KeyError), ServedTarget("echo") as server:
        pids = server.pids()
        raise KeyError
    assert left_of(pids) == []


def test_a_target_that_cannot_be_served_says_why():
    with pytest.raises(LaunchFailed) as caught, ServedTarget("no_such_module:app"):
        pass
    assert caught.value.message.startswith("openenv serve no_such_module:app ended with exit code 1")
    assert "no module 'no_such_module'" in caught.value.message


def test_a_server_that_dies_is_reported_with_its_last_words():
    with ServedTarget("echo") as server:
        (pid,) = server.pids()
        os.kill(pid, signal.SIGKILL)
        server._process.wait()
        with pytest.raises(LaunchFailed, match=r"was killed by SIGKILL; the end of its output:\n.*echo on http://"):
            server.cpu_seconds()


def test_a_command_that_does_not_exist_is_no_traceback():
    told = "(?s)^/no/such/program ended with exit code 1;.*No such file"
    with pytest.raises(LaunchFailed, match=told), ServedProcess(["/no/such/program"]):
        pass


def test_a_command_that_says_nothing_is_waited_for_and_ended(monkeypatch):
    monkeypatch.setattr(served, "READY_S", 0.3)
    process = ServedProcess([sys.executable, "-c", "import time; time.sleep(60)"])
    with (
        pytest.raises(NotReady, match=r"not ready after 0\.3 s: it has not printed its address; it has no output"),
        process,
    ):
        pass
    assert left_of([process._process.pid]) == []


def test_an_address_where_nobody_listens_is_waited_for(monkeypatch):
    monkeypatch.setattr(served, "READY_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = ServedProcess([sys.executable, "-c", "import time; time.sleep(60)"], f"http://127.0.0.1:{port}")
    with pytest.raises(NotReady, match="is the server up"), process:
        pass


def test_what_does_not_end_when_asked_is_killed_with_its_children(monkeypatch):
    monkeypatch.setattr(served, "STOP_S", 0.2)
    code = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "from openenv.cli import main\n"
        "import uvicorn; uvicorn.Server.handle_exit = lambda *_: None\n"
        "sys.argv = ['openenv', 'serve', 'echo', '--port', '0']\n"
        "main()\n"
    )
    with ServedProcess([sys.executable, "-c", code], workers=1) as server:
        pids = server.pids()
        assert len(pids) == 2
    assert left_of(pids) == []


@pytest.mark.slow
def test_it_does_not_outlive_a_process_that_is_killed():
    code = (
        "import sys\n"
        "from openenv.bench.served import ServedTarget\n"
        "with ServedTarget('echo', workers=2) as server:\n"
        "    print(*server.pids(), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 3
        process.kill()
    assert left_of(pids) == []


def test_a_tree_that_is_gone_is_an_error():
    with ServedTarget("echo") as server:
        (pid,) = server.pids()
    with pytest.raises(UsageError, match=f"no process {pid}"):
        process_tree([pid])
