"""Write one process's transitions into a folder, on a separate thread, so that no step waits for the disk."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import zlib
from collections import deque
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet

from ..errors import InvalidArgument
from ..telemetry.metrics import Count, Gauge, Meter
from .compactor import Compactor
from .storage import Blob, BlobStore, DiskQuota, Journal, file_name, new_stem
from .tap import Subject, Tap, TapFactory

logger = logging.getLogger("openenv.recording")

# Seconds between two writes: a killed process may lose the lines of one such period.
PERIOD_S = 0.1
# Lines per batch, most batches per period, and the pause between two batches. An event loop that becomes ready
# meanwhile may wait for the GIL and the processor until this thread sleeps; without pauses, for a whole period. If
# more lines wait, batches get larger, so that all pauses together stay below a period.
BATCH_LINES = 32
PAUSE_S = 0.001
MOST_BATCHES = 40
# Most bytes that may wait for a slow disk; lines beyond that are dropped.
MOST_WAITING = 64 * 1024 * 1024
# Seconds that an exiting process waits for the rotation of its last file.
PATIENCE_S = 5.0
MIB = 1024 * 1024


class RecordingLimits(NamedTuple):
    """Limits on what is recorded.

    Attributes:
        share: Share of sessions to record, from 0 to 1, chosen by a hash of their ids.
        file_bytes: Size at which a file is finished and the next one begins, in bytes.
        folder_bytes: Size of the folder at which recording stops, in bytes; None for no limit.
    """

    share: float = 1.0
    file_bytes: int = 64 * MIB
    folder_bytes: int | None = None


class Recorder:
    """Writes one process's transitions into a folder, which several processes may share.

    Any thread may append lines. One thread, started with the first line, writes them: after `PERIOD_S` they are with
    the kernel and survive the process. If a write fails, recording stops: it logs one error, and counts later lines
    as dropped.

    Args:
        folder: The folder. It is created if it does not exist.
        limits: Limits on what is recorded; None to record everything.
        meter: Counts records; None to count nothing.

    Raises:
        InvalidArgument: The folder is not writable.

    Attributes:
        epoch: Unix time at which the monotonic clock was 0.
        stopped: The error that stopped recording; None while it works.
        written, dropped: Number of lines written and dropped.
    """

    def __init__(
        self, folder: str | os.PathLike[str], limits: RecordingLimits | None = None, meter: Meter | None = None
    ):
        self.folder = check_folder(folder)
        self.limits = limits or RecordingLimits()
        self.epoch = time.time() - time.monotonic()
        self.stopped: OSError | None = None
        self.written = self.dropped = 0
        self._meter = meter
        self._counted = 0
        self._begin()
        _recorders.add(self)

    def _begin(self) -> None:
        self._lines: deque[tuple[bytes, list[Blob]] | bytes] = deque()
        # Bytes accepted and bytes written. Callers count the first, the writing thread the second.
        self._taken = self._done = 0
        self._stem, self._number = new_stem(), 0
        self._journal: Journal | None = None
        self._store = BlobStore(self.folder)
        self._quota = DiskQuota(self.folder, self.limits.folder_bytes)
        self._compactor = Compactor(self.folder)
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._changing = threading.Lock()
        self._writing = threading.Lock()

    def tap_factory(self, subject: Subject) -> TapFactory:
        """A function that creates the taps of sessions with this environment."""
        tail, share = subject.tail, self.limits.share

        def tap(session_id: str) -> Tap | None:
            chosen = share >= 1 or zlib.crc32(session_id.encode()) < share * 2**32
            return Tap(self, tail, session_id) if chosen and self.stopped is None else None

        return tap

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        """Queues a line. Never blocks, never fails."""
        size = len(line)
        if blobs is not None:
            size += sum(blob.size for blob in blobs)
        if self.stopped is not None or self._taken - self._done > MOST_WAITING:
            self.dropped += 1
            return
        self._taken += size
        self._lines.append(line if blobs is None else (line, blobs))
        if self._thread is None:
            self.start()

    def start(self) -> None:
        """Starts the writing thread, which also cleans up after killed recorders."""
        with self._changing:
            if self._thread is None and self.stopped is None:
                self._ending.clear()
                thread = threading.Thread(target=self._run, name="openenv-recorder", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the limit of threads is reached
                    self._stop(OSError(f"no thread could be started for it: {error}"))
                else:
                    self._thread = thread

    def flush(self) -> None:
        """Writes the queued lines. Blocks while the disk does."""
        with self._writing:
            self._write()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Writes the queued lines, finishes the file and ends the thread. A later line starts another file.

        Args:
            patience_s: Most seconds to wait for the rotation of a large last file; after that, the next recorder of
                the folder does it.
        """
        with self._changing:
            thread, self._thread = self._thread, None
            self._ending.set()
            if thread is not None:
                thread.join()
        with self._writing:
            self._write()
            self._end_file()
            self._compactor.finish(patience_s)

    def _run(self) -> None:
        with self._writing:
            self._compactor.scan_folder(None if self._journal is None else self._journal.path)
        while not self._ending.wait(PERIOD_S):
            self.epoch = time.time() - time.monotonic()  # the wall clock may have been set
            with self._writing:
                self._write()
                self._compactor.work()

    def _write(self) -> None:
        left = len(self._lines)
        batch = max(BATCH_LINES, -(-left // MOST_BATCHES))
        while left > 0 and self.stopped is None:  # lines that arrive meanwhile wait for the next period
            before = self.written
            taken = [self._lines.popleft() for _ in range(min(left, batch))]
            try:
                self._add([each if type(each) is bytes else self._ready(*each) for each in taken])
            except OSError as error:
                self._stop(error)  # it counts the lines that are still queued
            self.dropped += len(taken) - (self.written - before)
            left -= batch
            if left > 0:
                self._ending.wait(PAUSE_S)
        if self._meter is not None and self.dropped != self._counted:
            self._meter.add(Count.RECORDS_DROPPED, self.dropped - self._counted)
            self._counted = self.dropped

    def _ready(self, line: bytes, blobs: list[Blob]) -> bytes:
        """Stores a line's blobs. Returns the line with their hashes."""
        self._check_quota()
        before = self._store.written
        for blob in blobs:
            line = line.replace(blob.token, self._store.put(blob).encode())
            self._done += blob.size
        self._quota.add(self._store.written - before)
        return line

    def _add(self, lines: list[bytes]) -> None:
        self._check_quota()
        journal = self._journal
        if journal is None:
            self._number += 1
            journal = self._journal = Journal(self.folder / file_name(self._stem, self._number))
        size, count = journal.size, journal.lines
        try:
            journal.append(lines)
        finally:
            added, grown = journal.lines - count, journal.size - size
            self.written += added
            self._done += grown
            self._quota.add(grown)
            if self._meter is not None:
                self._meter.add(Count.RECORDS, added)
                self._meter.add(Count.RECORD_BYTES, grown)
        if journal.size >= self.limits.file_bytes:
            self._end_file()

    def _check_quota(self) -> None:
        if self._quota.is_full():
            raise OSError(
                f"it holds {self._quota.bound} bytes, the most it may (record_max_mb, OPENENV_RECORD_MAX_MB)"
            )

    def _end_file(self) -> None:
        journal, self._journal = self._journal, None
        if journal is None:
            return
        try:
            journal.close()
        except OSError as error:
            self._stop(error)
        self._compactor.take(journal.path, journal.size)

    def _stop(self, error: OSError) -> None:
        """Stops recording; sessions continue."""
        if self.stopped is not None:
            return
        self.stopped = error
        self.dropped += len(self._lines)
        self._lines.clear()
        if self._meter is not None:
            self._meter.set(Gauge.RECORDING_STOPPED, 1)
        logger.error(
            "recording into %s has stopped: %s; sessions go on and are not recorded: make room, then start again",
            self.folder,
            error,
        )
        self._end_file()


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Creates a folder for records, if it does not exist.

    Returns:
        Its absolute path.

    Raises:
        InvalidArgument: The folder is not writable.
    """
    path = Path(folder).absolute()
    probe = path / f".{new_stem()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidArgument(
            f"cannot record into {path}: {reason}; name a folder that can be written to (record, OPENENV_RECORD)"
        ) from None
    return path


# For the hooks at exit and after fork.
_recorders: WeakSet[Recorder] = WeakSet()


@atexit.register
def _close_all() -> None:
    for recorder in list(_recorders):
        recorder.close()


def _reset_in_child() -> None:
    for recorder in list(_recorders):  # queued lines and the file belong to the parent
        journal = recorder._journal
        recorder._begin()
        if journal is not None:
            journal.close(sync=False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
