"""The tasks: questions of all datasets, or of one, in splits that are made from different seeds."""

from __future__ import annotations

from typing import Any, NamedTuple

from openenv.errors import InvalidArgument

from .bank import NAMES, SIZES, SLOW, checked_name

__all__ = ["MIXED", "Split", "Tasks", "split_named"]

MIXED = tuple(name for name in NAMES if name not in SLOW)
"""The datasets of a split that names none."""


class Split(NamedTuple):
    """`train` or `test`, of all datasets (but slow ones) or of one."""

    kind: str
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names) * SIZES[self.kind]

    def place(self, index: Any) -> tuple[str, int]:
        """The dataset, and which of its questions: neighbours are of different datasets.

        Raises:
            InvalidArgument: There is no such task.
        """
        count = len(self)
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            raise InvalidArgument(
                f"the split has no task {index!r:.40}: there are {count}, from 0 to {count - 1}",
                data={"num_tasks": count},
            )
        return self.names[index % len(self.names)], index // len(self.names)


def split_named(name: Any, task: Any = None) -> Split:
    """A split by its name: `train`, `test`, or `train/leg_counting` for those of one dataset.

    Args:
        name: What was asked for.
        task: The name of a dataset, which says the same as the name behind a slash.

    Raises:
        InvalidArgument: There is no such split or dataset.
    """
    kind, _, narrowed = str(name).partition("/")
    if kind not in SIZES:
        raise InvalidArgument(f"no split {name!r:.80}: there are train, test, and such as train/{NAMES[0]}")
    chosen = narrowed or task
    if chosen is None:
        return Split(kind, MIXED)
    if narrowed and task is not None and narrowed != task:
        raise InvalidArgument(f"split {name!r:.80} is of one task, and task says {task!r:.80}")
    return Split(kind, (checked_name(chosen),))


class Tasks:
    """What the environment says of its tasks (`TaskProvider`): where they are. Questions are made when asked."""

    @staticmethod
    def list_splits() -> list[dict[str, str]]:
        """Each of them may be narrowed: `train/leg_counting`."""
        return [{"name": kind, "type": kind} for kind in SIZES]

    @staticmethod
    def num_tasks(split: str) -> int:
        return len(split_named(split))

    @staticmethod
    def get_task(split: str, index: int) -> dict[str, Any]:
        named = split_named(split)
        if not 0 <= index < len(named):
            raise IndexError(index)
        return _task(split, named, index)

    @staticmethod
    def get_task_range(split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        named = split_named(split)
        return [_task(split, named, index) for index in range(len(named))[start:stop]]

    @staticmethod
    def list_tasks(split: str) -> list[dict[str, Any]]:
        return Tasks.get_task_range(split)


def _task(split: str, named: Split, index: int) -> dict[str, Any]:
    name, place = named.place(index)
    return {"id": f"{named.kind}/{name}/{place}", "task": name, "split": split, "index": index}
