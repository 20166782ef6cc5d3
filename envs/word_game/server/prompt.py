"""The game as text, for language models."""

from __future__ import annotations

from collections.abc import Sequence

from ..models import Row
from .rules import Rules

__all__ = ["marked", "welcome"]

_SIGNS = {"hit": "+", "near": "?", "miss": "-"}


def welcome(rules: Rules) -> str:
    """The rules, as the text of the first observation."""
    kind = f"one of {len(rules.words)} words" if rules.words_only else f"any {rules.length} letters"
    return (
        f"Guess the hidden word of {rules.length} letters. A guess is {kind}. Below each guess its letters are "
        "marked: + is in its place, ? is elsewhere in the word, - is not in the word."
    )


def marked(board: Sequence[Row]) -> str:
    """All guesses, each with its marks below it, and the letters that are not in the word."""
    lines = [line for row in board for line in (row.guess, "".join(_SIGNS[mark] for mark in row.marks))]
    absent = _absent(board)
    known = f"Not in the word: {' '.join(absent)}." if absent else "Every letter is in the word."
    return "\n".join([*lines, known])


def _absent(board: Sequence[Row]) -> list[str]:
    """The guessed letters that are not in the word."""
    pairs = [(letter, mark) for row in board for letter, mark in zip(row.guess, row.marks, strict=True)]
    present = {letter for letter, mark in pairs if mark != "miss"}
    return sorted({letter for letter, _ in pairs} - present)
