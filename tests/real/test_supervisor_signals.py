"""`openenv serve` that is told to stop, or to replace its workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ..cli.process import LIMIT_S, serving
from ..cli.projects import write_module
from ..server.workers.whereabouts import Caller, eventually, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return whereabouts(tmp_path)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def enter(caller, gate):
    """Begins a step that waits at the gate."""
    caller.pid()
    caller.step(gate=str(gate))
    eventually(Path(f"{gate}.reached").exists)


def refuses(url):
    try:
        Caller(url).hang_up()
    except (ConnectionRefusedError, ConnectionResetError):  # the door is closed, or was while we stood in it
        return True
    return False


def tell(server, number):
    os.kill(server.pid, number)


def ended(server, number=signal.SIGCONT):
    """Waits for the end of a server that was told to stop, without telling it anything more."""
    return server.end(number)


@WORKERS
def test_sigterm_lets_sessions_end_by_themselves(target, gate, workers):
    with serving(target, "--workers", workers, OPENENV_GRACE_S="60") as server:
        with Caller(server.url) as busy, Caller(server.url) as idle:
            enter(busy, gate)
            idle.pid()
            tell(server, signal.SIGTERM)
            eventually(lambda: refuses(server.url))
            gate.touch()
            assert busy.hear()["data"]["reward"] == 1.0
            # Sessions go on as long as their clients want, within the grace.
            for caller in (idle, busy):
                caller.step()
                assert caller.hear()["data"]["reward"] == 1.0
        code, complaints = ended(server)
        assert code == 0
        assert "Traceback" not in complaints
        assert server.group() == []


@WORKERS
def test_the_grace_has_an_end(target, workers):
    with serving(target, "--workers", workers, OPENENV_GRACE_S="0.2") as server, Caller(server.url) as idle:
        idle.pid()
        tell(server, signal.SIGTERM)
        lost = idle.hear()
        assert (lost["type"], lost["data"]["error"]) == ("error", "SessionLost")
        assert "grace_s" in lost["data"]["message"]
        assert idle.hear() is None
        code, complaints = ended(server)
        assert code == 0
        assert "Traceback" not in complaints
        assert server.group() == []


@WORKERS
def test_clients_of_protocol_v2_hear_that_the_server_drains(target, workers):
    with serving(target, "--workers", workers, OPENENV_GRACE_S="60") as server:
        with Caller(server.url, subprotocol="openenv.v2.json", reset=False) as caller:
            caller.say({"id": 1, "op": "open", "session": "mine"})
            assert caller.hear()["event"] == "hello"
            assert caller.hear()["ok"] is True
            tell(server, signal.SIGTERM)
            assert caller.hear() == {"event": "draining", "grace_s": 60.0}
            caller.say({"id": 2, "op": "open", "session": "another"})
            assert caller.hear()["error"]["error"] == "Draining"
            caller.say({"id": 3, "op": "reset", "session": "mine", "seq": 1})
            assert caller.hear()["ok"] is True
        assert ended(server)[0] == 0


@WORKERS
def test_ctrl_c_ends_idle_sessions_at_once_but_no_running_call(target, gate, workers):
    with serving(target, "--workers", workers) as server, Caller(server.url) as idle, Caller(server.url) as busy:
        idle.pid()
        enter(busy, gate)
        tell(server, signal.SIGINT)
        eventually(lambda: refuses(server.url))
        gate.touch()
        assert busy.hear()["data"]["reward"] == 1.0
        assert idle.hear()["data"]["error"] == "SessionLost"
        code, complaints = ended(server)
        assert code == 130
        assert "Traceback" not in complaints
        assert server.group() == []


@WORKERS
def test_a_step_that_never_ends_does_not_keep_the_server(target, gate, workers):
    with serving(target, "--workers", workers) as server, Caller(server.url) as busy:
        enter(busy, gate)
        tell(server, signal.SIGINT)
        assert busy.hear()["data"]["error"] == "SessionLost"
        ended(server)
        assert server.group() == []


@WORKERS
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(target, gate, workers, second):
    with serving(target, "--workers", workers, OPENENV_GRACE_S="600") as server, Caller(server.url) as busy:
        enter(busy, gate)
        tell(server, signal.SIGTERM)
        eventually(lambda: refuses(server.url))
        code, complaints = server.end(second)
        assert code == 128 + second
        assert "Traceback" not in complaints
        assert busy.hear() is None
        assert server.group() == []


class Stream:
    """Callers that come one after the other, from a thread, until it is stopped."""

    def __init__(self, url):
        self._url = url
        self._stop = threading.Event()
        self.places = []
        self.versions = set()
        self.failures = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.is_set():
            try:
                with Caller(self._url) as caller:
                    reply = caller.hear()
                    self.places.append(reply["data"]["observation"]["pid"])
                    self.versions.add(reply["data"]["observation"]["version"])
            except Exception as error:  # noqa: BLE001 - whatever it is, the test reports it
                self.failures.append(error)


def test_sighup_replaces_every_worker_and_refuses_nobody(tmp_path, target, gate):
    with serving(target, "--workers", "2", OPENENV_GRACE_S="60") as server:
        before = workers_of(server.pid)
        with Caller(server.url) as busy, Caller(server.url) as idle, Stream(server.url) as stream:
            enter(busy, gate)
            idle.pid()
            source = tmp_path / "whereabouts.py"
            # Of another size: Python takes a source of the same second and size for the one that it has compiled.
            source.write_text(source.read_text().replace("VERSION = 1", "VERSION = 1 + 1"))
            tell(server, signal.SIGHUP)
            after = eventually(
                lambda: len(last := set(stream.places[-20:])) == 2 and last.isdisjoint(before) and last
            )
            # Sessions of the old workers live until they end.
            gate.touch()
            assert busy.hear()["data"]["reward"] == 1.0
            idle.step()
            assert idle.pid() in before
            busy.hang_up()
            idle.hang_up()
            assert eventually(lambda: set(workers_of(server.pid)) == after)
        assert stream.failures == []
        assert stream.versions == {1, 2}
        code, complaints = server.end(signal.SIGTERM)
        assert code == 0
        (line,) = complaints.splitlines()
        assert line.endswith("SIGHUP: all workers are new; the old ones end with their sessions")


def test_a_client_that_was_connected_before_may_still_open_its_session(tmp_path, target):
    module, ready = tmp_path / "whereabouts.py", tmp_path / "ready"
    with serving(target, "--workers", "2") as server:
        before = workers_of(server.pid)
        with Caller(server.url, subprotocol="openenv.v2.json", reset=False) as caller:
            assert caller.hear()["event"] == "hello"
            # A new worker that is ready gives an old one two seconds.
            wait = f"import pathlib, time\nwhile not pathlib.Path({str(ready)!r}).exists():\n    time.sleep(0.01)\n"
            module.write_text(wait + module.read_text())
            tell(server, signal.SIGHUP)
            eventually(lambda: len(workers_of(server.pid)) > 2)
            caller.say({"id": 1, "op": "open", "session": "mine"})
            assert caller.hear()["ok"] is True
            caller.say({"id": 2, "op": "close", "session": "mine"})
            assert caller.hear()["ok"] is True
        ready.touch()
        eventually(lambda: len(workers_of(server.pid)) == 2 and set(workers_of(server.pid)).isdisjoint(before))
        assert server.end(signal.SIGTERM)[0] == 0


def test_old_workers_go_on_when_the_new_code_is_broken(tmp_path, target):
    with serving(target, "--workers", "2") as server:
        before = workers_of(server.pid)
        (tmp_path / "whereabouts.py").write_text("import nothing_of_that_name\n")
        tell(server, signal.SIGHUP)
        said = ""
        while "the old workers continue" not in said:
            said += (line := server.line())
            assert line, said
        eventually(lambda: workers_of(server.pid) == before)
        with Caller(server.url) as caller:
            assert caller.pid() in before
        code, complaints = server.end(signal.SIGTERM)
        assert code == 0
        assert "nothing_of_that_name" in said + complaints


def serve(*arguments, cwd, **variables):
    """Runs a server that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "openenv", "serve", *arguments, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
    )


@WORKERS
@pytest.mark.parametrize("target", ["nothing", "broken:app"])
def test_what_cannot_be_imported_is_one_line_and_exit_code_1(tmp_path, workers, target):
    write_module(tmp_path / "broken.py", "import nothing_of_that_name")
    result = serve(target, "--workers", workers, cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert target in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_app_that_raises_while_it_is_imported_ends_the_server(tmp_path):
    write_module(tmp_path / "broken.py", "raise ValueError('so not')")
    result = serve("broken:app", "--workers", "2", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: broken:app: importing broken failed: ValueError: so not in ")
    assert "broken.py, line 1" in result.stderr


def test_a_worker_that_does_not_become_ready_ends_the_server(tmp_path):
    write_module(tmp_path / "slow.py", "import threading\nthreading.Event().wait(60)\n")
    result = serve("slow:app", "--workers", "2", cwd=tmp_path, OPENENV_WORKER_START_S="0.5")
    assert result.returncode == 1
    assert "was not ready in time (worker_start_s)" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_told_to_stop_before_its_workers_are_ready(tmp_path, number):
    write_module(
        tmp_path / "slow.py", "from pathlib import Path\nPath('reached').touch()\nimport time\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "openenv", "serve", "slow:app", "--workers", "2", "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    eventually((tmp_path / "reached").exists)
    os.killpg(process.pid, number)
    _, complaints = process.communicate(timeout=LIMIT_S)
    assert process.returncode == (0 if number is signal.SIGTERM else 130)
    assert complaints == ""


def test_an_ordinary_app_with_several_workers(tmp_path):
    write_module(
        tmp_path / "plain.py",
        """
        import os

        from fastapi import FastAPI

        app = FastAPI()


        @app.get("/pid")
        def pid():
            return os.getpid()
        """,
    )
    with serving("plain:app", "--workers", "2", cwd=tmp_path) as server:
        assert "plain:app on " in server.announcement
        assert {server.get("/pid") for _ in range(4)} == set(workers_of(server.pid))
        assert server.end(signal.SIGTERM)[0] == 0


def test_plain_uvicorn_workers_have_limits_of_their_own(tmp_path):
    write_module(
        tmp_path / "served.py",
        """
        from openenv.server import create_app
        from whereabouts import Errand, Place, Whereabouts

        app = create_app(Place, Errand, Whereabouts, max_concurrent_envs=1)
        """,
    )
    whereabouts(tmp_path)
    fast = ["--ws", "openenv.server.transports.uvicorn:FastPath"]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "served:app", "--workers", "2", "--port", "0", *fast],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = ""
        while said.count("Application startup complete") < 2:
            said += (line := process.stderr.readline())
            assert line, said
            assert "rror" not in line, said
        url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]
        kept = {}

        def both():
            try:
                caller = Caller(url)
            except ConnectionRefusedError:  # uvicorn says that it has started before it listens
                return False
            reply = caller.hear()
            if reply["type"] == "observation":
                kept[reply["data"]["observation"]["pid"]] = caller
            else:
                assert reply["data"]["max_sessions"] == 1
                caller.hang_up()
            return len(kept) == 2

        eventually(both)
        for caller in kept.values():
            caller.hang_up()
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_S)
