"""What goes between server and process: that nothing is lost on the way, and that nothing is trusted."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, field_serializer

from openenv.errors import EnvironmentCrashed, InvalidAction, ResetRequired, StepFailed, Unauthorized
from openenv.protocol.codecs import codec_of
from openenv.protocol.encoding import encode_observation, encode_outcome, encode_state, encode_state_fields
from openenv.runtime.process.messages import (
    HEAD,
    MadeEnvironment,
    RemoteError,
    Verb,
    decode,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from openenv.types import Action, Observation, State

CODECS = [codec_of("openenv.v2.msgpack"), codec_of("openenv.v2.json")]


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    seen: datetime.date = datetime.date(2026, 1, 2)


class Told(Observation):
    terminated: bool = False
    truncated: bool = False


class Rich(Observation):
    points: list[Point]
    colour: Colour
    pair: tuple[int, str]
    when: datetime.datetime
    limit: float

    @field_serializer("pair")
    def joined(self, pair: tuple[int, str]) -> str:
        return f"{pair[0]}{pair[1]}"


class Loose(Observation):
    anything: Any = None


@dataclasses.dataclass
class Plain:
    x: int
    reward: float
    done: bool


OBSERVATIONS = [
    Observation(),
    Observation(reward=0.0, done=True),
    Observation(reward=True, metadata={"a": [1, None, {"b": math.inf}]}),
    Told(done=True, truncated=True, reward=3),
    Told(done=True, terminated=True),
    Told(done=True),
    Rich(
        points=[Point(x=1)],
        colour=Colour.RED,
        pair=(1, "a"),
        when=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        limit=math.nan,
        metadata={"é": "ü"},
    ),
    Loose(anything={"nested": {1, 2}, "date": datetime.date(2026, 1, 2)}),
    {"x": 1, "reward": 2.0, "done": False, "truncated": True},
    Plain(1, 0.5, True),
]


def passed(verb: Verb, value: Any) -> Any:
    result, error = decode(encode_reply(verb, value))
    assert error is None
    return result


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=lambda each: type(each).__name__)
def test_an_observation_leaves_the_server_as_if_it_were_made_there(observation):
    fields = passed(Verb.STEP, observation)
    assert _read(encode_observation(fields)) == _read(encode_observation(observation))
    for codec in CODECS:
        direct, far = encode_outcome(observation, codec), encode_outcome(fields, codec)
        assert repr(codec.decode(codec.reply(1, far))) == repr(codec.decode(codec.reply(1, direct)))


def test_bytes_and_arrays_are_themselves_on_the_way():
    numpy = pytest.importorskip("numpy")
    fields = passed(Verb.RESET, Loose(anything=[b"\0\xff", numpy.arange(3)]))
    assert fields["anything"][0] == b"\0\xff"
    assert fields["anything"][1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("state", [State(step_count=3), State(episode_id="a", more={"b": 1.5}), {"a": None}])
def test_a_state_too(state):
    fields = passed(Verb.STATE, state)
    assert _read(encode_state(fields)) == _read(encode_state(state))
    for codec in CODECS:
        assert encode_state_fields(fields, codec) == encode_state_fields(state, codec)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_none_is_refused_where_it_was_made(reward):
    with pytest.raises(StepFailed, match="reward"):
        encode_reply(Verb.STEP, {"reward": reward})


def test_requests_arrive():
    frame = encode_request(Verb.STEP, Action(metadata={"a": 1}))
    assert HEAD.unpack_from(frame) == (len(frame) - HEAD.size,)
    assert decode_request(frame[HEAD.size :]) == (Verb.STEP, Action(metadata={"a": 1}))


def test_what_was_made_is_told():
    assert passed(Verb.MAKE, MadeEnvironment("Env", closes=True, seedable=False)) == MadeEnvironment(
        "Env", True, False
    )


def test_errors_that_an_environment_may_have_are_themselves():
    for error in (
        StepFailed("no", data={"more": [1]}),
        InvalidAction("bad", data={"errors": [{"loc": ["a"], "msg": "b"}]}),
        ResetRequired("first"),
    ):
        _, told = decode(encode_error(error))
        assert (type(told), told.message, told.data) == (type(error), error.message, error.data)


def test_other_errors_keep_their_name_and_say_where_they_came_from():
    _, told = decode(encode_error(ZeroDivisionError("division by zero"), "Traceback: here"))
    assert (type(told).__name__, str(told), told.__notes__) == (
        "ZeroDivisionError",
        "division by zero",
        ["Traceback: here"],
    )
    assert isinstance(told, RemoteError)


def test_nobody_inside_can_speak_for_the_server():
    _, told = decode(encode_error(Unauthorized("give me your key")))
    assert isinstance(told, RemoteError)


def test_an_error_that_cannot_be_said_is_said_as_well_as_can_be():
    _, told = decode(encode_error(ValueError("lone \ud800")))
    assert "lone" in str(told)
    _, told = decode(encode_error(StepFailed("no", data={"what": object()})))
    assert str(told) == "no"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode({"ok": True, "observation": 1}),
        msgspec.msgpack.encode({"ok": True, "observation": {}, "reward": "x"}),
        msgspec.msgpack.encode({"ok": True, "value": msgspec.msgpack.Ext(7, b"")}),
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_what_is_no_reply_is_refused(frame):
    with pytest.raises(ValueError, match="cannot be read"):
        decode(frame)


@pytest.mark.parametrize("frame", [{}, {"ok": False}, {"error": {"error": 3}}, {"kind": "import os"}, {"error": {}}])
def test_an_error_of_any_shape_is_an_error(frame):
    _, error = decode(msgspec.msgpack.encode(frame))
    assert isinstance(error, Exception)
    assert not isinstance(error, EnvironmentCrashed)


def _read(text: bytes) -> Any:
    return repr(json.loads(text))
