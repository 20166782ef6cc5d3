"""Has files that have ended brought into their last form, by a process beside this one."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from ..settings import environ_of_environments
from .files import written_in
from .tidy import SMALL_BYTES, can_convert, is_untidy

__all__ = ["Janitor"]

logger = logging.getLogger("openenv.recording")


class Janitor:
    """One process at a time; what it does can be killed and done again at any moment.

    Args:
        folder: Of the records.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._waiting: deque[Path] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._said = False

    def look_around(self, own: Path | None) -> None:
        """Looks for what others have left, other than a file that is being written here."""
        with contextlib.suppress(OSError):  # whoever writes there will say so
            if any(is_untidy(path) for path in written_in(self._folder) if path != own):
                self._waiting.append(self._folder)

    def take(self, path: Path, size: int) -> None:
        """A file has ended."""
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
        """Starts what waits, if nothing runs. Returns whether there is more to be done. Never waits."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                return True
            self._process = None
            self._heed(process)
        if self._waiting:
            self._start(self._waiting.popleft())
        return self._process is not None or bool(self._waiting)

    def finish(self, patience_s: float) -> None:
        """Does what is left, for so long; the next start does the rest."""
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
            self._heed(self._process)
            self._process = None

    def _start(self, path: Path) -> None:
        # -P: what lies in the current folder is the user's, and no module of ours. A group of its own: Ctrl-C is
        # meant for the server, which waits for this one.
        command = [sys.executable, "-P", "-m", "openenv.recording.tidy", str(path)]
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

    def _heed(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr as stream:
            said = stream.read().decode("utf-8", "replace").strip()
        if process.returncode > 0 and not self._said:
            self._said = True
            last = said.rpartition("\n")[2] or f"exit code {process.returncode}"
            logger.warning("records in %s could not be rotated and stay JSON lines: %s", self._folder, last)
