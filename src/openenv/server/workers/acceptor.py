"""Accept connections and hand each to the worker with the least load."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from .pipe import MOST_SOCKETS, UNDECIDED_S
from .process import WorkerProcess


def least_loaded(loads: Sequence[int], after: int) -> int:
    """The place with the least load.

    Args:
        loads: Sessions and connections on their way to one, by place; at least one place.
        after: The place that was chosen last. Among equals the next one after it comes first, so that connections
            which weigh nothing yet are spread as well.
    """
    count = len(loads)
    return min(range(count), key=lambda place: (loads[place], (place - after - 1) % count))


# Connections accepted before the parent looks at anything else.
BATCH = 256
# When connections come this close together, the next ones are waited for as long: one round then serves several.
# In a storm of 6,000, a connection cost the parent 19 to 25 us with this pause and 20 to 77 us without.
STORM_S = 0.001


class Acceptor:
    """Accepts connections and hands them to workers. Reads nothing from them.

    Args:
        listener: The listening socket, which this object owns from here on.
    """

    def __init__(self, listener: socket.socket):
        listener.setblocking(False)
        self._listener = listener
        # Each with the time at which it was accepted.
        self._waiting: deque[tuple[int, float]] = deque()
        self._crowded = False
        self._last = -1
        self._accepted_at = 0.0

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def crowded(self) -> bool:
        """Whether accepted connections wait for a worker that has room in its pipe."""
        return self._crowded

    @property
    def holding(self) -> bool:
        """Whether there are connections to hand out."""
        return bool(self._waiting)

    def accept(self) -> None:
        """Accepts what is there, up to a batch; in a storm, a moment later.

        Raises:
            OSError: The process or the machine has no room for more files; nothing was lost.
        """
        if time.monotonic() - self._accepted_at < STORM_S:
            time.sleep(STORM_S)
        now = self._accepted_at = time.monotonic()
        waiting, listener = self._waiting, self._listener
        for _ in range(BATCH):
            try:
                waiting.append((listener.accept()[0].detach(), now))
            except BlockingIOError:
                return
            except ConnectionError:  # it went away while it waited
                continue

    def take_back(self, sockets: Sequence[int]) -> None:
        """Connections whose worker died before it took them in."""
        self._waiting.extendleft((descriptor, 0.0) for descriptor in reversed(sockets))

    def hand_out(self, workers: Sequence[WorkerProcess], most: int | None = None) -> None:
        """Hands waiting connections to the workers with the least load; what finds no room goes on waiting.

        Args:
            workers: Those that take connections.
            most: How many may be handed out now; None for all. One that has waited for `UNDECIDED_S` always is.
        """
        left = len(self._waiting) if most is None else max(most, self._overdue())
        left = min(left, len(self._waiting))
        workers = list(workers)
        loads = [worker.load for worker in workers]
        shares: list[list[tuple[int, float]]] = [[] for _ in workers]
        while left and workers:
            place = self._last = least_loaded(loads, self._last)
            loads[place] += 1
            shares[place].append(self._waiting.popleft())
            left -= 1
            if len(shares[place]) == MOST_SOCKETS or not left:
                full = [place for place, share in enumerate(shares) if not self._send(workers[place], share)]
                for place in reversed(full):
                    left += len(shares[place])
                    del workers[place], loads[place], shares[place]
        self._crowded = left > 0

    def close(self) -> None:
        """Accepts no more; connections that wait are given up."""
        self._listener.close()
        while self._waiting:
            os.close(self._waiting.popleft()[0])

    def _overdue(self) -> int:
        """How many have waited long enough; the first of them came first."""
        latest = time.monotonic() - UNDECIDED_S
        return sum(1 for _ in takewhile(lambda waiting: waiting[1] <= latest, self._waiting))

    def _send(self, worker: WorkerProcess, share: list[tuple[int, float]]) -> bool:
        descriptors = [descriptor for descriptor, _ in share]
        if share and not worker.hand(descriptors):
            self._waiting.extendleft(reversed(share))
            return False
        for descriptor in descriptors:
            os.close(descriptor)
        share.clear()
        return True
