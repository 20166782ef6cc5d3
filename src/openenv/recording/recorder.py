"""Write the lines of one process into a folder, on a separate thread, so that no step waits for the disk."""

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

# Seconds that a line waits for the next write: a killed process may lose so much.
PERIOD_S = 0.1
# Lines that are written together, and the time between two batches. An event loop that becomes ready meanwhile may
# wait for the interpreter and the processor until this thread sleeps; without pauses, for a whole period. Batches are
# larger where there would be more of them: the pauses together stay below a period, however much there is.
BATCH_LINES = 32
PAUSE_S = 0.001
MOST_BATCHES = 40
# The most that may wait for a slow disk; lines beyond that are dropped.
MOST_WAITING = 64 * 1024 * 1024
# Seconds that the end of a process waits for the rotation of its last file.
PATIENCE_S = 5.0
MIB = 1024 * 1024


class RecordingLimits(NamedTuple):
    """How much is recorded.

    Attributes:
        share: Of the sessions, from 0 to 1: always the same ones, by their ids.
        file_bytes: Size of a file at which the next one begins.
        folder_bytes: Size of everything in the folder at which recording stops; None: there is none.
    """

    share: float = 1.0
    file_bytes: int = 64 * MIB
    folder_bytes: int | None = None


class Recorder:
    """Writes the lines of one process into a folder, which others may share.

    Lines are taken on any thread, and written by one that begins with the first of them. What was taken is with the
    kernel after `PERIOD_S`, and survives the process from then on. When it cannot be written, recording stops: one
    error in the log, and lines are counted as dropped from then on.

    Args:
        folder: Is made if it is not there.
        limits: How much; None: all of it.
        meter: Counts what is written; None: it is not counted.

    Raises:
        InvalidArgument: Nothing can be written in the folder.

    Attributes:
        epoch: Unix time at which the monotonic clock was 0.
        stopped: Why nothing is recorded any more; None while it is.
        written, dropped: Lines.
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
        # Bytes taken and done with: each is counted up in one place.
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
        """Makes the taps for sessions of that subject."""
        tail, share = subject.tail, self.limits.share

        def tap(session_id: str) -> Tap | None:
            chosen = share >= 1 or zlib.crc32(session_id.encode()) < share * 2**32
            return Tap(self, tail, session_id) if chosen and self.stopped is None else None

        return tap

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        """Takes a line. Never waits, never fails."""
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
        """Begins to write, and cleans up after killed recorders."""
        with self._changing:
            if self._thread is None and self.stopped is None:
                self._ending.clear()
                thread = threading.Thread(target=self._run, name="openenv-recorder", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # there may be no more of them
                    self._stop(OSError(f"no thread could be started for it: {error}"))
                else:
                    self._thread = thread

    def flush(self) -> None:
        """Writes the waiting lines. Blocks for as long as the disk does."""
        with self._writing:
            self._write()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Writes the waiting lines, ends the file and the thread. A later line begins another file.

        Args:
            patience_s: Seconds for the rotation of a large last file; if they do not suffice, it is done by the next
                one who records into the folder.
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
        while left > 0:  # what comes meanwhile has time
            self._write_some(min(left, batch))
            left -= batch
            if left > 0:
                self._ending.wait(PAUSE_S)
        if self._meter is not None and self.dropped != self._counted:
            self._meter.add(Count.RECORDS_DROPPED, self.dropped - self._counted)
            self._counted = self.dropped

    def _write_some(self, count: int) -> None:
        if self.stopped is not None:
            return  # what waited is counted
        before = self.written
        taken = [self._lines.popleft() for _ in range(count)]
        try:
            self._add([each if type(each) is bytes else self._ready(*each) for each in taken])
        except OSError as error:
            self._stop(error)
        self.dropped += count - (self.written - before)

    def _ready(self, line: bytes, blobs: list[Blob]) -> bytes:
        """A line as it is written, after its blobs have been stored."""
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
        """Nothing more can be recorded; everything else goes on."""
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
    """Makes a folder for records, if it is not there.

    Returns:
        Its absolute path.

    Raises:
        InvalidArgument: Nothing can be written in it.
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


# For the end of the process, and for its children.
_recorders: WeakSet[Recorder] = WeakSet()


def _close_all() -> None:
    for recorder in list(_recorders):
        recorder.close()


def _reset_in_child() -> None:
    for recorder in list(_recorders):  # what the parent has is the parent's
        journal = recorder._journal
        recorder._begin()
        if journal is not None:
            journal.close(sync=False)


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
