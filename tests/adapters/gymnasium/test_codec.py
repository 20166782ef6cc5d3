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
from pydantic_core import from_json

from openenv.adapters.farama import plain
from openenv.adapters.gymnasium.codec import codec_of
from openenv.errors import InvalidAction, UsageError

from .strategies import any_space, discretes, float_boxes, integer_boxes, texts


def types_of(member):
    """The types within a member, leaf by leaf."""
    if isinstance(member, dict):
        return {key: types_of(part) for key, part in member.items()}
    if isinstance(member, tuple):
        return type(member), [types_of(part) for part in member]
    return type(member), getattr(member, "dtype", None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # says Gymnasium of its own stacks of scalars
@given(any_space, st.integers(0, 2**31))
def test_every_member_travels_and_comes_back(space, seed):
    space.seed(seed)
    codec = codec_of(space)
    member = space.sample()
    adapter = TypeAdapter(codec.type)
    encoded = codec.encode(member)
    frame = adapter.dump_json(encoded)
    assert from_json(frame) == json.loads(json.dumps(plain(encoded)))
    decoded = codec.decode(adapter.validate_json(frame))
    assert space.contains(decoded)
    assert types_of(decoded) == types_of(member)
    assert plain(codec.encode(decoded)) == plain(encoded)
    with_arrays = codec.decode(adapter.validate_python(encoded))
    assert types_of(with_arrays) == types_of(member)
    assert plain(codec.encode(with_arrays)) == plain(encoded)


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

GRAPH = spaces.Graph(spaces.Discrete(3), spaces.Discrete(2))


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
        (spaces.Sequence(spaces.Discrete(2)), [0, 2]),
        (spaces.Sequence(spaces.Discrete(2)), 0),
        (spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True), [[0.5]]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [0, 2]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [0, "ab"]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [2, 0]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [-1, "a"]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [True, "ab"]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), ["0", 1]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), [0]),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(2)]), 0),
        (GRAPH, {"nodes": [0, 1], "edges": [0], "edge_links": [[0, 2]]}),
        (GRAPH, {"nodes": [0, 1], "edges": [0], "edge_links": [[0, -1]]}),
        (GRAPH, {"nodes": [0, 1], "edges": [0], "edge_links": [[0, 1, 0]]}),
        (GRAPH, {"nodes": [0, 1], "edges": [0], "edge_links": [[0, 1], [1, 0]]}),
        (GRAPH, {"nodes": [0, 1], "edges": [0], "edge_links": None}),
        (GRAPH, {"nodes": [0, 1], "edges": None, "edge_links": []}),
        (GRAPH, {"nodes": [0, 9], "edges": None, "edge_links": None}),
        (GRAPH, {"nodes": [0, 1]}),
        (spaces.Graph(spaces.Discrete(2), None), {"nodes": [0, 1], "edges": [0], "edge_links": [[0, 1]]}),
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
    assert json.loads(json.dumps(plain(codec.encode(decoded)))) == value


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
    few, many = codec_of(spaces.Box(-1, 1, (2,))), codec_of(spaces.Box(-1, 1, (65,)))
    for member in ([0.5, 1], np.array([0.5, 1]), np.array([0.5, 1], ">f4")):
        assert few.encode(member) == [0.5, 1]
    for member in ([0.5] * 65, np.full(65, 0.5), np.full(65, 0.5, ">f4")):
        encoded = many.encode(member)
        assert encoded.dtype == np.float32
        assert encoded.tolist() == [0.5] * 65


class Strange(spaces.Space):
    """A kind of space that nobody has heard of."""


@pytest.mark.parametrize(
    "space",
    [
        Strange(),
        spaces.Dict(inner=spaces.Tuple([spaces.Sequence(Strange())])),
        spaces.OneOf([Strange()]),
    ],
)
def test_a_space_that_cannot_be_served_is_named_with_those_that_can(space):
    with pytest.raises(UsageError, match="a space of kind Strange cannot be served") as caught:
        codec_of(space)
    assert "Box, Dict, Discrete, Graph, MultiBinary" in caught.value.message


def test_numbers_wider_than_any_in_json_cannot_be_served():
    with pytest.raises(UsageError, match="numbers of type .* cannot be served"):
        codec_of(spaces.Tuple([spaces.Box(-1, 1, (2,), np.longdouble)]))


@pytest.mark.parametrize("feature", [spaces.Tuple([]), spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict())])
def test_a_stack_that_nobody_can_count_cannot_be_served(feature):
    with pytest.raises(UsageError, match="the number of parts in a stack of empty parts is not known"):
        codec_of(spaces.Sequence(feature, stack=True))


@pytest.mark.parametrize("feature", [spaces.Discrete(2), spaces.Text(3), spaces.Dict(a=spaces.Box(0, 1, (2,)))])
@pytest.mark.parametrize("stack", [False, True])
def test_a_sequence_may_be_empty(feature, stack):
    space = spaces.Sequence(feature, stack=stack)
    codec = codec_of(space)
    decoded = codec.decode(TypeAdapter(codec.type).validate_json("[]"))
    assert space.contains(decoded)
    assert codec.encode(decoded) == []


def test_a_stacked_sequence_is_a_list_of_its_members_in_json():
    space = spaces.Sequence(spaces.Dict(a=spaces.Discrete(9), b=spaces.Box(0, 1, (2,))), stack=True)
    members = [{"a": 3, "b": [0.0, 1.0]}, {"a": 5, "b": [0.5, 0.5]}]
    decoded = codec_of(space).decode(members)
    assert decoded["a"].tolist() == [3, 5]
    assert decoded["b"].shape == (2, 2)
    assert plain(codec_of(space).encode(decoded)) == members


def test_a_graph_may_have_no_edges():
    space = spaces.Graph(spaces.Discrete(3), spaces.Discrete(2))
    decoded = codec_of(space).decode({"nodes": [2], "edges": None, "edge_links": None})
    assert space.contains(decoded)
    assert (decoded.edges, decoded.edge_links) == (None, None)


def test_what_is_refused_is_told_of_the_space_that_was_chosen():
    codec = codec_of(spaces.OneOf([spaces.Discrete(2), spaces.Text(2), spaces.Box(0, 1, (2,))]))
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(codec.type).validate_json("[0, 5]")
    assert [fault["msg"] for fault in caught.value.errors()] == ["Input should be less than or equal to 1"]
    with pytest.raises(ValidationError, match=r"\[number, member\]: the number of a space, 0 to 2"):
        TypeAdapter(codec.type).validate_json("[3, 5]")


def test_a_dict_space_needs_text_as_keys():
    with pytest.raises(UsageError, match="keys that are not text"):
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


def test_arrays_keep_their_byte_order() -> None:
    space = spaces.Box(-1, 1, (2,), np.dtype(">f4"))
    assert codec_of(space).decode([0.5, 0.5]).dtype == space.dtype
