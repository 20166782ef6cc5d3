"""The sessions of a server that requests name: opened by one, found by those that follow."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import Unauthorized, UnknownSession
from ..logs import about
from ..sessions import SessionManager
from ..sessions.waiting import settle
from .stay import Ask, Start, Stay
from .visitor import Visitor

__all__ = ["Ask", "Start", "Stay", "Stays", "is_worker_key", "worker_of"]

logger = logging.getLogger("openenv.server")

# Sessions that ended and are known by name: so that closing one twice is no error, and others hear why it ended.
MOST_DEPARTED = 10_000


def worker_of(session_id: str) -> str | None:
    """The worker process that the id of such a session names; None if it names none."""
    worker, dot, _ = session_id.partition(".")
    return worker if dot and is_worker_key(worker) else None


def is_worker_key(text: str) -> bool:
    """Whether a text can be the key of a worker process, which may have ended."""
    try:
        return int(text, 16) > 0
    except ValueError:
        return False


class Stays:
    """The sessions of one server that are used over HTTP.

    They end when they are closed, when they were idle for `idle_timeout_s`, and with the server.

    Args:
        manager: Where they are opened.
        worker: What this process is called by clients that must reach it again; None if there is one alone.
        max_waiting: Calls of one session that may wait for their turn.
    """

    def __init__(self, manager: SessionManager, worker: Callable[[], str | None], max_waiting: int):
        self._manager = manager
        self._worker = worker
        self._max_waiting = max_waiting
        self._stays: dict[str, Stay] = {}
        self._departed: deque[str] = deque()

    async def open(self, visitor: Visitor) -> Stay:
        """Opens a session, which belongs to the holder of the visitor's key.

        Raises:
            CapacityError: There is no slot (`ServerFull`, `QueueTimeout`), or the server stops (`Draining`).
            EnvironmentFailed: The environment could not be made.
            UsageError: The server has sessions on another event loop.
        """
        worker = self._worker()
        name = secrets.token_hex(16)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        session = self._manager.create(
            lambda error: settle(ready, None, error),
            session_id=name if worker is None else f"{worker}.{name}",
            holder=visitor.holder,
            peer=visitor.peer,
            on_lost=lambda error: stay.lost(error),  # noqa: PLW0108 - it is made below
        )
        session.roams = True
        stay = Stay(session, self._max_waiting, self._forget_later)
        try:
            self._manager.open(session)
            await ready
        except BaseException:
            session.close()
            raise
        self._stays[stay.id] = stay
        return stay

    def find(self, session_id: str, visitor: Visitor, token: str | None = None) -> Stay:
        """The session of that name.

        Args:
            session_id: Its name.
            visitor: Who asks.
            token: What lets somebody use it who holds another key.

        Raises:
            UnknownSession: There is none, or none any more; its message says why, if that is known.
            Unauthorized: It belongs to another key, or the token is not its own.
        """
        stay = self.look_up(session_id, visitor, token)
        if stay.ended:
            raise stay.gone()
        return stay

    def look_up(self, session_id: str, visitor: Visitor, token: str | None = None) -> Stay:
        """The same, also for one that has ended not long ago."""
        stay = self._stays.get(session_id)
        if stay is None:
            advice = "open one with POST /sessions; a session ends with the worker process that it was opened in"
            raise UnknownSession(session_id, f"no session {session_id[:80]!r} on this server: {advice}")
        if not stay.admits(visitor, token):
            raise Unauthorized(f"session {session_id} was opened with another key: show that one, or its token")
        return stay

    def _forget_later(self, stay: Stay) -> None:
        """Only so many that have ended are remembered."""
        session = stay.session
        logger.info("session %s: %s", stay.id, stay.departed, extra=about(stay.id, session.episode))
        self._departed.append(stay.id)
        if len(self._departed) > MOST_DEPARTED:
            self._stays.pop(self._departed.popleft(), None)
