"""What is made up from a schema is what the schema allows."""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from openenv.testing.schemas import NoValue, SchemaValues, first_fault


class Kind(enum.Enum):
    A = "a"
    B = "b"


class Node(BaseModel):
    value: int
    children: list[Node] = []
    parent: Node | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = Field(min_length=3, max_length=4)


class Everything(BaseModel):
    bounded: int = Field(gt=0, lt=3)
    tens: int = Field(multiple_of=10, ge=5, le=35)
    halves: float = Field(multiple_of=0.5, ge=0, le=2)
    share: float = Field(ge=0, le=1)
    below: float = Field(lt=-5)
    word: Annotated[str, Field(pattern=r"^[a-z]{3}-\d+(foo|bar)?$")]
    choice: Literal["x", 3]
    pair: tuple[int, str]
    kind: Kind
    node: Node
    when: datetime.datetime
    day: datetime.date
    name: uuid.UUID
    table: dict[str, float]
    unlike: set[int] = Field(min_length=2)
    raw: bytes
    maybe: int | None
    anything: Any
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    flag: bool
    nothing: None
    three: list[bool] = Field(min_length=3, max_length=3)


@given(seed=st.integers(0, 10_000))
def test_a_model_reads_what_is_made_up_from_its_schema(seed: int) -> None:
    schema = TypeAdapter(Everything).json_schema()
    value = json.loads(json.dumps(SchemaValues(schema, seed).value()))
    Everything.model_validate(value)
    assert first_fault(value, schema, "value") is None


def test_the_same_seed_makes_the_same_values() -> None:
    schema = TypeAdapter(Everything).json_schema()
    first, second, other = (SchemaValues(schema, seed) for seed in (1, 1, 2))
    made = [first.value() for _ in range(5)]
    assert made == [second.value() for _ in range(5)]
    assert made != [other.value() for _ in range(5)]


def test_examples_are_taken_where_there_are_some() -> None:
    class Wait(BaseModel):
        seconds: float = Field(examples=[0.25])

    assert SchemaValues(TypeAdapter(Wait).json_schema()).value() == {"seconds": 0.25}


def test_properties_are_left_out_on_request_unless_they_are_required() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]}
    made = [SchemaValues(schema, seed, frozenset({"a", "b"})).value() for seed in range(20)]
    assert made == [{"b": None}] * 20


def test_parts_of_older_schemas_are_joined() -> None:
    schema = {
        "$defs": {"Base": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}},
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"const": 2}}, "required": ["b"]}],
    }
    assert SchemaValues(schema).value() == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "no value is allowed"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "no value is allowed at a"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no integer is allowed"),
        ({"type": "number", "minimum": 2, "maximum": 1}, "no number is allowed"),
        ({"type": "picture"}, "has type 'picture'"),
        ({"$ref": "#/$defs/Gone"}, "does not exist"),
        ({"type": "string", "pattern": "(?=a)b"}, "has the pattern"),
        ({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, "is infinitely recursive"),
        ({"const": {"a": 1}, "required": None}, "cannot be read"),
    ],
)
def test_what_has_no_values_is_told(schema: Any, words: str) -> None:
    with pytest.raises(NoValue, match=words):
        SchemaValues(schema if isinstance(schema, dict) else {"anyOf": [schema]}).value()


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["type", "items", "a"]), each, max_size=2)
    ),
    max_leaves=4,
)
words = ["type", "enum", "const", "anyOf", "allOf", "items", "properties", "required", "minimum", "pattern", "$ref"]
KINDS = ["string", "integer", "number", "array", "object", "boolean", "null"]


@pytest.mark.slow
@settings(max_examples=200)
@given(schema=st.dictionaries(st.sampled_from(words), odd), kind=st.sampled_from(KINDS))
def test_no_schema_makes_anything_else_happen(schema: dict[str, Any], kind: str) -> None:
    whole = {"type": kind, **schema}
    first_fault([{"a": 1}], whole, "value")
    try:
        value = SchemaValues(whole).value()
    except NoValue:
        return
    first_fault(value, whole, "value")


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "array", "minItems": 10**9, "items": {"type": "integer"}}, r"too large at text\[\]: it has more"),
        ({"type": "array", "minItems": 10**9}, r"too large at text\[\]: it has more"),
        ({"type": "string", "minLength": 10**12}, "text has minLength 1000000000000"),
        ({"type": "object", "minProperties": 10**9, "additionalProperties": True}, r"too large at text\.key"),
        ({"type": "string", "pattern": "a{1000000000}"}, "text has the pattern"),
    ],
)
def test_a_schema_of_a_stranger_gives_no_value_without_end(part: dict[str, Any], said: str) -> None:
    with pytest.raises(NoValue, match=said):
        SchemaValues({"type": "object", "properties": {"text": part}, "required": ["text"]}).value()
