"""A level, as immutable data that copies of an environment share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ..models import Move

__all__ = ["Cell", "Level", "neighbour"]

Cell = tuple[int, int]
"""Row and column."""

_STEPS: dict[Move, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def neighbour(cell: Cell, move: Move) -> Cell:
    """The next cell in a direction, perhaps outside the level."""
    rows, columns = _STEPS[move]
    return cell[0] + rows, cell[1] + columns


@dataclass(frozen=True)
class Level:
    """The cells of a level.

    Attributes:
        size: Number of cells per side.
        start: First cell of the walker.
        goal: Cell of the flag.
        walls: Cells that cannot be entered.
        lava: Cells that end the episode.
        key: Cell of the key. None in a level without a door.
        door: Cell of the door. None in a level without a door.
    """

    size: int
    start: Cell
    goal: Cell
    walls: frozenset[Cell]
    lava: frozenset[Cell] = frozenset()
    key: Cell | None = None
    door: Cell | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def after(self, cell: Cell, has_key: bool, move: Move) -> Cell:
        """The cell after a move: the same cell if the walker is blocked."""
        to = neighbour(cell, move)
        inside = 0 <= to[0] < self.size and 0 <= to[1] < self.size
        blocked = not inside or to in self.walls or (to == self.door and not has_key)
        return cell if blocked else to

    def rows(self, walker: Cell, has_key: bool) -> list[str]:
        """The level from above, as in the observation."""
        return [
            "".join(self._sign((row, column), walker, has_key) for column in range(self.size))
            for row in range(self.size)
        ]

    def _sign(self, cell: Cell, walker: Cell, has_key: bool) -> str:
        if cell == walker:
            return "@"
        if cell == self.goal:
            return "G"
        if cell == self.door:
            return "/" if has_key else "D"
        if cell == self.key and not has_key:
            return "k"
        return "#" if cell in self.walls else "~" if cell in self.lava else "."
