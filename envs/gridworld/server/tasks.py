"""The tasks: numbered levels, in disjoint splits."""

from __future__ import annotations

from typing import Any

from openenv.errors import InvalidArgument

__all__ = ["SPLITS", "Tasks", "check_task"]

SPLITS = {"train": 1000, "test": 200}
"""Number of levels of each split. The name of the split and the index determine a level."""


def check_task(split: Any, index: Any) -> str:
    """Returns the id of a task, after a check.

    Raises:
        InvalidArgument: The task does not exist.
    """
    if not isinstance(split, str) or split not in SPLITS:
        raise InvalidArgument(f"no split {split!r:.40}: there are {', '.join(SPLITS)}")
    count = SPLITS[split]
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise InvalidArgument(
            f"split {split!r} has no task {index!r:.40}: there are {count}, from 0 to {count - 1}",
            data={"num_tasks": count},
        )
    return f"{split}/{index}"


class Tasks:
    """The task API of the environment (`TaskProvider`)."""

    @staticmethod
    def list_splits() -> list[dict[str, str]]:
        return [{"name": split, "type": split} for split in SPLITS]

    @staticmethod
    def num_tasks(split: str) -> int:
        check_task(split, 0)
        return SPLITS[split]

    @staticmethod
    def get_task(split: str, index: int) -> dict[str, Any]:
        if index >= Tasks.num_tasks(split):
            raise IndexError(index)
        return {"id": check_task(split, index), "split": split, "index": index}

    @staticmethod
    def get_task_range(split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return [Tasks.get_task(split, index) for index in range(Tasks.num_tasks(split))[start:stop]]

    @staticmethod
    def list_tasks(split: str) -> list[dict[str, Any]]:
        return Tasks.get_task_range(split)
