"""One timer for many: deadlines of calls, keepalive of connections, and memory that slow clients leave behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .._processes import release_free_memory

if TYPE_CHECKING:
    from .v2_session import V2Session

# Most seconds between the deadline of a call and its answer, unless the event loop is busy.
SLOT_S = 0.025


class Deadlines:
    """Calls `look` of each session after its first deadline.

    A session with one call after the other is entered once and not for each deadline: at the deadline of the first
    call, `look` returns the next deadline. So a call that ends in time, as nearly all do, costs only a comparison.
    """

    def __init__(self) -> None:
        self._slots: dict[int, tuple[set[V2Session], asyncio.TimerHandle]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, watched: V2Session, due: float) -> None:
        """Calls `look` of the session at `due` (monotonic seconds), or before."""
        slot = int(due / SLOT_S) + 1
        if watched.slot:
            if watched.slot <= slot:
                return
            self.forget(watched)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what waited on another one has ended with it
            self.close()
            self._loop = loop
        watched.slot = slot
        if slot not in self._slots:
            delay = slot * SLOT_S - time.monotonic()
            self._slots[slot] = set(), loop.call_later(max(0.0, delay), self._fire, slot)
        self._slots[slot][0].add(watched)

    def forget(self, watched: V2Session) -> None:
        """Stops watching the session."""
        slot, watched.slot = watched.slot, 0
        if slot not in self._slots:
            return
        waiting, timer = self._slots[slot]
        waiting.discard(watched)
        if not waiting:
            del self._slots[slot]
            timer.cancel()

    def close(self) -> None:
        """Stops watching all sessions."""
        for waiting, timer in self._slots.values():
            timer.cancel()
            for watched in waiting:
                watched.slot = 0
        self._slots.clear()

    def _fire(self, slot: int) -> None:
        waiting, _ = self._slots.pop(slot)
        for watched in waiting:
            watched.slot = 0
        now = time.monotonic()
        for watched in waiting:
            watched.look(now)


# A client of v2 sends something in every period of `heartbeat_s`. With four looks in each period, a client that is
# silent for two periods is found before they are over.
LOOKS = 4
PATIENCE = 2 * LOOKS - 1


class KeepaliveTarget(Protocol):
    """A connection under watch."""

    def silent(self) -> bool:
        """Whether its other end was silent since the last call of this method."""

    def ping(self) -> None:
        """Asks the other end to respond."""

    def cut(self) -> None:
        """Ends the connection: its other end was silent for too long."""


class AppKeepalive:
    """The target for a connection whose client sends heartbeats.

    Args:
        silent: Whether the client was silent since the last call of this function.
        cut: Ends the connection.
    """

    __slots__ = ("cut", "silent")

    def __init__(self, silent: Callable[[], bool], cut: Callable[[], None]):
        self.silent = silent
        self.cut = cut

    def ping(self) -> None:
        """Sends nothing: the client sends heartbeats unasked."""


class Keepalive:
    """One timer for all connections of a server. It cuts silent connections.

    Args:
        interval_s: Seconds between beats; None or 0 watches nothing.
        patience: Beats in a row at which a connection may be found silent before it is cut.
    """

    def __init__(self, interval_s: float | None, patience: int = 1):
        self._interval = interval_s or 0.0
        self._patience = patience
        self._watched: dict[KeepaliveTarget, int] = {}
        # Set only while there is a connection to watch.
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of_app(cls, period_s: float) -> Keepalive:
        """For clients that send a frame in every period: cuts those that are silent for two; 0 watches nothing."""
        return cls(period_s / LOOKS, PATIENCE)

    @property
    def watches(self) -> bool:
        """Whether it is on."""
        return self._interval > 0

    def watch(self, target: KeepaliveTarget) -> None:
        """Adds a connection. Call it on the event loop."""
        if self._interval:
            self._watched[target] = 0
            if self._timer is None:
                self._arm()

    def forget(self, target: KeepaliveTarget) -> None:
        """Drops a connection that has ended; after the last one, the timer stops."""
        self._watched.pop(target, None)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def beat(self) -> None:
        """One interval has passed: cuts the connections that were silent for too long, and pings the others."""
        for target, silences in list(self._watched.items()):
            if target not in self._watched:  # cutting another connection has ended it
                continue
            in_a_row = silences + 1 if target.silent() else 0
            if in_a_row >= self._patience:
                del self._watched[target]
                target.cut()
            else:
                self._watched[target] = in_a_row
                target.ping()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._fire)

    def _fire(self) -> None:
        self.beat()
        self._timer = None
        if self._watched:
            self._arm()


# Clients that end together are followed by one release.
RELEASE_AFTER_S = 1.0


class MemoryRelease:
    """Returns free memory to the system after clients have ended that did not read their replies."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """A client has ended; what it left unread is freed by the time of the release."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RELEASE_AFTER_S, self._release)

    def _release(self) -> None:
        self._timer = None
        release_free_memory()
