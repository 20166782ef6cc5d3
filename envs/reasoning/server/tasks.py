"""The tasks: questions of all datasets, or of one, in splits with different seeds."""

from __future__ import annotations

from typing import Any, NamedTuple

from openenv.errors import InvalidArgument

from .bank import NAMES, SIZES, SLOW, checked_name

__all__ = ["MIXED", "Split", "Tasks", "split_named"]

MIXED = tuple(name for name in NAMES if name not in SLOW)
"""The datasets of a split without the name of a dataset."""


class Split(NamedTuple):
    """`train` or `test`, of all datasets except the slow ones, or of one dataset.

    Attributes:
        kind: `train` or `test`.
        names: The datasets.
    """

    kind: str
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names) * SIZES[self.kind]

    def place(self, index: Any) -> tuple[str, int]:
        """The dataset of a task, and the number of its question. Neighbours are from different datasets.

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
    """A split by its name: `train`, `test`, or `train/leg_counting` for one dataset.

    Args:
        name: Name of the split.
        task: Name of a dataset, with the same meaning as a name after the slash.

    Raises:
        InvalidArgument: There is no such split or dataset, or `name` and `task` differ.
    """
    kind, _, dataset = str(name).partition("/")
    if kind not in SIZES:
        raise InvalidArgument(
            f"no split {name!r:.80}: there are train, test, and splits of one task, such as train/{NAMES[0]}"
        )
    chosen = dataset or task
    if chosen is None:
        return Split(kind, MIXED)
    if dataset and task is not None and dataset != task:
        raise InvalidArgument(f"split {name!r:.80} names one task, and the argument task another: {task!r:.80}")
    return Split(kind, (checked_name(chosen),))


class Tasks:
    """The task API (`TaskProvider`). A task has the place of its question, which `reset` generates."""

    @staticmethod
    def list_splits() -> list[dict[str, str]]:
        """The splits of all datasets. A name such as `train/leg_counting` selects one dataset."""
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
