"""What of a record could not be read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Damage", "Fault"]

MOST_FAULTS = 20


class Fault(NamedTuple):
    """Something that could not be read.

    Attributes:
        file: In which it is.
        place: Where in it: `line 3`; empty for the whole file.
        text: What is wrong.
        torn: It is the end of a file, cut off in the middle: a process was killed, or writes it still.
    """

    file: Path
    place: str
    text: str
    torn: bool = False

    def sentence(self) -> str:
        """In words."""
        return f"{self.file}{', ' if self.place else ''}{self.place}: {self.text}"


class Damage:
    """Faults that were found while reading: all are counted, and the first are kept.

    Attributes:
        count: How many there are, without torn ends.
        torn: How many files end in the middle of a line.
        faults: The first of both.
    """

    def __init__(self) -> None:
        self.count = 0
        self.torn = 0
        self.faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """One more."""
        if fault.torn:
            self.torn += 1
        else:
            self.count += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(fault)

    def sentences(self) -> list[str]:
        """All of it in words."""
        said = [fault.sentence() for fault in self.faults]
        more = self.count + self.torn - len(said)
        return [*said, f"and {more} more"] if more else said
