from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from openenv.errors import StepFailed
from openenv.protocol.forms import read_action, read_form, serialize_observation
from openenv.types import Action, Observation


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Move(Action):
    count: int = 0
    ratio: float | None = None
    text: str = "hi"
    flag: bool = False
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    tokens: list[int] = []
    names: list[str] = []
    pair: tuple[float, float] = (0.0, 0.0)
    table: dict[str, int] = {}
    nested: dict[str, Any] = {}
    anything: Any = None


class Seen(Observation):
    value: int = 0


def test_an_observation_becomes_its_payload():
    assert serialize_observation(Seen(value=1)) == {
        "observation": {"value": 1, "metadata": {}},
        "reward": None,
        "done": False,
    }
    assert serialize_observation(Seen(value=2, reward=1.5, done=True, metadata={"k": [1]})) == {
        "observation": {"value": 2, "metadata": {"k": [1]}},
        "reward": 1.5,
        "done": True,
        "metadata": {"k": [1]},
    }


def test_other_objects_with_the_same_fields_are_taken():
    @dataclass
    class Plain:
        value: int
        reward: float
        done: bool

    payload = {"observation": {"value": 1}, "reward": 2.0, "done": True}
    assert serialize_observation(Plain(1, 2.0, True)) == payload
    assert serialize_observation({"value": 1, "reward": 2.0, "done": True}) == payload


def test_infinity_in_a_field_stays_infinity():
    class Far(Observation):
        distance: float = math.inf

    assert serialize_observation(Far())["observation"]["distance"] == math.inf


@pytest.mark.parametrize("observation", [Seen(reward=math.nan), Seen(metadata={"x": object()})])
def test_what_cannot_be_sent_is_an_error(observation):
    with pytest.raises(StepFailed):
        serialize_observation(observation)


def test_an_action_is_made_of_its_values():
    assert read_action({"count": 3, "colour": "g"}, Move) == Move(count=3, colour=Colour.GREEN)
    with pytest.raises(ValidationError, match="jump"):
        read_action({"jump": 1}, Move)
    with pytest.raises(ValidationError):
        read_action({"tokens": "[1]"}, Move)


@pytest.mark.parametrize(
    ("field", "typed", "meant"),
    [
        ("count", "3", 3),
        ("count", "", 0),
        ("ratio", "1.5", 1.5),
        ("ratio", "null", None),
        ("ratio", "", None),
        ("text", "5", "5"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("text", "", ""),
        ("flag", "true", True),
        ("flag", "off", False),
        ("colour", "g", Colour.GREEN),
        ("kind", "b", "b"),
        ("tokens", "1, 2,3", [1, 2, 3]),
        ("tokens", "[1, 2]", [1, 2]),
        ("tokens", "7", [7]),
        ("tokens", "", []),
        ("names", "a, b", ["a", "b"]),
        ("names", '["a", "b"]', ["a", "b"]),
        ("pair", "1, 2.5", (1.0, 2.5)),
        ("table", '{"a": 1}', {"a": 1}),
        ("nested", '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ("metadata", '{"a": 1}', {"a": 1}),
        ("anything", "[1]", "[1]"),
        ("tokens", [1, "2"], [1, 2]),
    ],
)
def test_what_was_typed_into_a_form_is_what_the_field_takes(field, typed, meant):
    assert getattr(read_form({field: typed}, Move), field) == meant


@pytest.mark.parametrize(
    "values",
    [
        {"count": "many"},
        {"tokens": "a, b"},
        {"table": "x"},
        {"table": "[1]"},
        {"kind": "c"},
        {"jump": "1"},
        {"count": None},
        {"tokens": "[1, 2", "count": "4"},
    ],
)
def test_what_is_no_value_of_its_field_is_refused_as_it_was_typed(values):
    with pytest.raises(ValidationError) as caught:
        read_form(values, Move)
    (name, *_) = values
    (fault, *_) = [fault for fault in caught.value.errors() if fault["loc"][0] == name]
    assert fault["input"] == values[name]


def test_a_required_field_that_was_left_empty_is_refused():
    class Needs(Action):
        count: int

    with pytest.raises(ValidationError, match="count"):
        read_form({"count": " "}, Needs)
