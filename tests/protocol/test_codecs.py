"""Values through both codecs and back."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json
import math
import pathlib
import sys
import uuid
from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import BaseModel, ConfigDict, field_serializer, model_serializer

from openenv.errors import InvalidMessage
from openenv.protocol.arrays import ELEMENT_SIZES, pack_array
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of

codecs = pytest.mark.parametrize("codec", [*map(codec_of, SUBPROTOCOLS)], ids=["msgpack", "json"])
DEEP = 100_000

keys = st.text(max_size=4) | st.sampled_from(["$bytes", "$array", "$object", "dtype", "$", "\\u0024bytes"])
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["null", '{"$bytes":1}', "NaN"])
    | st.binary(max_size=8)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
some_arrays = arrays.arrays(
    dtype=st.sampled_from(sorted(ELEMENT_SIZES.keys() - {"bfloat16"})).map(np.dtype),
    shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


def back(codec, value):
    written = codec.encode(value)
    return codec.decode(written if codec.binary else written.decode())


@codecs
class TestRoundTrips:
    @given(value=values)
    def test_values(self, codec, value):
        assert back(codec, value) == value

    @given(array=some_arrays)
    def test_arrays(self, codec, array):
        read = back(codec, {"pixels": [array]})["pixels"][0]
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()
        assert read.flags.writeable
        assert read.flags.c_contiguous

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_numbers_that_are_none_travel_as_themselves(self, codec, number):
        for value in (number, [number, None], {"a": {"b": {"c": number}}, "n": None}):
            assert repr(back(codec, value)) == repr(value)

    def test_a_map_that_looks_like_bytes(self, codec):
        for key in ("$bytes", "$array", "$object"):
            for content in ("AAAA", {"dtype": "<i4", "shape": [], "data": ""}, {}, {"$bytes": "AAAA"}, b"x"):
                value = {key: content}
                assert back(codec, value) == value
                assert back(codec, [{"a": value}, value]) == [{"a": value}, value]

    def test_text_that_looks_like_a_mark(self, codec):
        value = {"text": '{"$bytes": "AAAA"}', "$bytes": 1, "other": "\\u0024"}
        assert back(codec, value) == value


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()


@dataclasses.dataclass
class Pair:
    left: object
    right: object = None


class Point(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    x: object = 0
    y: object = 0


class Shy(Point):
    @field_serializer("x")
    def hide(self, x):
        return "*"


class Whole(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    pixels: object = None

    @model_serializer
    def as_list(self):
        return [self.pixels]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    when: datetime.date = datetime.date(2024, 1, 2)


NOON = datetime.datetime(2024, 1, 2, 12, tzinfo=datetime.UTC)


@codecs
class TestForeignValues:
    @pytest.mark.parametrize(
        ("value", "read"),
        [
            ((1, 2), [1, 2]),
            ({3}, [3]),
            (frozenset({3}), [3]),
            (collections.deque([1]), [1]),
            (collections.OrderedDict(a=1), {"a": 1}),
            (collections.UserDict(a=1), {"a": 1}),
            ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
            ({True: "c"}, {"true": "c"}),
            ({Colour.RED: 1}, {"red": 1}),
            ({np.int64(4): 1}, {"4": 1}),
            (Colour.RED, "red"),
            (Level.HIGH, 3),
            (Name("n"), "n"),
            (NOON, "2024-01-02T12:00:00Z"),
            (NOON.date(), "2024-01-02"),
            (datetime.timedelta(hours=1), "PT1H"),
            (Decimal("1.50"), "1.50"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (pathlib.Path("a/b"), "a/b"),
            (bytearray(b"\xff"), b"\xff"),
            (memoryview(b"\xff"), b"\xff"),
            (np.int64(3), 3),
            (np.uint8(3), 3),
            (np.float64(0.5), 0.5),
            (np.float32(0.5), 0.5),
            (np.bool_(True), True),
            (Pair(1, Pair(2)), {"left": 1, "right": {"left": 2, "right": None}}),
            (Point(x=1, y=b"\xff"), {"x": 1, "y": b"\xff"}),
            (Shy(x=1, y=b"\xff"), {"x": "*", "y": b"\xff"}),
            (Shy(x=b"\xff", y=NOON), {"x": "*", "y": "2024-01-02T12:00:00Z"}),
            (Shy(x=1, y=[np.int64(3)]), {"x": "*", "y": [3]}),
            (Shy(x=1, y=Pair(b"\xff")), {"x": "*", "y": {"left": b"\xff", "right": None}}),
            (Whole(pixels=1), [1]),
            (Whole(pixels=b"\xff"), [b"\xff"]),
            (Open(more=b"\xff"), {"when": "2024-01-02", "more": b"\xff"}),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_read_as(self, codec, value, read):
        assert back(codec, value) == read
        assert back(codec, {"inside": [value]}) == {"inside": [read]}

    @pytest.mark.parametrize("order", ["big-endian", "strided", "Fortran"])
    def test_arrays_of_any_layout(self, codec, order):
        array = np.arange(12, dtype=">i4").reshape(3, 4)
        if order == "strided":
            array = array[::2, ::-1]
        elif order == "Fortran":
            array = np.asfortranarray(array)
        read = back(codec, array)
        assert read.dtype == np.dtype("<i4")
        np.testing.assert_array_equal(read, array)

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            {"a": [object()]},
            "\ud800",
            {"\ud800": 1},
            np.array([object()]),
            np.zeros((1,) * 33),
            np.array(["text"]),
            np.array([np.datetime64("2024-01-02")]),
            np.zeros(2, dtype=[("a", "i4")]),
            Point(x=object()),
            {object(): 1},
            lambda: None,
            type,
            Pair,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_cannot_be_written(self, codec, value):
        with pytest.raises(ValueError, match="cannot be written as " + codec.language):
            codec.encode(value)

    def test_a_circle(self, codec):
        circle = []
        circle.append(circle)
        with pytest.raises(ValueError, match="cannot be written"):
            codec.encode(circle)

    def test_very_deep_values(self, codec):
        value = []
        for _ in range(DEEP):
            value = [value]
        with pytest.raises(ValueError, match="cannot be written"):
            codec.encode(value)


def test_numbers_of_any_size_in_json():
    codec = codec_of("openenv.v2.json")
    assert back(codec, 10**100) == 10**100


def test_numbers_beyond_64_bits_in_msgpack():
    with pytest.raises(ValueError, match="cannot be written as msgpack"):
        codec_of("openenv.v2.msgpack").encode({"n": 2**64})


def nested(codec, depth, kind):
    if codec.binary:
        return (b"\x91" if kind == "list" else b"\x81\xa1a") * depth + b"\x01"
    opening, closing = (b"[", b"]") if kind == "list" else (b'{"a":', b"}")
    return opening * depth + b"1" + closing * depth


class TestReading:
    @codecs
    @pytest.mark.parametrize("kind", ["list", "map"])
    def test_depth_bombs(self, codec, kind):
        with pytest.raises(InvalidMessage, match="Invalid " + codec.language):
            codec.decode(nested(codec, DEEP, kind))
        assert codec.decode(nested(codec, 50, kind))

    @codecs
    @given(data=st.binary())
    def test_noise_is_refused_or_read(self, codec, data):
        try:
            codec.decode(data)
        except InvalidMessage as error:
            error.message.encode()

    @codecs
    @given(value=values, cut=st.integers(1, 10))
    def test_what_was_cut_off_is_refused(self, codec, value, cut):
        whole = codec.encode({"value": value})
        with pytest.raises(InvalidMessage):
            codec.decode(whole[: -min(cut, len(whole))])

    @codecs
    def test_trailing_bytes(self, codec):
        with pytest.raises(InvalidMessage):
            codec.decode(codec.encode({"a": 1}) + codec.encode({}))

    @pytest.mark.parametrize(
        "frame",
        [
            b"\xc1",
            b"\xa1\xff",
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\x81\x81\x01\x01\x01",
            b"\xd4\x05\x01",
            b"\xd4\x01\x01",
            "{}",
        ],
    )
    def test_no_msgpack(self, frame):
        with pytest.raises(InvalidMessage, match="Invalid msgpack"):
            codec_of("openenv.v2.msgpack").decode(frame)

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"{",
            b'"\xff"',
            b'"\\ud800"',
            b"1" + b"0" * 5000,
            '{"$bytes":1}',
            '{"$bytes":"a"}',
            '{"$bytes":"a b="}',
            '{"$array":1}',
            '{"$array":{"dtype":"<i4","shape":[1]}}',
            '{"$array":{"dtype":"<i4","shape":[1],"data":"AAAA"}}',
            '{"\\u0024bytes":1}',
        ],
    )
    def test_no_json(self, frame):
        with pytest.raises(InvalidMessage, match="Invalid JSON"):
            codec_of("openenv.v2.json").decode(frame)


ZERO = (0).to_bytes(8, "little")
ONE = (1).to_bytes(8, "little")
HUGE = b"\xff" * 8


class TestArrayHeaders:
    def test_bytes(self):
        packed = pack_array(np.array([[1, 2]], dtype=">u2"))
        assert packed == b"\x03<u2\x02" + ONE + (2).to_bytes(8, "little") + b"\x01\x00\x02\x00"

    @pytest.mark.parametrize(
        "packed",
        [
            b"",
            b"\x03",
            b"\x03<i4",
            b"\x03<i4\x01",
            b"\x03<i4\x01" + ONE,
            b"\x03<i4\x01" + ONE + b"12345",
            b"\x03<i4\x02" + HUGE + HUGE + b"1234",
            b"\x03<i4\x02" + HUGE + ZERO,
            b"\x03<i4\x02" + b"\xff" * 7 + b"\x7f" + ZERO,
            b"\x03<i4\x21" + ONE * 33 + b"1234",
            b"\x02|O\x01" + ONE + b"12345678",
            b"\x03>i4\x01" + ONE + b"1234",
            b"\x03\xff\xff\xff\x00",
            b"\x00\x00",
        ],
    )
    def test_refused(self, packed):
        frame = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, packed))
        with pytest.raises(InvalidMessage, match="array"):
            codec_of("openenv.v2.msgpack").decode(frame)


@codecs
def test_without_numpy_an_array_is_a_map(codec, monkeypatch):
    frame = codec.encode({"pixels": np.arange(2, dtype="<u2")})
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert codec.decode(frame) == {"pixels": {"dtype": "<u2", "shape": [2], "data": b"\0\0\1\0"}}


def test_json_as_others_read_it():
    codec = codec_of("openenv.v2.json")
    assert json.loads(codec.encode({"raw": b"\xff", "a": np.array(1, dtype="u1"), "odd": {"$bytes": 1}})) == {
        "raw": {"$bytes": "/w=="},
        "a": {"$array": {"dtype": "|u1", "shape": [], "data": "AQ=="}},
        "odd": {"$object": {"$bytes": 1}},
    }
