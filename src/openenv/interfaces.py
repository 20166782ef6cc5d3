"""What code from elsewhere may bring along: the shapes that it must have, without any code of ours."""

from __future__ import annotations

from typing import Any, Protocol

from typing_extensions import TypedDict  # pydantic does not take typing's own before Python 3.12

__all__ = ["Message", "ModelTokenizer", "TaskProvider"]


class Message(TypedDict):
    """One turn of a conversation with a model."""

    role: str
    content: str


class ModelTokenizer(Protocol):
    """A tokenizer as the `transformers` library has it."""

    def apply_chat_template(
        self, conversation: list[Message], tokenize: bool = True, return_tensors: str | None = None, **kwargs: Any
    ) -> Any:
        """The conversation as the text, or as the token ids, that a model expects."""
        ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        """The text of token ids."""
        ...


class TaskProvider(Protocol):
    """An environment that has tasks in splits, as `train` and `test`. Served at `/{environment}/...`."""

    def list_splits(self) -> list[Any]:
        """The splits there are."""
        ...

    def list_tasks(self, split: str) -> list[Any]:
        """Every task of a split."""
        ...

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        ...

    def get_task(self, split: str, index: int) -> Any:
        """One task of a split, counted from 0."""
        ...

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        """The tasks from `start` up to `stop`, in the sense of a slice."""
        ...
