"""Where connections come in."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence

from .assignment import choose
from .child import Child
from .pipe import MOST_SOCKETS

__all__ = ["Door"]

# Connections accepted before the parent looks at anything else.
BATCH = 256
# When connections come this close together, the next ones are waited for as long: one round then serves several.
# In a storm of 6,000, a connection cost the parent 19 to 25 us with this pause and 20 to 77 us without.
STORM_S = 0.001


class Door:
    """Accepts connections and hands them to workers. Reads nothing from them.

    Args:
        listener: The listening socket, which this object owns from here on.
    """

    def __init__(self, listener: socket.socket):
        listener.setblocking(False)
        self._listener = listener
        self._waiting: deque[int] = deque()
        self._last = -1
        self._accepted_at = 0.0

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def crowded(self) -> bool:
        """Whether accepted connections wait for a worker that has room in its pipe."""
        return bool(self._waiting)

    def accept(self) -> None:
        """Accepts what is there, up to a batch; in a storm, a moment later.

        Raises:
            OSError: The process or the machine has no room for more files; nothing was lost.
        """
        if time.monotonic() - self._accepted_at < STORM_S:
            time.sleep(STORM_S)
        self._accepted_at = time.monotonic()
        waiting, listener = self._waiting, self._listener
        for _ in range(BATCH):
            try:
                waiting.append(listener.accept()[0].detach())
            except BlockingIOError:
                return
            except ConnectionError:  # it went away while it waited
                continue

    def put_back(self, sockets: Sequence[int]) -> None:
        """Connections whose worker died before it took them in."""
        self._waiting.extend(sockets)

    def hand_out(self, workers: Sequence[Child]) -> None:
        """Hands waiting connections to the workers with the least load; what finds no room goes on waiting."""
        workers = list(workers)
        loads = [worker.load for worker in workers]
        shares: list[list[int]] = [[] for _ in workers]
        while self._waiting and workers:
            place = self._last = choose(loads, self._last)
            loads[place] += 1
            shares[place].append(self._waiting.popleft())
            if len(shares[place]) == MOST_SOCKETS or not self._waiting:
                full = [place for place, share in enumerate(shares) if not self._send(workers[place], share)]
                for place in reversed(full):
                    del workers[place], loads[place], shares[place]

    def close(self) -> None:
        """Accepts no more; connections that wait are given up."""
        self._listener.close()
        while self._waiting:
            os.close(self._waiting.popleft())

    def _send(self, worker: Child, share: list[int]) -> bool:
        if share and not worker.hand(share):
            self._waiting.extendleft(reversed(share))
            return False
        for descriptor in share:
            os.close(descriptor)
        share.clear()
        return True
