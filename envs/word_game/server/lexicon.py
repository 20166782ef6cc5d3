"""The words: three lists, of 3, 4 and 5 letters, each in an order that never changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

__all__ = ["LENGTHS", "TEST_EVERY", "words", "words_of_split"]

LENGTHS = (3, 4, 5)
TEST_EVERY = 5
"""Of so many words one belongs to the split test, the others to train."""


@cache
def words(length: int) -> tuple[str, ...]:
    """All words of a length, shuffled once and for all: the first N of them are a smaller game."""
    listed = (Path(__file__).parent / "words" / f"{length}.txt").read_text(encoding="ascii").split()
    Random(length).shuffle(listed)  # noqa: S311 - a game
    return tuple(listed)


def words_of_split(lexicon: tuple[str, ...], split: str) -> tuple[str, ...]:
    """Those words of a lexicon that may be answers in a split: `train` and `test` share none."""
    return tuple(word for place, word in enumerate(lexicon) if (place % TEST_EVERY == 0) == (split == "test"))
