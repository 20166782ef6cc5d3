"""The rules of one game: what it is played with, and what a guess is worth."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any

from openenv.errors import InvalidArgument

from .lexicon import LENGTHS, words

__all__ = ["FOR_NONSENSE", "FOR_THE_WORD", "INFORMATION", "MOST_GUESSES", "PER_GUESS", "Rules"]

MOST_GUESSES = 20
FEWEST_WORDS = 4
FOR_THE_WORD = 1.0
INFORMATION = 0.5
PER_GUESS = -0.05
FOR_NONSENSE = -0.1


@dataclass(frozen=True, slots=True)
class Rules:
    """What a game is played with.

    Attributes:
        length: Letters of the hidden word: 3, 4 or 5.
        lexicon: How many words of this length there are; None for all.
        max_guesses: How many guesses the player has, 1 to 20.
        words_only: Whether a guess must be a word of the lexicon; else any letters will do.

    Raises:
        InvalidArgument: One of them is out of its bounds; the message says which.
    """

    length: int = 5
    lexicon: int | None = None
    max_guesses: int = 6
    words_only: bool = True

    def __post_init__(self) -> None:
        if _no_int(self.length) or self.length not in LENGTHS:
            raise InvalidArgument(f"length must be 3, 4 or 5, not {self.length!r:.40}")
        most = len(words(self.length))
        if self.lexicon is not None and (_no_int(self.lexicon) or not FEWEST_WORDS <= self.lexicon <= most):
            raise InvalidArgument(
                f"lexicon must be {FEWEST_WORDS} to {most} words of {self.length} letters, not {self.lexicon!r:.40}"
            )
        if _no_int(self.max_guesses) or not 1 <= self.max_guesses <= MOST_GUESSES:
            raise InvalidArgument(f"max_guesses must be 1 to {MOST_GUESSES}, not {self.max_guesses!r:.40}")
        if not isinstance(self.words_only, bool):
            raise InvalidArgument(f"words_only must be true or false, not {self.words_only!r:.40}")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the game: each may be guessed, each may be the answer."""
        return words(self.length)[: self.lexicon]

    def fault(self, guess: str) -> str | None:
        """What is wrong with a guess; None if it may be made."""
        if len(guess) != self.length or not (guess.isascii() and guess.isalpha()):
            return f"a guess has {self.length} letters from a to z"
        return "it is not in the word list" if self.words_only and guess not in self.words else None

    def worth(self, before: int, after: int, found: bool) -> float:
        """The reward of a guess that was marked.

        Args:
            before: How many words explained the marks before the guess.
            after: How many do after it; 1 where it was found.
            found: Whether the guess was the word.

        Returns:
            At most 1.45 in all over a game: each guess costs 0.05, what it tells is worth its share of 0.5 (all bits
            that it takes to know the word are worth 0.5 together, however many guesses they come in), and the word 1.
        """
        told = log2(before / after) / log2(len(self.words)) if after else 0.0
        return PER_GUESS + INFORMATION * told + (FOR_THE_WORD if found else 0.0)


def _no_int(value: Any) -> bool:
    return not isinstance(value, int) or isinstance(value, bool)
