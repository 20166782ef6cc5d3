"""Tools as methods: what a trainer can read of their signatures and docstrings."""

from __future__ import annotations

import enum
import inspect
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import pytest
from pydantic import BaseModel, Field

from openenv.adapters.trl.methods import annotation_of, method_of
from openenv.adapters.trl.tools import Doc, action_tool, function_tool, read_doc, server_tool, write_doc
from openenv.errors import InvalidAction, UsageError
from openenv.types import Action


class Direction(enum.StrEnum):
    UP = "up"
    DOWN = "down"


class Point(BaseModel):
    x: int
    y: int = 0


class Move(Action):
    """Moves the piece.

    As far as it goes.
    """

    type: Literal["move"] = "move"
    direction: Direction = Field(description="Where to")
    by: Annotated[int, Field(ge=1)] = 1
    target: Point | None = None
    path: list[Point] = Field(default_factory=list)


def used(tool: Any) -> tuple[Any, list[dict[str, Any]]]:
    """An object with this tool for a method, and the arguments that it was called with."""
    calls: list[dict[str, Any]] = []

    def use(self: Any, tool: Any, arguments: dict[str, Any]) -> str:
        calls.append(arguments)
        return "done"

    holder = type("Holder", (), {tool.name: method_of(tool, use)})
    return getattr(holder(), tool.name), calls


def test_an_action_class_becomes_a_method_with_types_and_words() -> None:
    move, _ = used(action_tool("move", Move))

    assert get_type_hints(move) == {
        "direction": Literal["up", "down"],
        "by": int,
        "target": dict | None,
        "path": list[dict],
        "return": str,
    }
    parameters = inspect.signature(move).parameters
    assert {name: each.default for name, each in parameters.items()} == {
        "direction": inspect.Parameter.empty,
        "by": 1,
        "target": None,
        "path": None,
    }
    assert inspect.isfunction(move.__func__)
    assert read_doc(move.__doc__) == Doc(
        "Moves the piece.\n\nAs far as it goes.",
        {
            "direction": "Where to",
            "by": "The by. (at least 1; default 1)",
            "target": 'The target. (JSON: {"x": integer, "y"?: integer} | null)',
            "path": 'The path. (JSON: [{"x": integer, "y"?: integer}, ...])',
        },
        "What the environment answers.",
    )


def test_a_call_becomes_the_action_it_stands_for() -> None:
    tool = action_tool("move", Move)
    move, calls = used(tool)

    assert move("down", target={"x": 3}) == "done"
    assert tool.action(calls[0]) == Move(direction=Direction.DOWN, target=Point(x=3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "move: missing a required argument: 'direction'"),
        ({"direction": "up", "speed": 3}, "move: got an unexpected keyword argument 'speed'"),
        ({"direction": "up", "type": "other"}, "move: got an unexpected keyword argument 'type'"),
    ],
)
def test_a_call_with_other_arguments_says_which(arguments: dict[str, Any], message: str) -> None:
    move, _ = used(action_tool("move", Move))

    with pytest.raises(TypeError) as raised:
        move(**arguments)
    assert str(raised.value) == message


def test_arguments_that_do_not_validate_are_named_without_a_stack_of_text() -> None:
    with pytest.raises(InvalidAction) as raised:
        action_tool("move", Move).action({"direction": "left", "target": {"y": "far"}})
    assert raised.value.message == (
        "move: direction: Input should be 'up' or 'down'; target.x: Field required; "
        "target.y: Input should be a valid integer, unable to parse string as an integer"
    )


def count(by: int, mood: Literal["fine", "bad"] = "fine") -> dict[str, Any]:
    """Counts.

    Args:
        by (int): How far,
            exactly.
        mood: How it feels.

    Returns:
        The action.
    """
    return {"by": by, "mood": mood}


def test_a_function_becomes_a_tool_with_the_words_of_its_docstring() -> None:
    tool = function_tool("count_on", count)
    method, calls = used(tool)

    method(by="3")
    assert tool.action(calls[0]) == {"by": 3, "mood": "fine"}
    assert read_doc(method.__doc__).arguments == {
        "by": "How far, exactly.",
        "mood": 'How it feels. (default "fine")',
    }
    with pytest.raises(InvalidAction, match="count_on: by: Input should be a valid integer"):
        tool.action({"by": "far"})


class Paint(Action):
    canvas: np.ndarray


def test_an_action_that_no_model_can_write_is_refused() -> None:
    with pytest.raises(UsageError, match="tool 'paint': Paint has a field that no model can write; give a function"):
        action_tool("paint", Paint)


def unbounded(**arguments: Any) -> dict[str, Any]:
    return arguments


def positional(by: int, /) -> dict[str, Any]:
    return {"by": by}


@pytest.mark.parametrize(
    ("function", "message"), [(unbounded, r"takes \*\*arguments"), (positional, "must take its arguments by name")]
)
def test_a_function_that_no_model_can_call_is_refused(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        function_tool("call", function)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("reset", "trainers call a method of this name themselves"),
        ("get_reward", "trainers call a method of this name themselves"),
        ("_hidden", "private"),
        ("not-a-name", "a method cannot have this name"),
        ("class", "a method cannot have this name"),
        ("", "a method cannot have this name"),
    ],
)
def test_a_tool_of_a_name_that_cannot_be_a_method_says_how_to_rename_it(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as raised:
        server_tool(name, {"name": "there", "input_schema": {}})
    assert "tools={'another_name': 'there'}" in raised.value.message


SCHEMA = {
    "type": "object",
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    "properties": {
        "self": {"type": "string"},
        "class": {"type": "string", "description": "What kind"},
        "max-len": {"type": ["integer", "null"]},
        "node": {"$ref": "#/$defs/Node"},
        "needed": {"anyOf": [{"type": "number"}, {"type": "string"}]},
    },
    "required": ["needed", "class"],
}


def test_arguments_that_python_cannot_name_are_renamed_and_sent_under_their_own_names() -> None:
    method, calls = used(server_tool("find", {"name": "find-it", "description": "", "input_schema": SCHEMA}))

    assert list(inspect.signature(method).parameters) == ["class_", "needed", "self", "max_len", "node"]
    method(class_="a", needed=1.5, self="me", max_len=None, node=None)
    assert calls == [{"class": "a", "needed": 1.5, "self": "me", "max-len": None}]  # null is no node, but a length


def test_two_arguments_of_one_name_in_python_are_refused() -> None:
    schema = {"type": "object", "properties": {"a-b": {}, "a_b": {}}}
    with pytest.raises(UsageError, match="'a-b' and 'a_b' are both 'a_b' in Python"):
        used(server_tool("find", {"name": "find", "input_schema": schema}))


def test_the_description_of_a_tool_is_read_for_its_arguments() -> None:
    description = "Adds.\n\nArgs:\n    a: the first\n    b: the second\n\nReturns:\n    int: the sum"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    method, _ = used(server_tool("add", {"name": "add", "description": description, "input_schema": schema}))

    assert read_doc(method.__doc__) == Doc("Adds.", {"a": "the first", "b": "the second"}, "int: the sum")


@pytest.mark.parametrize(
    ("schema", "annotation"),
    [
        (True, Any),
        ({}, Any),
        ({"type": "string", "format": "date"}, str),
        ({"type": ["string", "null"]}, str | None),
        ({"enum": ["a", 1, None]}, Literal["a", 1, None]),
        ({"enum": [["a"]]}, Any),
        ({"const": "x"}, Literal["x"]),
        ({"type": "array"}, list),
        ({"type": "array", "items": {"type": "integer"}}, list[int]),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, tuple[int, str]),
        ({"type": "array", "prefixItems": [{"type": "integer"}]}, list[int]),
        ({"type": "object", "additionalProperties": {"type": "number"}}, dict[str, float]),
        ({"type": "object", "additionalProperties": False}, dict),
        ({"properties": {"a": {}}}, dict),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, int),
        ({"oneOf": [{"type": "integer"}, {"type": "array", "items": {}}]}, int | list[Any]),
        ({"anyOf": [{"type": "integer"}, {}]}, Any),
        ({"$ref": "#/$defs/missing"}, Any),
        ({"type": "whatever"}, Any),
    ],
)
def test_each_schema_has_a_type(schema: Any, annotation: Any) -> None:
    assert annotation_of(schema, {}) == annotation


def test_a_schema_that_refers_to_itself_has_an_end() -> None:
    root = {"$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}, "B": {"$ref": "#/$defs/B"}}}
    assert str(annotation_of({"$ref": "#/$defs/A"}, root)).startswith("list[list[list[")
    assert annotation_of({"$ref": "#/$defs/B"}, root) is Any


def test_words_that_would_begin_a_section_or_a_list_of_choices_do_not() -> None:
    doc = Doc("See Returns: below", {"a": "one of (choices: red)"}, "")
    assert read_doc(write_doc(doc)) == Doc("See Returns - below", {"a": "one of (choices: red)."}, "")
