"""A space whose members stand for values in JSON, and the ways between the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

__all__ = ["MappedSpace", "choice", "first_fit", "listed", "numbers", "only", "text", "tuple_of"]


@dataclass(frozen=True, slots=True)
class MappedSpace:
    """A schema as a space.

    Attributes:
        space: Its members stand for the values that the schema allows.
        encode: From a member to the value in JSON. Does not check membership.
        decode: From a value to the member. Raises LookupError, TypeError or ValueError for what is none.
        field: The one field that carries the value, of an object with one; None for any other.
        single: A number on its own, which is an array of one element here.
        plain: The value is the member's numbers as a list, so that many are made one array at once.
    """

    space: Space[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    field: str | None = None
    single: bool = False
    plain: bool = False


def choice(values: Sequence[Any]) -> MappedSpace:
    return MappedSpace(
        spaces.Discrete(len(values)),
        lambda member: values[_chosen(values, member)],
        lambda value: np.int64(_place(values, value)),
    )


def _chosen(values: Sequence[Any], member: Any) -> int:
    place = int(member)
    if place != member or not 0 <= place < len(values):
        raise ValueError(f"{member!r:.80} is no place among {len(values)} values")
    return place


def _place(values: Sequence[Any], value: Any) -> int:
    for place, each in enumerate(values):
        if each == value and isinstance(each, bool) == isinstance(value, bool):  # True is not 1 in JSON
            return place
    raise ValueError(f"{value!r:.80} is none of {values!r:.200}")


def first_fit(parts: Sequence[MappedSpace], value: Any) -> tuple[np.int64, Any]:
    """The first alternative that a value is of."""
    for number, part in enumerate(parts):
        try:
            member = part.decode(value)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            continue
        if part.space.contains(member):
            return np.int64(number), member
    raise ValueError(f"{value!r:.80} is of none of {len(parts)} alternatives")


def tuple_of(parts: Sequence[MappedSpace]) -> MappedSpace:
    encoders, decoders = [part.encode for part in parts], [part.decode for part in parts]
    return MappedSpace(
        spaces.Tuple([part.space for part in parts]),
        lambda member: [encode(part) for encode, part in zip(encoders, member, strict=True)],
        lambda value: tuple([decode(part) for decode, part in zip(decoders, value, strict=True)]),
    )


def numbers(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{value!r:.80} are no numbers")
    return array.astype(dtype).reshape(shape)


def only(member: Any) -> Any:
    return np.asarray(member).item()


def listed(member: Any) -> Any:
    return np.asarray(member).tolist()


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value
