"""The tasks: functions to write. Only this module knows the right answers to the hidden tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from openenv.errors import InvalidArgument

__all__ = ["SIZES", "Task", "checked", "families", "split_named", "task"]

SIZES = {"train": 200, "test": 100}
EXAMPLES = 3
HIDDEN = 20

Arguments = list[Any]


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind.

    Attributes:
        name: Name of the function to write.
        text: What the function must do, with placeholders for the parameters.
        parameters: Draws the parameters.
        draw: Draws the arguments of a test.
        solve: Returns the right answer for arguments and parameters.
    """

    name: str
    text: str
    parameters: Callable[[Random], dict[str, Any]]
    draw: Callable[[Random], Arguments]
    solve: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        split: Name of its split.
        index: Index in the split.
        family: Name of the function.
        prompt: What the function must do, in words, with examples.
        inputs: Arguments of the hidden tests.
        expected: The right answer to each hidden test.
    """

    split: str
    index: int
    family: str
    prompt: str
    inputs: list[Arguments]
    expected: list[Any]

    def public(self) -> dict[str, Any]:
        """The task without its hidden tests."""
        return {"split": self.split, "index": self.index, "family": self.family, "prompt": self.prompt}


def families() -> list[str]:
    """The names of all families."""
    return [family.name for family in _FAMILIES]


def split_named(name: Any) -> str:
    """The name of a split.

    Raises:
        InvalidArgument: There is no such split.
    """
    if not isinstance(name, str) or name not in SIZES:
        raise InvalidArgument(f"no split {name!r:.40}: there are {', '.join(SIZES)}")
    return name


def checked(split: str, index: Any) -> int:
    """The index of a task in its split.

    Raises:
        InvalidArgument: There is no such task.
    """
    count = SIZES[split]
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
        raise InvalidArgument(
            f"split {split!r} has no task {index!r:.40}: there are {count}, from 0 to {count - 1}",
            data={"num_tasks": count},
        )
    return index


@functools.lru_cache(maxsize=512)
def task(split: str, index: int) -> Task:
    """A task of a split. The same arguments always give the same task.

    Raises:
        IndexError: There is no such task.
        KeyError: There is no such split.
    """
    if not 0 <= index < SIZES[split]:
        raise IndexError(f"split {split} has tasks 0 to {SIZES[split] - 1}, not {index}")
    rng = Random(f"{split} {index}")  # noqa: S311 - no secret depends on it
    family = _FAMILIES[index % len(_FAMILIES)]
    parameters = family.parameters(rng)
    tests = [(arguments, family.solve(*arguments, **parameters)) for arguments in _test_arguments(family, rng)]
    lines = [f"Write a Python function {family.name}. " + family.text.format(**parameters), "Examples:"]
    for arguments, right in tests[:EXAMPLES]:
        lines.append(f"{family.name}({', '.join(map(repr, arguments))}) == {right!r}")
    inputs, expected = zip(*tests[EXAMPLES:], strict=True)
    return Task(split, index, family.name, "\n".join(lines), list(inputs), list(expected))


def _test_arguments(family: Family, rng: Random) -> list[Arguments]:
    """Draws distinct arguments, so that no hidden test is among the examples."""
    found: dict[str, Arguments] = {}
    while len(found) < EXAMPLES + HIDDEN:
        arguments = family.draw(rng)
        found.setdefault(repr(arguments), arguments)
    return list(found.values())


def _numbers(rng: Random) -> Arguments:
    return [[rng.randint(-50, 50) for _ in range(rng.randint(0, 9))]]


def _number(rng: Random) -> Arguments:
    return [rng.randint(0, 999)]


def _words(rng: Random) -> Arguments:
    return [" ".join(_word(rng) for _ in range(rng.randint(0, 6)))]


def _word(rng: Random) -> str:
    return "".join(rng.choice("aabbcdeeilmnoorst") for _ in range(rng.randint(1, 6)))


def _nested(rng: Random, depth: int = 3) -> list[Any]:
    count = rng.randint(1, 4)
    return [_nested(rng, depth - 1) if depth and rng.random() < 0.4 else rng.randint(0, 9) for _ in range(count)]


def _flattened(values: list[Any]) -> list[Any]:
    return [each for value in values for each in (_flattened(value) if isinstance(value, list) else [value])]


def _rotated(values: list[int], by: int) -> list[int]:
    return values[by % len(values) :] + values[: by % len(values)] if values else []


def _shifted(text: str, by: int) -> str:
    return "".join(chr((ord(each) - 97 + by) % 26 + 97) if each.islower() else each for each in text)


def _runs(text: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    for each in text:
        if found and found[-1][0] == each:
            found[-1][1] += 1
        else:
            found.append([each, 1])
    return found


def _digits(number: int, base: int) -> str:
    text = ""
    while number >= base:
        number, rest = divmod(number, base)
        text = str(rest) + text
    return str(number) + text


def _collatz(number: int, plus: int) -> int:
    for steps in range(100):
        if number <= 1:
            return steps
        number = 3 * number + plus if number % 2 else number // 2
    return 100


_FAMILIES = (
    Family(
        "sum_of_multiples",
        "It returns the sum of the numbers in a list that are multiples of {by}.",
        lambda rng: {"by": rng.randint(2, 6)},
        _numbers,
        lambda values, by: sum(value for value in values if value % by == 0),
    ),
    Family(
        "rotate",
        "It returns a list rotated to the left by {by} places; of an empty list, an empty list.",
        lambda rng: {"by": rng.randint(1, 5)},
        _numbers,
        _rotated,
    ),
    Family(
        "caesar",
        "It shifts each lower-case letter of a text by {by} places in the alphabet, from z on to a.",
        lambda rng: {"by": rng.randint(1, 25)},
        _words,
        _shifted,
    ),
    Family(
        "in_base",
        "It returns a number that is not negative as a text of its digits in base {base}.",
        lambda rng: {"base": rng.randint(2, 9)},
        _number,
        _digits,
    ),
    Family(
        "count_longer",
        "It returns how many words of a text have more than {most} letters.",
        lambda rng: {"most": rng.randint(1, 4)},
        _words,
        lambda text, most: sum(len(word) > most for word in text.split()),
    ),
    Family(
        "clamp",
        "It returns a list with each number below {low} replaced by {low}, and each above {high} by {high}.",
        lambda rng: {"low": rng.randint(-30, -1), "high": rng.randint(0, 30)},
        _numbers,
        lambda values, low, high: [min(max(value, low), high) for value in values],
    ),
    Family(
        "run_lengths",
        "It returns a list of [letter, count] for each run of equal characters of a text.",
        lambda rng: {},
        _words,
        _runs,
    ),
    Family(
        "flatten",
        "It returns the numbers of a list of lists of any depth, each plus {plus}, in one list.",
        lambda rng: {"plus": rng.randint(0, 9)},
        lambda rng: [_nested(rng)],
        lambda values, plus: [value + plus for value in _flattened(values)],
    ),
    Family(
        "largest",
        "It returns the {count} largest numbers of a list, the largest first; all of them if there are fewer.",
        lambda rng: {"count": rng.randint(1, 4)},
        _numbers,
        lambda values, count: sorted(values, reverse=True)[:count],
    ),
    Family(
        "collatz",
        "It returns how many steps it takes from a number n to 1 or less, where an even one is halved and of another "
        "3n + {plus} is taken; 100 if it takes more than that.",
        lambda rng: {"plus": rng.choice((1, 3, 5))},
        _number,
        _collatz,
    ),
)
