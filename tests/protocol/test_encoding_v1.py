from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import json
import math
import types
import weakref
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from pydantic import BaseModel, ConfigDict, field_serializer

from openenv.errors import StepFailed
from openenv.protocol.encoding import encode_observation, encode_state
from openenv.types import Observation, State

from .examples import Board, observations


class Opaque:
    """What JSON cannot say, and what has no fields either."""

    __slots__ = ()


class Holder(Observation):
    thing: object = None


class Timed(Observation):
    truncated: bool = False


@dataclasses.dataclass
class Report:
    x: int = 1
    reward: float | None = 0.5
    done: bool = True
    metadata: dict = dataclasses.field(default_factory=dict)


def refused(encode, value):
    with pytest.raises(StepFailed) as caught:
        encode(value)
    caught.value.message.encode()  # it will have to travel
    return caught.value


class TestShape:
    def test_bytes_of_a_bare_observation(self):
        assert encode_observation(Observation()) == b'{"observation":{"metadata":{}},"reward":null,"done":false}'

    def test_every_field_but_reward_and_done_is_inside(self):
        payload = json.loads(encode_observation(Board(cells=[["x"]], reward=1, done=True)))
        assert payload == {
            "observation": {"metadata": {}, "cells": [["x"]], "legend": {}, "title": None},
            "reward": 1,
            "done": True,
        }

    def test_metadata_is_inside_and_repeated_at_the_top(self):
        payload = json.loads(encode_observation(Observation(metadata={"task": 3})))
        assert payload["observation"]["metadata"] == payload["metadata"] == {"task": 3}

    def test_empty_metadata_is_not_repeated(self):
        assert "metadata" not in json.loads(encode_observation(Observation()))

    def test_metadata_is_repeated_as_the_model_writes_it(self):
        class Described(Observation):
            @field_serializer("metadata")
            def describe(self, metadata):
                return {key: type(value).__name__ for key, value in metadata.items()}

        payload = json.loads(encode_observation(Described(metadata={"engine": Opaque()})))
        assert payload["observation"]["metadata"] == payload["metadata"] == {"engine": "Opaque"}

    @pytest.mark.parametrize("truncated", [True, False])
    def test_truncated_is_told_at_the_top_only_when_true(self, truncated):
        payload = json.loads(encode_observation(Timed(done=True, truncated=truncated)))
        assert payload["observation"]["truncated"] is truncated
        assert payload.get("truncated") is (True if truncated else None)

    def test_nothing_is_added_inside(self):
        """Clients that nobody here wrote forbid unknown fields there."""

        class Theirs(BaseModel):
            model_config = ConfigDict(extra="forbid")
            x: int
            metadata: dict

        class Ours(Observation):
            x: int

        payload = json.loads(encode_observation(Ours(x=1, metadata={"a": 1}, reward=2.0, done=True)))
        assert Theirs(**payload["observation"]).x == 1

    @given(observations)
    def test_an_observation_is_rebuilt_from_its_payload(self, observation):
        payload = json.loads(encode_observation(observation))
        rebuilt = Board(**payload["observation"], reward=payload["reward"], done=payload["done"])
        assert rebuilt == observation
        assert type(rebuilt.reward) is type(observation.reward)
        assert payload.get("metadata", {}) == observation.metadata
        assert set(payload) <= {"observation", "reward", "done", "metadata"}

    def test_an_observation_with_a_field_that_a_subclass_redefines(self):
        class Strict(Observation):
            reward: float = 0.0
            done: bool = True

        assert json.loads(encode_observation(Strict(reward=2.5))) == {
            "observation": {"metadata": {}},
            "reward": 2.5,
            "done": True,
        }


class TestReward:
    @pytest.mark.parametrize(
        ("reward", "written"),
        [
            (None, b"null"),
            (True, b"true"),
            (False, b"false"),
            (0, b"0"),
            (-7, b"-7"),
            (10**30, b"1" + b"0" * 30),
            (0.1, b"0.1"),
            (-0.0, b"-0.0"),
            (1e300, b"1e+300"),
            (5e-324, b"5e-324"),
        ],
    )
    def test_bytes(self, reward, written):
        assert b'"reward":%b,' % written in encode_observation(Observation(reward=reward))

    @pytest.mark.parametrize(
        "reward",
        [np.float64(0.5), np.float32(0.5), np.float16(0.5), np.array(0.5), Decimal("0.5"), Fraction(1, 2)],
        ids=lambda reward: f"{type(reward).__module__}.{type(reward).__name__}",
    )
    @pytest.mark.parametrize("build", [Observation.model_construct, dict], ids=["model", "dict"])
    def test_numbers_of_other_libraries(self, build, reward):
        payload = json.loads(encode_observation(build(reward=reward)))
        assert payload["reward"] == 0.5

    @pytest.mark.parametrize("reward", [np.int64(3), np.uint8(3), 3.0, 3])
    def test_whole_numbers(self, reward):
        assert json.loads(encode_observation({"reward": reward}))["reward"] == 3

    def test_an_integer_of_an_enumeration(self):
        class Score(enum.IntEnum):
            WIN = 2

        assert json.loads(encode_observation({"reward": Score.WIN}))["reward"] == 2

    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
    @pytest.mark.parametrize("build", [Observation.model_construct, dict], ids=["model", "dict"])
    def test_what_is_no_finite_number_is_refused_and_said(self, build, reward):
        error = refused(encode_observation, build(reward=reward))
        assert "reward" in error.message
        assert str(float(reward)) in error.message
        assert (error.code, error.blame) == ("EXECUTION_ERROR", "environment")

    @pytest.mark.parametrize("reward", ["high", [1.0], {"a": 1}, Opaque(), 1j])
    def test_what_is_no_number_is_refused_and_its_type_said(self, reward):
        error = refused(encode_observation, {"reward": reward})
        assert "reward" in error.message
        assert type(reward).__name__ in error.message

    @pytest.mark.parametrize(
        "reward", [10**5000, Fraction(10**400), Decimal("1e400")], ids=["int", "Fraction", "Decimal"]
    )
    def test_numbers_beyond_what_can_be_written_are_refused(self, reward):
        assert "reward" in refused(encode_observation, {"reward": reward}).message


class TestOtherObjects:
    def test_a_dict(self):
        payload = json.loads(
            encode_observation({"x": 1, "reward": 2.0, "done": True, "metadata": {"a": 1}, "truncated": True})
        )
        assert payload == {
            "observation": {"x": 1, "metadata": {"a": 1}, "truncated": True},
            "reward": 2.0,
            "done": True,
            "metadata": {"a": 1},
            "truncated": True,
        }

    def test_a_dict_without_reward_and_done(self):
        assert json.loads(encode_observation({"x": 1})) == {"observation": {"x": 1}, "reward": None, "done": False}

    @pytest.mark.parametrize(
        "mapping",
        [collections.OrderedDict, collections.UserDict, types.MappingProxyType, collections.ChainMap],
    )
    def test_every_mapping(self, mapping):
        payload = json.loads(encode_observation(mapping({"x": 1, "reward": 2.0, "done": True})))
        assert payload == {"observation": {"x": 1}, "reward": 2.0, "done": True}

    def test_a_dataclass(self):
        payload = json.loads(encode_observation(Report()))
        assert payload == {"observation": {"x": 1, "metadata": {}}, "reward": 0.5, "done": True}

    def test_a_dataclass_with_slots(self):
        @dataclasses.dataclass(slots=True)
        class Slotted:
            x: int = 1
            reward: float = 0.5
            done: bool = True

        payload = json.loads(encode_observation(Slotted()))
        assert payload == {"observation": {"x": 1}, "reward": 0.5, "done": True}

    def test_an_object_with_fields(self):
        payload = json.loads(encode_observation(types.SimpleNamespace(x=1, reward=None, done=np.True_)))
        assert payload == {"observation": {"x": 1}, "reward": None, "done": True}

    def test_another_model(self):
        class Seen(BaseModel):
            x: int = 1
            reward: float = 0.5
            done: bool = True

        payload = json.loads(encode_observation(Seen()))
        assert payload == {"observation": {"x": 1}, "reward": 0.5, "done": True}

    def test_another_model_loses_none_of_its_further_fields(self):
        class Open(BaseModel):
            model_config = ConfigDict(extra="allow")

        payload = json.loads(encode_observation(Open(x=1, reward=0.5, done=True)))
        assert payload == {"observation": {"x": 1}, "reward": 0.5, "done": True}

    def test_another_model_without_reward_is_written_its_own_way(self):
        class Secretive(BaseModel):
            x: int = 7

            @field_serializer("x")
            def hide(self, x):
                return "*"

        payload = json.loads(encode_observation(Secretive()))
        assert payload == {"observation": {"x": "*"}, "reward": None, "done": False}

    @pytest.mark.parametrize("nothing", [None, 3, "seen", (1, 2), Opaque()])
    def test_what_has_no_fields_is_refused(self, nothing):
        assert type(nothing).__name__ in refused(encode_observation, nothing).message


class TestUnwritable:
    def test_the_field_is_named(self):
        error = refused(encode_observation, Holder(thing=Opaque()))
        assert "'thing'" in error.message
        assert "Holder" in error.message
        assert "Opaque" in error.message

    def test_the_key_of_a_dict_is_named(self):
        assert "'board'" in refused(encode_observation, {"x": 1, "board": Opaque()}).message

    def test_an_array_that_no_list_can_say_is_named(self):
        for array in (np.zeros(3, [("a", "i4")]), np.zeros(3, complex), np.array(["a"]), np.ma.masked_array([1])):
            assert "'pixels'" in refused(encode_observation, {"pixels": array}).message

    def test_metadata_is_named(self):
        assert "'metadata'" in refused(encode_observation, Observation(metadata={"a": Opaque()})).message

    def test_text_that_is_no_unicode_is_named(self):
        assert "'name'" in refused(encode_observation, {"name": "file\udc80"}).message

    def test_a_circle_is_named(self):
        circle: dict = {}
        circle["again"] = circle
        assert "'board'" in refused(encode_observation, {"board": circle}).message

    def test_a_serializer_that_raises(self):
        class Broken(Observation):
            x: int = 1

            @field_serializer("x")
            def fail(self, x):
                raise KeyError("no such thing")

        assert "Broken" in refused(encode_observation, Broken()).message

    def test_the_cause_is_kept(self):
        assert refused(encode_observation, Holder(thing=Opaque())).__cause__ is not None


class TestNumbersInsideObservations:
    def test_nan_and_infinity_travel_as_themselves(self):
        payload = json.loads(encode_observation({"x": [math.nan, math.inf]}))
        assert math.isnan(payload["observation"]["x"][0])
        assert payload["observation"]["x"][1] == math.inf


class TestState:
    def test_a_state(self):
        assert encode_state(State(episode_id="e", step_count=2)) == b'{"episode_id":"e","step_count":2}'

    def test_further_fields(self):
        assert json.loads(encode_state(State(board=["x"])))["board"] == ["x"]

    @pytest.mark.parametrize(
        "state",
        [{"turn": "x"}, types.SimpleNamespace(turn="x"), types.MappingProxyType({"turn": "x"})],
        ids=lambda state: type(state).__name__,
    )
    def test_other_objects(self, state):
        assert json.loads(encode_state(state)) == {"turn": "x"}

    def test_a_dataclass(self):
        assert json.loads(encode_state(Report()))["x"] == 1

    def test_another_model(self):
        class Mine(BaseModel):
            turn: str = "x"

        assert json.loads(encode_state(Mine())) == {"turn": "x"}

    def test_the_field_that_cannot_be_written_is_named(self):
        for state in (State(engine=Opaque()), {"engine": Opaque()}):
            assert "'engine'" in refused(encode_state, state).message

    def test_no_state_is_refused(self):
        assert "NoneType" in refused(encode_state, None).message


def test_an_observation_that_cannot_be_sent_is_not_kept():
    class Picture(Observation):
        pixels: str = "x"

    observation = Picture(reward=math.nan)
    kept = weakref.ref(observation)
    gc.disable()
    try:
        with suppress(StepFailed):
            encode_observation(observation)
        del observation
        assert kept() is None
    finally:
        gc.enable()
