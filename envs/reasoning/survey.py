"""Tries every dataset: its own answers must be right, and no answer may make it fail. Prints what is odd about them.

In the folder above this one: `python -m reasoning.survey` (a minute; `python -m reasoning.survey 20` looks at 20
questions each). The slow ones are left out.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from .server.bank import NAMES, SLOW, Question, question, score

__all__ = ["ODD", "Finding", "examine", "main"]

ODD = (
    "",
    " ",
    "x",
    "{",
    "[[[",
    "[1, 2]",
    '{"a": [1]}',
    "1/0",
    "9" * 5000,
    "-1e999",
    "nan",
    "\x00",
    "1e999999999",
    "9**9**9",
)


class Finding(NamedTuple):
    """What was seen of a dataset."""

    name: str
    seconds: float
    unanswered: int
    wrong: int
    mistaken: int
    unread: int


def examine(name: str, questions: int = 1) -> Finding:
    """Makes questions of a dataset, and scores their own answers and odd ones.

    Returns:
        The longest time a question took with all its answers; how many had no answer of their own; for how many that
        one was not worth 1; how many odd answers were taken for right ones, or for worse than nothing; how many the
        scorer could not read (they count as wrong).
    """
    longest, unanswered, wrong, mistaken, unread = 0.0, 0, 0, 0, 0
    for number in range(questions):
        began = time.perf_counter()
        asked = question(name, "train", number)
        if asked.answer is None:
            unanswered += 1
        elif score(asked, asked.answer)[0] < 1:
            wrong += 1
        scored = [score(asked, answer) for answer in ODD if not _right(asked, answer)]
        mistaken += sum(not 0 <= worth < 1 for worth, _ in scored)
        unread += sum(bool(note) for _, note in scored)
        longest = max(longest, time.perf_counter() - began)
    return Finding(name, longest, unanswered, wrong, mistaken, unread)


def _right(asked: Question, answer: str) -> bool:
    return asked.answer is not None and answer.strip() == asked.answer.strip()


def main() -> None:
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name in NAMES:
        if name in SLOW:
            print(f"{name}: left out, for it may take long")  # noqa: T201
            continue
        found = examine(name, questions)
        if found.seconds > 0.3 or any(found[2:]):
            print(found._asdict())  # noqa: T201


if __name__ == "__main__":
    main()
