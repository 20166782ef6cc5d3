"""The tasks: repositories with a planted fault. Only this module knows the repairs and the hidden tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Any

from openenv.errors import InvalidArgument

__all__ = ["SIZES", "Edit", "Task", "checked", "split_named", "task"]

SIZES = {"train": 400, "test": 100}
VISIBLE, HIDDEN = 3, 15  # tests of each function
# Tests, of those of the faulty function, that fail before the repair.
LEAST_FAILING = 4
FUNCTIONS = 6

Arguments = list[Any]
Parameters = dict[str, int]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a repository. Texts have placeholders for its parameters.

    Attributes:
        head: Name and argument.
        text: Its docstring.
        body: Its right source.
        faults: Lines of the source, each with the wrong one that may be planted in its place.
        parameters: Draws the parameters.
        draw: Draws an argument.
    """

    head: str
    text: str
    body: str
    faults: tuple[tuple[str, str], ...]
    parameters: Callable[[Random], Parameters]
    draw: Callable[[Random], Any]

    @property
    def name(self) -> str:
        """Its name."""
        return self.head.partition("(")[0]

    def source(self, parameters: Parameters, fault: tuple[str, str] | None = None) -> str:
        """Its source; with a fault in place of a line."""
        body = self.body if fault is None else self.body.replace(*fault, 1)
        lines = [f'"""{self.text}"""', *body.strip("\n").splitlines()]
        indented = "\n".join(f"    {line}" if line else "" for line in lines)
        return Template(f"def {self.head}:\n{indented}\n").substitute(parameters)

    def compiled(self, source: str) -> Callable[[Any], Any]:
        """The function of a source that this module made."""
        names: dict[str, Any] = {}
        exec(compile(source, self.name, "exec"), names)  # noqa: S102 - our own source
        made: Callable[[Any], Any] = names[self.name]
        return made


@dataclass(frozen=True, slots=True)
class Edit:
    """A repair: a text that a file has once, and the one to put in its place."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes:
        split: Name of its split.
        index: Index in the split.
        prompt: The report of the fault.
        files: The repository: for each path its text.
        calls: The hidden tests without their answers: module, function, argument.
        expected: The right answer to each hidden test.
        repair: The planted fault, and the right text in its place.
    """

    split: str
    index: int
    prompt: str
    files: dict[str, str]
    calls: list[tuple[str, str, Any]]
    expected: list[Any]
    repair: Edit

    def public(self) -> dict[str, Any]:
        """The task without its hidden tests and repair."""
        return {"split": self.split, "index": self.index, "prompt": self.prompt}


def split_named(name: Any) -> str:
    """The name of a split. Raises `InvalidArgument` if there is none of that name."""
    if not isinstance(name, str) or name not in SIZES:
        raise InvalidArgument(f"no split {name!r:.40}: there are {', '.join(SIZES)}")
    return name


def checked(split: str, index: Any) -> int:
    """The index of a task in its split. Raises `InvalidArgument` if there is no such task."""
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
    rng = Random(f"repo_repair {split} {index}")  # noqa: S311 - no secret depends on it
    faulty = _FUNCTIONS[index % len(_FUNCTIONS)]
    others = [each for each in _FUNCTIONS if each is not faulty]
    chosen = rng.sample([faulty, *rng.sample(others, FUNCTIONS - 1)], FUNCTIONS)
    package = rng.choice(_PACKAGES)
    modules = dict(zip(rng.sample(_MODULES, 2), (chosen[: FUNCTIONS // 2], chosen[FUNCTIONS // 2 :]), strict=True))
    files = {"README.md": f"# {package}\n\nRun the tests with `python3 -m unittest`.\n", f"{package}/__init__.py": ""}
    files["tests/__init__.py"] = ""
    calls: list[tuple[str, str, Any]] = []
    expected: list[Any] = []
    prompt, repair = "", Edit("", "", "")
    for module, functions in modules.items():
        sources, tests = [], []
        for function in functions:
            parameters = function.parameters(rng)
            right = function.source(parameters)
            given = function.compiled(right)
            source, wrong = right, None
            if function is faulty:
                fault = rng.choice(function.faults)
                source = function.source(parameters, fault)
                wrong = function.compiled(source)
                old, new = (Template(text).substitute(parameters) for text in reversed(fault))
                repair = Edit(f"{package}/{module}.py", old, new)
            arguments = _arguments(function, rng, given, wrong)
            answers = [given(argument) for argument in arguments]
            tests.append(_test(function, arguments[:VISIBLE], answers[:VISIBLE]))
            calls += [(f"{package}.{module}", function.name, argument) for argument in arguments[VISIBLE:]]
            expected += answers[VISIBLE:]
            sources.append(source)
            if wrong is not None:
                prompt = (
                    f"The package {package} has a fault. A user reports that {function.name}({arguments[0]!r}) "
                    f"returns {_result(wrong, arguments[0])}, where it should return {answers[0]!r}. Find the fault "
                    "and repair it, so that the function is right for every argument. Then submit."
                )
        files[f"{package}/{module}.py"] = "\n\n".join(sources)
        head = f"import unittest\n\nfrom {package} import {module}\n\n\nclass Test(unittest.TestCase):\n"
        files[f"tests/test_{module}.py"] = head + "\n".join(tests).replace("FROM", module)
    return Task(split, index, prompt, files, calls, expected, repair)


def _arguments(
    function: Function, rng: Random, right: Callable[[Any], Any], wrong: Callable[[Any], Any] | None
) -> Arguments:
    """Distinct arguments of tests. If there is a fault, the first of them shows it, and so do others."""
    while True:
        found: dict[str, Any] = {}
        while len(found) < VISIBLE + HIDDEN:
            argument = function.draw(rng)
            found.setdefault(repr(argument), argument)
        arguments = list(found.values())
        if wrong is None:
            return arguments
        failing = [each for each in arguments if _result(wrong, each) != repr(right(each))]
        if len(failing) >= LEAST_FAILING:
            # One failing test is visible; the others stay where they are.
            return [failing[0], *(each for each in arguments if each is not failing[0])]


def _result(function: Callable[[Any], Any], argument: Any) -> str:
    try:
        return repr(function(argument))
    except Exception as error:  # noqa: BLE001 - a planted fault may raise anything
        return f"the error {type(error).__name__}"


def _test(function: Function, arguments: Arguments, answers: list[Any]) -> str:
    lines = [f"    def test_{function.name}(self):"]
    for argument, answer in zip(arguments, answers, strict=True):
        lines.append(f"        self.assertEqual(FROM.{function.name}({argument!r}), {answer!r})")
    return "\n".join(lines) + "\n"


def _numbers(rng: Random) -> list[int]:
    return [rng.randint(-50, 50) for _ in range(rng.randint(0, 9))]


def _number(rng: Random) -> int:
    return rng.randint(0, 999)


def _words(rng: Random) -> str:
    return " ".join(
        "".join(rng.choice("aabbcdeeilmnoorst") for _ in range(rng.randint(1, 6))) for _ in range(rng.randint(0, 6))
    )


_PACKAGES = ("ledger", "almanac", "harbor", "orchard", "foundry", "atlas")
_MODULES = ("sums", "lists", "texts", "ranges", "totals", "counts", "shapes", "parts")
_FUNCTIONS = (
    Function(
        "sum_of_multiples(values)",
        "The sum of the numbers that are multiples of $by.",
        """
total = 0
for value in values:
    if value % $by == 0:
        total += value
return total
""",
        (("value % $by == 0", "value % $by != 0"), ("total += value", "total = value"), ("total = 0", "total = $by")),
        lambda rng: {"by": rng.randint(2, 6)},
        _numbers,
    ),
    Function(
        "clamp(values)",
        "The numbers, with those below $low replaced by $low and those above $high by $high.",
        """
clamped = []
for value in values:
    value = max(value, $low)
    value = min(value, $high)
    clamped.append(value)
return clamped
""",
        (("max(value, $low)", "min(value, $low)"), ("min(value, $high)", "min(value, $low)")),
        lambda rng: {"low": rng.randint(-30, -1), "high": rng.randint(1, 30)},
        _numbers,
    ),
    Function(
        "rotate(values)",
        "The values, rotated to the left by $by places.",
        """
if not values:
    return []
by = $by % len(values)
return values[by:] + values[:by]
""",
        (("values[by:] + values[:by]", "values[-by:] + values[:-by]"), ("by = $by % len(values)", "by = $by")),
        lambda rng: {"by": rng.randint(5, 9)},
        _numbers,
    ),
    Function(
        "count_longer(text)",
        "How many words of the text have more than $most letters.",
        """
count = 0
for word in text.split():
    if len(word) > $most:
        count += 1
return count
""",
        (("len(word) > $most", "len(word) >= $most"), ("len(word) > $most", "len(word) < $most")),
        lambda rng: {"most": rng.randint(2, 4)},
        _words,
    ),
    Function(
        "in_base(number)",
        "The number as a text of its digits in base $base.",
        """
digits = ""
while number >= $base:
    digits = str(number % $base) + digits
    number //= $base
return str(number) + digits
""",
        (
            ("str(number % $base) + digits", "digits + str(number % $base)"),
            ("number >= $base", "number > $base"),
            ("return str(number) + digits", "return digits"),
        ),
        lambda rng: {"base": rng.randint(2, 9)},
        _number,
    ),
    Function(
        "caesar(text)",
        "The text with each lower-case letter shifted by $by places in the alphabet, from z on to a.",
        """
shifted = ""
for letter in text:
    if letter.islower():
        letter = chr((ord(letter) - 97 + $by) % 26 + 97)
    shifted += letter
return shifted
""",
        (("- 97 + $by) % 26", "- 97 - $by) % 26"), ("shifted += letter", "shifted = letter + shifted")),
        lambda rng: {"by": rng.randint(2, 12)},
        _words,
    ),
    Function(
        "largest(values)",
        "The $count largest numbers, the largest first; all of them if there are fewer.",
        """
ordered = sorted(values, reverse=True)
return ordered[:$count]
""",
        (("reverse=True", "reverse=False"), ("ordered[:$count]", "ordered[$count:]")),
        lambda rng: {"count": rng.randint(2, 5)},
        _numbers,
    ),
    Function(
        "collatz(number)",
        "The steps from the number to 1, where an even one is halved and another is tripled plus 1; $most at most.",
        """
steps = 0
while number > 1 and steps < $most:
    if number % 2 == 0:
        number //= 2
    else:
        number = 3 * number + 1
    steps += 1
return steps
""",
        (("number % 2 == 0", "number % 2 == 1"), ("steps < $most", "steps > $most"), ("3 * number", "2 * number")),
        lambda rng: {"most": rng.randint(60, 120)},
        _number,
    ),
    Function(
        "capped_sums(values)",
        "The sums of the first one, two and more numbers, each $most at most.",
        """
total = 0
sums = []
for value in values:
    total += value
    sums.append(min(total, $most))
return sums
""",
        (("min(total, $most)", "max(total, $most)"), ("total += value", "total -= value")),
        lambda rng: {"most": rng.randint(5, 40)},
        _numbers,
    ),
    Function(
        "distinct(values)",
        "The numbers of $low or more, without repetitions, in their order.",
        """
seen = []
for value in values:
    if value >= $low and value not in seen:
        seen.append(value)
return seen
""",
        (("value >= $low", "value <= $low"), ("seen.append(value)", "seen.insert(0, value)")),
        lambda rng: {"low": rng.randint(-40, 0)},
        _numbers,
    ),
    Function(
        "pad(text)",
        "The text, filled with dots on the left to $width characters.",
        """
missing = $width - len(text)
return "." * missing + text
""",
        (('"." * missing + text', 'text + "." * missing'), ("$width - len(text)", "len(text) - $width")),
        lambda rng: {"width": rng.randint(12, 30)},
        _words,
    ),
    Function(
        "digit_sum(number)",
        "The sum of the digits of the number times $by.",
        """
number *= $by
total = 0
while number:
    total += number % 10
    number //= 10
return total
""",
        (("number % 10", "number // 10"), ("number *= $by", "number += $by"), ("total = 0", "total = 1")),
        lambda rng: {"by": rng.randint(2, 99)},
        _number,
    ),
)
