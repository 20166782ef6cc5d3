"""Where a value is not what its schema says."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from openenv.testing.schemas import first_fault, undeclared


class Part(BaseModel):
    size: int


class Seen(BaseModel):
    model_config = ConfigDict(extra="forbid")

    board: list[list[int]] = Field(max_length=2)
    part: Part | None = None
    name: str = Field(default="", max_length=3, pattern="^[a-z]*$")
    share: float = Field(default=0, ge=0, lt=1)
    mood: Literal["glad", "sad"] = "glad"
    pair: tuple[int, str] = (0, "")
    table: dict[str, int] = {}
    flag: bool = False


GOOD: dict[str, Any] = {"board": [[1, 2]]}


def fault(**changes: Any) -> str | None:
    return first_fault({**GOOD, **changes}, TypeAdapter(Seen).json_schema(), "seen")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"board": [[1, "2"]]}, 'seen.board[0][1] is "2" (string), but the type must be integer'),
        ({"board": [[], [], []]}, "seen.board has 3 items, but must have at most 2"),
        ({"board": [[True]]}, "seen.board[0][0] is true (boolean), but the type must be integer"),
        ({"board": [[1.5]]}, "seen.board[0][0] is 1.5 (number), but the type must be integer"),
        ({"part": {"size": None}}, "seen.part.size is null (null), but the type must be integer"),
        ({"part": {}}, "seen.part.size is missing"),
        ({"part": 3}, "seen.part is 3 (integer), but the type must be object or null"),
        ({"name": "abcd"}, "4 characters"),
        ({"name": "A"}, "does not match"),
        ({"share": -0.5}, "minimum 0"),
        ({"share": 1}, "exclusiveMaximum 1"),
        ({"mood": "mad"}, "must be one of"),
        ({"pair": [1, 2]}, "seen.pair[1] is 2"),
        ({"pair": [1]}, "must have at least 2"),
        ({"table": {"a": "b"}}, "seen.table.a"),
        ({"flag": 1}, "boolean"),
        ({"more": 1}, "seen.more (1) is not in the schema"),
    ],
)
def test_the_first_fault_is_told_with_its_place(changes: dict[str, Any], words: str) -> None:
    assert words in str(fault(**changes))


@pytest.mark.parametrize(
    "changes",
    [{}, {"board": [[1.0]]}, {"part": {"size": 1}}, {"part": None}, {"pair": [1, "a"]}, {"share": float("nan")}],
)
def test_what_fits_has_no_fault(changes: dict[str, Any]) -> None:
    assert fault(**changes) is None


def test_a_value_without_end_ends() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert first_fault(deep, {"$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}, "$ref": "#/$defs/A"}, "deep") is None


def test_fields_that_are_allowed_and_not_declared_are_told() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {}}, "additionalProperties": True}}}
    assert undeclared({"a": 1, "b": 2}, schema) == ["b"]
    assert undeclared({"a": 1}, {"type": "object"}) == []
    assert undeclared([1], schema) == []


class Blob(BaseModel):
    data: bytes
    maybe: bytes | None = None
    name: str = ""


def test_bytes_are_what_a_field_of_bytes_may_be():
    schema = TypeAdapter(Blob).json_schema()
    assert first_fault({"data": b"\xff", "maybe": b"\0"}, schema, "seen") is None
    assert first_fault({"data": b"\xff", "name": b"x"}, schema, "seen") is not None
