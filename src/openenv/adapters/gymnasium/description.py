"""Convert Gymnasium spaces to JSON and back, since a JSON Schema cannot express all of a space."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from ...errors import UsageError

KEYWORD = "x-gymnasium"
"""Keyword with the description of a space, in the JSON Schema of the field that has its members."""

NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
"""Spaces of numbers."""

Description = dict[str, Any]
Array = NDArray[Any]

# Limits for spaces from a server: the bounds of a space take memory in the client.
MOST_ELEMENTS = 2**27
MOST_DEPTH = 64
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
_DEFAULT_DTYPE = "int64"


@functools.singledispatch
def describe(space: Space[Any]) -> Description:
    """A space as JSON: `kind` is the name of its class, and the other keys are the arguments of its constructor.

    Equal bounds are one number; infinite ones are the strings `"inf"` and `"-inf"`. A subclass of one of Gymnasium's
    spaces is described as its base class.

    Raises:
        UsageError: A space of this kind cannot be served; the message names it and those that can.
    """
    raise UsageError(
        f"a space of kind {type(space).__name__} cannot be served: {space}; supported are "
        f"{', '.join(sorted(_KINDS))}: wrap the environment so that it has one of these"
    )


@describe.register
def _discrete(space: spaces.Discrete) -> Description:
    return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype_of(space)}


@describe.register
def _box(space: spaces.Box) -> Description:
    low = _listed(space.low, space.bounded_below, "-inf")
    high = _listed(space.high, space.bounded_above, "inf")
    return {"kind": "Box", "shape": list(space.shape), "dtype": dtype_of(space), "low": low, "high": high}


@describe.register
def _multi_discrete(space: spaces.MultiDiscrete) -> Description:
    nvec, start = space.nvec.tolist(), space.start.tolist()
    return {"kind": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": dtype_of(space)}


@describe.register
def _multi_binary(space: spaces.MultiBinary) -> Description:
    return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}


@describe.register
def _text(space: spaces.Text) -> Description:
    bounds = {"min_length": space.min_length, "max_length": space.max_length}
    # In the space's order, which the masks of `sample` follow.
    return {"kind": "Text", **bounds, "charset": "".join(space.character_list)}


@describe.register
def _dict(space: spaces.Dict) -> Description:
    if not all(isinstance(key, str) for key in space.spaces):
        raise UsageError(f"a Dict space with keys that are not text cannot be served: {space}")
    # As pairs: JSON Schema writers sort the keys of objects, and flattened members depend on this order.
    return {"kind": "Dict", "spaces": [[key, describe(part)] for key, part in space.spaces.items()]}


@describe.register(spaces.Tuple)
def _tuple(space: spaces.Tuple[Any]) -> Description:
    return {"kind": "Tuple", "spaces": [describe(part) for part in space.spaces]}


@describe.register
def _sequence(space: spaces.Sequence) -> Description:
    return {"kind": "Sequence", "space": describe(space.feature_space), "stack": bool(space.stack)}


@describe.register(spaces.OneOf)
def _one_of(space: spaces.OneOf[Any]) -> Description:
    return {"kind": "OneOf", "spaces": [describe(part) for part in space.spaces]}


@describe.register
def _graph(space: spaces.Graph) -> Description:
    edges = None if space.edge_space is None else describe(space.edge_space)
    return {"kind": "Graph", "node_space": describe(space.node_space), "edge_space": edges}


def dtype_of(space: Space[Any]) -> str:
    """The name of a space's dtype. Raises `UsageError` for one that JSON cannot express."""
    name = np.dtype(space.dtype).name
    if name not in _DTYPES:
        raise UsageError(f"a space of numbers of type {name} cannot be served: {space}; JSON has none so wide")
    return name


def limits_of(space: Any) -> tuple[Any, Any]:
    """The lower and upper bounds of one of `NUMBERS`: numbers, or arrays in its shape. They may be infinite."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + (space.nvec - 1)
    return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)


def _listed(bounds: Array, bounded: Array, infinite: str) -> Any:
    """One number if all bounds are equal, otherwise nested lists."""
    if bounds.size == 0:
        return 0
    alike = bool((bounds == bounds.flat[0]).all() and (bounded == bounded.flat[0]).all())
    if alike:
        return bounds.flat[0].item() if bounded.flat[0] else infinite
    if bounded.all():
        return bounds.tolist()
    objects = bounds.astype(object)
    objects[~bounded] = infinite
    return objects.tolist()


def rebuild(description: Mapping[str, Any]) -> Space[Any]:
    """The space of a description: equal to the one described, and with the same samples for the same seed.

    Raises:
        UsageError: The description is invalid, or of a kind of space that this version does not know.
    """
    try:
        return _rebuilt(description, MOST_DEPTH)
    except (TypeError, ValueError, KeyError, AttributeError, AssertionError, OverflowError) as error:
        raise UsageError(
            f"{description!s:.200} describes no space ({type(error).__name__}: {error}): "
            "serve it with the version of openenv and of gymnasium that is installed here"
        ) from error


def _rebuilt(description: Mapping[str, Any], depth: int) -> Space[Any]:
    kind = description["kind"]
    if kind not in _KINDS:
        raise ValueError(f"the kind {kind!r:.50} is not known, only {', '.join(sorted(_KINDS))}")
    if depth == 0:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
    return _KINDS[kind](description, lambda part: _rebuilt(part, depth - 1))


Inner = Callable[[Mapping[str, Any]], Space[Any]]


def _to_discrete(given: Mapping[str, Any], inner: Inner) -> Space[Any]:
    # Versions of Gymnasium without the argument use this dtype.
    typed: dict[str, Any] = {} if given["dtype"] == _DEFAULT_DTYPE else {"dtype": _known(given["dtype"]).type}
    discrete: Space[Any] = spaces.Discrete(given["n"], start=given["start"], **typed)
    return discrete


def _to_box(given: Mapping[str, Any], inner: Inner) -> Space[Any]:
    shape, dtype = tuple(given["shape"]), _known(given["dtype"])
    if math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"it has more than {MOST_ELEMENTS} elements")
    low, below = _array(given["low"], shape, dtype)
    high, above = _array(given["high"], shape, dtype)
    box = spaces.Box(low, high, shape, dtype.type)
    # In arrays of integers, the dtype's limits replace infinite bounds.
    box.bounded_below, box.bounded_above = below, above
    return box


def _to_multi_discrete(given: Mapping[str, Any], inner: Inner) -> Space[Any]:
    dtype = _known(given["dtype"])
    return spaces.MultiDiscrete(np.array(given["nvec"], dtype), dtype.type, start=np.array(given["start"], dtype))


def _to_multi_binary(given: Mapping[str, Any], inner: Inner) -> Space[Any]:
    if math.prod(np.atleast_1d(given["n"]).tolist()) > MOST_ELEMENTS:
        raise ValueError(f"it has more than {MOST_ELEMENTS} elements")
    return spaces.MultiBinary(given["n"])


_KINDS: dict[str, Callable[[Mapping[str, Any], Inner], Space[Any]]] = {
    "Box": _to_box,
    "Dict": lambda given, inner: spaces.Dict([(str(key), inner(part)) for key, part in given["spaces"]]),
    "Discrete": _to_discrete,
    "Graph": lambda given, inner: spaces.Graph(
        inner(given["node_space"]), None if given["edge_space"] is None else inner(given["edge_space"])
    ),
    "MultiBinary": _to_multi_binary,
    "MultiDiscrete": _to_multi_discrete,
    "OneOf": lambda given, inner: spaces.OneOf([inner(part) for part in given["spaces"]]),
    "Sequence": lambda given, inner: spaces.Sequence(inner(given["space"]), stack=given["stack"]),
    "Text": lambda given, inner: spaces.Text(
        given["max_length"], min_length=given["min_length"], charset=given["charset"]
    ),
    "Tuple": lambda given, inner: spaces.Tuple([inner(part) for part in given["spaces"]]),
}


def _known(dtype: Any) -> np.dtype[Any]:
    if dtype not in _DTYPES:
        raise ValueError(f"the type {dtype!r:.50} of its numbers is not known, only {', '.join(sorted(_DTYPES))}")
    known: np.dtype[Any] = np.dtype(dtype)
    return known


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Bounds, and a mask of the finite ones."""
    # An array of objects only if the bounds differ: it takes many times the memory.
    given = np.array(bound, dtype=object)
    given = given.reshape(shape if given.ndim else ())
    below, above = np.asarray(given == "-inf", dtype=bool), np.asarray(given == "inf", dtype=bool)
    if dtype.kind == "f":
        given[below], given[above] = -np.inf, np.inf
    elif below.any() or above.any():
        given[below], given[above] = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array(np.broadcast_to(given.astype(dtype), shape)), np.array(np.broadcast_to(~(below | above), shape))
