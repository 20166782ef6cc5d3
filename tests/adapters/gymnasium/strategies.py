"""Spaces of every kind, for Hypothesis."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
INTEGERS = st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64])


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Space[Any]:
    return spaces.Discrete(draw(st.integers(1, 100)), start=draw(st.integers(-50, 50)))


@st.composite
def float_boxes(draw: st.DrawFn) -> spaces.Space[Any]:
    dtype, shape = draw(st.sampled_from([np.float16, np.float32, np.float64])), draw(SHAPES)
    low = draw(arrays.arrays(dtype, shape, elements=st.integers(-20, 0) | st.just(-np.inf)))
    high = draw(arrays.arrays(dtype, shape, elements=st.integers(1, 20) | st.just(np.inf)))
    return spaces.Box(low, high, dtype=dtype)


@st.composite
def integer_boxes(draw: st.DrawFn) -> spaces.Space[Any]:
    dtype, shape = draw(INTEGERS), draw(SHAPES)
    # Gymnasium samples within what a float can count, and adds one to the upper bound.
    numbers = st.integers(max(np.iinfo(dtype).min, -(2**52)), min(np.iinfo(dtype).max - 1, 2**52))
    bounds = [draw(arrays.arrays(dtype, shape, elements=numbers)) for _ in range(2)]
    return spaces.Box(np.minimum(*bounds), np.maximum(*bounds), dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.Space[Any]:
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=2, max_side=3))
    counts = draw(arrays.arrays(np.int64, shape, elements=st.integers(1, 9)))
    return spaces.MultiDiscrete(counts, start=draw(arrays.arrays(np.int64, shape, elements=st.integers(-9, 9))))


@st.composite
def texts(draw: st.DrawFn) -> spaces.Space[Any]:
    least = draw(st.integers(0, 4))
    most = least + draw(st.integers(1, 8))
    characters = draw(st.sets(st.sampled_from(string.printable + "äß漢😀"), min_size=1))
    return spaces.Text(most, min_length=least, charset="".join(characters))


simple: st.SearchStrategy[spaces.Space[Any]] = st.one_of(
    discretes(),
    float_boxes(),
    integer_boxes(),
    multi_discretes(),
    texts(),
    st.integers(1, 5).map(spaces.MultiBinary),
    arrays.array_shapes(max_dims=2, max_side=3).map(spaces.MultiBinary),
)
graphs = st.builds(
    spaces.Graph,
    discretes() | float_boxes(),
    st.none() | discretes() | float_boxes(),
)


def has_parts(space: spaces.Space[Any]) -> bool:
    """Whether no Dict or Tuple in it is empty: Gymnasium cannot count a stack of such."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = list(space.values() if isinstance(space, spaces.Dict) else space)
        return bool(parts) and all(map(has_parts, parts))
    return True


def nested(part: st.SearchStrategy[spaces.Space[Any]]) -> st.SearchStrategy[spaces.Space[Any]]:
    """Spaces of spaces."""
    keys = st.text(max_size=5) | st.sampled_from(["copy", "a-b", "class"])
    return st.one_of(
        st.lists(part, max_size=3).map(spaces.Tuple),
        st.dictionaries(keys, part, max_size=3).map(spaces.Dict),
        part.map(spaces.Sequence),
        part.filter(has_parts).map(lambda space: spaces.Sequence(space, stack=True)),
        st.lists(part, min_size=1, max_size=3).map(spaces.OneOf),
    )


any_space = st.recursive(simple | graphs, nested, max_leaves=5)
