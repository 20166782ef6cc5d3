from __future__ import annotations

from typing import Any

import pytest

from openenv.envs.echo.models import EchoAction
from openenv.errors import InvalidAction
from openenv.evals.wording import Wording, inlined

from .environments import DiceAction


def test_an_action_of_one_text_is_the_whole_answer() -> None:
    wording = Wording(EchoAction.model_json_schema())
    assert wording.read(' {"not": "JSON"}\n') == {"message": '{"not": "JSON"}'}
    assert "nothing else" in wording.instructions


@pytest.mark.parametrize(
    "answer",
    [
        '{"stop": true}',
        'I think:\n```json\n{"stop": true}\n```',
        '```\n{"stop": false}\n```\nNo:\n```\n{"stop": true}\n```',
        'So I choose {"stop": true}.',
    ],
)
def test_any_other_action_is_json_somewhere_in_the_answer(answer: str) -> None:
    wording = Wording(DiceAction.model_json_schema())
    assert wording.read(answer) == {"stop": True}
    assert '"stop"' in wording.instructions
    assert "metadata" not in wording.instructions


@pytest.mark.parametrize("answer", ["", "stop", "[1]", "{", "}{", '"stop"'])
def test_an_answer_without_an_object_is_no_action(answer: str) -> None:
    with pytest.raises(InvalidAction, match="no JSON object"):
        Wording(DiceAction.model_json_schema()).read(answer)


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "Hello.", "metadata": {"a": 1}}, "Hello."),
        ({"board": [1, 2]}, '{"board": [1, 2]}'),
        ({"a": "x", "b": "é"}, '{"a": "x", "b": "é"}'),
        ({}, "{}"),
    ],
)
def test_an_observation_is_its_text_or_its_fields(observation: dict[str, Any], text: str) -> None:
    assert Wording.shown(observation) == text


def test_definitions_are_put_in_their_places_and_one_in_itself_is_cut_off() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A", "description": "mine"}},
        "$defs": {"A": {"type": "object", "properties": {"again": {"$ref": "#/$defs/A"}}}},
    }
    assert inlined(schema) == {
        "properties": {"a": {"type": "object", "properties": {"again": {}}, "description": "mine"}}
    }
