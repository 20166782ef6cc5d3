"""Filter and sort the summaries of rollouts, and gather them into groups and runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, Field

from .index import RolloutSummary
from .records import RolloutOutcome, TokenUsage

MOST_ROWS = 500
Summary = TypeVar("Summary")
RolloutOrder = Literal[
    "started",
    "reward",
    "turns",
    "tokens",
    "seconds",
    "cost",
    "task",
    "outcome",
    "breaks",
    "invalid_actions",
    "version",
]
GroupOrder = Literal["started", "reward", "spread", "rollouts", "failed", "turns", "tokens", "task"]


class RolloutFilter(BaseModel):
    """Which rollouts to list. A field that is not given does not restrict them.

    Attributes:
        run, group: The only run, and the only group, by their names.
        outcome: The outcomes.
        task: A part of the task's name, in lower or upper case.
        min_reward, max_reward: Bounds of the return. Rollouts without a return are outside of them.
        min_turns, max_turns: Bounds of the number of turns.
    """

    run: str | None = None
    group: str | None = None
    outcome: list[RolloutOutcome] = Field(default_factory=list)
    task: str = ""
    min_reward: float | None = None
    max_reward: float | None = None
    min_turns: int | None = None
    max_turns: int | None = None

    def matches(self, summary: RolloutSummary) -> bool:
        """Whether a rollout is one of them."""
        return (
            (self.run is None or summary.run == self.run)
            and (self.group is None or summary.group == self.group)
            and (not self.outcome or summary.outcome in self.outcome)
            and (not self.task or self.task.casefold() in summary.task.casefold())
            and _within(summary.reward, self.min_reward, self.max_reward)
            and _within(summary.turns, self.min_turns, self.max_turns)
        )


def _within(value: float | None, low: float | None, high: float | None) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)


def ordered(summaries: Iterable[Summary], by: str, descending: bool) -> list[Summary]:
    """The summaries by one of their fields, those without a value last."""
    value = attrgetter(by)
    known: list[Summary] = []
    unknown: list[Summary] = []
    for summary in summaries:
        (unknown if value(summary) is None else known).append(summary)
    return [*sorted(known, key=value, reverse=descending), *unknown]


class _Listing(RolloutFilter):
    """A part of a list: `count` rows from row `start` on."""

    descending: bool = True
    start: int = Field(default=0, ge=0)
    count: int = Field(default=100, ge=0, le=MOST_ROWS)

    def part(self, summaries: Iterable[Summary], by: str) -> dict[str, Any]:
        """The number of all rows, and those of the part."""
        rows = ordered(summaries, by, self.descending)
        return {"total": len(rows), "rows": rows[self.start : self.start + self.count]}


class RolloutListing(_Listing):
    """A list of rollouts, and the order of it."""

    sort: RolloutOrder = "started"


class GroupListing(_Listing):
    """A list of groups, and the order of it."""

    sort: GroupOrder = "started"


class SearchListing(RolloutListing):
    """A list of the rollouts that contain a text."""

    text: str = Field(min_length=1, max_length=1000)


class GroupSummary(msgspec.Struct):
    """The rollouts of one group that a filter left.

    Attributes:
        run, group, task: Names.
        rollouts, failed: Number of rollouts with a return, and without.
        reward, low, high: Mean, least and greatest return; None without one.
        spread: Standard deviation of the returns. A group with 0 has no gradient.
        turns, tokens: Means over all of its rollouts.
        started: When the first of them began, Unix seconds.
    """

    run: str
    group: str
    task: str
    rollouts: int
    failed: int
    reward: float | None
    low: float | None
    high: float | None
    spread: float | None
    turns: float
    tokens: float
    started: float


class RunSummary(msgspec.Struct):
    """The rollouts of one run.

    Attributes:
        run: Its name.
        rollouts, groups: Their numbers.
        outcomes: Number of rollouts by outcome.
        reward: Mean return; None without one.
        usage: Tokens of the completions, and money.
        models, environments: Their names.
        started, ended: When the first rollout began, and when the last one ended, Unix seconds.
    """

    run: str
    rollouts: int
    groups: int
    outcomes: dict[str, int]
    reward: float | None
    usage: TokenUsage
    models: list[str]
    environments: list[str]
    started: float
    ended: float


def groups_of(summaries: Iterable[RolloutSummary]) -> list[GroupSummary]:
    """The groups of these rollouts."""
    found: dict[tuple[str, str], list[RolloutSummary]] = {}
    for summary in summaries:
        found.setdefault((summary.run, summary.group), []).append(summary)
    return [_group(members) for members in found.values()]


def _group(members: list[RolloutSummary]) -> GroupSummary:
    rewards = _rewards(members)
    mean = statistics.fmean(rewards) if rewards else None
    return GroupSummary(
        run=members[0].run,
        group=members[0].group,
        task=members[0].task,
        rollouts=len(rewards),
        failed=len(members) - len(rewards),
        reward=mean,
        low=min(rewards, default=None),
        high=max(rewards, default=None),
        spread=None if mean is None else math.dist(rewards, [mean] * len(rewards)) / math.sqrt(len(rewards)),
        turns=statistics.fmean(member.turns for member in members),
        tokens=statistics.fmean(member.tokens for member in members),
        started=min(member.started for member in members),
    )


def runs_of(summaries: Iterable[RolloutSummary]) -> list[RunSummary]:
    """The runs of these rollouts."""
    found: dict[str, list[RolloutSummary]] = {}
    for summary in summaries:
        found.setdefault(summary.run, []).append(summary)
    return [_run(name, members) for name, members in sorted(found.items())]


def _run(name: str, members: list[RolloutSummary]) -> RunSummary:
    rewards = _rewards(members)
    usage = TokenUsage()
    for member in members:
        usage.add(TokenUsage(completion_tokens=member.tokens, cost=member.cost))
    return RunSummary(
        run=name,
        rollouts=len(members),
        groups=len({member.group for member in members}),
        outcomes=dict(Counter(member.outcome.value for member in members)),
        reward=statistics.fmean(rewards) if rewards else None,
        usage=usage,
        models=sorted({member.model for member in members} - {""}),
        environments=sorted({member.environment for member in members} - {""}),
        started=min(member.started for member in members),
        ended=max(member.started + member.seconds for member in members),
    )


def _rewards(members: list[RolloutSummary]) -> list[float]:
    return [member.reward for member in members if member.reward is not None]
