"""A task that somebody has."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .sampler import TaskSampler

__all__ = ["SampledTask"]


class SampledTask:
    """A task that was taken: nobody else gets it. A block of it finishes it, or gives it back if it raises::

        for task in sampler:
            with task:
                result = await env.reset(split=task.split, index=task.index, seed=task.seed)
                ...

    Attributes:
        split: The split's name.
        index: Its index there: what `reset(split=, index=)` takes.
        epoch: In which pass over the tasks, from 0.
        repeat: Which of its repeats in this epoch, from 0.
        seed: For the episode: the same for all repeats of a task in an epoch, another one in every epoch.
    """

    __slots__ = ("_sampler", "epoch", "index", "repeat", "seed", "split")

    def __init__(self, sampler: TaskSampler, split: str, index: int, epoch: int, repeat: int, seed: int):
        self._sampler = sampler
        self.split = split
        self.index = index
        self.epoch = epoch
        self.repeat = repeat
        self.seed = seed

    def __repr__(self) -> str:
        return f"<task {self.index} of {self.split!r}, epoch {self.epoch}, repeat {self.repeat}>"

    def finish(self) -> None:
        """It is done, and does not come again in this epoch, also after a crash.

        Raises:
            TaskTaken: It was finished or given back before.
        """
        self._sampler.finish(self)

    def give_back(self) -> None:
        """It is not done: the next who asks gets it.

        Raises:
            TaskTaken: It was finished or given back before.
        """
        self._sampler.give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if not self._sampler.is_taken(self):  # by the block itself
            return
        if kind is None:
            self.finish()
        else:
            self.give_back()
