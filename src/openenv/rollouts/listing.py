"""Filter, sort and search rollouts, and gather their summaries into groups and runs."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, Field

from .index import RolloutSummary
from .records import ChatMessage, RolloutOutcome, TokenUsage

MOST_ROWS = 500
# Characters shown before and after a match.
CONTEXT = 60
# A longer text without a space is data, such as an image.
MOST_WORD = 10_000
DEEPEST = 32
# Parts of a message that are no text of it.
_MARKS = frozenset({"role", "type", "id", "tool_call_id"})
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


class _SearchedStep(msgspec.Struct, gc=False):
    action: Any = None
    tool: str | None = None
    observation: Any = None
    error: str | None = None


class _SearchedTurn(msgspec.Struct):
    prompt: list[ChatMessage] = []
    completion: ChatMessage = {}
    steps: list[_SearchedStep] = []


class _SearchedRollout(msgspec.Struct):
    """The texts of a `Rollout`. The decoder skips token ids and logprobs."""

    turns: list[_SearchedTurn] = []


_NOT_ASCII = re.compile(r"[^\x20-\x7e]+")
_decode = msgspec.json.Decoder(_SearchedRollout).decode


class TextMatch(msgspec.Struct):
    """The first match in a rollout.

    Attributes:
        turn: Index of the turn.
        part: `prompt`, `completion` or `step`.
        before, found, after: The match, and some text around it.
        count: Number of texts of the rollout that match.
    """

    turn: int
    part: str
    before: str
    found: str
    after: str
    count: int = 1


class TextSearch:
    """Finds a text in the lines of rollouts, in lower or upper case.

    Args:
        text: The text.
    """

    def __init__(self, text: str):
        self._text = text.lower()
        # The part of the text that every encoder of JSON writes alike: most lines are without it, and not decoded.
        part = max(_NOT_ASCII.split(self._text), key=len)
        self._encoded = json.dumps(part)[1:-1].encode()

    def find(self, line: bytes) -> TextMatch | None:
        """The match in a rollout, given as its JSON line.

        Raises:
            msgspec.DecodeError: The line is no rollout.
        """
        if self._encoded not in line.lower():
            return None
        first: TextMatch | None = None
        for turn, part, text in _texts(_decode(line)):
            at = text.lower().find(self._text)
            if at < 0:
                continue
            if first is None:
                end = at + len(self._text)
                before, after = text[max(0, at - CONTEXT) : at], text[end : end + CONTEXT]
                first = TextMatch(turn, part, before, text[at:end], after)
            else:
                first.count += 1
        return first


def _texts(rollout: _SearchedRollout) -> Iterator[tuple[int, str, str]]:
    for number, turn in enumerate(rollout.turns):
        yield from ((number, "prompt", text) for text in _strings(turn.prompt, _MARKS))
        yield from ((number, "completion", text) for text in _strings(turn.completion, _MARKS))
        for step in turn.steps:
            values = [step.action, step.tool, step.observation, step.error]
            yield from ((number, "step", text) for text in _strings(values))


def _strings(value: Any, without: frozenset[str] = frozenset(), depth: int = 0) -> Iterator[str]:
    """The texts in a JSON value, without the names of its fields, and without the fields with one of these names."""
    if isinstance(value, str):
        if len(value) < MOST_WORD or " " in value[:MOST_WORD]:
            yield value
    elif depth < DEEPEST and isinstance(value, dict | list):
        parts = [part for name, part in value.items() if name not in without] if isinstance(value, dict) else value
        for part in parts:
            yield from _strings(part, without, depth + 1)
