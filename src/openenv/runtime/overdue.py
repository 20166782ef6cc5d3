"""Sessions that have ended and whose call does not return: they are left behind, and their slots are free again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ..telemetry.logs import log_extra
from .admission import Limits
from .queue import AdmissionQueue
from .session import Session

logger = logging.getLogger("openenv.sessions")


class EndingSessions:
    """The sessions of a manager that have ended and are not gone.

    One whose call, constructor or close does not return in time is abandoned, up to a number of such. Above that
    its slot stays taken.

    Args:
        limits: How long they may take, and how many may be abandoned.
        admission: Counts slots.
        on_abandon: Called before a session is abandoned.
    """

    def __init__(self, limits: Limits, admission: AdmissionQueue, on_abandon: Callable[[Session], None]):
        self._limits = limits
        self._admission = admission
        self._on_abandon = on_abandon
        self._loop: asyncio.AbstractEventLoop | None = None
        # With the time of their end, in its order.
        self._since: dict[Session, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # How many were abandoned and have not returned; and those for which the limit leaves no room.
        self._abandoned = 0
        self._stuck: dict[Session, None] = {}

    @property
    def watching(self) -> bool:
        """Whether a timer is set: only while there is a session to watch."""
        return self._timer is not None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Another event loop has the timer from here on."""
        self._loop, self._timer = loop, None
        if self._since:
            self._watch(self._limits.abandon_after_s)

    def add(self, session: Session) -> None:
        """A session has begun to end."""
        self._since[session] = time.monotonic()
        if self._timer is None:
            self._watch(self._limits.abandon_after_s)

    def remove(self, session: Session) -> None:
        """Nothing of a session is left; or what is left was abandoned."""
        self._since.pop(session, None)
        if session in self._stuck:
            del self._stuck[session]
            self._admission.slots.add_stuck(-1)

    def overdue(self, session: Session) -> None:
        """The session has ended, and its call does not return in time."""
        self._since.pop(session, None)
        session.mark_stuck()
        limit = self._limits.max_abandoned_threads
        if self._abandoned < limit:
            self._abandon(session)
            return
        self._stuck[session] = None
        self._admission.slots.add_stuck(1)
        logger.error(
            "session %s has ended and its call does not return: its slot stays taken, since %d such calls are left "
            "behind already, as many as may be (max_abandoned_threads, OPENENV_MAX_ABANDONED_THREADS); --isolation "
            "process stops such calls",
            session.id,
            self._abandoned,
            extra=log_extra(session.id, session.episode),
        )

    def returned(self, session: Session) -> None:
        """An abandoned call has returned, and its environment is closed."""
        self._abandoned -= 1
        extra = log_extra(session.id, session.episode)
        logger.warning("session %s: the call that was left behind has returned", session.id, extra=extra)
        while self._stuck and self._abandoned < self._limits.max_abandoned_threads:
            stuck = next(iter(self._stuck))
            self.remove(stuck)
            self._abandon(stuck)

    def rest(self) -> None:
        """Without sessions, no timer is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abandon(self, session: Session) -> None:
        """Leaves a call that does not return to itself, and gives the slot of its session away."""
        self._abandoned += 1
        self._on_abandon(session)
        logger.error(
            "session %s has ended and its call does not return: it is left behind, and the slot is free; it may "
            "still have effects in this process (%d of at most %d such calls: max_abandoned_threads)",
            session.id,
            self._abandoned,
            self._limits.max_abandoned_threads,
            extra=log_extra(session.id, session.episode),
        )
        session.abandon()

    def _watch(self, delay_s: float) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        """Gives up what has not returned in time."""
        self._timer = None
        latest = time.monotonic() - self._limits.abandon_after_s
        for session in [session for session, since in self._since.items() if since <= latest]:
            self.overdue(session)
        if self._since:
            self._watch(max(0.0, next(iter(self._since.values())) - latest))
