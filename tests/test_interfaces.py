from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter, ValidationError

from openenv.environment import Message, ModelTokenizer, TaskProvider


class Tasks:
    def list_splits(self) -> list[Any]:
        return ["train"]

    def list_tasks(self, split: str) -> list[Any]:
        return [1, 2, 3]

    def num_tasks(self, split: str) -> int:
        return 3

    def get_task(self, split: str, index: int) -> Any:
        return self.list_tasks(split)[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return self.list_tasks(split)[start:stop]


class Tokenizer:
    def apply_chat_template(
        self, conversation: list[Message], tokenize: bool = True, return_tensors: str | None = None, **kwargs: Any
    ) -> Any:
        return [len(message["content"]) for message in conversation]

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **kwargs: Any) -> str:
        return " ".join(map(str, token_ids))


def test_classes_have_the_shapes_without_deriving_from_them():
    """A type checker reads this test, too."""
    tasks: TaskProvider = Tasks()
    assert tasks.get_task_range("train", 1) == [2, 3]
    tokenizer: ModelTokenizer = Tokenizer()
    message: Message = {"role": "user", "content": "four"}
    assert tokenizer.decode(tokenizer.apply_chat_template([message])) == "4"


def test_a_shape_can_be_derived_from():
    class Derived(TaskProvider):
        def num_tasks(self, split: str) -> int:
            return 5

    assert Derived().num_tasks("train") == 5


def test_a_message_can_be_a_field():
    adapter = TypeAdapter(list[Message])
    assert adapter.validate_python([{"role": "user", "content": "hi"}])[0]["role"] == "user"
    with pytest.raises(ValidationError):
        adapter.validate_python([{"role": "user"}])
    assert get_type_hints(Message) == {"role": str, "content": str}
