"""The options of a run: its size, the budget of a rollout, and how old a rollout may be."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidArgument
from .model import Sampling
from .records import Rollout, RolloutGroup

if TYPE_CHECKING:
    from ..chat import Chat
    from .tokens import Tokenizer

__all__ = ["RolloutBudget", "RolloutOptions"]


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
