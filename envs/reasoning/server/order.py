"""Sets with the same order in every process.

Python gives a set of strings a different order in each process (PYTHONHASHSEED). A dataset that draws from such a
set, or searches in it, would generate a different question or answer from the same seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OrderedFrozenSet", "OrderedSet", "ordered_list"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def ordered_list(items: Iterable[T] = ()) -> list[T]:
    """A list of the items, sorted by their text, since not all items can be compared (powers of x)."""
    return sorted(items, key=str)


class OrderedSet(set[T]):
    """A set whose iterator is sorted."""

    def __iter__(self) -> Iterator[T]:
        return iter(ordered_list(super().__iter__()))


class OrderedFrozenSet(frozenset[T_co]):
    """A frozenset whose iterator is sorted. It equals any set with the same items."""

    def __iter__(self) -> Iterator[T_co]:
        return iter(ordered_list(super().__iter__()))
