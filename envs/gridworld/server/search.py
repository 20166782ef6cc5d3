"""Search the shortest path through a level, which proves that the level can be solved and gives the best return."""

from __future__ import annotations

from collections import deque

from ..models import MOVES, Move
from .level import Cell, Level

__all__ = ["shortest_way"]

_Place = tuple[Cell, bool]


def shortest_way(level: Level) -> list[Move] | None:
    """Breadth-first search over the cell of the walker and whether it has the key.

    Returns:
        The moves from the start to the goal, none of them into lava. None if there is no path.
    """
    begin: _Place = (level.start, level.start == level.key)
    came: dict[_Place, tuple[_Place, Move] | None] = {begin: None}
    waiting = deque([begin])
    while waiting:
        place = waiting.popleft()
        if place[0] == level.goal:
            return _moves(came, place)
        for move in MOVES:
            cell = level.after(*place, move)
            there = (cell, place[1] or cell == level.key)
            if there not in came and cell not in level.lava:
                came[there] = (place, move)
                waiting.append(there)
    return None


def _moves(came: dict[_Place, tuple[_Place, Move] | None], end: _Place) -> list[Move]:
    moves: list[Move] = []
    step = came[end]
    while step is not None:
        moves.append(step[1])
        step = came[step[0]]
    return moves[::-1]
