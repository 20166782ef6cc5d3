"""Sessions that wait for a slot, one queue for each API key; and ended sessions that still hold a slot."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import Draining, QueueTimeout, ServerFull
from ..telemetry.logs import log_extra
from .admission import Decision, Limits, LocalSlots, SlotOutcome, Slots, Turnover, decide, max_wait_s
from .session import Session

logger = logging.getLogger("openenv.sessions")


class QueuedSession(NamedTuple):
    """A waiting newcomer.

    Attributes:
        session: The session that it requested.
        since_ns: When it arrived, in monotonic nanoseconds, which all processes of a machine share.
        timer: Ends its wait.
    """

    session: Session
    since_ns: int
    timer: asyncio.TimerHandle


class WaitQueue:
    """One line for each API key. The newcomer that arrived first in all lines is next.

    A line steps aside when its key has reached its limit of sessions: it waits until sessions of its key end, and
    other newcomers may pass it.

    Attributes:
        aside_keys: The keys of lines that stepped aside.
    """

    def __init__(self) -> None:
        self._lines: dict[int, dict[str, QueuedSession]] = {}
        self.aside_keys: set[int] = set()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Session]:
        for line in self._lines.values():
            for newcomer in line.values():
                yield newcomer.session

    @property
    def aside(self) -> int:
        """The number of newcomers that stand aside."""
        return sum(len(self._lines[holder]) for holder in self.aside_keys)

    @property
    def first(self) -> QueuedSession | None:
        """The next newcomer."""
        heads = [next(iter(line.values())) for holder, line in self._lines.items() if holder not in self.aside_keys]
        return min(heads, key=lambda newcomer: newcomer.since_ns, default=None)

    def find(self, session_id: str) -> Session | None:
        for line in self._lines.values():
            if session_id in line:
                return line[session_id].session
        return None

    def add(self, newcomer: QueuedSession) -> None:
        session = newcomer.session
        self._lines.setdefault(session.holder, {})[session.id] = newcomer

    def remove(self, session: Session) -> bool:
        """Removes a newcomer from its line. False: it does not wait."""
        line = self._lines.get(session.holder)
        newcomer = None if line is None else line.get(session.id)
        if line is None or newcomer is None or newcomer.session is not session:
            return False
        newcomer.timer.cancel()
        del line[session.id]
        if not line:
            del self._lines[session.holder]
            self.aside_keys.discard(session.holder)
        return True


class AdmissionQueue:
    """Admits newcomers as slots come free, first come first served.

    Args:
        limits: The limits of sessions and newcomers, and the time that newcomers wait.
        admit: Starts a session that has taken its slot.

    Attributes:
        slots: The slots.
        queue: The newcomers that wait here.
        shut: Number of callers of `close` so far.
    """

    def __init__(self, limits: Limits, admit: Callable[[Session], None]):
        self.slots: Slots = LocalSlots(limits.max_sessions, limits.max_sessions_per_key)
        self.queue = WaitQueue()
        self.shut = 0
        self._limits = limits
        self._admit = admit
        self._turnover = Turnover()
        self._admitting = False

    def share(self, slots: Slots) -> None:
        """Uses slots that are shared with other processes."""
        self.slots = slots
        slots.on_free = self.admit_waiting

    def close(self) -> None:
        """Admits no more sessions. Waiting newcomers fail."""
        self.shut += 1
        for session in list(self.queue):
            session.fail(_stopping())

    def ask(self, session: Session, loop: asyncio.AbstractEventLoop, wait_s: float | None) -> None:
        """Admits a newcomer, queues it for at most `wait_s` seconds, or refuses it."""
        if self.shut:
            session.fail(_stopping())
            return
        since_ns = time.monotonic_ns()
        slots, queue, limits = self.slots, self.queue, self._limits
        if queue and session.holder in queue.aside_keys:
            outcome = SlotOutcome.NONE_FOR_KEY
        elif queue.first is not None:  # it comes after all newcomers that already wait here
            outcome = SlotOutcome.NONE
        else:
            outcome = slots.take(since_ns, session.holder)
        slots.note_request()
        if outcome is SlotOutcome.TAKEN:
            self._admit(session)
            return
        decision = decide(
            limits,
            wait_s,
            # At the limit of its key, free slots do not matter.
            held=slots.held if outcome is SlotOutcome.NONE else limits.max_sessions,
            closing=slots.leaving - slots.stuck,  # by default, newcomers do not wait for stuck slots
            waiting=slots.waiting,
            queued=len(queue),
        )
        if decision is Decision.WAIT:
            timer = loop.call_later(max_wait_s(limits, wait_s), self._give_up, session, wait_s)
            queue.add(QueuedSession(session, since_ns, timer))
            self.admit_waiting()
        else:
            session.fail(self._full(outcome, decision is Decision.CROWDED))

    def admit_waiting(self) -> None:
        """Gives free slots to waiting newcomers."""
        # A loop and not a recursion: an admitted session may have failed and ended before `_admit` returns.
        if self._admitting or self.shut or not self.queue:
            return
        self._admitting = True
        queue, slots = self.queue, self.slots
        try:
            again = True
            while again:
                aside = queue.aside
                queue.aside_keys.clear()
                while (newcomer := queue.first) is not None:
                    outcome = slots.take(newcomer.since_ns, newcomer.session.holder)
                    if outcome is SlotOutcome.TAKEN:
                        queue.remove(newcomer.session)
                        self._admit(newcomer.session)
                    elif outcome is SlotOutcome.NONE_FOR_KEY:
                        queue.aside_keys.add(newcomer.session.holder)
                    else:
                        break
                # A slot may have come free after the loop, and before the slots knew the waiting newcomers.
                again = self._tell() or queue.aside > aside
        finally:
            self._admitting = False

    def leave_queue(self, session: Session) -> bool:
        """A newcomer stops waiting. False: it did not wait."""
        left = self.queue.remove(session)
        if left and not self._admitting and self._tell():
            self.admit_waiting()
        return left

    def give_back(self, session: Session) -> None:
        """The slot of a session is free."""
        self.slots.give(session.holder)
        self._turnover.freed(time.monotonic())

    def _tell(self) -> bool:
        """Publishes the waiting newcomers. True: a slot is free for the first of them."""
        first, aside = self.queue.first, self.queue.aside
        return self.slots.expect(len(self.queue) - aside, 0 if first is None else first.since_ns, aside)

    def _give_up(self, session: Session, wait_s: float | None) -> None:
        outcome = SlotOutcome.NONE_FOR_KEY if session.holder in self.queue.aside_keys else SlotOutcome.NONE
        if self.leave_queue(session):
            waited, by = max_wait_s(self._limits, wait_s), "queue_timeout_s" if wait_s is None else "wait_s"
            full = self._full(outcome, crowded=False)
            reason = f"no session slot came free within {waited:g} s ({by}): {full.message}"
            session.fail(
                QueueTimeout(full.active_sessions, full.max_sessions, reason, retry_after_s=full.retry_after_s)
            )

    def _full(self, outcome: SlotOutcome, crowded: bool) -> ServerFull:
        """The error for a refused newcomer, with the time for a retry."""
        limits, message = self._limits, None
        held, most = self.slots.held, limits.max_sessions
        if crowded:
            wait = f"{limits.queue_limit} new sessions wait for a slot (queue_limit, OPENENV_QUEUE_LIMIT)"
            message = f"the server is full, and so is its queue: {wait}; retry later or raise this limit"
        elif outcome is SlotOutcome.NONE_FOR_KEY and limits.max_sessions_per_key is not None:
            held = most = limits.max_sessions_per_key
            setting = "max_sessions_per_key, OPENENV_MAX_SESSIONS_PER_KEY"
            message = f"this API key has {most} open sessions, its limit ({setting}): close one or retry later"
        elif self.slots.stuck:
            stuck = f"{self.slots.stuck} of them by calls that do not return"
            setting = "max_abandoned_threads, OPENENV_MAX_ABANDONED_THREADS"
            message = f"all {most} session slots are taken, {stuck} ({setting}): retry later or restart the server"
        elif most == 1:
            why = "its class does not set SUPPORTS_CONCURRENT_SESSIONS = True, or its max_sessions is 1"
            message = f"the server is full: it serves one session at a time ({why}); close it or retry later"
        retry_after_s = self._turnover.retry_after_s(time.monotonic(), len(self.queue))
        return ServerFull(held, most, message, retry_after_s=retry_after_s)


def _stopping() -> Draining:
    return Draining("the server is stopping: connect to another server")


class EndingSessions:
    """The closing sessions of a manager.

    A session is abandoned if its call, constructor or close does not return in time, up to a number of sessions.
    Above that number its slot stays taken.

    Args:
        limits: The time until sessions are abandoned, and the number that may be.
        admission: Counts slots.
        on_abandon: Called before a session is abandoned.
    """

    def __init__(self, limits: Limits, admission: AdmissionQueue, on_abandon: Callable[[Session], None]):
        self._limits = limits
        self._admission = admission
        self._on_abandon = on_abandon
        self._loop: asyncio.AbstractEventLoop | None = None
        # In the order in which they began to close.
        self._since: dict[Session, float] = {}
        # Set only while there are sessions to watch.
        self._timer: asyncio.TimerHandle | None = None
        # The number of abandoned calls that have not returned; and the sessions above the limit.
        self._abandoned = 0
        self._stuck: dict[Session, None] = {}

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Moves the timer to another event loop."""
        self._loop, self._timer = loop, None
        if self._since:
            self._watch(self._limits.abandon_after_s)

    def add(self, session: Session) -> None:
        """A session has begun to close."""
        self._since[session] = time.monotonic()
        if self._timer is None:
            self._watch(self._limits.abandon_after_s)

    def remove(self, session: Session) -> None:
        """A session has ended completely, or its remains were abandoned."""
        self._since.pop(session, None)
        if session in self._stuck:
            del self._stuck[session]
            self._admission.slots.add_stuck(-1)

    def overdue(self, session: Session) -> None:
        """The session has ended, and its call has not returned in time."""
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
            "behind already, the limit (max_abandoned_threads, OPENENV_MAX_ABANDONED_THREADS); with --isolation "
            "process the server can stop such calls",
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
        """Stops the timer after the last session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abandon(self, session: Session) -> None:
        """Abandons a call that does not return, and frees the slot of its session."""
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
        """Abandons the calls that have not returned in time."""
        self._timer = None
        latest = time.monotonic() - self._limits.abandon_after_s
        for session in [session for session, since in self._since.items() if since <= latest]:
            self.overdue(session)
        if self._since:
            self._watch(max(0.0, next(iter(self._since.values())) - latest))
