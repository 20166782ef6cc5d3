"""Texts that a regular expression matches."""

from __future__ import annotations

import re
import string
import warnings
from random import Random
from typing import Any

__all__ = ["found_in", "text_of"]

# The parser of the standard library, which has no public name; tests look whether it still does what is used here.
_parse = re._parser.parse  # type: ignore[attr-defined]

_ALPHABET = string.ascii_letters + string.digits + " _-."
_CATEGORIES = {
    "CATEGORY_DIGIT": string.digits,
    "CATEGORY_NOT_DIGIT": string.ascii_letters,
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": string.ascii_letters + string.digits,
    "CATEGORY_WORD": string.ascii_letters + string.digits + "_",
    "CATEGORY_NOT_WORD": " .-",
}
# How often what may be repeated without end is repeated.
LONGER = 4
ATTEMPTS = 20


def text_of(pattern: str, random: Random) -> str:
    """A text in which a pattern is found.

    Raises:
        ValueError: The pattern is not valid, or has parts (such as looking ahead) for which no text can be made.
    """
    try:
        tree, wanted = _read(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(f"it is no regular expression of Python: {error}") from None
    for _ in range(ATTEMPTS):
        text = _sequence(tree, random)
        if wanted.search(text):
            return text
    raise ValueError("no text was found that it matches")


def found_in(pattern: str, text: str) -> bool:
    """Whether a text has what a pattern describes; also if it is none of Python's: others exist."""
    try:
        return _read(pattern)[1].search(text) is not None
    except (re.error, OverflowError):
        return True


def _read(pattern: str) -> tuple[Any, re.Pattern[str]]:
    with warnings.catch_warnings():  # of what it will mean one day
        warnings.simplefilter("ignore", FutureWarning)
        return _parse(pattern), re.compile(pattern)


def _sequence(tree: Any, random: Random) -> str:
    return "".join(_part(str(operation), argument, random) for operation, argument in tree)


def _part(operation: str, argument: Any, random: Random) -> str:  # noqa: PLR0911 - one line a kind
    match operation:
        case "LITERAL":
            return chr(argument)
        case "ANY":
            return random.choice(string.ascii_letters)
        case "NOT_LITERAL":
            return random.choice([letter for letter in _ALPHABET if ord(letter) != argument])
        case "IN":
            return random.choice(_choices(argument))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least, most, tree = argument
            count = random.randint(least, min(int(most), least + LONGER))
            return "".join(_sequence(tree, random) for _ in range(count))
        case "SUBPATTERN":
            return _sequence(argument[3], random)
        case "ATOMIC_GROUP":
            return _sequence(argument, random)
        case "BRANCH":
            return _sequence(random.choice(argument[1]), random)
        case "AT":
            return ""
    raise ValueError(f"no text can be made for its part {operation}")


def _choices(parts: Any) -> str:
    allowed = ""
    for operation, argument in parts:
        match str(operation):
            case "LITERAL":
                allowed += chr(argument)
            case "RANGE":
                low, high = argument
                allowed += "".join(map(chr, range(low, min(high, low + 200) + 1)))
            case "CATEGORY":
                allowed += _CATEGORIES[str(argument)]
    if parts and str(parts[0][0]) == "NEGATE":
        return "".join(letter for letter in _ALPHABET if letter not in allowed) or "~"
    if not allowed:
        raise ValueError("one of its sets is empty")
    return allowed
