"""Spaces as types: their JSON form accepts every member, and nothing else."""

import enum
import json
import string

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from openenv.adapters.spaces import codec_of, plain
from openenv.errors import InvalidAction, UsageError

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
INTEGERS = st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64])


@st.composite
def discretes(draw):
    return spaces.Discrete(draw(st.integers(1, 100)), start=draw(st.integers(-50, 50)))


@st.composite
def float_boxes(draw):
    dtype, shape = draw(st.sampled_from([np.float16, np.float32, np.float64])), draw(SHAPES)
    low = draw(arrays.arrays(dtype, shape, elements=st.integers(-20, 0) | st.just(-np.inf)))
    high = draw(arrays.arrays(dtype, shape, elements=st.integers(1, 20) | st.just(np.inf)))
    return spaces.Box(low, high, dtype=dtype)


@st.composite
def integer_boxes(draw):
    dtype, shape = draw(INTEGERS), draw(SHAPES)
    # Gymnasium samples within what a float can count, and adds one to the upper bound.
    numbers = st.integers(max(np.iinfo(dtype).min, -(2**52)), min(np.iinfo(dtype).max - 1, 2**52))
    bounds = [draw(arrays.arrays(dtype, shape, elements=numbers)) for _ in range(2)]
    return spaces.Box(np.minimum(*bounds), np.maximum(*bounds), dtype=dtype)


@st.composite
def multi_discretes(draw):
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=2, max_side=3))
    counts = draw(arrays.arrays(np.int64, shape, elements=st.integers(1, 9)))
    return spaces.MultiDiscrete(counts, start=draw(arrays.arrays(np.int64, shape, elements=st.integers(-9, 9))))


@st.composite
def texts(draw):
    least = draw(st.integers(0, 4))
    most = least + draw(st.integers(1, 8))
    characters = draw(st.sets(st.sampled_from(string.printable + "äß漢😀"), min_size=1))
    return spaces.Text(most, min_length=least, charset="".join(characters))


simple = st.one_of(
    discretes(),
    float_boxes(),
    integer_boxes(),
    multi_discretes(),
    texts(),
    st.integers(1, 5).map(spaces.MultiBinary),
    arrays.array_shapes(max_dims=2, max_side=3).map(spaces.MultiBinary),
)
any_space = st.recursive(
    simple,
    lambda part: (
        st.lists(part, max_size=3).map(spaces.Tuple)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["copy", "a-b", "class"]), part, max_size=3).map(
            spaces.Dict
        )
    ),
    max_leaves=5,
)


def types_of(member):
    """The types within a member, leaf by leaf."""
    if isinstance(member, dict):
        return {key: types_of(part) for key, part in member.items()}
    if isinstance(member, tuple):
        return [types_of(part) for part in member]
    return type(member), getattr(member, "dtype", None)


@given(any_space, st.integers(0, 2**31))
def test_every_member_travels_and_comes_back(space, seed):
    space.seed(seed)
    codec = codec_of(space)
    member = space.sample()
    encoded = codec.encode(member)
    frame = to_json(encoded, inf_nan_mode="constants")
    assert from_json(frame) == json.loads(json.dumps(encoded))  # plain Python values throughout
    decoded = codec.decode(TypeAdapter(codec.type).validate_json(frame))
    assert space.contains(decoded)
    assert types_of(decoded) == types_of(member)
    assert codec.encode(decoded) == encoded


@given(any_space)
def test_every_schema_is_valid_json(space):
    json.dumps(TypeAdapter(codec_of(space).type).json_schema(), allow_nan=False)


def accepts(space, value):
    """Whether the type of a space takes a value that came as JSON."""
    codec = codec_of(space)
    try:
        codec.decode(TypeAdapter(codec.type).validate_json(json.dumps(value)))
    except ValidationError:
        return False
    return True


@given(discretes(), st.integers(-200, 200))
def test_a_discrete_space_takes_its_integers_alone(space, number):
    assert accepts(space, number) == space.contains(number)


@given(float_boxes() | integer_boxes(), st.data())
def test_a_box_takes_what_lies_within_its_bounds_alone(space, data):
    numbers = st.integers(-25, 25) if space.dtype.kind in "iu" else st.integers(-25, 25).map(float)
    value = np.asarray(data.draw(arrays.arrays(object, space.shape, elements=numbers)), dtype=object)
    triples = zip(space.low.flat, value.flat, space.high.flat, strict=True)
    assert accepts(space, value.tolist()) == all(low <= number <= high for low, number, high in triples)


@given(texts(), st.text(alphabet=string.printable + "äß漢😀", max_size=14))
def test_a_text_space_takes_its_texts_alone(space, text):
    assert accepts(space, text) == space.contains(text)


CARTPOLE = spaces.Box(
    np.array([-4.8, -np.inf, -0.4, -np.inf], np.float32), np.array([4.8, np.inf, 0.4, np.inf], np.float32)
)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(3), "left"),
        (spaces.Discrete(3), 0.5),
        (spaces.Discrete(3), None),
        (spaces.Discrete(3), [1]),
        (spaces.Box(-1, 1, (2,)), 0.0),
        (spaces.Box(-1, 1, (2,)), [0.0]),
        (spaces.Box(-1, 1, (2,)), [0.0, 0.0, 0.0]),
        (spaces.Box(-1, 1, (2,)), [[0.0, 0.0]]),
        (spaces.Box(-1, 1, (2,)), [0.0, float("nan")]),
        (spaces.Box(-1, 1, (2,)), [0.0, float("inf")]),
        (spaces.Box(-1, 1, ()), [0.0]),
        (spaces.Box(-np.inf, np.inf, (1,)), [float("nan")]),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), [1e300]),  # would overflow to infinity
        (spaces.Box(0, np.inf, (1,)), [-1.0]),
        (spaces.Box(0, 255, (1,), np.uint8), [1.5]),
        (spaces.Box(0, 255, (1,), np.uint8), [256]),
        (spaces.Box(np.array([0, 0]), np.array([1, 9]), dtype=np.int64), [2, 2]),
        (spaces.Box(np.array([0, 0]), np.array([1, 9]), dtype=np.int64), [10**30, 2]),
        (spaces.Box(0, 0, (1,), np.bool_), [True]),
        (CARTPOLE, [0.0, 0.0, 0.5, 0.0]),
        (spaces.MultiDiscrete([2, 3]), [0, 3]),
        (spaces.MultiDiscrete([2, 3]), [2, 0]),
        (spaces.MultiDiscrete([2, 3], start=[5, 5]), [0, 0]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.MultiBinary([2, 2]), [0, 0, 0, 0]),
        (spaces.Text(3), "abcd"),
        (spaces.Text(3), ""),
        (spaces.Text(3), "a b"),
        (spaces.Text(3), "abc\n"),
        (spaces.Text(3, charset="ab"), "c"),
        (spaces.Text(1, min_length=0, charset=""), "c"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [0]),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [0, 0, 0]),
        (spaces.Tuple([spaces.Discrete(2)] * 2), [0, 2]),
        (spaces.Dict(a=spaces.Discrete(2)), {}),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": 2}),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": 0, "b": 0}),
    ],
)
def test_what_is_outside_of_a_space_does_not_validate(space, value):
    assert not accepts(space, value)


def test_an_unbounded_side_takes_infinity():
    assert accepts(CARTPOLE, [0.0, float("inf"), 0.0, float("-inf")])


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-1, 1, ()), 0.5),
        (spaces.Box(-1, 1, (0,)), []),
        (spaces.Box(-1, 1, (0, 2)), []),
        (spaces.Box(0, 1, (2,), np.bool_), [True, False]),
        (spaces.Box(np.array([0, 0]), np.array([1, 9]), dtype=np.int64), [1, 9]),
        (spaces.Text(1, min_length=0, charset=""), ""),
        (spaces.Tuple([]), []),
        (spaces.Dict(), {}),
    ],
)
def test_corners_of_spaces_are_members(space, value):
    codec = codec_of(space)
    decoded = codec.decode(TypeAdapter(codec.type).validate_json(json.dumps(value)))
    assert space.contains(decoded)
    assert json.loads(json.dumps(codec.encode(decoded))) == value


def test_the_schema_tells_the_bounds_of_each_element_and_leaves_out_infinite_ones():
    schema = TypeAdapter(codec_of(CARTPOLE).type).json_schema()
    assert (schema["minItems"], schema["maxItems"]) == (4, 4)
    position, velocity, angle, _ = schema["prefixItems"]
    assert (position["minimum"], position["maximum"]) == (pytest.approx(-4.8), pytest.approx(4.8))
    assert (angle["minimum"], angle["maximum"]) == (pytest.approx(-0.4), pytest.approx(0.4))
    assert velocity == {"type": "number"}


def test_the_schema_of_bounds_that_are_all_the_same_is_that_of_one_element():
    schema = TypeAdapter(codec_of(spaces.Box(0, 255, (84, 84, 3), np.uint8)).type).json_schema()
    assert "prefixItems" not in schema
    assert schema["items"]["items"] == {
        "items": {"type": "integer", "minimum": 0, "maximum": 255},
        "type": "array",
        "minItems": 3,
        "maxItems": 3,
    }


def test_the_schema_of_a_large_box_does_not_list_its_elements():
    high = np.arange(1, 1001, dtype=np.int64)
    schema = TypeAdapter(codec_of(spaces.Box(np.zeros_like(high), high, dtype=np.int64)).type).json_schema()
    assert "prefixItems" not in schema
    assert schema["items"] == {"type": "integer", "minimum": 0, "maximum": 1000}


def test_the_error_names_the_place_and_the_bounds():
    space = spaces.Box(np.array([[0, 0], [0, 0]]), np.array([[9, 9], [5, 9]]), dtype=np.int64)
    with pytest.raises(ValidationError, match=r"6 at \[1, 0\] is not between 0 and 5 \(int64\)"):
        TypeAdapter(codec_of(space).type).validate_python([[9, 9], [6, 0]])


def test_an_array_of_another_kind_is_encoded_too():
    codec = codec_of(spaces.Box(-1, 1, (2,)))
    assert codec.encode([0.5, 1]) == [0.5, 1]
    assert codec.encode(np.float32(0.5)) == 0.5


@pytest.mark.parametrize(
    "space",
    [
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
        spaces.Dict(inner=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])),
    ],
)
def test_a_space_that_cannot_be_served_is_named_with_those_that_can(space):
    with pytest.raises(UsageError) as caught:
        codec_of(space)
    assert "Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple" in caught.value.message
    assert any(kind in caught.value.message for kind in ("Sequence", "Graph", "OneOf"))


def test_a_dict_space_needs_text_as_keys():
    with pytest.raises(UsageError, match="keys are not all text"):
        codec_of(spaces.Dict({1: spaces.Discrete(2)}))


class Even(spaces.Discrete):
    """Even numbers: what no bounds express."""

    def contains(self, x):
        return super().contains(x) and x % 2 == 0


@pytest.mark.parametrize(("space", "good", "bad"), [(Even(9), 4, 5), (spaces.Tuple([Even(9)]), (4,), (5,))])
def test_a_derived_space_is_asked_itself(space, good, bad):
    codec = codec_of(space)
    assert codec.decode(TypeAdapter(codec.type).validate_python(good)) == good
    with pytest.raises(InvalidAction, match="5 is outside of the space"):
        codec.decode(TypeAdapter(codec.type).validate_python(bad))


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.str_("a"), "a"),
        (Level.HIGH, 3),
        (Colour.RED, "Colour.RED"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.array([np.float32(1), None], dtype=object), [1.0, None]),
        ({1: (np.int8(1), {2})}, {"1": [1, [2]]}),
        ([np.zeros(1)], [[0.0]]),
        (np.longdouble(0.5), "0.5"),
        (1j, "1j"),
        (b"ab", "b'ab'"),
    ],
)
def test_anything_becomes_plain(value, expected):
    outcome = plain(value)
    assert outcome == expected
    assert type(json.loads(json.dumps(outcome))) is type(expected)
