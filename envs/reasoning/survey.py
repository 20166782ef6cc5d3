"""Tries every dataset, and prints the unusual ones. Its own answers must be right, and no odd answer may be.

In the folder above this one: `python -m reasoning.survey` (a minute; `python -m reasoning.survey 20` tries 20
questions of each). It leaves out the slow datasets.
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
    """Results of a dataset.

    Attributes:
        name: Name of the dataset.
        seconds: Longest time that a question took with all its answers.
        unanswered: Number of questions without an answer of their own.
        wrong: Number of questions whose own answer did not score 1.
        mistaken: Number of odd answers that scored 1 or more, or less than 0.
        unread: Number of odd answers that the scorer could not read. They count as wrong.
    """

    name: str
    seconds: float
    unanswered: int
    wrong: int
    mistaken: int
    unread: int


def examine(name: str, questions: int = 1) -> Finding:
    """Generates questions of a dataset, and scores their own answers and odd ones."""
    longest, unanswered, wrong, mistaken, unread = 0.0, 0, 0, 0, 0
    for number in range(questions):
        began = time.perf_counter()
        asked = question(name, "train", number)
        if asked.answer is None:
            unanswered += 1
        elif score(asked, asked.answer)[0] < 1:
            wrong += 1
        scored = [score(asked, answer) for answer in ODD if not _right(asked, answer)]
        mistaken += sum(not 0 <= reward < 1 for reward, _ in scored)
        unread += sum(bool(note) for _, note in scored)
        longest = max(longest, time.perf_counter() - began)
    return Finding(name, longest, unanswered, wrong, mistaken, unread)


def _right(asked: Question, answer: str) -> bool:
    return asked.answer is not None and answer.strip() == asked.answer.strip()


def main() -> None:
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    for name in NAMES:
        if name in SLOW:
            print(f"{name}: left out, since it may take long")  # noqa: T201
            continue
        found = examine(name, questions)
        if found.seconds > 0.3 or any(found[2:]):
            print(found._asdict())  # noqa: T201


if __name__ == "__main__":
    main()
