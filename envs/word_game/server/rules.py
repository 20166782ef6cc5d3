"""The rules of a game: its options, and the reward of a guess."""

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
    """The options of a game.

    Attributes:
        length: Number of letters of the hidden word: 3, 4 or 5.
        lexicon: Number of words in the game; None for all words of this length.
        max_guesses: Number of guesses, 1 to 20.
        words_only: Whether a guess must be a word of the lexicon. If False, any letters are a guess.

    Raises:
        InvalidArgument: A value is out of bounds. The message names it.
    """

    length: int = 5
    lexicon: int | None = None
    max_guesses: int = 6
    words_only: bool = True

    def __post_init__(self) -> None:
        if _is_no_int(self.length) or self.length not in LENGTHS:
            raise InvalidArgument(f"length must be 3, 4 or 5, not {self.length!r:.40}")
        most = len(words(self.length))
        if self.lexicon is not None and (_is_no_int(self.lexicon) or not FEWEST_WORDS <= self.lexicon <= most):
            raise InvalidArgument(
                f"lexicon must be {FEWEST_WORDS} to {most} words of {self.length} letters, not {self.lexicon!r:.40}"
            )
        if _is_no_int(self.max_guesses) or not 1 <= self.max_guesses <= MOST_GUESSES:
            raise InvalidArgument(f"max_guesses must be 1 to {MOST_GUESSES}, not {self.max_guesses!r:.40}")
        if not isinstance(self.words_only, bool):
            raise InvalidArgument(f"words_only must be true or false, not {self.words_only!r:.40}")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the game. Each is a valid guess and can be the answer."""
        return words(self.length)[: self.lexicon]

    def fault(self, guess: str) -> str | None:
        """The reason why a guess is invalid; None for a valid guess."""
        if len(guess) != self.length or not (guess.isascii() and guess.isalpha()):
            return f"a guess has {self.length} letters from a to z"
        return "it is not in the word list" if self.words_only and guess not in self.words else None

    def reward(self, before: int, after: int, found: bool) -> float:
        """The reward of a marked guess.

        Args:
            before: Number of words that fit the marks before the guess.
            after: Number of words that fit the marks after it; 1 if the word was found.
            found: Whether the guess is the hidden word.

        Returns:
            The sum over a game is at most 1.45. Each guess costs 0.05. Its hints earn their share of 0.5: all bits of
            information about the word earn 0.5 together, for any number of guesses. The word earns 1.
        """
        share = log2(before / after) / log2(len(self.words)) if after else 0.0
        return PER_GUESS + INFORMATION * share + (FOR_THE_WORD if found else 0.0)


def _is_no_int(value: Any) -> bool:
    return not isinstance(value, int) or isinstance(value, bool)
