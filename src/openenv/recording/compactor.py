"""Repair finished JSONL files and convert large ones to Parquet, in a process beside the server."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from .._files import read_at
from .._processes import run_when_idle
from ..settings import environ_of_environments
from .parquet import convert
from .storage import ARRAYS, PARQUET, PART, record_files, run_locked

logger = logging.getLogger("openenv.recording")


class Compactor:
    """Runs one compaction process at a time. The process can be killed and repeated at any moment.

    Args:
        folder: The folder with the records.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._waiting: deque[Path] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._said = False

    def scan_folder(self, own: Path | None) -> None:
        """Queues the folder if other recorders left files in it; `own` is the file that is being written here."""
        with contextlib.suppress(OSError):  # the recorder logs that it cannot write there
            if any(needs_compaction(path) for path in record_files(self._folder) if path != own):
                self._waiting.append(self._folder)

    def take(self, path: Path, size: int) -> None:
        """Queues a finished file, if it is large enough for Parquet."""
        if size < SMALL_BYTES:
            return
        if can_convert():
            self._waiting.append(path)
        elif not self._said:
            self._said = True
            logger.warning(
                "records in %s stay JSON lines, since pyarrow is not installed: pip install 'openenv[recording]' "
                "and start again for Parquet",
                self._folder,
            )

    def work(self) -> bool:
        """Starts the next job, if no job runs. Returns whether there is more to do. Never waits."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                return True
            self._process = None
            self._log_failure(process)
        if self._waiting:
            path = self._waiting.popleft()
            # -P: the user's files in the current folder must not shadow modules. A separate process group: Ctrl-C is
            # for the server, which waits for this process.
            command = [sys.executable, "-P", "-m", "openenv.recording.compactor", str(path)]
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=environ_of_environments(),
                    process_group=0 if os.name == "posix" else None,
                )
            except OSError as error:
                logger.warning("%s stays as it is: no process could be started for it: %s", path, error)
        return self._process is not None or bool(self._waiting)

    def finish(self, patience_s: float) -> None:
        """Does the remaining jobs for at most `patience_s` seconds; the next start does the rest."""
        due = time.monotonic() + patience_s
        while self.work() and (left := due - time.monotonic()) > 0:
            if self._process is not None:
                try:
                    self._process.wait(left)
                except subprocess.TimeoutExpired:
                    break
        self._waiting.clear()
        if self._process is not None:
            self._process.kill()  # a file of lines is left as it was
            self._process.wait()
            self._log_failure(self._process)
            self._process = None

    def _log_failure(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            said = stream.read().decode("utf-8", "replace").strip()
        if process.returncode > 0 and not self._said:
            self._said = True
            last = said.rpartition("\n")[2] or f"exit code {process.returncode}"
            logger.warning("records in %s could not be rotated and stay JSON lines: %s", self._folder, last)


SMALL_BYTES = 1024 * 1024
"""Files below this size stay lines: many small Parquet files would help no reader."""
# Incomplete files of this age (seconds) were abandoned.
_PART_S = 3600.0
_TAIL = 64 * 1024


def can_convert() -> bool:
    """Whether pyarrow is installed."""
    return find_spec("pyarrow") is not None


def needs_compaction(path: Path) -> bool:
    """Whether a JSONL file may need repair or conversion, if no process writes it. Reads only its end."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0 or (size >= SMALL_BYTES and can_convert()) or path.with_suffix(PARQUET).exists():
            return True
        file.seek(size - 1)
        return file.read(1) != b"\n"
    return False


def compact(folder: Path) -> None:
    """Cleans up a folder: files of killed processes are repaired and become Parquet, and torn files are deleted.

    Raises:
        OSError: A file cannot be read or written.
        ValueError: A file contains lines that are not transitions; it stays as it is.
    """
    fault: ValueError | None = None
    for path in record_files(folder):
        try:
            compact_file(path)
        except ValueError as error:  # not a record: the other files are still compacted
            fault = fault or error
    old = time.time() - _PART_S
    for part in (folder / ARRAYS).glob(f"*/*{PART}"):
        with contextlib.suppress(OSError):
            if part.stat().st_mtime < old:
                part.unlink()
    if fault is not None:
        raise fault


def compact_file(path: Path) -> bool:
    """Compacts one JSONL file. Returns False, and does nothing, if a process writes the file.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: The file contains lines that are not transitions; it stays as it is.
    """

    def work(fd: int) -> None:
        if path.with_suffix(PARQUET).exists():  # converted before its process was killed
            path.unlink()
            return
        size = end = os.fstat(fd).st_size
        found = -1
        while end > 0 and found < 0:  # an incomplete last line is removed
            start = max(0, end - _TAIL)
            found = read_at(fd, end - start, start).rfind(b"\n")
            end = start + found + 1
        if end < size:
            os.ftruncate(fd, end)
            size = end
        if size == 0:
            path.unlink()
        elif size >= SMALL_BYTES and can_convert():
            try:
                convert(path)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            path.unlink()

    return run_locked(path, work)


def main(arguments: list[str]) -> int:
    """Compacts the folder or file in `arguments`. Returns the exit code: 0, or 1 with a line on stderr."""
    path = Path(arguments[0])
    try:
        if path.is_dir():
            compact(path)
        else:
            compact_file(path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    run_when_idle()
    sys.exit(main(sys.argv[1:]))
