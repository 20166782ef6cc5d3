"""The cases of an evaluation: one case is one episode, and the same case repeats the same episode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ..errors import InvalidArgument
from .sampler import TaskSampler

MOST_SEED = 2**31 - 1
_PART = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")


@dataclass(frozen=True, slots=True)
class Case:
    """One episode to play.

    Attributes:
        seed: Seed of the reset and of the policy's random numbers.
        split, index: The task, if the environment has tasks.
        repeat: Number of the repeat of that task or seed.
    """

    seed: int | None
    split: str | None = None
    index: int | None = None
    repeat: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the case across runs: the split, the task (without tasks the seed), and its repeat."""
        return (self.split, self.seed if self.index is None else self.index, self.repeat)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the reset."""
        named = {"seed": self.seed, "split": self.split, "index": self.index}
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        return f"seed {self.seed}" if self.index is None else f"task {self.index} of {self.split!r}"


def parse_seeds(text: str) -> list[int]:
    """Parses `0-199`, `1,2,5`, or a mix of both (`0-9,20,30-39`).

    Raises:
        InvalidArgument: The text does not have this form, or contains a seed twice.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise InvalidArgument(
                f"{text!r:.80} are not seeds: write a range (0-199), a list (1,2,5), or both (0-9,20)"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first or last > MOST_SEED or last - first >= 10_000_000:
            raise InvalidArgument(f"the range of seeds {part.strip()!r:.80} must rise, to {MOST_SEED} at most")
        found += range(first, last + 1)
    seen: set[int] = set()
    for seed in found:
        if seed in seen:
            raise InvalidArgument(f"seed {seed} is listed twice: the second episode would be the same")
        seen.add(seed)
    return found


def derived_seeds(seed: int, count: int) -> list[int]:
    """Derives `count` different seeds from one. A smaller count gives the first of them."""
    random = Random(f"openenv.evals/{seed}")  # noqa: S311 - no secrets
    found: dict[int, None] = {}
    while len(found) < count:
        found[random.randint(0, MOST_SEED)] = None
    return list(found)


def cases_of_seeds(seeds: Sequence[int], episodes: int | None) -> list[Case]:
    """One case for each seed, or for the first `episodes` of them.

    Raises:
        InvalidArgument: The seeds are fewer than `episodes`.
    """
    if episodes is not None and episodes > len(seeds):
        raise InvalidArgument(
            f"{episodes} episodes need as many seeds, got {len(seeds)} seeds: give more (0-{episodes - 1}), or "
            "derive all from one with --seed S"
        )
    return [Case(seed) for seed in seeds[:episodes]]


def cases_of_tasks(count: int, split: str, seed: int, episodes: int | None = None, repeats: int = 1) -> list[Case]:
    """The cases of all tasks in a split, or of some that the seed selects.

    Args:
        count: Number of tasks in the split.
        split: Name of the split.
        seed: Seed for the choice of tasks and the seeds of all episodes.
        episodes: Number of episodes to play; None for all.
        repeats: Number of episodes of each task.

    Raises:
        InvalidArgument: The split has no tasks, or fewer than requested.
    """
    if count < 1:
        raise InvalidArgument(f"split {split!r} has no tasks")
    most = count * repeats
    if episodes is not None and episodes > most:
        raise InvalidArgument(
            f"{episodes} episodes need as many tasks, and split {split!r} has {count}: leave --episodes out, or "
            f"play each more often (--repeats {-(-episodes // count)})"
        )
    sampler = TaskSampler(count, split=split, seed=seed, repeats=repeats)
    cases = [Case((task.seed + task.repeat) & MOST_SEED, split, task.index, task.repeat) for task in sampler]
    return sorted(cases[:episodes], key=lambda case: (case.index, case.repeat))
