"""One file of JSON lines: written, being written, or cut off in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import UnreadableRecord
from .damage import Damage, Fault
from .head import Head, Line, Transition, Values, transition_of

__all__ = ["JsonlSource"]

# A line is a transition; what is longer is no text of lines.
MOST_LINE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 8192

_line = msgspec.json.Decoder(Line).decode
_values = msgspec.json.Decoder(Values).decode


class JsonlSource:
    """A file of JSON lines. It stays open while somebody has its episodes, so it may be rotated away meanwhile.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: It is gone.
        UnreadableRecord: It cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableRecord(f"{path} cannot be read: {error.strerror}") from None

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def heads(self, damage: Damage) -> Iterator[tuple[int, Head]]:
        """Each transition and where it is, as far as the file is written now; once. What is none is in `damage`."""
        number = offset = 0
        while line := self._file.readline(MOST_LINE_BYTES):
            number += 1
            if line.endswith(b"\n"):
                head = None if line.isspace() else self._head(line, number, damage)
                if head is not None:
                    yield offset, head
            elif len(line) == MOST_LINE_BYTES:
                damage.add(Fault(self.path, f"line {number}", "it is too long to be one of ours"))
                return
            else:
                damage.add(Fault(self.path, f"line {number}", "the file ends in the middle of it", torn=True))
            offset += len(line)

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at some places of `heads`. Raises as `transition_of`."""
        folder = str(self.path.parent) if arrays else None
        for place in places:
            line = self._line(place)
            try:
                yield transition_of(_line(line), _values(line), folder)
            except RecursionError:
                raise UnreadableRecord(f"{self.path}, at byte {place}: it is nested too deep") from None
            except msgspec.DecodeError as error:
                raise UnreadableRecord(f"{self.path} was changed while it was read: {error}") from None
            except UnreadableRecord as error:
                raise type(error)(f"{self.path}, at byte {place}: {error.message}") from None

    def _line(self, place: int) -> bytes:
        """A line, read beside `heads`, which may be at another place of the file."""
        number = self._file.fileno()
        line = os.pread(number, CHUNK_BYTES, place)
        while b"\n" not in line:
            more = os.pread(number, max(CHUNK_BYTES, len(line)), place + len(line))
            if not more:
                break
            line += more
        return line.partition(b"\n")[0]

    def _head(self, line: bytes, number: int, damage: Damage) -> Head | None:
        try:
            head = _line(line)
        except msgspec.ValidationError as error:
            damage.add(Fault(self.path, f"line {number}", f"it is no transition: {error}"))
        except (msgspec.DecodeError, RecursionError) as error:
            damage.add(Fault(self.path, f"line {number}", f"it is no JSON: {error}"))
        else:
            if head.step >= 0:
                return head
            damage.add(Fault(self.path, f"line {number}", "its step is below 0"))
        return None
