"""What a process says on its stderr: read and dropped, but for the end of it."""

from __future__ import annotations

import os

__all__ = ["TAIL_BYTES", "Tail"]

TAIL_BYTES = 4096
_CHUNK = 64 * 1024
# Of a stream without end, at one time: others wait too.
_CHUNKS_AT_ONCE = 4


class Tail:
    """Reads a pipe and keeps its last bytes.

    Args:
        descriptor: The pipe's reading end, which becomes this object's.
    """

    def __init__(self, descriptor: int):
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.text = b""

    def read(self) -> bool:
        """Takes what there is, or a good part of it. False at the end of the stream."""
        for _ in range(_CHUNKS_AT_ONCE):
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.text = (self.text + data)[-TAIL_BYTES:]
        return True

    def close(self) -> None:
        """Reads what is left, and closes the pipe."""
        self.read()
        os.close(self.descriptor)
