"""What a process writes: only its end is kept, however much it is."""

from __future__ import annotations

import os
import time

__all__ = ["Words"]

KEPT = 400
AT_ONCE = 65536
# Of one that never stops writing, no more is read after its end.
DRAIN_S = 0.2


class Words:
    """A pipe to which a process writes, and whose reader keeps the end.

    Attributes:
        reading: The end that is read, without waiting.
        writing: The one for the process.
    """

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._kept = b""

    def hear(self) -> bool:
        """Reads what is there; whether there was anything."""
        try:
            read = os.read(self.reading, AT_ONCE)
        except BlockingIOError:
            return False
        self._kept = (self._kept + read)[-KEPT:]
        return bool(read)

    def last(self) -> str:
        """The last line, with what is still to be read."""
        until = time.monotonic() + DRAIN_S
        while self.hear() and time.monotonic() < until:
            pass
        return self._kept.decode(errors="replace").strip().rpartition("\n")[2]

    def begun(self) -> None:
        """The process has its end."""
        os.close(self.writing)

    def close(self) -> None:
        """Nobody reads any more."""
        os.close(self.reading)
