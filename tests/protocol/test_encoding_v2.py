"""Observations and states as v2 replies, in both codecs: the same content as in v1, and what v1 cannot carry."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import math
import types
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel, computed_field, field_serializer, model_serializer

from openenv.errors import StepFailed
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.protocol.encoding import encode_observation, encode_state
from openenv.protocol.server import ServerProtocolV2
from openenv.types import Observation, State

from .examples import Board, observations, trees

servers = pytest.mark.parametrize(
    "server", [ServerProtocolV2(dict, codec_of(name), 8) for name in SUBPROTOCOLS], ids=["msgpack", "json"]
)


def read(server, body):
    """What a client reads of a reply, after a look at the count of its entries."""
    reply = server.codec.decode(server.reply(7, body))
    assert len(reply) == body.count + 1
    assert reply.pop("id") == 7
    assert reply.pop("ok") is True
    return reply


def observed(server, observation):
    return read(server, server.observation(observation))


def refused(write, value):
    with pytest.raises(StepFailed) as caught:
        write(value)
    caught.value.message.encode()
    return caught.value


class Timed(Observation):
    truncated: bool = False


class Ended(Timed):
    terminated: bool = False


class Written(Observation):
    x: int = 3
    at: datetime.date = datetime.date(2024, 1, 2)

    @field_serializer("x")
    def write(self, x):
        return f"x={x}"


class Computed(Observation):
    @computed_field
    @property
    def size(self) -> int:
        return 3


class Inner(BaseModel):
    a: int = 1
    b: float = 0.5


class More(Inner):
    c: int = 2


class Holder(Observation):
    inner: Inner = Inner()
    thing: object = None
    _secret: int = PrivateAttr(3)


@dataclasses.dataclass
class Report:
    x: int = 1
    reward: float | None = 0.5
    done: bool = True
    metadata: dict = dataclasses.field(default_factory=dict)


class Camera(Observation):
    pixels: np.ndarray | None = None
    raw: bytes = b""


class OldCamera(Camera):
    """As an author wrote it for v1."""

    note: str = ""

    @field_serializer("pixels")
    def as_list(self, pixels):
        return None if pixels is None else pixels.tolist()


SAME_AS_V1 = [
    Observation(),
    Board(cells=[["x"]], legend={"x": 1}, reward=1, done=True),
    Board(metadata={"at": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), "deep": [{"n": None}], "s": {1}}),
    Board.model_construct(cells=("x",), title=5, done=False, reward=None, legend={}, metadata={}),
    Board.model_construct(cells=[[datetime.date(2024, 1, 2)]]),
    Timed(done=True, truncated=True),
    Written(metadata={"a": 1}),
    Computed(),
    Holder(inner=More(), thing=More()),
    Holder(thing=Decimal("1.5")),
    Holder(thing={"x": [math.nan, math.inf, None]}),
    Holder(thing={2: 3}),
    {"x": 1, "reward": 2.0, "done": True, "metadata": {"a": 1}, "truncated": True},
    {"x": 1},
    collections.UserDict(x=1, done=1),
    Report(),
    Report(metadata={"a": 1}),
    types.SimpleNamespace(x=1, reward=None, done=np.True_),
    Inner(),
]


@servers
class TestContent:
    @pytest.mark.parametrize("observation", SAME_AS_V1, ids=lambda value: type(value).__name__)
    def test_the_same_as_in_v1(self, server, observation):
        payload = observed(server, observation)
        terminated, truncated = payload.pop("terminated"), payload.pop("truncated")
        old = json.loads(encode_observation(observation))
        assert repr(sorted(payload["observation"].items())) == repr(sorted(old.pop("observation").items()))
        assert truncated is old.pop("truncated", False)
        assert terminated is (old["done"] and not truncated)
        del payload["observation"]
        assert payload == old

    @given(observation=observations)
    def test_an_observation_is_rebuilt(self, server, observation):
        try:
            payload = observed(server, observation)
        except StepFailed:
            assert server.codec.binary  # numbers of more than 64 bits
            return
        assert Board(**payload["observation"], reward=payload["reward"], done=payload["done"]) == observation

    def test_metadata_is_inside_and_repeated_when_there_is_any(self, server):
        payload = observed(server, Observation(metadata={"task": 3, "raw": b"\xff"}))
        assert payload["observation"]["metadata"] == payload["metadata"] == {"task": 3, "raw": b"\xff"}
        assert "metadata" not in observed(server, Observation())

    @pytest.mark.parametrize(
        ("observation", "terminated", "truncated"),
        [
            (Observation(done=False), False, False),
            (Observation(done=True), True, False),
            (Timed(done=True, truncated=True), False, True),
            (Timed(done=True, truncated=False), True, False),
            (Ended(done=True, truncated=True, terminated=True), True, True),
            (Ended(done=True, truncated=True, terminated=False), False, True),
            (Ended(done=False, terminated=True), True, False),
            ({"done": True, "terminated": False}, False, False),
            ({"done": True, "terminated": "no"}, True, False),
            ({"done": True, "truncated": True}, False, True),
        ],
    )
    def test_how_it_ended(self, server, observation, terminated, truncated):
        payload = observed(server, observation)
        assert (payload["terminated"], payload["truncated"]) == (terminated, truncated)

    def test_the_observation_itself_is_left_alone(self, server):
        observation = Board(title="t", reward=1.0, done=True)
        before = observation.model_copy(deep=True)
        server.observation(observation)
        assert observation == before
        given = {"x": 1, "reward": 1.0}
        server.observation(given)
        assert given == {"x": 1, "reward": 1.0}

    @pytest.mark.parametrize("cls", [Camera, OldCamera])
    def test_bytes_and_arrays(self, server, cls):
        pixels = np.arange(6, dtype="u1").reshape(2, 3)
        seen = observed(server, cls(pixels=pixels, raw=b"\xff", metadata={"mask": pixels > 2}))["observation"]
        np.testing.assert_array_equal(seen["pixels"], pixels)
        assert type(seen["pixels"]) is (np.ndarray if cls is Camera else list)
        assert seen["raw"] == b"\xff"
        np.testing.assert_array_equal(seen["metadata"]["mask"], pixels > 2)

    @pytest.mark.parametrize("number", [np.int64(3), np.float32(3), np.float64(3), np.bool_(True)])
    def test_numbers_of_numpy(self, server, number):
        class Numbers(Observation):
            x: list[float] = []
            thing: object = None

        seen = observed(server, Numbers.model_construct(x=[number], thing=number, metadata={"n": {"n": number}}))
        inside = seen["observation"]
        assert inside["x"] == [inside["thing"]] == [inside["metadata"]["n"]["n"]] == [number.item()]
        assert type(inside["thing"]) is type(number.item())


@servers
class TestReward:
    @pytest.mark.parametrize(
        ("reward", "read_as"),
        [
            *[(value, value) for value in (None, True, False, 0, -7, 2**62, 0.1, -0.0, 1e300, 5e-324)],
            *[(kind(0.5), 0.5) for kind in (np.float64, np.float32, np.array, Decimal, Fraction)],
            (np.int64(3), 3),
        ],
    )
    def test_numbers(self, server, reward, read_as):
        for observation in (Observation.model_construct(reward=reward), {"reward": reward}):
            read = observed(server, observation)["reward"]
            assert (read, repr(read)[:4]) == (read_as, repr(float(read_as) if reward is not read_as else read_as)[:4])

    @pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, np.float64("nan"), np.float32("inf")])
    def test_what_is_no_finite_number_is_refused_and_said(self, server, reward):
        for observation in (Observation.model_construct(reward=reward), {"reward": reward}):
            error = refused(server.observation, observation)
            assert "reward" in error.message
            assert str(float(reward)) in error.message

    @pytest.mark.parametrize(
        "reward", ["high", [1.0], object(), 1j, 10**5000, Fraction(10**400)], ids=lambda r: type(r)
    )
    def test_what_is_no_number_is_refused(self, server, reward):
        assert "reward" in refused(server.observation, {"reward": reward}).message


class Broken(Observation):
    @field_serializer("metadata")
    def fail(self, metadata):
        raise KeyError("no such thing")


class AsList(Observation):
    @model_serializer
    def as_list(self):
        return [1]


CIRCLE: dict = {}
CIRCLE["again"] = CIRCLE


@servers
class TestUnwritable:
    @pytest.mark.parametrize(
        ("observation", "named"),
        [
            (Holder(thing=object()), "'thing'"),
            (Board(metadata={"a": object()}), "'metadata'"),
            (Board(title="\ud800"), "'title'"),
            (Board.model_construct(cells=[[object()]]), "'cells'"),
            ({"board": object()}, "'board'"),
            ({"board": CIRCLE}, "'board'"),
            ({"pixels": np.array([object()])}, "'pixels'"),
            (Broken(), "Broken"),
            (AsList(), "AsList"),
            (None, "NoneType"),
            (3, "int"),
            ((1, 2), "tuple"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_it_is_named(self, server, observation, named):
        error = refused(server.observation, observation)
        assert named in error.message
        assert error.__cause__ is not None


class Mine(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    turn: object = "x"


@servers
class TestState:
    @pytest.mark.parametrize(
        "state",
        [
            State(episode_id="e", step_count=2),
            State(board=["x"], n=math.inf),
            Mine(),
            Report(),
            {"turn": "x"},
            types.MappingProxyType({"turn": "x"}),
            types.SimpleNamespace(turn="x"),
        ],
        ids=lambda state: type(state).__name__,
    )
    def test_the_same_as_in_v1(self, server, state):
        assert read(server, server.state(state)) == {"state": json.loads(encode_state(state))}

    def test_bytes_and_arrays(self, server):
        state = read(server, server.state(State(raw=b"\xff", pixels=np.zeros(2, "u1"))))["state"]
        assert (state["raw"], state["pixels"].tolist(), state["step_count"]) == (b"\xff", [0, 0], 0)

    @pytest.mark.parametrize("state", [State(engine=object()), {"engine": object()}, Mine(turn=object())])
    def test_the_field_that_cannot_be_written_is_named(self, server, state):
        assert ("'turn'" if isinstance(state, Mine) else "'engine'") in refused(server.state, state).message

    def test_a_value_that_raises_when_it_is_read_fails_alone(self, server):
        class Raw:
            def __init__(self, error):
                self.error = error

            @property
            def __dict__(self):
                raise self.error

        for error in (RuntimeError("the simulator is gone"), SystemExit(3)):
            assert "Raw cannot be sent" in refused(server.state, Raw(error)).message
            assert type(error).__name__ in refused(server.observation, Raw(error)).message

    @pytest.mark.parametrize("state", [None, 3, [1], RootModel[int](3)], ids=repr)
    def test_what_has_no_fields_is_refused(self, server, state):
        assert type(state).__name__ in refused(server.state, state).message

    @given(data=st.dictionaries(st.text(max_size=5), trees(st.floats(allow_nan=False)), max_size=3))
    def test_any_fields(self, server, data):
        try:
            body = server.state(data)
        except StepFailed:
            assert server.codec.binary  # numbers of more than 64 bits
        else:
            assert read(server, body) == {"state": data}
