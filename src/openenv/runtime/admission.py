"""Pure rules and counters of admission: limits, slots, idle timeouts, and how many calls run at one time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .session import Session

# Without a queue, a newcomer still waits this long for the slots of sessions that are closing:
# a client that closes and connects again at once must find its own slot.
CLOSING_GRACE_S = 5.0
# Bounds of the `retry_after_s` of a refused newcomer, and its value where no slot has come free yet.
SOONEST_S, LATEST_S, UNKNOWN_S = 0.1, 60.0, 1.0
# Slots that came free lately. From them the server estimates when the next one does.
REMEMBERED = 32


class Decision(Enum):
    WAIT = "wait"
    REFUSE = "refuse"
    CROWDED = "crowded"
    """It would wait, but the queue is full (`queue_limit`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Attributes:
        max_sessions: Most sessions of the whole server at one time, from the start of their constructor to the end
            of their close.
        queue_timeout_s: Seconds a newcomer may wait for a slot; 0 refuses at once.
        idle_timeout_s: Seconds without a call after which a session is closed; None: never.
        queue_limit: Most newcomers that wait, in one process.
        max_sessions_per_key: Most sessions of the whole server that one API key has; None: no limit per key.
        max_executing: Most calls that environments of one process execute at one time; None: no limit.
        max_constructing: Most environments that one process makes at one time; None: no limit.
        max_abandoned_threads: Most calls of one process that do not return and are abandoned, so that their slots
            are free again.
        abandon_after_s: Seconds that an ended session waits for its environment.
    """

    max_sessions: int
    queue_timeout_s: float = 0.0
    idle_timeout_s: float | None = None
    queue_limit: int = 20_000
    max_sessions_per_key: int | None = None
    max_executing: int | None = None
    max_constructing: int | None = None
    max_abandoned_threads: int = 16
    abandon_after_s: float = 30.0


@dataclass(frozen=True, slots=True)
class AdmissionCounts:
    """The occupancy that a newcomer finds.

    Attributes:
        held: Sessions of the whole server that hold a slot.
        closing: Sessions among `held` that are closing.
        waiting: Newcomers of the whole server that get a slot before it.
        queued: Newcomers that wait in this process, for any reason.
    """

    held: int
    closing: int
    waiting: int
    queued: int


def decide(counts: AdmissionCounts, limits: Limits, wait_s: float | None = None) -> Decision:
    """Decides about one newcomer without a free slot; it comes after all waiting newcomers.

    Without a queue, a newcomer waits only for a slot that is about to be free and that no other newcomer waits for.

    Args:
        wait_s: Seconds that the newcomer itself is willing to wait; None leaves it to the limits.
    """
    coming = limits.max_sessions - counts.held + counts.closing
    if (limits.queue_timeout_s if wait_s is None else wait_s) <= 0 and coming <= counts.waiting:
        return Decision.REFUSE
    return Decision.WAIT if counts.queued < limits.queue_limit else Decision.CROWDED


def max_wait_s(limits: Limits, wait_s: float | None = None) -> float:
    """Seconds that a newcomer waits before it is refused."""
    return (limits.queue_timeout_s if wait_s is None else wait_s) or CLOSING_GRACE_S


class Turnover:
    """Estimates how fast slots come free. It reads no clock: times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._freed: deque[float] = deque(maxlen=REMEMBERED)

    def freed(self, now: float) -> None:
        """A slot came free."""
        self._freed.append(now)

    def retry_after_s(self, now: float, waiting: int) -> float:
        """Seconds until a newcomer that is refused now should try again: after all waiting newcomers had their turn.

        The estimate takes the recent rate of free slots, including the time since the last one.
        """
        if not self._freed:
            return UNKNOWN_S
        each = (now - self._freed[0]) / len(self._freed)
        return min(max((waiting + 1) * each, SOONEST_S), LATEST_S)


def expired_sessions(sessions: Iterable[Session], idle_timeout_s: float, now: float) -> list[Session]:
    """The sessions that were idle for `idle_timeout_s` or longer. A session with a call in flight is not idle."""
    latest = now - idle_timeout_s
    return [session for session in sessions if (idle := session.idle_since) is not None and idle <= latest]


def sweep_period_s(idle_timeout_s: float) -> float:
    """Seconds between two looks at the leases: an idle session is gone after 1.25 times its limit at most."""
    return idle_timeout_s / 4


Start = Callable[[], None]
"""Begins waiting work. The gate compares it by `==`, so each caller needs a distinct object."""


class ConcurrencyGate:
    """A semaphore with callbacks: limits how many calls, or constructors, run at one time. Used on one event loop.

    Every called `start` is followed by exactly one `leave`, when its work has ended *or is given up*: work that
    cannot be stopped gives its place back when no caller waits for it any more. Otherwise a few hanging calls would
    block all others. A `start` that raises must have called `leave` itself.

    Args:
        most: Most callers inside at one time.

    Attributes:
        inside: Callers inside now.
    """

    def __init__(self, most: int):
        self.most = most
        self.inside = 0
        self._waiting: dict[Start, None] = {}
        self._opening = False

    @property
    def waiting(self) -> int:
        """Waiting callers."""
        return len(self._waiting)

    def enter(self, start: Start) -> None:
        """Calls `start`, now or after all earlier callers, when there is room."""
        if self.inside < self.most and not self._waiting:
            self.inside += 1
            start()
        else:
            self._waiting[start] = None
            self._open()

    def withdraw(self, start: Start) -> bool:
        """Gives up waiting. True: `start` will not be called, and no `leave` follows. False: it does not wait."""
        return self._waiting.pop(start, self) is None

    def leave(self) -> None:
        """A caller inside has ended; the next one may start before this returns."""
        self.inside -= 1
        self._open()

    def _open(self) -> None:
        # A loop and not a recursion: what is started may have ended before `start` returns.
        if self._opening:
            return
        self._opening = True
        try:
            while self._waiting and self.inside < self.most:
                start = next(iter(self._waiting))
                del self._waiting[start]
                self.inside += 1
                start()
        finally:
            self._opening = False


class SlotOutcome(Enum):
    """The outcome of a request for a slot."""

    TAKEN = "taken"
    NONE = "none"
    """No slot is free, or an earlier newcomer waits for it."""
    NONE_FOR_KEY = "none for key"
    """The newcomer's API key has as many sessions as it may."""


class Slots(Protocol):
    """The slots of a server, as one of its processes sees them. Called on that process's event loop.

    Newcomers get slots in the order of their arrival, across processes: a free slot is only for the newcomer that
    waits longest. Each process orders its own newcomers. Another process wakes it after giving back a slot that its
    first newcomer may have, or after leaving it the first place.

    Attributes:
        limit: Most slots that are taken at one time, by all processes together.
        per_key: The same for the slots of one API key; None: no such limit.
        on_free: Called on the event loop when another process may have freed a slot for newcomers of this process.
    """

    limit: int
    per_key: int | None
    on_free: Callable[[], None] | None

    @property
    def held(self) -> int:
        """Slots taken now, by all processes together."""

    @property
    def leaving(self) -> int:
        """Slots of sessions that are closing, so that they are about to be free."""

    @property
    def waiting(self) -> int:
        """Newcomers that wait for a slot in all processes, without those that stand aside."""

    @property
    def stuck(self) -> int:
        """Slots, of all processes, of ended sessions that still execute a call: no session can have them."""

    def add_stuck(self, change: int) -> None:
        """So many more slots of this process are stuck, or fewer."""

    def note_request(self) -> None:
        """A requested session has a slot, waits for one, or was refused. Called once for each."""

    def take(self, since_ns: int, holder: int = 0) -> SlotOutcome:
        """Takes a slot for a newcomer.

        Args:
            since_ns: When it came (monotonic nanoseconds).
            holder: Its API key, counted from 1; 0: it has none, and only the server's limit applies.
        """

    def leave(self) -> None:
        """One of this process's slots is about to be given back."""

    def give(self, holder: int = 0) -> None:
        """Gives back a slot that was leaving, and that this key had taken."""

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        """Publishes the newcomers that wait for a slot in this process.

        Args:
            waiting: The number of newcomers.
            since_ns: When the first of them came.
            aside: The number of further newcomers that wait until their key may have another session.

        Returns:
            Whether a slot is free for the first newcomer; then no other process calls `on_free` for it.
        """


class LocalSlots:
    """The slots of a server that is one process."""

    def __init__(self, limit: int, per_key: int | None = None):
        self.limit = limit
        self.per_key = per_key
        self.on_free: Callable[[], None] | None = None
        self.waiting = 0
        self.stuck = 0
        self.held = 0
        self.leaving = 0
        self._held_by: Counter[int] = Counter()

    def add_stuck(self, change: int) -> None:
        self.stuck += change

    def note_request(self) -> None:
        """There is no other process to inform."""

    def take(self, since_ns: int, holder: int = 0) -> SlotOutcome:
        if self.held >= self.limit:
            return SlotOutcome.NONE
        if self.per_key is not None and holder:
            if self._held_by[holder] >= self.per_key:
                return SlotOutcome.NONE_FOR_KEY
            self._held_by[holder] += 1
        self.held += 1
        return SlotOutcome.TAKEN

    def leave(self) -> None:
        self.leaving += 1

    def give(self, holder: int = 0) -> None:
        self.leaving -= 1
        self.held -= 1
        if self.per_key is not None and holder:
            self._held_by[holder] -= 1

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        self.waiting = waiting
        return waiting > 0 and self.held < self.limit
