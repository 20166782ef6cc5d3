"""Awaiting what answers by callback."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

from openenv.errors import OpenEnvError
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import Session

__all__ = ["PATIENCE_S", "Gate", "Witness", "forgotten", "open_session", "outcome", "until"]

# How long a test waits for what should happen at once before it says that it does not happen.
PATIENCE_S = 15.0


class Gate:
    """A place where a thread of an environment waits until the test lets it pass."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._passable = threading.Event()

    def wait(self) -> None:
        """Called by the environment."""
        self._reached.set()
        assert self._passable.wait(PATIENCE_S), "nobody opened the gate"

    async def reached(self) -> None:
        """Called by the test: somebody stands at the gate."""
        assert await asyncio.to_thread(self._reached.wait, PATIENCE_S), "nobody came to the gate"

    def open(self) -> None:
        self._passable.set()


class Witness:
    """Stands where a connection would, and remembers what it hears of a session."""

    def __init__(self) -> None:
        self.verdicts: list[OpenEnvError | None] = []
        self.losses: list[OpenEnvError] = []
        self._heard = asyncio.Semaphore(0)  # of what came together, nothing is lost

    def opened(self, error: OpenEnvError | None) -> None:
        self.verdicts.append(error)
        self._heard.release()

    def lost(self, error: OpenEnvError) -> None:
        self.losses.append(error)
        self._heard.release()

    @property
    def errors(self) -> list[OpenEnvError]:
        """Why there is no session, or none any more: by whichever way it was told."""
        return [error for error in self.verdicts if error is not None] + self.losses

    async def heard(self) -> None:
        """One thing more was heard than the last time."""
        await asyncio.wait_for(self._heard.acquire(), PATIENCE_S)

    def asks(self, manager: SessionManager) -> Session:
        """Asks for a session; the answer may have come when this returns."""
        session = manager.create(self.opened, self.lost)
        manager.open(session)
        return session


async def open_session(manager: SessionManager) -> tuple[Session, Witness]:
    """A session that is LIVE. Raises what refused it."""
    witness = Witness()
    session = witness.asks(manager)
    await witness.heard()
    (error,) = witness.verdicts
    if error is not None:
        raise error
    return session, witness


async def outcome(call: Callable[[Callable[[Any, BaseException | None], None]], None]) -> tuple[Any, Any]:
    """What a callback gets: `(result, error)`. A second answer is an error of the loop, which fails the test."""
    future: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()
    call(lambda result, error: future.set_result((result, error)))
    return await asyncio.wait_for(future, PATIENCE_S)


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop and other threads go on until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what happens on other threads sets no event of ours
            await asyncio.sleep(0.001)


def forgotten(reference: weakref.ref) -> bool:
    """Nothing refers any more to what this refers to."""
    for _ in range(5):  # one collection may fall into another, and what it frees may free more
        gc.collect()
        if reference() is None:
            return True
    return False
