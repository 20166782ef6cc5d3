"""Search the shortest path through a level, which proves that the level can be solved and gives the best return."""

from __future__ import annotations

from collections import deque

from ..models import MOVES, Move
from .level import Cell, Level

__all__ = ["shortest_path"]

_State = tuple[Cell, bool]


def shortest_path(level: Level, start: Cell | None = None, has_key: bool = False) -> list[Move] | None:
    """Breadth-first search over the cell of the walker and whether it has the key.

    Args:
        level: The level.
        start: The first cell; None for that of the level.
        has_key: Whether the walker has the key there.

    Returns:
        The moves from the start to the goal, none of them into lava. None if there is no path.
    """
    cell = level.start if start is None else start
    begin: _State = (cell, has_key or cell == level.key)
    previous: dict[_State, tuple[_State, Move] | None] = {begin: None}
    queue = deque([begin])
    while queue:
        state = queue.popleft()
        if state[0] == level.goal:
            return _moves(previous, state)
        for move in MOVES:
            cell = level.after(*state, move)
            after = (cell, state[1] or cell == level.key)
            if after not in previous and cell not in level.lava:
                previous[after] = (state, move)
                queue.append(after)
    return None


def _moves(previous: dict[_State, tuple[_State, Move] | None], end: _State) -> list[Move]:
    moves: list[Move] = []
    step = previous[end]
    while step is not None:
        moves.append(step[1])
        step = previous[step[0]]
    return moves[::-1]
