"""The tasks: one for each word that can be the answer, in splits that share no word."""

from __future__ import annotations

from typing import Any, NamedTuple

from openenv.errors import InvalidArgument

from .lexicon import LENGTHS, words, words_of_split

__all__ = ["SPLITS", "Split", "Tasks", "find_split"]


class Split(NamedTuple):
    """A split: words of one length that can be the answer."""

    name: str
    type: str
    length: int


SPLITS = tuple(
    Split(kind if length == max(LENGTHS) else f"{kind}-{length}", kind, length)
    for length in reversed(LENGTHS)
    for kind in ("train", "test")
)


def find_split(name: Any) -> Split:
    """The split of this name.

    Raises:
        InvalidArgument: The split does not exist.
    """
    for split in SPLITS:
        if split.name == name:
            return split
    raise InvalidArgument(f"no split {name!r:.40}: there are {', '.join(split.name for split in SPLITS)}")


class Tasks:
    """The task API of the environment (`TaskProvider`). A task has its split and index, but not its answer."""

    @staticmethod
    def list_splits() -> list[dict[str, str]]:
        return [{"name": split.name, "type": split.type} for split in SPLITS]

    @staticmethod
    def num_tasks(split: str) -> int:
        found = find_split(split)
        return len(words_of_split(words(found.length), found.type))

    @staticmethod
    def get_task(split: str, index: int) -> dict[str, Any]:
        found = find_split(split)
        if not 0 <= index < Tasks.num_tasks(split):
            raise IndexError(index)
        return {"id": f"{split}/{index}", "split": split, "index": index, "length": found.length}

    @staticmethod
    def get_task_range(split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return [Tasks.get_task(split, index) for index in range(Tasks.num_tasks(split))[start:stop]]

    @staticmethod
    def list_tasks(split: str) -> list[dict[str, Any]]:
        return Tasks.get_task_range(split)
