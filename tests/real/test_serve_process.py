"""`openenv serve`, as users run it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from websockets.sync.client import connect

import openenv
from openenv.client import GenericEnvClient
from openenv.errors import ConnectionFailed, ConnectionLost, ServerFull, SessionLost

from ..cli.process import LIMIT_S, serving
from ..cli.projects import write_module, write_project
from ..server.workers.whereabouts import eventually, whereabouts

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SIGNALS = [signal.SIGINT, signal.SIGTERM]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 0}


def play(url, **options):
    """A short episode; returns the reward of its one step."""
    with GenericEnvClient(url, **options) as env:
        env.reset()
        return env.step({"message": "hello"}).reward


@pytest.mark.parametrize("number", SIGNALS)
def test_it_serves_until_it_is_told_to_stop(number):
    with serving("echo") as server:
        assert server.get("/health") == {"status": "healthy"}
        assert play(server.url) == 0.5
        for word in ("echo", "1 worker", "session", "fast path"):
            assert word in server.announcement
        code, complaints = server.end(number)
        assert code == CODES[number]
        assert complaints.strip() == ""
        assert server.group() == []
        with pytest.raises(ConnectionFailed):
            play(server.url)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("group", [True, False])
def test_several_workers_until_they_are_told_to_stop(number, group):
    with serving("echo", "--workers", "2") as server:
        assert "2 workers" in server.announcement
        assert server.get("/health") == {"status": "healthy"}
        assert [play(server.url) for _ in range(5)] == [0.5] * 5
        assert len(server.group()) >= 3
        code, complaints = server.end(number, group)
        assert code == CODES[number]
        assert complaints.strip() == ""
        assert server.group() == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_stops_with_sessions_open_and_a_step_running(tmp_path, workers):
    gate = tmp_path / "gate"
    with (
        serving(whereabouts(tmp_path), "--workers", workers, "--grace", "0", cwd=tmp_path) as server,
        ThreadPoolExecutor() as threads,
        GenericEnvClient(server.url) as idle,
        GenericEnvClient(server.url) as busy,
    ):
        idle.reset()
        busy.reset()
        step = threads.submit(busy.step, {"gate": str(gate)})
        eventually(Path(f"{gate}.reached").exists)
        os.kill(server.pid, signal.SIGTERM)
        gate.touch()
        assert step.result().reward == 1.0
        code, complaints = server.end(signal.SIGCONT)
        assert code == 0
        assert "Traceback" not in complaints
        assert server.group() == []
        with pytest.raises(SessionLost):
            idle.step({})


@pytest.mark.slow
def test_a_process_that_an_environment_keeps_from_ending_says_so_by_its_exit_code(tmp_path):
    """A step that blocks the event loop for ever, begun while the server is ending."""
    write_module(
        tmp_path / "blocking.py",
        """
        import time

        from openenv import Action, Environment, Observation, State


        class Blocking(Environment[Action, Observation, State]):
            def reset(self, seed=None, episode_id=None, **kwargs):
                return Observation()

            def step(self, action, timeout_s=None, **kwargs):
                return Observation()

            async def reset_async(self, seed=None, episode_id=None, **kwargs):
                return Observation()

            async def step_async(self, action, timeout_s=None, **kwargs):
                while True:
                    time.sleep(1.0)

            @property
            def state(self):
                return State()
        """,
    )
    with (
        serving("blocking:Blocking", "--grace", "0.5", "--resume-window", "0", cwd=tmp_path) as server,
        ThreadPoolExecutor() as threads,
        GenericEnvClient(server.url) as env,
    ):
        env.reset()
        os.kill(server.pid, signal.SIGTERM)
        eventually(lambda: refuses(server.url))
        step = threads.submit(env.step, {})
        code, complaints = server.end(signal.SIGCONT)
        assert code == 1
        assert "does not return: the process exits without waiting for it" in complaints
        with pytest.raises(ConnectionLost):
            step.result()


def refuses(url):
    """Whether nobody listens there any more."""
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_console_script_and_the_module_are_the_same():
    script = shutil.which("openenv", path=Path(sys.executable).parent)
    assert script is not None
    for command in ([script], [sys.executable, "-m", "openenv"]):
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        assert said.stdout == f"openenv {openenv.__version__}\n"


@pytest.mark.slow
def test_settings_may_be_variables():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with serving(
        "benchmark", HOST="localhost", PORT=str(port), WORKERS="2", MAX_CONCURRENT_ENVS="3", OPENENV_LOG_LEVEL="error"
    ) as server:
        assert server.url.endswith(f":{port}")
        assert "2 workers" in server.announcement
        assert "up to 3 sessions ·" in server.announcement
        assert server.get("/health") == {"status": "healthy"}


def test_the_command_line_wins_over_variables():
    with serving(
        "benchmark",
        "--workers",
        "1",
        "--max-sessions",
        "2",
        "--host",
        "127.0.0.1",
        HOST="192.0.2.1",
        WORKERS="2",
        OPENENV_MAX_SESSIONS="9",
    ) as server:
        assert "1 worker " in server.announcement
        assert "up to 2 sessions " in server.announcement


def test_max_sessions_overrides_what_the_app_was_built_with(tmp_path):
    write_project(tmp_path / "guess_env", package=True, limit=5)
    with serving("guess_env", "--max-sessions", "1", cwd=tmp_path) as server:
        assert "guess on " in server.announcement
        assert "up to 1 session " in server.announcement
        with GenericEnvClient(server.url) as first:
            first.reset()
            with pytest.raises(ServerFull) as caught:
                GenericEnvClient(server.url).sync().reset()
            assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)


def test_an_option_wins_even_where_it_says_what_the_default_is(tmp_path):
    write_project(tmp_path / "guess_env", package=False, limit=1)
    with (
        serving("guess_env", "--queue-timeout", "0", cwd=tmp_path, OPENENV_QUEUE_TIMEOUT_S="30") as server,
        GenericEnvClient(server.url) as first,
    ):
        first.reset()
        with pytest.raises(ServerFull):
            GenericEnvClient(server.url, message_timeout_s=LIMIT_S / 2).sync().reset()


def test_a_session_waits_for_a_slot_as_long_as_it_is_told(tmp_path):
    write_project(tmp_path / "guess_env", package=False, limit=1)
    with (
        serving("guess_env", "--queue-timeout", "0.2", cwd=tmp_path) as server,
        GenericEnvClient(server.url) as first,
    ):
        first.reset()
        with pytest.raises(ServerFull, match=r"0\.2 s"):
            GenericEnvClient(server.url).sync().reset()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "target", ["guess_env.server.app:app", "guess_env.server.guess_environment:Guess", "guess_env"]
)
def test_a_project_in_the_working_directory(tmp_path, target, workers):
    write_project(tmp_path / "guess_env", package=True)
    with serving(target, "--workers", workers, cwd=tmp_path) as server, GenericEnvClient(server.url) as env:
        env.reset()
        assert env.step({"number": 4}).reward == 4.0


def test_a_gymnasium_environment():
    pytest.importorskip("gymnasium")
    with serving("gymnasium:Blackjack-v1") as server, GenericEnvClient(server.url) as env:
        assert env.reset(seed=1).observation["observation"]
        assert env.step({"action": 0}).done is True


def test_every_address_of_this_machine():
    with serving("echo", "--host", "0.0.0.0", "--api-key", "none") as server:
        assert "http://0.0.0.0:" in server.announcement
        assert play(server.url.replace("0.0.0.0", "127.0.0.1")) == 0.5


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serving("echo", "--host", "::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert play(server.url) == 0.5


def test_an_ordinary_app_is_served_too(tmp_path):
    write_module(
        tmp_path / "plain.py",
        """
        from fastapi import FastAPI, WebSocket

        app = FastAPI()


        @app.get("/health")
        def health():
            return {"status": "plain"}


        @app.websocket("/shout")
        async def shout(websocket: WebSocket):
            await websocket.accept()
            await websocket.send_text((await websocket.receive_text()).upper())
            await websocket.close()
        """,
    )
    with serving("plain:app", cwd=tmp_path) as server:
        assert "plain:app on " in server.announcement
        assert server.get("/health") == {"status": "plain"}
        with connect(server.url.replace("http", "ws") + "/shout") as websocket:
            websocket.send("hi")
            assert websocket.recv() == "HI"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing"], "error: 'nothing' cannot be served"),
        (["echo", "--log-level", "loud"], "error: setting log_level (OPENENV_LOG_LEVEL)"),
        (["echo", "--host", "192.0.2.1"], "error: cannot listen on 192.0.2.1"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(arguments, complaint):
    result = subprocess.run(
        [sys.executable, "-m", "openenv", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(complaint)
    assert result.stderr.count("\n") == 1
