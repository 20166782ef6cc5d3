"""How a guess is marked, and which words would have been marked alike."""

from __future__ import annotations

from functools import lru_cache

from ..models import Mark
from .lexicon import words

__all__ = ["candidates_after", "marks_of"]

_MARKS: tuple[Mark, Mark, Mark] = ("miss", "near", "hit")


def marks_of(guess: str, answer: str) -> list[Mark]:
    """One mark for each letter; a letter is marked `near` only as often as the answer still has it."""
    return [_MARKS[digit] for digit in _digits(guess, answer)]


def candidates_after(candidates: tuple[int, ...], guess: str, answer: str) -> tuple[int, ...]:
    """Those candidates that explain the marks of a guess.

    Args:
        candidates: Places in `words(len(answer))`.
        guess: What was guessed.
        answer: What it was compared with.
    """
    seen = _pattern(_digits(guess, answer))
    patterns = _patterns(guess)
    return tuple(place for place in candidates if patterns[place] == seen)


@lru_cache(maxsize=4096)
def _patterns(guess: str) -> bytes:
    """What the guess would get for each word of its length."""
    return bytes(_pattern(_digits(guess, answer)) for answer in words(len(guess)))


def _pattern(digits: list[int]) -> int:
    number = 0
    for digit in digits:
        number = 3 * number + digit
    return number  # below 3**5, a byte


def _digits(guess: str, answer: str) -> list[int]:
    digits = [2 if mine == theirs else 0 for mine, theirs in zip(guess, answer, strict=True)]
    rest = [theirs for theirs, digit in zip(answer, digits, strict=True) if not digit]
    for place, letter in enumerate(guess):
        if not digits[place] and letter in rest:
            rest.remove(letter)
            digits[place] = 1
    return digits
