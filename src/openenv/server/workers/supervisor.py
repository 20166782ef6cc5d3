"""The parent process of many workers: accepts connections and hands them over until a signal or a failure."""

from __future__ import annotations

import json
import logging
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, Self

from ..._processes import signals
from ...settings import ServerSettings
from .pipe import EXHAUSTED_S, KEY_BYTES, MOST_SOCKETS, UNDECIDED_S, MessageKind, PipeMessage, close_all
from .pool import WorkerPool
from .process import WorkerMain, WorkerProcess, ignore_signal


def least_loaded(loads: Sequence[int], after: int) -> int:
    """The index with the least load.

    Args:
        loads: Sessions plus connections that may open one, by index; at least one entry.
        after: The index that was chosen last. Among equals the next one after it is chosen, so that connections
            without a load are spread as well.
    """
    count = len(loads)
    return min(range(count), key=lambda place: (loads[place], (place - after - 1) % count))


# Connections accepted before the parent looks at anything else.
BATCH = 256
# When connections come this close together, the next ones are waited for as long: one round then serves several.
# In a storm of 6,000, a connection cost the parent 19 to 25 us with this pause and 20 to 77 us without.
STORM_S = 0.001


class Acceptor:
    """Accepts connections and hands them to workers. It reads nothing from them.

    Args:
        listener: The listening socket; this object owns it from now on.

    Attributes:
        crowded: Whether accepted connections wait because the pipes of all workers are full.
    """

    def __init__(self, listener: socket.socket):
        listener.setblocking(False)
        self._listener = listener
        # Waiting connections, each with the time at which it was accepted.
        self._waiting: deque[tuple[int, float]] = deque()
        self.crowded = False
        self._last = -1
        self._accepted_at = 0.0

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def holding(self) -> bool:
        """Whether connections wait to be handed out."""
        return bool(self._waiting)

    def accept(self) -> None:
        """Accepts waiting connections, up to a batch. If many arrive close together, pauses a moment before.

        Raises:
            OSError: The process or the machine can open no more files; no connection was lost.
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
            except ConnectionError:  # the client disconnected while it waited
                continue

    def take_back(self, sockets: Sequence[int]) -> None:
        """Puts back connections that were handed to a worker which died before it read them."""
        self._waiting.extendleft((descriptor, 0.0) for descriptor in reversed(sockets))

    def hand_out(self, workers: Sequence[WorkerProcess], most: int | None = None) -> None:
        """Hands waiting connections to the workers with the least load. If all pipes are full, connections wait on.

        Args:
            workers: The workers that may get connections.
            most: Most connections to hand out now; None for all. A connection that has waited for `UNDECIDED_S` is
                always handed out.
        """
        # The number of connections that have waited long enough. They are in the order of their arrival.
        latest = time.monotonic() - UNDECIDED_S
        overdue = sum(1 for _ in takewhile(lambda waiting: waiting[1] <= latest, self._waiting))
        left = len(self._waiting) if most is None else max(most, overdue)
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
        self.crowded = left > 0

    def close(self) -> None:
        """Stops accepting, and closes waiting connections."""
        self._listener.close()
        close_all(descriptor for descriptor, _ in self._waiting)
        self._waiting.clear()

    def _send(self, worker: WorkerProcess, share: list[tuple[int, float]]) -> bool:
        descriptors = [descriptor for descriptor, _ in share]
        if share and not worker.hand(descriptors):
            self._waiting.extendleft(reversed(share))
            return False
        close_all(descriptors)
        share.clear()
        return True


class Signals:
    """Collects signals of this process while entered, and wakes a selector. For the main thread only."""

    def __init__(self, numbers: Iterable[int]):
        self._numbers = tuple(numbers)

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers: dict[int, Any] = {number: signal.signal(number, ignore_signal) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[signal.Signals]:
        """The signals since the last call, in their order."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


logger = logging.getLogger("openenv.supervisor")

# Seconds between two checks whether held-back connections may be handed out.
HELD_BACK_S = 0.005
SIGNALS = signals("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD")


class Supervisor:
    """Runs a server of several workers, in the main thread of a process that does nothing else.

    Args:
        listener: The listening socket; this object owns it from now on.
        settings: The settings of the server.
        main: What a worker process runs.
        on_ready: Called once, when all workers are ready, with the environment: `name`, and `limit` if it is known.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: ServerSettings,
        main: WorkerMain,
        on_ready: Callable[[dict[str, Any]], None],
    ):
        self._grace_s = settings.grace_s
        self._on_ready = on_ready
        self._serves: dict[str, Any] = {}
        self._announced = False
        self._acceptor = Acceptor(listener)
        self._pool = WorkerPool(settings, main, self._started, self._ended)
        self._selector = selectors.DefaultSelector()
        self._taking: list[WorkerProcess] = []
        self._listening = False
        # Monotonic seconds: no connection is accepted before the first, and maintenance is due at the second.
        self._accept_at = self._look_at = 0.0
        self._ended_by: signal.Signals | None = None
        self._forced = False

    def run(self) -> int:
        """Serves until a signal or a failure ends it, and every worker with it.

        Returns:
            The exit code: 0 after SIGTERM, 130 after Ctrl-C.

        Raises:
            UsageError: A worker cannot start, and never could.
            LaunchFailed: Workers die again and again.
        """
        with Signals(SIGNALS) as received, self._selector:
            self._selector.register(received, selectors.EVENT_READ, lambda _: self._on_signals(received.take()))
            try:
                self._pool.start()
                while self._pool.workers or not self._ending:
                    self._turn()
            finally:
                self._pool.close()
                self._acceptor.close()
        if self._pool.failure is not None:
            raise self._pool.failure
        if self._forced or self._ended_by is signal.SIGINT:
            return 128 + (self._ended_by or signal.SIGTERM)
        return 0

    @property
    def _ending(self) -> bool:
        return self._ended_by is not None or self._pool.failure is not None

    def _turn(self) -> None:
        """Waits for an event and handles it. Unless maintenance is due, it only hands connections over."""
        rest_s = max(0.0, self._look_at - time.monotonic())
        if self._acceptor.holding and not self._acceptor.crowded:
            rest_s = min(rest_s, HELD_BACK_S)
        for key, events in self._selector.select(rest_s):
            key.data(events)
        if self._acceptor.holding:
            self._acceptor.hand_out(self._taking, self._pool.vacancies(self._serves.get("limit")))
        now = time.monotonic()
        if now >= self._look_at or self._acceptor.crowded or not self._listening:
            self._look(now)

    def _look(self, now: float) -> None:
        """Maintains the workers, and registers their pipes with the selector."""
        self._pool.turn(now)
        self._look_at = now + self._pool.rest_s(now)
        self._taking = self._pool.taking
        crowded = self._acceptor.crowded
        open_ = self._pool.complete and not self._ending
        self._listen(open_ and bool(self._taking) and not crowded and now >= self._accept_at)
        for worker in self._pool.workers:
            key = self._selector.get_key(worker.pipe)
            full = worker.pipe.full or (crowded and worker in self._taking)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0)
            if events != key.events:
                self._selector.modify(worker.pipe, events, key.data)
        self._pool.table.serving = open_
        if self._ending:
            self._acceptor.close()
        elif self._pool.complete and not self._announced:
            self._announced = True
            self._on_ready(self._serves)

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._selector.register(self._acceptor, selectors.EVENT_READ, self._on_connections)
        elif self._listening and not wanted:
            self._selector.unregister(self._acceptor)
        self._listening = wanted

    def _started(self, worker: WorkerProcess) -> None:
        self._selector.register(worker.pipe, selectors.EVENT_READ, lambda events: self._on_pipe(worker, events))

    def _ended(self, worker: WorkerProcess) -> None:
        self._on_pipe(worker, selectors.EVENT_READ)  # its last messages
        self._selector.unregister(worker.pipe)
        for message in worker.unread_messages():
            if message.kind is MessageKind.ROUTED and self._pool.taking:
                self._route(message, self._pool.taking[0])
            elif message.kind is MessageKind.CONNECTIONS:
                self._acceptor.take_back(message.sockets)
            else:
                close_all(message.sockets)

    def _on_connections(self, _: int) -> None:
        try:
            self._acceptor.accept()
        except OSError as error:
            logger.warning(
                "no connection can be accepted for the moment: %s (open files: ulimit -n)", error.strerror or error
            )
            self._accept_at = time.monotonic() + EXHAUSTED_S
            self._look_at = 0.0  # until then the listener is not watched

    def _on_pipe(self, worker: WorkerProcess, events: int) -> None:
        self._look_at = 0.0
        if events & selectors.EVENT_WRITE:
            worker.pipe.flush()
        if not events & selectors.EVENT_READ:
            return
        while (message := worker.pipe.receive()) is not None:
            if message.kind is MessageKind.READY:
                self._serves = json.loads(message.payload)
                self._pool.ready(worker)
            elif message.kind is MessageKind.FAILED:
                worker.complaint = message.payload.decode(errors="replace")
            elif message.kind is MessageKind.FREE:
                self._pool.wake(message.payload)
            elif message.kind is MessageKind.ROUTED:
                self._route(message, worker)
            elif message.kind is MessageKind.ASK:
                self._pool.ask(worker)

    def _route(self, message: PipeMessage, otherwise: WorkerProcess) -> None:
        """Hands a connection to the worker that its URL names. If that has ended, another worker answers."""
        wanted = self._pool.find(int.from_bytes(message.payload[:KEY_BYTES], "big"))
        (wanted or otherwise).route(message)

    def _on_signals(self, numbers: list[signal.Signals]) -> None:
        self._look_at = 0.0
        for number in numbers:
            if number.name == "SIGCHLD":
                self._pool.reap()
            elif number.name == "SIGHUP":
                self._pool.replace_all()
            elif self._ended_by is None:
                self._ended_by = number
                self._pool.leave(self._grace_s if number is signal.SIGTERM else 0.0)
            else:
                self._ended_by, self._forced = number, True
                self._pool.kill()
