"""Pure rules and counters of admission: limits, slots, idle timeouts, and limits of concurrent calls."""

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
# Number of recently freed slots from which the server estimates when the next one comes free.
REMEMBERED = 32


class Decision(Enum):
    WAIT = "wait"
    REFUSE = "refuse"
    CROWDED = "crowded"
    """The newcomer would wait, but the queue is full (`queue_limit`)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Attributes:
        max_sessions: Most concurrent sessions of the whole server, each counted from the start of its constructor to
            the end of its close.
        queue_timeout_s: Seconds that a newcomer may wait for a slot; 0 refuses at once.
        idle_timeout_s: Seconds without a call after which a session is closed; None for never.
        queue_limit: Most waiting newcomers in one process.
        max_sessions_per_key: Most sessions of one API key in the whole server; None for no limit.
        max_executing: Most calls that environments of one process execute concurrently; None for no limit.
        max_constructing: Most environments that one process makes concurrently; None for no limit.
        max_abandoned_threads: Most hung calls of one process that are abandoned, so that their slots become free.
        abandon_after_s: Seconds that an ended session waits for its environment.
        gather_window_s: Seconds that a call of a shared batch waits for those of other sessions at most.
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
    gather_window_s: float = 0.001


def decide(
    limits: Limits, wait_s: float | None = None, *, held: int, closing: int, waiting: int, queued: int
) -> Decision:
    """Decides about one newcomer when no slot is free. It comes after all waiting newcomers.

    Without a queue, a newcomer waits only for a slot that is about to be free and that no other newcomer waits for.

    Args:
        limits: The limits of the server.
        wait_s: Seconds that the newcomer itself is willing to wait; by default `queue_timeout_s`.
        held: Number of sessions in the whole server that hold a slot.
        closing: Number of these sessions that are closing.
        waiting: Number of newcomers in the whole server that get a slot before it.
        queued: Number of newcomers that wait in this process, for any reason.
    """
    coming = limits.max_sessions - held + closing
    if (limits.queue_timeout_s if wait_s is None else wait_s) <= 0 and coming <= waiting:
        return Decision.REFUSE
    return Decision.WAIT if queued < limits.queue_limit else Decision.CROWDED


def max_wait_s(limits: Limits, wait_s: float | None = None) -> float:
    """Seconds that a newcomer waits before it is refused."""
    return (limits.queue_timeout_s if wait_s is None else wait_s) or CLOSING_GRACE_S


class Turnover:
    """Estimates the rate at which slots come free. It reads no clock: times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._freed: deque[float] = deque(maxlen=REMEMBERED)

    def freed(self, now: float) -> None:
        """A slot came free."""
        self._freed.append(now)

    def retry_after_s(self, now: float, waiting: int) -> float:
        """Seconds until a newcomer that is refused now should retry, so that all waiting newcomers come first.

        The estimate uses the recent rate of freed slots, including the time since the last one.
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
    """Seconds between two checks of the leases: an idle session ends after at most 1.25 times its limit."""
    return idle_timeout_s / 4


Start = Callable[[], None]
"""Begins waiting work. The gate compares it by `==`, so each caller needs a distinct object."""


class ConcurrencyGate:
    """A semaphore with callbacks: limits the calls, or constructors, that run concurrently. Used on one event loop.

    Every called `start` is followed by exactly one `leave`, when its work has ended *or was abandoned*: work that
    cannot be stopped returns its permit when no caller waits for it. Otherwise a few hanging calls would block all
    others. A `start` that raises must have called `leave` itself.

    Args:
        most: Number of permits.

    Attributes:
        inside: Number of permits in use.
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
        """Calls `start` when a permit is free: now, or after all earlier callers."""
        if self.inside < self.most and not self._waiting:
            self.inside += 1
            start()
        else:
            self._waiting[start] = None
            self._open()

    def withdraw(self, start: Start) -> bool:
        """Stops waiting. True: `start` will not be called, and no `leave` must follow. False: it does not wait."""
        return self._waiting.pop(start, self) is None

    def leave(self) -> None:
        """Returns a permit. The next caller may start before this returns."""
        self.inside -= 1
        self._open()

    def _open(self) -> None:
        # A loop and not a recursion: the work may have ended before `start` returns.
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
    """The newcomer's API key has reached its limit of sessions."""


class Slots(Protocol):
    """The slots of a server, as one of its processes sees them. Called on that process's event loop.

    Newcomers get slots in the order of their arrival, across processes: a free slot is only for the newcomer that
    waits longest. Each process orders its own newcomers. Another process wakes it after freeing a slot for its first
    newcomer, or when its first newcomer becomes the one that waits longest.

    Attributes:
        limit: Number of slots, shared by all processes.
        per_key: Most slots that one API key may take; None for no limit.
        on_free: Called on the event loop when another process may have freed a slot for newcomers of this process.
    """

    limit: int
    per_key: int | None
    on_free: Callable[[], None] | None

    @property
    def held(self) -> int:
        """The number of slots that all processes together have taken."""

    @property
    def leaving(self) -> int:
        """The number of slots that are about to be free, because their sessions are closing."""

    @property
    def waiting(self) -> int:
        """The number of newcomers that wait for a slot in all processes, without those that stand aside."""

    @property
    def stuck(self) -> int:
        """The number of unusable slots in all processes: their sessions have ended but still execute a call."""

    def add_stuck(self, change: int) -> None:
        """Changes the number of stuck slots of this process."""

    def note_request(self) -> None:
        """A requested session has a slot, waits for one, or was refused. Called once for each."""

    def take(self, since_ns: int, holder: int = 0) -> SlotOutcome:
        """Takes a slot for a newcomer.

        Args:
            since_ns: When it arrived (monotonic nanoseconds).
            holder: Number of its API key, from 1; 0 without a key, when only the server's limit applies.
        """

    def leave(self) -> None:
        """One of this process's slots is about to be given back."""

    def give(self, holder: int = 0) -> None:
        """Frees a slot that was about to be free, and that this key had taken."""

    def expect(self, waiting: int, since_ns: int, aside: int) -> bool:
        """Publishes the newcomers that wait for a slot in this process.

        Args:
            waiting: The number of newcomers.
            since_ns: When the first of them arrived (monotonic nanoseconds).
            aside: The number of further newcomers that wait until their key may have another session.

        Returns:
            Whether a slot is free for the first newcomer; then no other process calls `on_free` for it.
        """


class LocalSlots:
    """The slots of a server with a single process."""

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
