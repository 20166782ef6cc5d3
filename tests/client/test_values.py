"""Values of every kind arrive as what was sent: actions, observations and states, in each form of the wire."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model, field_serializer, field_validator
from pydantic_core import from_json
from typing_extensions import TypedDict

from openenv.client.payloads import dump_action, parse_observation, parse_state
from openenv.errors import InvalidAction, OpenEnvError, ProtocolViolation, StepFailed
from openenv.protocol.client import ClientProtocol
from openenv.protocol.codecs import codec_of
from openenv.protocol.encoding import encode_observation, encode_outcome, encode_state, encode_state_fields
from openenv.protocol.server import ActionReader, ServerProtocol
from openenv.types import Action, Observation, State

V1, JSON, MSGPACK = None, "openenv.v2.json", "openenv.v2.msgpack"
WIRES = [V1, JSON, MSGPACK]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mood(enum.StrEnum):
    FINE = "fine"


class Point(NamedTuple):
    x: int
    y: float


class Sizes(TypedDict):
    data: bytes
    at: datetime


@dataclass
class Card:
    picture: bytes
    when: date = date(2026, 1, 2)
    tags: list[str] = field(default_factory=list)


class Frame(BaseModel):  # noqa: PLW1641 - nobody hashes it
    """A model that is not ours, with what JSON has no form for."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    pixels: np.ndarray
    raw: bytes = b""
    next: Frame | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and same(self.__dict__, other.__dict__)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    claws: bytes


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    born: date


# All that a reader may not change. Where protocol v1 can say less, `V1_ONLY_AS` says what arrives.
ELEMENTS = [bool, "i1", "u1", "i2", "<u2", ">i4", "u4", "i8", "u8", "f2", "<f4", ">f8", "c8", "c16"]
EXACT = arrays.arrays(
    st.sampled_from(ELEMENTS).map(np.dtype), arrays.array_shapes(min_dims=0, min_side=0, max_side=3)
)
REAL = arrays.arrays(
    st.sampled_from(["i4", "u1", "f8", "?"]).map(np.dtype), arrays.array_shapes(min_dims=0, max_side=3)
)
BYTES_IMAGES = arrays.arrays(np.uint8, arrays.array_shapes(max_side=3))
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=-30)), None])
FRAMES = st.recursive(
    st.builds(Frame, pixels=BYTES_IMAGES, raw=st.binary(max_size=4)),
    lambda inner: st.builds(Frame, pixels=REAL, raw=st.binary(max_size=4), next=inner),
    max_leaves=3,
)
CARDS = st.builds(
    Card, picture=st.binary(max_size=4), when=st.dates(), tags=st.lists(st.text(max_size=3), max_size=2)
)

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "bool": (bool, st.booleans()),
    "int": (int, st.integers(-(2**63), 2**63 - 1)),
    "float": (float, st.floats()),
    "text": (str, st.text(max_size=8)),
    "bytes": (bytes, st.binary(max_size=8)),
    "enum": (Colour, st.sampled_from(Colour)),
    "int enum": (Level, st.sampled_from(Level)),
    "text enum": (Mood, st.just(Mood.FINE)),
    "literal": (Literal["a", 1], st.sampled_from(["a", 1])),
    "date": (date, st.dates()),
    "datetime": (datetime, st.datetimes(timezones=ZONES)),
    "time": (time, st.times()),
    "timedelta": (timedelta, st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    "decimal": (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    "uuid": (UUID, st.uuids()),
    "path": (PurePosixPath, st.just(PurePosixPath("a/b"))),
    "list of bytes": (list[bytes], st.lists(st.binary(max_size=3), max_size=3)),
    "map of bytes": (dict[str, bytes], st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=3)),
    "tuple": (
        tuple[bytes, int, Colour],
        st.tuples(st.binary(max_size=3), st.integers(0, 9), st.sampled_from(Colour)),
    ),
    "long tuple": (tuple[bytes, ...], st.lists(st.binary(max_size=3), max_size=3).map(tuple)),
    "named tuple": (Point, st.builds(Point, st.integers(0, 9), st.floats(allow_nan=False))),
    "set": (set[int], st.sets(st.integers(0, 9))),
    "set of bytes": (frozenset[bytes], st.frozensets(st.binary(max_size=3), max_size=3)),
    "deque": (deque[int], st.lists(st.integers(0, 9), max_size=3).map(deque)),
    "map by int": (dict[int, str], st.dictionaries(st.integers(0, 9), st.text(max_size=3), max_size=3)),
    "map by enum": (dict[Colour, date], st.dictionaries(st.sampled_from(Colour), st.dates())),
    "map by date": (dict[date, bytes], st.dictionaries(st.dates(), st.binary(max_size=3), max_size=3)),
    "optional": (bytes | None, st.none() | st.binary(max_size=3)),
    "int or text": (int | str, st.integers(0, 9) | st.text(max_size=3)),
    "bytes or int": (bytes | int, st.binary(max_size=3) | st.integers(0, 9)),
    "list or map": (
        list[int] | dict[str, int],
        st.lists(st.integers(0, 9)) | st.dictionaries(st.text(), st.integers(0, 9)),
    ),
    "models": (
        Annotated[Cat | Dog, Field(discriminator="kind")],
        st.builds(Cat, claws=st.binary(max_size=3)) | st.builds(Dog, born=st.dates()),
    ),
    "models by shape": (Cat | Dog, st.builds(Cat, claws=st.binary(max_size=3)) | st.builds(Dog, born=st.dates())),
    "dataclass": (Card, CARDS),
    "dataclasses": (
        dict[str, list[Card]],
        st.dictionaries(st.text(max_size=3), st.lists(CARDS, max_size=2), max_size=2),
    ),
    "typed dict": (Sizes, st.fixed_dictionaries({"data": st.binary(max_size=3), "at": st.datetimes()})),
    "nested models": (Frame, FRAMES),
    "lists of models": (list[Frame], st.lists(FRAMES, max_size=2)),
    "array": (np.ndarray, EXACT),
    "array of a type": (NDArray[np.uint8], BYTES_IMAGES),
    "arrays": (list[np.ndarray], st.lists(REAL, max_size=2)),
    "arrays by name": (dict[str, np.ndarray], st.dictionaries(st.text(max_size=3), REAL, max_size=2)),
    "perhaps an array": (np.ndarray | None, st.none() | REAL),
    "numpy number": (np.float32, st.floats(width=32).map(np.float32)),
    "anything plain": (
        Any,
        st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists, max_leaves=3),
    ),
}
# Of these v2 alone keeps the kind: v1 has texts for bytes that are one, and lists for arrays.
V2_ONLY: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "text or bytes": (str | bytes, st.text(max_size=3) | st.binary(max_size=3)),
    "anything": (Any, st.binary(max_size=3) | REAL | st.lists(st.binary(max_size=3) | REAL, max_size=2)),
    "bare map": (dict, st.dictionaries(st.text(max_size=3), st.binary(max_size=3) | REAL, max_size=3)),
}
CASES = [(wire, kind) for wire in WIRES for kind in (KINDS if wire is V1 else KINDS | V2_ONLY)]


@cache
def classes(kind: str) -> tuple[type[Action], type[Observation], type[State]]:
    declared = (KINDS | V2_ONLY)[kind][0]
    return (
        create_model("A", __base__=Action, value=(declared, ...)),
        create_model("O", __base__=Observation, value=(declared, ...)),
        create_model("S", __base__=State, value=(declared, ...)),
    )


def acted(wire: str | None, action: Any) -> Any:
    """What the environment gets of a client's action."""
    if wire is V1:
        frame, _ = ClientProtocol().send("step", dump_action(action))
        return ServerProtocol(type(action)).receive(frame)["data"]
    codec = codec_of(wire)
    return ActionReader(type(action), codec)(codec.encode(dump_action(action)))


def observed(wire: str | None, observation: Any) -> Any:
    """What the client gets of the environment's observation."""
    if wire is V1:
        payload = from_json(encode_observation(observation))
    else:
        codec = codec_of(wire)
        payload = codec.decode(codec.reply(1, encode_outcome(observation, codec)))
    return parse_observation(TypeAdapter(type(observation)), payload).observation


def told(wire: str | None, state: Any) -> Any:
    """What the client gets of the environment's state."""
    if wire is V1:
        payload = from_json(encode_state(state))
    else:
        codec = codec_of(wire)
        payload = codec.decode(codec.reply(1, encode_state_fields(state, codec)))["state"]
    return parse_state(TypeAdapter(type(state)), payload)


def same(one: Any, other: Any) -> bool:
    """Whether two values are of one kind and equal, NaN to NaN."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.shape == other.shape
            and one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
            and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (float, np.floating)) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def as_in_v1(value: Any) -> Any:
    """An array as it arrives over v1 where its element type was not declared: as numpy makes it of lists."""
    if isinstance(value, np.ndarray):
        return np.asarray(value.tolist())
    if isinstance(value, Frame):
        return Frame(pixels=as_in_v1(value.pixels), raw=value.raw, next=as_in_v1(value.next))
    if isinstance(value, dict):
        return {key: as_in_v1(content) for key, content in value.items()}
    return [as_in_v1(each) for each in value] if isinstance(value, list) else value


def lossy(wire: str | None, value: Any) -> bool:
    """What v1 has no words for at all: numbers that are complex."""
    return wire is V1 and isinstance(value, np.ndarray) and value.dtype.kind == "c"


@pytest.mark.parametrize(("wire", "kind"), CASES, ids=lambda part: (part or "v1").replace(" ", "-"))
@settings(max_examples=30)
@given(data=st.data())
def test_values_arrive_as_they_were_sent(wire: str | None, kind: str, data: st.DataObject) -> None:
    declared, values = (KINDS | V2_ONLY)[kind]
    value = data.draw(values)
    if lossy(wire, value):
        return
    action_type, observation_type, state_type = classes(kind)
    expected = as_in_v1(value) if wire is V1 and declared != NDArray[np.uint8] else value

    for carry, sent in (
        (acted, action_type(value=value)),
        (observed, observation_type(value=value)),
        (told, state_type(value=value)),
    ):
        arrived = carry(wire, sent)
        assert same(arrived.value, expected), (carry, arrived.value, expected)


class Picture(Action):
    pixels: np.ndarray
    note: str = ""


class Seen(Observation):
    pixels: np.ndarray


class Held(State):
    pixels: np.ndarray


REFUSED = {
    "records": np.zeros(2, [("a", "i4")]),
    "texts": np.array(["a"]),
    "objects": np.array([{}]),
    "times": np.array(["2026-01-02"], "datetime64[D]"),
    "long doubles": np.zeros(2, np.longdouble),
    "with a mask": np.ma.masked_array([1, 2], [True, False]),
}


@pytest.mark.parametrize("wire", WIRES, ids=str)
@pytest.mark.parametrize("array", REFUSED.values(), ids=REFUSED.keys())
def test_an_array_that_cannot_be_sent_is_refused_where_it_is(wire: str | None, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"an array .* cannot be sent"):
        acted(wire, Picture(pixels=array))
    with pytest.raises(StepFailed, match=r"'pixels'.* cannot be sent"):
        observed(wire, Seen(pixels=array))
    with pytest.raises(StepFailed, match=r"'pixels'.* cannot be sent"):
        told(wire, Held(pixels=array))


def test_complex_numbers_have_no_form_in_v1() -> None:
    with pytest.raises(StepFailed, match="complex numbers"):
        observed(V1, Seen(pixels=np.zeros(2, complex)))


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_an_array_of_any_layout_arrives_as_its_elements(wire: str | None) -> None:
    whole = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    for array in (
        whole.T,
        whole[:, ::-2],
        whole[1, 1],
        np.asfortranarray(whole),
        np.broadcast_to(whole[0], (2, 3, 4)),
    ):
        arrived = acted(wire, Picture(pixels=array)).pixels
        assert same(arrived, np.ascontiguousarray(array))
        arrived[...] = 0  # and may be written to


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_other_programs_may_send_lists_for_an_array(wire: str | None) -> None:
    values = {"pixels": [[1, 2], [3, 4]]}
    if wire is V1:
        frame, _ = ClientProtocol().send("step", values)
        action = ServerProtocol(Picture).receive(frame)["data"]
    else:
        action = ActionReader(Picture, codec_of(wire))(codec_of(wire).encode(values))
    assert same(action.pixels, np.array([[1, 2], [3, 4]]))


@pytest.mark.parametrize("wire", WIRES, ids=str)
@pytest.mark.parametrize("values", [[[1], [2, 3]], ["a"], "abc", None, {"$array": {"dtype": "<u1"}}, [{}]], ids=str)
def test_what_is_no_array_is_refused_where_it_is(wire: str | None, values: Any) -> None:
    with pytest.raises(OpenEnvError) as raised:
        acted_raw(wire, {"pixels": values})
    if not isinstance(values, dict):
        assert isinstance(raised.value, InvalidAction)
        assert raised.value.data["errors"][0]["loc"] == ["pixels"]


def acted_raw(wire: str | None, values: dict[str, Any]) -> Any:
    if wire is V1:
        frame, _ = ClientProtocol().send("step", values)
        return ServerProtocol(Picture).receive(frame)["data"]
    codec = codec_of(wire)
    return ActionReader(Picture, codec)(codec.encode(values))


def test_a_reply_with_something_else_than_an_array_does_not_fit() -> None:
    with pytest.raises(ProtocolViolation, match="pixels"):
        parse_observation(TypeAdapter(Seen), {"observation": {"pixels": "none"}, "reward": 1, "done": False})


def test_v1_writes_what_pydantic_writes_wherever_pydantic_can() -> None:
    class Text(Observation):
        raw: bytes
        notes: dict[str, Any]

    observation = Text(raw=b"abc", notes={"b": b"x", "n": [1.5, None]}, reward=1)
    assert encode_observation(observation) == (
        b'{"observation":{"metadata":{},"raw":"abc","notes":{"b":"x","n":[1.5,null]}},"reward":1,"done":false}'
    )
    assert encode_observation(Text(raw=b"\xff", notes={"a": np.arange(2)})) == (
        b'{"observation":{"metadata":{},"raw":{"$bytes":"/w=="},"notes":{"a":[0,1]}},"reward":null,"done":false}'
    )


def test_arrays_in_metadata_reach_a_v1_client_as_lists() -> None:
    result = parse_observation(
        None, from_json(encode_observation(Observation(metadata={"mask": np.eye(2)}, done=True)))
    )
    assert result.metadata == {"mask": [[1, 0], [0, 1]]}
    assert result.done is True


class Encoded(Action):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    raw: bytes


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_a_class_that_writes_its_bytes_as_base64_gets_them_back(wire: str | None) -> None:
    assert acted(wire, Encoded(raw=b"\xff\x00")).raw == b"\xff\x00"


class Written(BaseModel):
    """Its bytes are written in hexadecimal, but to JSON only."""

    raw: bytes

    @field_serializer("raw", when_used="json")
    def _write(self, raw: bytes) -> str:
        return raw.hex()

    @field_validator("raw", mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        return bytes.fromhex(raw) if isinstance(raw, str) else raw


class Wrapped(Action):
    inner: Written
    pixels: np.ndarray | None = None


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_a_class_that_writes_itself_in_its_own_way_is_read_in_it(wire: str | None) -> None:
    assert acted(wire, Wrapped(inner=Written(raw=b"\x01\x02"))).inner.raw == b"\x01\x02"


@pytest.mark.parametrize("wire", WIRES[1:])
def test_arrays_beside_what_is_written_in_its_own_way(wire: str) -> None:
    action = acted(wire, Wrapped(inner=Written(raw=b"ab"), pixels=np.arange(3)))
    assert same(action.pixels, np.arange(3))
    assert action.inner.raw == b"ab"


def test_nothing_is_copied_where_there_is_nothing_to_lift() -> None:
    from openenv.protocol.coercion import coercer_of

    lift: Callable[[Any], Any] | None = coercer_of(list[Frame] | None)
    assert lift is not None
    values = [{"pixels": np.zeros(2), "next": None}]
    assert lift(values) is values
    assert coercer_of(dict[str, list[int | str]]) is None
    assert coercer_of(Dog) is None
