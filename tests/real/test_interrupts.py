"""What an environment raises ends its own session at most; what a signal brings ends the server."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import EnvironmentFailed, OpenEnvError

from ..cli.process import LIMIT_S, Serving, serving
from ..cli.projects import write_module
from ..server.workers.whereabouts import eventually

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

MODULE = """
import asyncio
import os
import time
from pathlib import Path

from openenv import Action, Environment, Observation, State
from openenv.server import create_app

EXITS = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit, "GeneratorExit": GeneratorExit}


class Do(Action):
    where: str = ""
    exit: str = "KeyboardInterrupt"


class Seen(Observation):
    pid: int = 0


def leave(name="KeyboardInterrupt"):
    raise EXITS[name]


async def leave_later(name):
    await asyncio.sleep(0)
    leave(name)


class Quits(Environment[Do, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    where = ""

    def reset(self, seed=None, episode_id=None, where="", **kwargs):
        self.where = where
        if where == "reset":
            leave()
        return Seen(pid=os.getpid())

    def step(self, action, timeout_s=None, **kwargs):
        if action.where == "step":
            leave(action.exit)
        if action.where == "block":
            Path(action.exit).touch()
            time.sleep(20)
        return Seen(pid=os.getpid(), reward=1.0)

    @property
    def state(self):
        if self.where == "state":
            leave()
        return State()

    def close(self):
        if self.where == "close":
            leave()

    def get_metadata(self):
        leave()

    @classmethod
    def list_splits(cls):
        leave()

    async def list_tasks(self, split):
        leave("SystemExit")


class AsyncQuits(Quits):
    async def reset_async(self, seed=None, episode_id=None, where="", **kwargs):
        return self.reset(seed, episode_id, where)

    async def step_async(self, action, timeout_s=None, **kwargs):
        if action.where == "later":
            await leave_later(action.exit)
        if action.where == "task":
            await asyncio.create_task(leave_later(action.exit))
        if action.where == "gather":
            await asyncio.gather(asyncio.sleep(0.1), leave_later(action.exit))
        if action.where == "forgotten":
            self.task = asyncio.create_task(leave_later(action.exit))
            await asyncio.sleep(0.1)
        return self.step(action)


class InlineQuits(Quits):
    execution = "inline"


class Made(AsyncQuits):
    def __init__(self):
        super().__init__()
        leave()


of_loop = create_app(AsyncQuits, Do, Seen, env_name="quits")
inline = create_app(InlineQuits, Do, Seen, env_name="quits")
made = create_app(Made, Do, Seen, env_name="quits")
"""

EXITS = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path / "quits.py", MODULE)
    return "quits"


def answer(server: Serving, path: str, body: dict[str, Any] | None = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def fails(server: Serving, where: str, **more: Any) -> None:
    """What an environment raises in a step is an error of that step, and the session goes on."""
    with GenericEnvClient(server.url) as quitting:
        quitting.reset()
        with pytest.raises(EnvironmentFailed):
            quitting.step({"where": where, **more})
        assert quitting.step({}).reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("app", ["of_loop", "inline"])
def test_an_environment_ends_no_server_whatever_it_raises_and_wherever(target: str, app: str, workers: str) -> None:
    with (
        serving(f"{target}:{app}", "--workers", workers, "--grace", "0") as server,
        GenericEnvClient(server.url) as other,
    ):
        pid = other.reset().observation["pid"]
        for exit_ in EXITS:
            for where in ("step", "later", "task", "gather") if app == "of_loop" else ("step",):
                fails(server, where, exit=exit_)
        with GenericEnvClient(server.url) as quitting:
            with pytest.raises(EnvironmentFailed):
                quitting.reset(where="reset")
            quitting.reset(where="state")
            with pytest.raises(EnvironmentFailed):
                quitting.state()
            assert quitting.reset(where="close").reward is None
        if app == "of_loop":
            with GenericEnvClient(server.url) as quitting:
                quitting.reset()
                assert quitting.step({"where": "forgotten"}).reward == 1.0
        assert answer(server, "/metadata") == 500
        assert answer(server, "/quits/splits") == 500
        assert answer(server, "/quits/tasks", {"split": "train"}) == 500
        assert other.step({}).observation["pid"] == pid
        code, _ = server.end(signal.SIGTERM)
        assert code == 0


def test_a_constructor_that_raises_it(target: str) -> None:
    with serving(f"{target}:made") as server:
        for _ in range(2):
            with pytest.raises(OpenEnvError, match="KeyboardInterrupt"):
                GenericEnvClient(server.url).sync().reset()
        assert server.get("/health") == {"status": "healthy"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_signals_end_it_during_a_step_on_the_event_loop(target: str, tmp_path: Path, workers: str) -> None:
    """The step blocks the event loop, which sees to the first signal after it; the second one does not wait."""
    with serving(f"{target}:inline", "--workers", workers) as server, ThreadPoolExecutor() as threads:
        begun = tmp_path / "begun"
        step = threads.submit(answer, server, "/step", {"action": {"where": "block", "exit": str(begun)}})
        eventually(begun.exists)
        os.kill(server.pid, signal.SIGINT)
        code, _ = server.end(signal.SIGTERM)
        assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM)  # by which of them was seen first
        assert isinstance(step.exception(), (OSError, EOFError, HTTPException))
        assert server.group() == []
