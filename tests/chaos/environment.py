"""The environment of this suite: it notes in a ledger what was done to it, and does bad things on request.

It runs under every package that offers `openenv.core`. The ledger is the file that `CHAOS_LEDGER` names; a line a
deed, appended as a whole, so that what a killed process did is known too.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
import time
from typing import Any, ClassVar

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

# Set by the suite: sessions that a server of these apps may have.
LIMIT = int(os.environ.get("MAX_CONCURRENT_ENVS", "20000"))
LEDGER = os.environ.get("CHAOS_LEDGER")
# The suite's own bounds, should nothing else stop what is endless: this machine has to survive.
MOST_FORKS = 400  # all by one process: its children do not fork
FORK_LIFE_S = 30.0
MOST_MEMORY_MB = 3000
MOST_WRITTEN_MB = 512
MEGABYTE = 1 << 20


class Dare(Action):
    """What to do, and the number of the request, which the observation repeats.

    Attributes:
        request: Its number, unique in its session.
        what: `step`, or a misdeed: see `Chaos.misdeeds`.
        seconds: How long a step takes.
        size: Bytes of text in the observation.
    """

    request: int = 0
    what: str = "step"
    seconds: float = 0.0
    size: int = 0


class Seen(Observation):
    """Which request of which episode this answers, and who answers."""

    request: int = -1
    episode: int = -1
    steps: int = 0
    pid: int = 0
    text: str = ""


class _Ledger:
    """Appends lines. Each one is one write, which the kernel does not mix with those of others."""

    def __init__(self, path: str | None):
        self._file = (
            -1 if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        )

    def note(self, deed: str, episode: int, number: int = 0) -> None:
        if self._file != -1:
            os.write(self._file, b"%s %d %d %d\n" % (deed.encode(), episode, number, os.getpid()))


ledger = _Ledger(LEDGER)


class Tasks:
    """Three tasks to train on, told by the class itself."""

    _OF: ClassVar[dict[str, list[dict[str, int]]]] = {"train": [{"number": number} for number in range(3)]}

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(cls._OF)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, int]]:
        return cls._OF.get(split, [])

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return len(cls.list_tasks(split))

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, int]:
        return cls.list_tasks(split)[index]

    @classmethod
    def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, int]]:
        return cls.list_tasks(split)[start:stop]


class Chaos(Tasks, Environment):
    """Counts its steps. The seed of a reset is the number of the episode, unique in a trial."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._episode = -1
        self._state = State(step_count=0)
        ledger.note("made", -1)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        self._episode = -1 if seed is None else seed
        self._state = State(episode_id=str(seed), step_count=0)
        ledger.note("reset", self._episode)
        return self._seen(Dare())

    def step(self, action: Dare, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._begin(action)
        if action.seconds:
            time.sleep(action.seconds)
        if action.what == "hang":
            while True:
                time.sleep(60)
        return self._seen(action)

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        ledger.note("closed", self._episode)

    def _begin(self, action: Dare) -> None:
        self._state.step_count += 1
        ledger.note("step", self._episode, action.request)
        if action.what in MISDEEDS:
            MISDEEDS[action.what]()

    def _seen(self, action: Dare) -> Seen:
        return Seen(
            request=action.request,
            episode=self._episode,
            steps=self._state.step_count,
            pid=os.getpid(),
            text="x" * action.size,
            reward=float(self._state.step_count),
        )


class Single(Chaos):
    """The same as a class that says nothing: one session at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class AsyncChaos(Chaos):
    """The same on the event loop, waiting without blocking it."""

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        return self.reset(seed, episode_id)

    async def step_async(self, action: Dare, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._begin(action)
        if action.seconds:
            await asyncio.sleep(action.seconds)
        if action.what == "hang":
            await asyncio.Event().wait()
        return self._seen(action)


class InlineChaos(Chaos):
    """The synchronous form on the event loop; elsewhere that means nothing."""

    execution = "inline"


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    print("the environment exits by itself", file=sys.stderr, flush=True)
    os._exit(7)


def _bomb() -> None:
    """Forks on and on, half of the children into groups of their own, until the suite's own bound is reached."""
    for depth in range(MOST_FORKS // 2):
        for _ in range(2):
            try:
                child = os.fork()
            except OSError:
                time.sleep(0.05)
                continue
            if child == 0 and depth % 2:
                signal.alarm(int(FORK_LIFE_S))
                time.sleep(FORK_LIFE_S)
                os._exit(0)
            if child == 0:
                # A group of its own does not save it.
                os.setpgid(0, 0)
                signal.alarm(int(FORK_LIFE_S))
                time.sleep(FORK_LIFE_S)
                os._exit(0)
    time.sleep(FORK_LIFE_S)


def _allocate() -> None:
    hoard = []
    for _ in range(MOST_MEMORY_MB // 16):
        hoard.append(b"x" * (16 * MEGABYTE))  # noqa: PERF401 - as fast as it comes, and kept
    time.sleep(FORK_LIFE_S)


def _write() -> None:
    with tempfile.TemporaryFile() as file:
        for _ in range(MOST_WRITTEN_MB):
            file.write(b"x" * MEGABYTE)
    time.sleep(FORK_LIFE_S)


def _print() -> None:
    for _ in range(MOST_WRITTEN_MB * 16):
        os.write(2, b"x" * (MEGABYTE // 16))
    time.sleep(FORK_LIFE_S)


MISDEEDS = {
    "segfault": _segfault,
    "exit": _exit,
    "bomb": _bomb,
    "allocate": _allocate,
    "write": _write,
    "print": _print,
}


def _app(environment: type[Chaos], limit: int = LIMIT) -> Any:
    return create_app(environment, Dare, Seen, env_name="chaos", max_concurrent_envs=limit)


app_sync = _app(Chaos)
app_async = _app(AsyncChaos)
app_inline = _app(InlineChaos)
app_single = _app(Single, 1)
