"""Signals as something to read."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Any, Self

__all__ = ["Signals"]


class Signals:
    """Collects signals of this process while it is entered; a selector sees when there are some. Main thread only."""

    def __init__(self, numbers: Iterable[int]):
        self._numbers = tuple(numbers)

    def __enter__(self) -> Self:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers: dict[int, Any] = {number: signal.signal(number, _noted) for number in self._numbers}
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
        """Those that came since the last time, in their order."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4096)]
        except BlockingIOError:
            return []


def _noted(number: int, frame: FrameType | None) -> None:
    """The number is in the wake-up socket already."""
