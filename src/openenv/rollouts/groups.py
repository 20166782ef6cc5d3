"""The options of a run, the groups that are being played, their tasks, and what the run has done."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import math
import os
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import InvalidArgument
from ..evals.sampler import SampledTask, TaskSampler
from .journal import GroupBegun, RecordedGroup
from .model import Sampling
from .records import Rollout, RolloutGroup, RolloutOutcome, RolloutTask, TokenUsage, Turn
from .sessions import ForkedSession

if TYPE_CHECKING:
    from ..chat import Chat
    from .tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class RolloutBudget:
    """How far one rollout may go. None: no limit.

    Attributes:
        turns: Calls of the model.
        tokens: Tokens of the completions together.
        context: Tokens of one prompt with its completion.
        seconds: Seconds of an attempt. A rollout that is late has no return.
        cost: Money, in the currency of the model's price table. The outcome is then `out_of_tokens`.
        invalid: Number of invalid actions that makes the outcome `model_failed`; None takes that of the chat view.

    Raises:
        InvalidArgument: A limit is negative, or not a number.
    """

    turns: int | None = 20
    tokens: int | None = None
    context: int | None = None
    seconds: float | None = None
    cost: float | None = None
    invalid: int | None = None

    def __post_init__(self) -> None:
        for name in (each.name for each in dataclasses.fields(self)):
            limit = getattr(self, name)
            least = 0 if name == "invalid" else math.ulp(0.0)
            if limit is not None and not (isinstance(limit, int | float) and limit >= least):
                raise InvalidArgument(f"budget: {name}={limit!r} must be a positive number, or None for no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """The options of a run; see `rollouts`.

    Raises:
        InvalidArgument: A number is out of its range.
    """

    group_size: int = 1
    sessions: int = 64
    requests: int = 64
    budget: RolloutBudget = field(default_factory=RolloutBudget)
    sampling: Sampling = field(default_factory=Sampling)
    tokenizer: Tokenizer | None = None
    on_break: Literal["split", "fail"] = "split"
    retries: int = 2
    folder: str | os.PathLike[str] | None = None
    keep: Callable[[RolloutGroup], bool] | None = None
    fork: Callable[[Rollout], int] | None = None
    ahead: int | None = None
    policy_version: Callable[[], int] | None = None
    max_staleness: int | None = None
    on_stale: Literal["restart", "drop"] = "restart"
    chat: Chat | None = None
    connections: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = {"group_size": 1, "sessions": 1, "requests": 1, "retries": 0, "ahead": 1, "max_staleness": 0}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < number):
                raise InvalidArgument(f"{name} must be a whole number of at least {number}: {value!r}")
        if self.max_staleness is not None and self.policy_version is None:
            raise InvalidArgument("max_staleness needs policy_version, which says how old a turn is")

    @property
    def most_waiting(self) -> int:
        """Most finished groups that wait for the consumer."""
        return self.ahead or max(1, self.sessions // self.group_size)

    def version(self) -> int | None:
        """The version of the policy; None if the caller gave none."""
        return None if self.policy_version is None else self.policy_version()

    def is_stale(self, rollout: Rollout, version: int | None) -> bool:
        """Whether a version of the policy is too far ahead of one of the rollout's turns."""
        if version is None or self.max_staleness is None:
            return False
        return any(turn.version is not None and version - turn.version > self.max_staleness for turn in rollout.turns)


TaskSource = Iterable[RolloutTask | int] | AsyncIterable[RolloutTask | int] | TaskSampler
"""Tasks of a run: tasks, or seeds; perhaps those of a sampler."""


@dataclass(slots=True)
class RolloutProgress:
    """What a run has done since it began or was resumed.

    Attributes:
        outcomes: Number of rollouts by outcome.
        errors: Number of failed rollouts by class of the error.
        retries: Attempts that failed because of the infrastructure and were repeated.
        stale: Rollouts that were too old for the policy.
        forks: Number of forks by how they began: `copied` on the server, or the class of the error because of which
            their turns were repeated; `CapacityError` if as many copies as `sessions` waited to be played.
        turns, usage: Turns of the finished rollouts, and their tokens and money.
        answers: Answers of the model, also those of rollouts that go on.
        total_reward, rewarded: Sum of the returns, and number of rollouts that have one.
        groups: Finished groups, without those that `keep` dropped.
        dropped: Groups that `keep` dropped or the caller cancelled.
    """

    outcomes: Counter[RolloutOutcome] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    stale: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    answers: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    total_reward: float = 0.0
    rewarded: int = 0
    groups: int = 0
    dropped: int = 0

    def add(self, rollout: Rollout) -> None:
        """Counts a finished rollout."""
        self.outcomes[rollout.outcome] += 1
        own = rollout.turns[rollout.forked_at :]
        self.turns += len(own)
        for turn in own:
            self.usage.add(turn.usage)
        if rollout.failure is not None:
            self.errors[rollout.failure.error] += 1
        if rollout.reward is not None:
            self.total_reward += rollout.reward
            self.rewarded += 1


def drop_equal(least: int) -> Callable[[RolloutGroup], bool]:
    """A filter for `keep`: drops a group once it has `least` rollouts, and all have the same return.

    Such a group has no gradient in GRPO. If `least` is less than the size of the group, the rest is not played.

    Raises:
        InvalidArgument: `least` is less than 2.
    """
    if least < 2:
        raise InvalidArgument(f"least={least}: one return always equals itself; give 2 at least")

    def keep(group: RolloutGroup) -> bool:
        return len(group.rollouts) < least or len(set(group.rewards)) > 1

    return keep


@dataclass(slots=True, eq=False)
class LiveGroup:
    """A group with rollouts that are being played, or that the consumer has not taken.

    Attributes:
        group: The group so far.
        members: Numbers of the rollouts that it needs.
        numbered: How many numbers its rollouts have had, with those that are no members any more.
        forks: The rollout and the number of its turns with which a fork begins, by the fork's rollout id.
        source: The sampler's task; None for one of another source.
        playing: The tasks of its rollouts that are played, by number.
        over: It waits for the consumer, or was dropped.
    """

    group: RolloutGroup
    members: list[int]
    numbered: int
    forks: dict[str, tuple[str, int]] = field(default_factory=dict)
    source: SampledTask | None = None
    playing: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    over: bool = False

    @property
    def begun(self) -> GroupBegun:
        """What the journal says of it."""
        return GroupBegun(self.group.group, self.group.task, self.members, self.forks, self.numbered)

    @property
    def replaced(self) -> int:
        """How many rollouts are no members any more."""
        return self.numbered - len(self.members)

    def new_member(self) -> int:
        """Adds a rollout. Returns its number, which no other one had: rollout ids and idempotency keys contain it."""
        number = self.numbered
        self.numbered += 1
        self.members.append(number)
        return number


@dataclass(slots=True, eq=False)
class PendingRollout:
    """A rollout to play.

    Attributes:
        live: Its group.
        number: Its number in the group.
        turns: The turns that it has already.
        restarts: How often it began from scratch.
        failures: Attempts that failed because of the infrastructure.
        fork: A session that has had its turns; None: they are repeated.
    """

    live: LiveGroup
    number: int
    turns: list[Turn] = field(default_factory=list)
    restarts: int = 0
    failures: int = 0
    fork: ForkedSession | None = None


class TaskFeed:
    """The tasks of a run, with the groups that an interrupted run began for them.

    Args:
        source: The tasks.
        recorded: The groups.
    """

    def __init__(self, source: TaskSource, recorded: Iterable[RecordedGroup]):
        self._given = _iterated(source)
        # A sampler with a journal does not give the task of a group again that has ended.
        journaled = isinstance(source, TaskSampler) and source.has_journal
        self._recorded: dict[bytes, deque[RecordedGroup]] = {}
        for group in recorded:
            if not (group.ended and journaled):
                self._recorded.setdefault(msgspec.json.encode(group.begun.task), deque()).append(group)
        self._repeats: Counter[bytes] = Counter()

    async def next(self) -> tuple[RolloutTask, SampledTask | None, RecordedGroup | None] | None:
        """The next task, the sampler's record of it, and the group that was begun for it; None after the last one.

        Raises:
            InvalidArgument: An item is not a task.
        """
        async for item in self._given:
            sampled = item if isinstance(item, SampledTask) else None
            task = self._task_of(item)
            try:
                recorded = self._recorded.get(msgspec.json.encode(task))
            except TypeError as error:
                raise InvalidArgument(f"tasks: the arguments of {task!r:.200} are not JSON: {error}") from None
            group = recorded.popleft() if recorded else None
            if group is None or not group.ended:
                return task, sampled, group
            if sampled is not None:
                sampled.finish()
        return None

    def _task_of(self, item: RolloutTask | int | SampledTask) -> RolloutTask:
        """The task with its seed. One without a seed gets the same one when the run is resumed."""
        if isinstance(item, SampledTask):
            return RolloutTask(seed=item.seed, split=item.split, index=item.index)
        if isinstance(item, int):
            return RolloutTask(seed=item)
        if not isinstance(item, RolloutTask):
            raise InvalidArgument(f"tasks: {item!r:.100} is neither a RolloutTask nor a seed")
        if item.seed is not None:
            return item
        words = str(item).encode()
        self._repeats[words] += 1
        digest = hashlib.blake2b(words + str(self._repeats[words]).encode(), digest_size=4).digest()
        return msgspec.structs.replace(item, seed=int.from_bytes(digest) >> 1)


async def _iterated(source: TaskSource) -> AsyncIterator[Any]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for each in source:
            yield each
