"""Sets that are gone through in the same order in every process.

Python gives a set of text another order in each process (PYTHONHASHSEED). Datasets that draw from one, or search in
one, would make another question or answer from the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OrderedFrozenSet", "OrderedSet", "ordered_list"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def ordered_list(items: Iterable[T] = ()) -> list[T]:
    """What `list` makes of a set, in the order of the text of its items: powers of x have no order of their own."""
    return sorted(items, key=str)


class OrderedSet(set[T]):
    """A set that is gone through in order."""

    def __iter__(self) -> Iterator[T]:
        return iter(ordered_list(super().__iter__()))


class OrderedFrozenSet(frozenset[T_co]):
    """The same of a set that nobody changes; it equals any other of its items."""

    def __iter__(self) -> Iterator[T_co]:
        return iter(ordered_list(super().__iter__()))
