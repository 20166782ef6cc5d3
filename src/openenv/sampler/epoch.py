"""One pass over the tasks of a shard: which are free, which somebody has, and which are done."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .plan import Plan

__all__ = ["Epoch"]

_FREE, _TAKEN, _DONE, _FOREIGN = range(4)


class Epoch:
    """One pass.

    Args:
        plan: What is sampled.
        number: Which pass, from 0.

    Attributes:
        number: Which pass.
        free: How many can be taken.
        left: How many are not done.
    """

    def __init__(self, plan: Plan, number: int):
        self.number = number
        self._repeats = plan.repeats
        self._order: array[int] = plan.order(number)
        # A byte for each repeat of each task of the split, by index, as the journal names them.
        self._standing = bytearray([_FOREIGN]) * (plan.size * plan.repeats)
        for index in self._order:
            self._standing[index * plan.repeats : (index + 1) * plan.repeats] = bytes(plan.repeats)
        self.free = self.left = len(self._order) * plan.repeats
        self._upcoming = self._walk()
        self._returned: list[int] = []

    def take(self) -> tuple[int, int] | None:
        """The next task: first what was given back, then in order. Returns index and repeat, or None."""
        while self.free:
            place = self._returned.pop() if self._returned else next(self._upcoming)
            if self._standing[place] == _FREE:
                self._set(place, _TAKEN)
                return divmod(place, self._repeats)
        return None

    def take_index(self, index: int) -> int | None:
        """Takes a task by its index. Returns its repeat; None: all of them are taken or done."""
        return next((repeat for repeat in range(self._repeats) if self.take_place(index, repeat)), None)

    def take_place(self, index: int, repeat: int) -> bool:
        """Takes one repeat of a task. Returns whether it was free."""
        place = index * self._repeats + repeat
        free = self._standing[place] == _FREE
        if free:
            self._set(place, _TAKEN)
        return free

    def has(self, index: int) -> bool:
        """Whether the task is one of this shard's in this epoch."""
        return self._standing[index * self._repeats] != _FOREIGN

    def finish(self, index: int, repeat: int) -> None:
        """It is done."""
        self._set(index * self._repeats + repeat, _DONE)

    def give_back(self, index: int, repeat: int) -> None:
        """It can be taken again, and comes next."""
        place = index * self._repeats + repeat
        self._set(place, _FREE)
        self._returned.append(place)

    def _set(self, place: int, standing: int) -> None:
        before, self._standing[place] = self._standing[place], standing
        self.free += (standing == _FREE) - (before == _FREE)
        self.left += (before == _DONE) - (standing == _DONE)

    def _walk(self) -> Iterator[int]:
        for index in self._order:
            yield from range(index * self._repeats, (index + 1) * self._repeats)
