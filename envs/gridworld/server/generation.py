"""Generate random levels. Each is searched for a path to the goal; a level without one is generated again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from ..models import Kind, Move
from .level import Cell, Level
from .search import shortest_path

__all__ = ["generate"]

ATTEMPTS = 50
WALLS = 0.18
LAVA = 0.1


def generate(random: Random, kind: Kind, size: int) -> tuple[Level, list[Move]]:
    """A level with a path of at least `size` steps, and its shortest path.

    Random obstacles without such a path are sampled again. After 50 attempts, the level has no obstacles except the
    wall with the door, and start and goal are in opposite corners.
    """
    for _ in range(ATTEMPTS):
        level = _sample(random, kind, size)
        path = shortest_path(level)
        if path is not None and len(path) >= size:
            return level, path
    level = _plain(kind, size)
    path = shortest_path(level)
    assert path is not None, "a level without obstacles has a path"
    return level, path


def _sample(random: Random, kind: Kind, size: int) -> Level:
    free = [(row, column) for row in range(size) for column in range(size)]
    random.shuffle(free)
    if kind == "door":
        middle = random.randrange(1, size - 1)
        door = (random.randrange(size), middle)
        walls = _column(size, middle) - {door}
        # The cells on both sides of the door stay free, since most doors would be blocked otherwise.
        reserved = {door, (door[0], middle - 1), (door[0], middle + 1)}
        start = _take(free, lambda cell: cell[1] < middle and cell not in reserved)
        key = _take(free, lambda cell: cell[1] < middle and cell not in reserved)
        goal = _take(free, lambda cell: cell[1] > middle and cell not in reserved)
        if start is None or key is None or goal is None:
            return _plain(kind, size)
        rest = [cell for cell in free if cell not in reserved and cell not in walls]
        more, lava = _obstacles(rest, size, kind)
        return Level(size, start, goal, walls | more, lava, key, door)
    start, goal = free.pop(), free.pop()
    walls, lava = _obstacles(free, size, kind)
    return Level(size, start, goal, walls, lava)


def _take(free: list[Cell], accept: Callable[[Cell], bool]) -> Cell | None:
    for cell in free:
        if accept(cell):
            free.remove(cell)
            return cell
    return None


def _obstacles(free: Collection[Cell], size: int, kind: Kind) -> tuple[frozenset[Cell], frozenset[Cell]]:
    """Walls and lava from cells in random order."""
    cells = list(free)
    walls = round(WALLS * size * size) if kind != "door" else round(WALLS * size * size / 2)
    lava = round(LAVA * size * size) if kind != "open" else 0
    return frozenset(cells[:walls]), frozenset(cells[walls : walls + lava])


def _plain(kind: Kind, size: int) -> Level:
    start, goal = (0, 0), (size - 1, size - 1)
    if kind != "door":
        return Level(size, start, goal, frozenset())
    middle = size // 2
    door = (0, middle)
    return Level(size, start, goal, _column(size, middle) - {door}, frozenset(), (size - 1, 0), door)


def _column(size: int, column: int) -> frozenset[Cell]:
    return frozenset((row, column) for row in range(size))
