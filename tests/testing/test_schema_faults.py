"""Where a value is not what its schema says."""

from __future__ import annotations

import urllib.request
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
        ({"board": [[1, "2"]]}, "seen.board[0][1] is '2', but its schema has type 'integer'"),
        ({"board": [[], [], []]}, "seen.board has length 3, but its schema has maxItems 2"),
        ({"board": [[True]]}, "seen.board[0][0] is True, but its schema has type 'integer'"),
        ({"board": [[1.5]]}, "seen.board[0][0] is 1.5, but its schema has type 'integer'"),
        ({"part": {"size": None}}, "seen.part.size is None, but its schema has type 'integer'"),
        ({"part": {}}, "seen.part: 'size' is a required property"),
        ({"part": 3}, "seen.part is 3, but its schema has anyOf [{'$ref': '#/$defs/Part'}, {'type': 'null'}]"),
        ({"name": "abcd"}, "seen.name has length 4, but its schema has maxLength 3"),
        ({"name": "A"}, "seen.name is 'A', but its schema has pattern '^[a-z]*$'"),
        ({"share": -0.5}, "minimum 0"),
        ({"share": 1}, "exclusiveMaximum 1"),
        ({"mood": "mad"}, "seen.mood is 'mad', but its schema has enum ['glad', 'sad']"),
        ({"pair": [1, 2]}, "seen.pair[1] is 2"),
        ({"pair": [1]}, "seen.pair has length 1, but its schema has minItems 2"),
        ({"table": {"a": "b"}}, "seen.table.a"),
        ({"flag": 1}, "boolean"),
        ({"more": 1}, "seen: Additional properties are not allowed ('more' was unexpected)"),
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


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (float("inf"), {"type": "number", "maximum": 1}),
        (0.3, {"type": "number", "multipleOf": 0.1}),
        (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ("a", {"type": "string", "pattern": "(?<no"}),
        ({"a": 1}, {"type": "object", "patternProperties": {r"^\p{L}$": {}}, "additionalProperties": False}),
    ],
)
def test_what_pydantic_accepts_is_no_fault(value: Any, schema: dict[str, Any]) -> None:
    assert first_fault(value, schema, "value") is None
    assert first_fault([value, None], {"prefixItems": [schema, {"type": "string"}]}, "seen") is not None


def test_a_pattern_is_searched_without_warnings() -> None:
    assert first_fault("a", {"pattern": "[[]"}, "value") == "value is 'a', but its schema has pattern '[[]'"
    assert first_fault("[", {"pattern": "[[]"}, "value") is None


@pytest.mark.parametrize("schema", [{"type": "picture"}, {"$ref": "#/$defs/Gone"}, {"minimum": "a"}, {"items": 3}])
def test_an_invalid_schema_judges_nothing(schema: dict[str, Any]) -> None:
    assert first_fault([1], {"items": schema}, "value") is None


def test_another_document_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(urllib.request, "urlopen", asked.append)
    assert first_fault(1, {"$ref": "http://127.0.0.1:9/schema.json"}, "value") is None
    assert not asked


def test_a_long_value_is_cut() -> None:
    said = str(first_fault(["a" * 1000], {"items": {"type": "integer"}}, "value"))
    assert said == f"value[0] is '{'a' * 76}..., but its schema has type 'integer'"
    assert first_fault([0], {"items": False}, "value") == "value[0] is 0, but its schema allows no value"
