from __future__ import annotations

from typing import Any

import numpy
import pytest
from pydantic import BaseModel, Field

from openenv.recording.difference import SchemaNodes, first_difference, within

NOTHING = SchemaNodes({})


class Clock(BaseModel):
    tick: int
    at: float = Field(json_schema_extra={"seeded": False})


class Board(BaseModel):
    cells: list[list[int]]
    clock: Clock | None = None
    clocks: dict[str, Clock] = {}
    last: tuple[int, Clock] | None = None


def place(one: Any, other: Any, schema: Any = NOTHING) -> str | None:
    found = first_difference(one, other, schema)
    return None if found is None else found.place


def test_the_first_part_that_differs_is_named_with_its_path() -> None:
    found = first_difference({"a": 1, "b": {"c": [1, {"d": 2}]}}, {"a": 1, "b": {"c": [1, {"d": 3}]}}, NOTHING)
    assert found is not None
    assert (found.path, found.one, found.other) == (("b", "c", 1, "d"), 2, 3)
    assert found.sentence("recorded", "played") == "b.c[1].d is 2 recorded, 3 played"


def test_a_field_that_one_has_alone_is_absent_in_the_other() -> None:
    found = first_difference({"a": 1}, {}, NOTHING)
    assert found is not None
    assert found.sentence("then", "now") == "a is 1 then, absent now"


def test_values_that_are_no_containers_differ_as_a_whole() -> None:
    assert place(1, 2) == ""
    assert place([1], [1, 2]) == ""
    assert place({"a": []}, {"a": {}}) == "a"


def test_metadata_at_the_top_are_not_compared() -> None:
    assert place({"metadata": 1}, {"metadata": 2}) is None
    assert place({"in": {"metadata": 1}}, {"in": {"metadata": 2}}) == "in.metadata"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cells": [], "clock": {"tick": 1, "at": 1.0}}, {"cells": [], "clock": {"tick": 1, "at": 2.0}}),
        ({"clocks": {"x": {"tick": 1, "at": 1.0}}}, {"clocks": {"x": {"tick": 1, "at": 2.0}}}),
        ({"last": [1, {"tick": 1, "at": 1.0}]}, {"last": [1, {"tick": 1, "at": 2.0}]}),
    ],
)
def test_fields_that_follow_no_seed_are_found_through_references_and_variants(one: Any, other: Any) -> None:
    assert place(one, other) is not None
    assert place(one, other, SchemaNodes(Board.model_json_schema())) is None


def test_beside_a_field_that_follows_no_seed_the_others_are_compared() -> None:
    one = {"clock": {"tick": 1, "at": 1.0}}
    other = {"clock": {"tick": 2, "at": 2.0}}
    assert place(one, other, SchemaNodes(Board.model_json_schema())) == "clock.tick"


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
    assert place(1, 2, SchemaNodes(schema)) == ""
    assert place(1, 2, SchemaNodes({"$ref": "#/$defs/Nobody"})) == ""


def test_floats_are_the_same_when_they_are_close() -> None:
    assert place({"x": 1.0}, {"x": 1.0 + 1e-9}) is None
    assert place({"x": float("nan")}, {"x": float("nan")}) is None
    assert place({"x": 1.0}, {"x": float("nan")}) == "x"
    assert place({"x": 1}, {"x": 1.0}) is None
    assert place({"x": 0.1}, {"x": 0.1001}) == "x"
    assert place({"x": float("inf")}, {"x": float("-inf")}) == "x"


def test_without_tolerance_floats_are_the_same_to_the_last_digit() -> None:
    exactly = within(0.0)
    assert first_difference(1.0, 1.0 + 1e-15, NOTHING, exactly) is not None
    assert first_difference(float("nan"), float("nan"), NOTHING, exactly) is None
    assert first_difference(1.0, 1.1, NOTHING, within(0.2)) is None


def test_arrays_are_compared_as_the_lists_that_they_are() -> None:
    array = numpy.array([[1.0, 2.0], [3.0, 4.0]], numpy.float32)
    assert place({"x": array}, {"x": [[1.0, 2.0], [3.0, 4.0]]}) is None
    assert place({"x": array}, {"x": array.copy()}) is None
    assert place({"x": array}, {"x": array + 1}) == "x[0][0]"
    assert place({"x": [{"y": array}]}, {"x": [{"y": array.copy()}]}) is None
