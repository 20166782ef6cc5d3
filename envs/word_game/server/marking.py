"""The marks of a guess, and the words that fit them."""

from __future__ import annotations

from functools import lru_cache

from ..models import Mark
from .lexicon import words

__all__ = ["candidates_after", "marks_of"]

_MARKS: tuple[Mark, Mark, Mark] = ("miss", "near", "hit")


def marks_of(guess: str, answer: str) -> list[Mark]:
    """The mark of each letter. A letter gets `near` only as often as it occurs at other positions of the answer."""
    return [_MARKS[digit] for digit in _digits(guess, answer)]


def candidates_after(candidates: tuple[int, ...], guess: str, answer: str) -> tuple[int, ...]:
    """The candidates that fit the marks of a guess.

    Args:
        candidates: Indices in `words(len(answer))`.
        guess: The guessed word.
        answer: The hidden word.
    """
    pattern = _pattern(_digits(guess, answer))
    patterns = _patterns(guess)
    return tuple(index for index in candidates if patterns[index] == pattern)


@lru_cache(maxsize=4096)
def _patterns(guess: str) -> bytes:
    """The pattern of the guess for each word of its length as the answer."""
    return bytes(_pattern(_digits(guess, answer)) for answer in words(len(guess)))


def _pattern(digits: list[int]) -> int:
    number = 0
    for digit in digits:
        number = 3 * number + digit
    return number  # below 3**5, so it fits in a byte


def _digits(guess: str, answer: str) -> list[int]:
    digits = [2 if guessed == hidden else 0 for guessed, hidden in zip(guess, answer, strict=True)]
    rest = [hidden for hidden, digit in zip(answer, digits, strict=True) if not digit]
    for index, letter in enumerate(guess):
        if not digits[index] and letter in rest:
            rest.remove(letter)
            digits[index] = 1
    return digits
