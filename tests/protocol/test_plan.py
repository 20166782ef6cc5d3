from __future__ import annotations

import datetime
import enum
import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import pytest
from hypothesis import given
from pydantic import (
    AfterValidator,
    Base64Str,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
)
from pydantic_core import from_json

from openenv.protocol.codecs import MAX_DEPTH, is_plain
from openenv.protocol.encoding import plan_of
from openenv.protocol.values import encode_plain
from openenv.types import Observation

from .examples import Board, json_values, observations

T = TypeVar("T")


def observing(annotation, **facts):
    """An observation class with one field `x` of a type."""
    return create_model("Seen", __base__=Observation, x=(annotation, Field(**facts)))


class Colour(enum.Enum):
    RED = 1


class TestPlainClasses:
    @pytest.mark.parametrize(
        "annotation",
        [
            int,
            float | None,
            bool | str | None,
            list[list[float]],
            dict[str, list[int]],
            tuple[int, ...],
            tuple[int, str],
            Literal["a", 3, None],
            Annotated[int, Field(ge=0)],
            list[Annotated[str, Field(pattern="^a")]],
        ],
        ids=str,
    )
    def test_values_of_declared_types_need_no_look(self, annotation):
        assert plan_of(observing(annotation)).loose == ("metadata",)

    @pytest.mark.parametrize(
        "annotation",
        [Any, object, list, dict, list[Any], dict[int, str], Sequence[int], bytes, np.ndarray, bytes | None],
        ids=str,
    )
    def test_values_of_others_are_looked_at(self, annotation):
        assert plan_of(observing(annotation)).loose == ("metadata", "x")

    def test_whether_a_class_tells_that_it_terminated(self):
        class Timed(Observation):
            truncated: bool = False
            terminated: bool = False

        assert plan_of(Timed).has_terminated
        assert plan_of(observing(int)).has_terminated is False
        assert plan_of(create_model("M", __base__=Observation, terminated=(int, 0))).has_terminated is False

    def test_of_a_class_that_only_validates(self):
        class Checked(Observation):
            x: int = 0

            @field_validator("x")
            @classmethod
            def check(cls, x):
                return x

        assert plan_of(Checked) is not None

    def test_it_is_made_once(self):
        assert plan_of(Board) is plan_of(Board)


class TestClassesThatWriteThemselves:
    @pytest.mark.parametrize(
        "annotation",
        [
            SecretStr,
            Base64Str,
            datetime.datetime,
            Colour,
            Board,
            list[Board],
            Annotated[int, PlainSerializer(str)],
            Annotated[int, AfterValidator(int)],
            set[int],
            complex,
        ],
        ids=str,
    )
    def test_by_the_type_of_a_field(self, annotation):
        assert plan_of(observing(annotation)) is None

    @pytest.mark.parametrize(
        "facts",
        [{"alias": "y"}, {"serialization_alias": "y"}, {"exclude": True}],
        ids=lambda facts: next(iter(facts)),
    )
    def test_by_what_is_said_of_a_field(self, facts):
        assert plan_of(observing(int, **facts)) is None

    def test_by_a_serializer(self):
        class OfField(Observation):
            @field_serializer("metadata")
            def write(self, metadata):
                return {}

        class OfModel(Observation):
            @model_serializer
            def write(self):
                return {}

        class Computed(Observation):
            @computed_field
            @property
            def x(self) -> int:
                return 1

        class Below(OfField):
            y: int = 0

        assert [plan_of(cls) for cls in (OfField, OfModel, Computed, Below)] == [None] * 4

    def test_by_further_fields(self):
        class Welcoming(Observation):
            model_config = ConfigDict(extra="allow")

        assert plan_of(Welcoming) is None

    def test_by_what_else_is_in_the_dict(self):
        class Remembering(Observation):
            @functools.cached_property
            def x(self):
                return 1

        assert plan_of(Remembering) is None

    def test_by_a_schema_of_its_own(self):
        class Odd(Observation):
            @classmethod
            def __get_pydantic_core_schema__(cls, source, handler):
                return handler(source)

        assert plan_of(Odd) is None

    def test_by_a_type_that_is_open(self):
        class Open(Observation, Generic[T]):
            x: T

        assert plan_of(Open) is None
        assert plan_of(Open[int]) is not None

    @pytest.mark.parametrize("cls", [dict, int, BaseModel, create_model("Model", reward=(float, 0.0))])
    def test_no_observation(self, cls):
        assert plan_of(cls) is None


class TestFields:
    def test_a_dict_of_ones_own(self):
        observation = Board(title="t", reward=1.0)
        fields = plan_of(Board).fields(observation)
        assert fields == observation.__dict__
        assert fields is not observation.__dict__

    def test_of_an_instance_that_is_not_as_declared(self):
        observation = Board()
        observation.__dict__["more"] = 1
        assert plan_of(Board).fields(observation) is None
        assert plan_of(Board).fields(Board.model_construct()) is not None

    @pytest.mark.slow
    @given(observations)
    def test_plain_by_what_the_loose_ones_hold(self, observation):
        plan = plan_of(Board)
        assert plan.is_plain(plan.fields(observation))
        observation.metadata["raw"] = b""
        assert not plan.is_plain(plan.fields(observation))

    def test_an_array_is_not_plain(self):
        plan = plan_of(observing(np.ndarray))
        assert not plan.is_plain({"metadata": {}, "x": np.zeros(3)})


class TestPlain:
    @given(json_values)
    def test_values_of_json_are(self, value):
        assert is_plain(value)

    @pytest.mark.parametrize("odd", [b"", np.float64(1), np.zeros(1), {1: 2}, {1}, Colour.RED, object(), Board()])
    def test_others_are_not_wherever_they_are(self, odd):
        assert not is_plain(odd)
        for value in (
            [odd],
            (1, odd),
            {"a": odd},
            [{"a": 1}, {"a": odd}],
            [[1], {"a": [odd]}],
            {"a": {}, "b": [odd]},
        ):
            assert not is_plain(value)

    def test_subclasses_are_not(self):
        class Text(str):
            __slots__ = ()

        assert not is_plain(Text())
        assert not is_plain({Text(): 1})
        assert not is_plain([{"a": 1}, {Text(): 1}])
        assert not is_plain(True.__class__)

    def test_up_to_a_depth(self):
        value = 1
        for _ in range(MAX_DEPTH):
            value = [value]
        assert is_plain(value)
        assert not is_plain([value])
        circle = {}
        circle["again"] = circle
        assert not is_plain(circle)

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            [math.nan],
            {"a": math.inf, "b": None},
            {"a": {"b": None, "c": [None]}, "n": None, "x": -math.inf},
            {"a": {"b": None}, "n": None, "text": "null"},
            {"a": {"b": {"c": math.nan}}},
        ],
    )
    def test_json_keeps_numbers_that_are_none(self, value):
        assert repr(from_json(encode_plain(value))) == repr(value)
