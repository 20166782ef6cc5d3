"""The words: three lists, of 3, 4 and 5 letters, each in a fixed order."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

__all__ = ["LENGTHS", "TEST_EVERY", "words", "words_of_split"]

LENGTHS = (3, 4, 5)
TEST_EVERY = 5
"""One word in this number belongs to the split test, the others to train."""


@cache
def words(length: int) -> tuple[str, ...]:
    """All words of a length, in a fixed random order, so that a smaller game can use the first N of them."""
    listed = (Path(__file__).parent / "words" / f"{length}.txt").read_text(encoding="ascii").split()
    Random(length).shuffle(listed)  # noqa: S311 - a game
    return tuple(listed)


def words_of_split(lexicon: tuple[str, ...], split: str) -> tuple[str, ...]:
    """The words of a lexicon that can be answers in a split. `train` and `test` share no word."""
    return tuple(word for index, word in enumerate(lexicon) if (index % TEST_EVERY == 0) == (split == "test"))
