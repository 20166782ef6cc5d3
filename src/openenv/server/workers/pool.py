"""The worker processes of a server: started, replaced within a budget of restarts, ended."""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..._backoff import Backoff
from ...errors import LaunchFailed, OpenEnvError, UsageError
from ...settings import ServerSettings
from ...telemetry.metrics import METER, Count
from .pipe import END_S, KEY_BYTES, MOST_SOCKETS, RUNNING_S, SETTLE_S, MessageKind
from .process import WorkerMain, WorkerPhase, WorkerProcess
from .table import HELD, SharedMetrics, WorkerTable

WINDOW_S = 60.0
# A worker that lived for this many seconds did not die because of its start.
WELL_S = 30.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0


class RestartPolicy:
    """A budget of restarts, with pauses between them that grow while workers die soon after their start.

    Args:
        most: Most restarts within a minute.
    """

    def __init__(self, most: int):
        self._most = most
        self._deaths: deque[float] = deque()
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def died(self, now: float, lived_s: float) -> float | None:
        """A worker died.

        Args:
            now: Seconds on any monotonic clock.
            lived_s: Seconds for which it was ready; 0 if it never was.

        Returns:
            Seconds until it may be replaced: 0 for the first death. None if the budget is exhausted.
        """
        if lived_s >= WELL_S:
            self._backoff.reset()
        while self._deaths and self._deaths[0] <= now - WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now)
        if len(self._deaths) > self._most:
            return None
        pause = self._backoff.pause_s
        self._backoff.grow()
        return pause


logger = logging.getLogger("openenv.supervisor")

# Seconds that a worker has to exit, in addition to the time for its sessions.
LEAVE_S = END_S + 2.0
LOOK_S = 0.5
# An app may have API keys that are not in the settings.
LEAST_HOLDERS = 64


@dataclass(eq=False)
class WorkerSlot:
    """A slot for one worker.

    Attributes:
        worker: The worker in the slot; None between a death and a restart.
        successor: The worker that replaces it as soon as that is ready.
        restart_at: When the next worker is started, after a death.
    """

    worker: WorkerProcess | None = None
    successor: WorkerProcess | None = None
    restart_at: float | None = None


@dataclass(eq=False)
class WorkerPool:
    """Keeps the number of workers in the settings running.

    Attributes:
        settings: The settings of the server.
        main: What a worker process runs.
        started: Called with each worker process that was started.
        ended: Called with each worker process that has ended, before its pipe is closed.
        workers: All worker processes.
        complete: Whether all workers have been ready once.
        failure: Why the server cannot continue.
        table: The table that the workers share.
    """

    settings: ServerSettings
    main: WorkerMain
    started: Callable[[WorkerProcess], None]
    ended: Callable[[WorkerProcess], None]
    workers: list[WorkerProcess] = field(default_factory=list)
    complete: bool = False
    failure: OpenEnvError | None = None
    _to_replace: deque[WorkerSlot] = field(default_factory=deque)
    _ending: bool = False
    _replacing: bool = False

    def __post_init__(self) -> None:
        settings = self.settings
        self._slots = [WorkerSlot() for _ in range(settings.workers)]
        # Most processes: old workers keep their sessions during a replacement, and dead ones are restarted meanwhile.
        self._most = 2 * settings.workers
        keys = 0 if settings.api_keys is None else settings.api_keys.count(",") + 1
        self.table = WorkerTable(3 * settings.workers, max(keys, LEAST_HOLDERS))
        self._metrics = SharedMetrics(3 * settings.workers)
        self._metrics.host()
        self._free_rows = deque(self.table.row(index) for index in range(len(self.table)))
        self._policy = RestartPolicy(settings.worker_restarts)

    @property
    def taking(self) -> list[WorkerProcess]:
        """The workers that may get connections."""
        workers = (slot.worker for slot in self._slots)
        return [worker for worker in workers if worker is not None and worker.phase is WorkerPhase.READY]

    @property
    def _started_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.phase is not WorkerPhase.STARTING]

    def find(self, key: int) -> WorkerProcess | None:
        """The worker with a key; None if no serving worker has it."""
        return next((worker for worker in self._started_workers if worker.key == key), None)

    def vacancies(self, limit: int | None) -> int | None:
        """The number of connections that may be handed out now, to spread sessions evenly; None for all.

        With more clients than slots, the workers that answer first would get the sessions. So workers have only as
        many undecided connections as there are free slots: each gets a slot, on the worker with the least load.

        Args:
            limit: Most sessions of the whole server; None if unknown.
        """
        free = 0 if limit is None else limit - self.table.total(HELD)
        if free <= 0:  # there is no slot to compete for
            return None
        return max(0, free - sum(worker.undecided for worker in self.workers))

    def start(self) -> None:
        """Starts all workers."""
        for slot in self._slots:
            self._fill(slot)

    def ready(self, worker: WorkerProcess) -> None:
        """A worker is ready to serve."""
        if worker.phase is not WorkerPhase.STARTING:
            return
        worker.became_ready(time.monotonic())
        slot = next((slot for slot in self._slots if slot.successor is worker), None)
        if slot is not None:
            slot.successor = None
            slot.restart_at = None
            old, slot.worker = slot.worker, worker
            if old is not None:
                self._leave(old, MessageKind.RETIRE, self.settings.grace_s)
        self.complete = self.complete or len(self.taking) == len(self._slots)

    def replace_all(self) -> None:
        """Replaces every worker by a new one, one after the other. Queues no worker twice."""
        if not self._ending:  # a new worker would not know that it has to end
            self._to_replace.extend([slot for slot in self._slots if slot not in self._to_replace])
            self._replacing = True

    def leave(self, grace_s: float) -> None:
        """Ends all workers. Their sessions have `grace_s` seconds."""
        self._ending = True
        self._to_replace.clear()
        for worker in self.workers:
            self._leave(worker, MessageKind.DRAIN, grace_s)

    def kill(self) -> None:
        """Ends all workers at once."""
        self._ending = True
        for worker in self.workers:
            worker.kill("had to end at once")

    def wake(self, rows: bytes | None = None) -> None:
        """Notifies workers with waiting newcomers that a slot is free: those of some rows (2 bytes each), or all."""
        wanted = None if rows is None else {rows[at : at + 2] for at in range(0, len(rows), 2)}
        for worker in self._started_workers:
            if wanted is None or worker.row.index.to_bytes(2, "big") in wanted:
                worker.pipe.post(MessageKind.FREE)

    def ask(self, asking: WorkerProcess) -> None:
        """Asks all other workers to send their list of sessions to this one."""
        others = [worker for worker in self._started_workers if worker is not asking]
        count = len(others).to_bytes(2, "big")
        for first in range(0, max(1, len(others)), MOST_SOCKETS):
            some = others[first : first + MOST_SOCKETS]
            keys = b"".join(worker.key.to_bytes(KEY_BYTES, "big") for worker in some)
            asking.pipe.post(MessageKind.ANSWER_SOCKETS, count + keys, self._answer_sockets(some))

    @staticmethod
    def _answer_sockets(workers: list[WorkerProcess]) -> list[int]:
        """Sockets on which workers answer, in their order; fewer where the process may open no more files."""
        ends: list[int] = []
        for worker in workers:
            try:
                here, there = socket.socketpair()
            except OSError:
                break
            with there:  # a worker with a full pipe gets no question: its socket has nothing to read
                worker.pipe.send(MessageKind.TELL, b"", [there.fileno()])
            ends.append(here.detach())
        return ends

    def turn(self, now: float) -> None:
        """Performs due work: kills overdue workers, starts missing ones, continues a replacement."""
        for worker in self.workers:
            reason = worker.overdue(now)
            if reason is not None:
                worker.kill(reason)
        for slot in self._slots:
            if slot.restart_at is not None and slot.restart_at <= now:
                slot.restart_at = None
                self._fill(slot)
        if self._to_replace and len(self.workers) < self._most and not any(slot.successor for slot in self._slots):
            slot = self._to_replace.popleft()
            if slot.worker is not None:  # else its restart makes a new one
                try:
                    slot.successor = self._start()
                except OSError as error:
                    self._keep_old_workers()
                    said = "no new worker could be started: %s; the old workers continue"
                    logger.error(said, error.strerror or error)
        elif self._replacing and not self._to_replace and not any(slot.successor for slot in self._slots):
            self._replacing = False
            logger.warning("SIGHUP: all workers are new; the old ones end with their sessions")

    def rest_s(self, now: float) -> float:
        """Seconds until `turn` is due."""
        times = [worker.deadline for worker in self.workers if worker.deadline is not None]
        times += [slot.restart_at for slot in self._slots if slot.restart_at is not None]
        return min([max(0.0, time - now) for time in times] + [min(LOOK_S, self.settings.worker_silence_s / 4)])

    def reap(self) -> None:
        """Handles workers that have ended."""
        gone = [worker for worker in self.workers if worker.exit_code is not None]
        for worker in gone:
            self.workers.remove(worker)
            worker.phase = WorkerPhase.GONE  # before its connections are handed to another worker
            self.ended(worker)
            worker.row.clear()
            self._metrics.fold(worker.row.index)
            self._free_rows.append(worker.row)
            self._handle_death(worker)
        if gone:
            self.wake()

    def close(self) -> None:
        """Frees all processes and memory."""
        self.kill()
        for worker in self.workers:
            worker.wait()
        self.table.close()
        METER.leave()
        self._metrics.close()

    def _fill(self, slot: WorkerSlot) -> None:
        if self._ending:
            return
        try:
            slot.worker = self._start()
        except OSError as error:
            self._again(slot, 0.0, f"could not be started: {error.strerror or error}")

    def _keep_old_workers(self) -> None:
        self._to_replace.clear()
        self._replacing = False

    def _start(self) -> WorkerProcess:
        row = self._free_rows[0]
        worker = WorkerProcess(self.main, self.table, self._metrics, row, self.settings)
        self._free_rows.popleft()
        self.workers.append(worker)
        self.started(worker)
        return worker

    def _leave(self, worker: WorkerProcess, kind: MessageKind, grace_s: float) -> None:
        spare = LEAVE_S + (SETTLE_S if kind is MessageKind.RETIRE else 0.0)
        worker.leave(kind, grace_s, time.monotonic() + grace_s + RUNNING_S + spare)

    def _handle_death(self, worker: WorkerProcess) -> None:
        """Decides what to do after the death of a worker."""
        slot = next((slot for slot in self._slots if worker in (slot.worker, slot.successor)), None)
        if slot is None or self._ending:
            return
        if slot.successor is worker:
            slot.successor = None
            self._keep_old_workers()
            logger.error("the new worker %d %s; the old workers continue", worker.pid, worker.cause)
            return
        slot.worker = None
        if not self.complete and worker.ready_at is None and not worker.killed:
            never = LaunchFailed(f"a worker process {worker.cause} before it was ready: see its output")
            self._fail(never if worker.complaint is None else UsageError(worker.complaint))
            return
        lived_s = 0.0 if worker.ready_at is None else time.monotonic() - worker.ready_at
        what = "its sessions are lost" if worker.ready_at is not None else "before it was ready"
        self._again(slot, lived_s, f"{worker.pid} {worker.cause}, {what}")

    def _again(self, slot: WorkerSlot, lived_s: float, what: str) -> None:
        """Fills an empty slot again, if the budget allows."""
        now = time.monotonic()
        pause = self._policy.died(now, lived_s)
        if pause is None:
            most = f"more than {self.settings.worker_restarts} times within a minute (worker_restarts)"
            self._fail(LaunchFailed(f"worker processes died {most}; the last one, worker {what}: see its output"))
            return
        logger.warning("worker %s: a new one starts in %g s", what, pause)
        METER.add(Count.WORKER_RESTARTS)
        slot.restart_at = now + pause

    def _fail(self, error: OpenEnvError) -> None:
        self.failure = error
        self.leave(0.0)
