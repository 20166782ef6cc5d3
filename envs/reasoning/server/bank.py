"""The questions: datasets of the package `reasoning-gym`, and its scorers, made safe for answers of any kind."""

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
        "it runs programs that draw random numbers, read clocks and import packages that may be missing, so a seed "
        "would not repeat its question"
    ),
    "composite": "it is a mixture of others, and no argument of reset selects them",
}
"""Datasets of the package that are left out, with the reasons."""

NAMES = tuple(sorted(set(DATASETS) - set(LEFT_OUT)))
SLOW = frozenset({"futoshiki", "intermediate_integration", "knight_swap", "sokoban"})
"""Datasets with questions that take many seconds to generate or score. They are only used by name."""

SIZES = {"train": 500, "test": 100}
"""Number of questions of each dataset, by split."""

_SEEDS = {"train": 1, "test": 1_000_000}  # the seed of a question is this plus its number, so splits share no seeds

# These scorers call `eval(answer)` to parse a list.
_EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
# These pass the answer to sympy, which also evaluates it. The value names the allowed content, and no more is
# allowed: sympy simplifies functions for hours.
_FORMULAS: dict[str, Content] = {
    "countdown": "numbers",
    "puzzle24": "numbers",
    "polynomial_multiplication": "letters",
    "simple_integration": "letters",
    "intermediate_integration": "functions",
}
# Scorers that convert 1e999999999 to a fraction would take hours.
_HUGE = re.compile(r"[\d_]{300,}|[eE][+-]?0*[3-9][\d_]{2,}|[eE][+-]?[\d_]{4,}")
_NO_NUMBER = re.compile("nan|inf", re.IGNORECASE)

_GLOBAL_RANDOM = frozenset({"list_functions", "pool_matrix"})  # these use the random generators of the process
# These draw questions from sets, or search for answers in sets.
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
    """A question from the package, with its dataset and number."""

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
        """A right answer, if the package has one."""
        answer: str | None = self.entry["answer"]
        return answer if answer is not None else self.entry["metadata"].get("example_answer")


def checked_name(name: Any) -> str:
    """The name of a dataset.

    Raises:
        InvalidArgument: There is no such dataset. The message has similar names, or the reason why it is left out.
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
    """Generates a question. The result is the same each time and in every process."""
    source = _source(name, split)
    with source.lock, _seeded(f"{split}/{name}/{number}") if name in _GLOBAL_RANDOM else nullcontext():
        return Question(name, split, number, source.dataset.category, source.dataset[number])


def score(asked: Question, answer: str) -> tuple[float, str]:
    """Scores an answer with the scorer of its dataset.

    Returns:
        The score from 0 to 1, and the reason why the answer could not be scored, if any. An answer that the scorer
        cannot parse is wrong.
    """
    if asked.name == "game_of_life_halting":
        # Its scorer compares `bool(answer)` with `bool("False")`, so every string would be right.
        return float(answer.strip().lower() == str(asked.answer).lower()), ""
    fault = _fault(asked.name, answer)
    if fault:
        return 0.0, fault
    source = _source(asked.name, asked.split)
    try:
        with source.lock:
            reward = float(source.dataset.score_answer(answer, asked.entry))
    except Exception as error:  # noqa: BLE001 - foreign code, which may raise anything for an odd answer
        return 0.0, f"the scorer cannot read it: {type(error).__name__}"
    return (0.0, "the scorer gave no number") if isnan(reward) else (min(max(reward, 0.0), 1.0), "")


def _fault(name: str, answer: str) -> str:
    """Why an answer must not be passed to the scorer. Empty if it may be."""
    if name in _FORMULAS and not is_formula(answer, _FORMULAS[name]):
        return "it is not a readable formula"
    if _HUGE.search(answer):
        return "it has a number of more than 300 digits"
    # The scorer of this dataset accepts every answer if the difference is NaN.
    return "it is not a number" if name == "complex_arithmetic" and _NO_NUMBER.search(answer) else ""


class _Source(NamedTuple):
    """A dataset with a lock: some store data in themselves while they generate a question."""

    dataset: Any
    lock: Lock


_creating, _generating = Lock(), Lock()
_sources: dict[tuple[str, str], _Source] = {}


def _source(name: str, split: str) -> _Source:
    """Creates a dataset. Some take a third of a second, and read words or pictures from the package's files."""
    with _creating:
        source = _sources.get((name, split))
        if source is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                dataset = reasoning_gym.create_dataset(name, seed=_SEEDS[split], size=SIZES[split])
            source = _sources[name, split] = _Source(dataset, Lock())
        return source


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Seeds the random numbers of the process for a block, and restores their state afterwards."""
    with _generating:
        before, before_numpy = random.getstate(), numpy.random.get_state()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            numpy.random.set_state(before_numpy)
