"""What an environment declares for language models, and what its server publishes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv import Action, Chat, JsonAnswer, Observation, RegexAnswer, TagAnswer, create_app
from openenv.types import EnvironmentMetadata

from .environments import Plain

CHATS = [
    Chat(),
    Chat(system="Play.", observation="{a} {b.c}", images=("screen",), answer=JsonAnswer(), max_invalid=None),
    Chat(answer=TagAnswer(tag="guess"), invalid="No: {error} {{}}"),
    Chat(answer=RegexAnswer(pattern="(?P<guess>[a-z]+)")),
]


@pytest.mark.parametrize("chat", CHATS)
def test_it_travels_as_json(chat: Chat) -> None:
    assert Chat.model_validate_json(chat.model_dump_json()) == chat
    assert (
        EnvironmentMetadata.model_validate({"name": "a", "description": "b", "chat": chat.model_dump()}).chat == chat
    )


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ({"observation": "{board"}, "expected '}'"),
        ({"observation": "{}"}, "is no name of a field"),
        ({"observation": "{0}"}, "is no name of a field"),
        ({"observation": "{a[0]}"}, "is no name of a field"),
        ({"observation": "{a.b!r}"}, "has a conversion or a format"),
        ({"observation": "{a:>10}"}, "has a conversion or a format"),
        ({"observation": "{reward}"}, "for the trainer"),
        ({"images": ["metadata.screen"]}, "for the trainer"),
        ({"images": ["a b"]}, "is no name of a field"),
        ({"observation": "{screen}", "images": ["screen"]}, "leave it out of the text"),
        ({"invalid": "{mistake}"}, "the only name in braces is {error}"),
        ({"answer": "words"}, "tools"),
        ({"answer": {"kind": "tag", "tag": "a b"}}, "pattern"),
        ({"answer": {"kind": "regex", "pattern": "(?P<a>"}}, "not a regular expression"),
        ({"answer": {"kind": "regex", "pattern": "[a-z]+"}}, "name the action's fields"),
        ({"max_invalid": 0}, "greater than 0"),
        ({"sytem": "Play."}, "sytem"),
    ],
)
def test_a_mistake_in_it_is_found_where_it_is_declared(declared: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Chat.model_validate(declared)
    assert error in str(refusal.value)


class Speaking(Plain):
    chat = CHATS[1]


class Describing(Speaking):
    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="own", description="Its own words.")


class Chatting(Plain):
    def chat(self) -> str:  # an existing environment may have anything of that name
        return "hello"


@pytest.mark.parametrize("environment", [Speaking, Describing, lambda: Speaking()])
def test_a_server_publishes_it(environment: Any) -> None:
    with TestClient(create_app(environment, action=Action, observation=Observation)) as client:
        assert client.get("/metadata").json()["chat"] == CHATS[1].model_dump(mode="json")


@pytest.mark.parametrize("environment", [Plain, Chatting])
def test_metadata_is_as_before_where_none_is_declared(environment: Any) -> None:
    with TestClient(create_app(environment)) as client:
        assert "chat" not in client.get("/metadata").json()
