"""Who gets a slot now, who waits for one, and who is sent away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..errors import Draining, QueueTimeout, ServerFull
from .admission import Counts, Decision, Limits, Turnover, decide, patience
from .queue import Newcomer, Queue
from .session import Session
from .slots import LocalSlots, Room, Slots

__all__ = ["Entrance"]


class Entrance:
    """Lets newcomers in as slots come free, first come first served.

    Args:
        limits: How many, and how long they wait.
        admit: Starts a session whose slot was taken.

    Attributes:
        slots: What there is to be had.
        queue: Who waits here.
        shut: How many have asked that nobody be let in any more.
    """

    def __init__(self, limits: Limits, admit: Callable[[Session], None]):
        self.slots: Slots = LocalSlots(limits.max_sessions, limits.max_sessions_per_key)
        self.queue = Queue()
        self.shut = 0
        self._limits = limits
        self._admit = admit
        self._turnover = Turnover()
        self._admitting = False

    def share(self, slots: Slots) -> None:
        """Takes slots that other processes have a part in."""
        self.slots = slots
        slots.on_free = self.admit_waiting

    def close(self) -> None:
        """Lets nobody in any more; those who wait are told."""
        self.shut += 1
        for session in list(self.queue):
            session.fail(_stopping())

    def ask(self, session: Session, loop: asyncio.AbstractEventLoop, wait_s: float | None) -> None:
        """Admits a newcomer, has it wait for so many seconds at most, or sends it away."""
        if self.shut:
            session.fail(_stopping())
            return
        since_ns = time.monotonic_ns()
        room = self._room(session, since_ns)
        self.slots.note_request()
        if room is _TAKEN:
            self._admit(session)
            return
        slots, queue, limits = self.slots, self.queue, self._limits
        held = slots.held if room is _NONE else limits.max_sessions  # free slots are none of its key's business
        closing = slots.leaving - slots.stuck  # for a slot that is stuck, nobody waits unless told to
        decision = decide(Counts(held, closing, slots.waiting, len(queue)), limits, wait_s)
        if decision is Decision.WAIT:
            timer = loop.call_later(patience(limits, wait_s), self._give_up, session, wait_s)
            queue.add(Newcomer(session, since_ns, timer))
            self.admit_waiting()
        else:
            session.fail(self._full(room, decision is Decision.CROWDED))

    def admit_waiting(self) -> None:
        """Gives free slots to those who wait."""
        # A loop and not a recursion: one that is admitted may fail, and be gone, before `_admit` returns.
        if self._admitting or self.shut or not self.queue:
            return
        self._admitting = True
        queue, slots = self.queue, self.slots
        try:
            again = True
            while again:
                aside = queue.aside
                queue.call_back()
                while (newcomer := queue.first) is not None:
                    room = slots.take(newcomer.since_ns, newcomer.session.holder)
                    if room is _TAKEN:
                        queue.remove(newcomer.session)
                        self._admit(newcomer.session)
                    elif room is _NONE_FOR_KEY:
                        queue.step_aside(newcomer.session.holder)
                    else:
                        break
                # What came free after it was looked for, and before it was said who waits, was nobody told of.
                again = self._tell() or queue.aside > aside
        finally:
            self._admitting = False

    def leave_queue(self, session: Session) -> bool:
        """A newcomer waits no longer. False: it did not."""
        left = self.queue.remove(session)
        if left and not self._admitting and self._tell():
            self.admit_waiting()
        return left

    def give_back(self, session: Session) -> None:
        """The slot of a session is free."""
        self.slots.give(session.holder)
        self._turnover.freed(time.monotonic())

    def _room(self, session: Session, since_ns: int) -> Room:
        """Takes a slot for one that has just come, after all that wait here already."""
        if self.queue:
            if self.queue.is_aside(session.holder):
                return _NONE_FOR_KEY
            if self.queue.first is not None:
                return _NONE
        return self.slots.take(since_ns, session.holder)

    def _tell(self) -> bool:
        """Tells the slots who waits. True: there is one for the first of them."""
        first, aside = self.queue.first, self.queue.aside
        return self.slots.expect(len(self.queue) - aside, 0 if first is None else first.since_ns, aside)

    def _give_up(self, session: Session, wait_s: float | None) -> None:
        room = _NONE_FOR_KEY if self.queue.is_aside(session.holder) else _NONE
        if self.leave_queue(session):
            waited, by = patience(self._limits, wait_s), "queue_timeout_s" if wait_s is None else "wait_s"
            full = self._full(room, crowded=False)
            reason = f"no session slot came free within {waited:g} s ({by}): {full.message}"
            session.fail(
                QueueTimeout(full.active_sessions, full.max_sessions, reason, retry_after_s=full.retry_after_s)
            )

    def _full(self, room: Room, crowded: bool) -> ServerFull:
        """Why there is no session, and when there may be one."""
        limits, message = self._limits, None
        held, most = self.slots.held, limits.max_sessions
        if crowded:
            wait = f"{limits.queue_limit} new sessions wait for a slot (queue_limit, OPENENV_QUEUE_LIMIT)"
            message = f"the server is full, and as many as may, {wait}: retry later or raise it"
        elif room is _NONE_FOR_KEY and limits.max_sessions_per_key is not None:
            held = most = limits.max_sessions_per_key
            setting = "max_sessions_per_key, OPENENV_MAX_SESSIONS_PER_KEY"
            message = f"{most} sessions of this API key are open, the limit ({setting}): close one or retry later"
        elif self.slots.stuck:
            stuck = f"{self.slots.stuck} of them by calls that do not return"
            setting = "max_abandoned_threads, OPENENV_MAX_ABANDONED_THREADS"
            message = f"all {most} session slots are taken, {stuck} ({setting}): retry later or start the server anew"
        retry_after_s = self._turnover.retry_after_s(time.monotonic(), len(self.queue))
        return ServerFull(held, most, message, retry_after_s=retry_after_s)


def _stopping() -> Draining:
    return Draining("the server is stopping: connect to another one")


# Looking a member up on its Enum class costs more than the rest.
_TAKEN, _NONE, _NONE_FOR_KEY = Room.TAKEN, Room.NONE, Room.NONE_FOR_KEY
