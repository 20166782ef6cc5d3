"""The questions: datasets of the package `reasoning-gym`, and its own scorers, made safe for answers of any kind."""

from __future__ import annotations

import ast
import random
import re
import warnings
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from math import isnan
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy
import reasoning_gym
from reasoning_gym.factory import DATASETS

from openenv.errors import InvalidArgument

from .formula import Content, is_formula
from .order import OrderedFrozenSet, OrderedSet, ordered_list

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LEFT_OUT", "NAMES", "SIZES", "SLOW", "Question", "checked_name", "question", "score"]

LEFT_OUT = {
    "codeio": (
        "it runs programs that draw random numbers, look at clocks and take packages that may be missing, so that a "
        "seed would not make the same question again"
    ),
    "composite": "it is a mixture of others, and which ones would have to be said",
}
"""Datasets of the package that are not here, and why."""

NAMES = tuple(sorted(set(DATASETS) - set(LEFT_OUT)))
SLOW = frozenset({"futoshiki", "intermediate_integration", "knight_swap", "sokoban"})
"""Some of their questions take many seconds to be made or scored: they are asked for by name alone."""

SIZES = {"train": 500, "test": 100}
"""How many questions each dataset has in each split."""

_SEEDS = {"train": 1, "test": 1_000_000}  # a question's seed is this and its number: no two splits share one

# What these scorers do with the answer is `eval(answer)`; lists are what they mean by it.
_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# These give it to sympy, which runs it too. What is wanted in it, and no more: sympy simplifies functions for hours.
_FORMULAS: dict[str, Content] = {
    "countdown": "numbers",
    "puzzle24": "numbers",
    "polynomial_multiplication": "letters",
    "simple_integration": "letters",
    "intermediate_integration": "functions",
}
# Scorers that make a fraction of 1e999999999 would be at it for hours.
_HUGE = re.compile(r"[\d_]{300,}|[eE][+-]?0*[3-9][\d_]{2,}|[eE][+-]?[\d_]{4,}")
_NO_NUMBER = re.compile("nan|inf", re.IGNORECASE)

_DRAWING = frozenset({"list_functions", "pool_matrix"})  # from the random numbers of the whole process
# These draw from sets, or find their answers in them.
_UNORDERED: dict[str, dict[str, Any]] = {
    "algebra.polynomial_multiplication": {"list": ordered_list},
    "algorithmic.isomorphic_strings": {"list": ordered_list},
    "algorithmic.ransom_note": {"list": ordered_list},
    "algorithmic.word_ladder": {"set": OrderedSet},
    "games.knight_swap": {"frozenset": OrderedFrozenSet},
}
for _module in _EVALUATING:
    vars(import_module(f"reasoning_gym.{_module}"))["eval"] = ast.literal_eval
for _module, _builtins in _UNORDERED.items():
    vars(import_module(f"reasoning_gym.{_module}")).update(_builtins)


class Question(NamedTuple):
    """A question as the package made it, and where it is from."""

    name: str
    split: str
    number: int
    category: str
    entry: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.split}/{self.name}/{self.number}"

    @property
    def answer(self) -> str | None:
        """A right answer, if the package gives one."""
        answer: str | None = self.entry["answer"]
        return answer if answer is not None else self.entry["metadata"].get("example_answer")


def checked_name(name: Any) -> str:
    """The name of a dataset.

    Raises:
        InvalidArgument: There is none of that name; the message has some that are spelt alike, or why it is left out.
    """
    if isinstance(name, str) and name in NAMES:
        return name
    if isinstance(name, str) and name in LEFT_OUT:
        raise InvalidArgument(f"task {name!r} is left out: {LEFT_OUT[name]}")
    close = get_close_matches(str(name)[:80], NAMES, n=3)
    there = (
        f"did you mean {', '.join(close)}?" if close else f"there are {len(NAMES)}, from {NAMES[0]} to {NAMES[-1]}"
    )
    raise InvalidArgument(f"no task {name!r:.80}: {there}")


def question(name: str, split: str, number: int) -> Question:
    """Makes a question: the same one each time and in every process, whatever else was or is being made."""
    source = _source(name, split)
    with source.lock, _alone(f"{split}/{name}/{number}") if name in _DRAWING else nullcontext():
        return Question(name, split, number, source.dataset.category, source.dataset[number])


def score(asked: Question, answer: str) -> tuple[float, str]:
    """What an answer is worth, by the scorer of its dataset.

    Returns:
        A number from 0 to 1, and why the answer could not be scored, if so. An answer that a scorer cannot
        read is wrong, whatever the scorer does about it.
    """
    if asked.name == "game_of_life_halting":
        # Its scorer compares `bool(answer)` with `bool("False")`: every text would be right.
        return float(answer.strip().lower() == str(asked.answer).lower()), ""
    fault = _fault(asked.name, answer)
    if fault:
        return 0.0, fault
    source = _source(asked.name, asked.split)
    try:
        with source.lock:
            worth = float(source.dataset.score_answer(answer, asked.entry))
    except Exception as error:  # noqa: BLE001 - the edge to foreign code, which gets to see answers of any kind
        return 0.0, f"the scorer cannot read it: {type(error).__name__}"
    return (0.0, "the scorer gave no number") if isnan(worth) else (min(max(worth, 0.0), 1.0), "")


def _fault(name: str, answer: str) -> str:
    """Why a scorer must not get to see an answer; empty if it may."""
    if name in _FORMULAS and not is_formula(answer, _FORMULAS[name]):
        return "it is no formula that can be read"
    if _HUGE.search(answer):
        return "it has a number of more than 300 digits"
    # Everything is near to NaN for the scorer of this one.
    return "it is no number" if name == "complex_arithmetic" and _NO_NUMBER.search(answer) else ""


class _Source(NamedTuple):
    """A dataset, and who uses it: some keep notes in themselves while they make a question."""

    dataset: Any
    lock: Lock


_making, _drawing = Lock(), Lock()
_sources: dict[tuple[str, str], _Source] = {}


def _source(name: str, split: str) -> _Source:
    """Some take a third of a second to be made, and read words or pictures from the package's own files."""
    with _making:
        source = _sources.get((name, split))
        if source is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                dataset = reasoning_gym.create_dataset(name, seed=_SEEDS[split], size=SIZES[split])
            source = _sources[name, split] = _Source(dataset, Lock())
        return source


@contextmanager
def _alone(seed: str) -> Iterator[None]:
    """Random numbers of the process start from a seed, and go on afterwards as if nobody had drawn any."""
    with _drawing:
        before, before_numpy = random.getstate(), numpy.random.get_state()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            numpy.random.set_state(before_numpy)
