"""One episode: how it is played, and what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from reprlib import Repr
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ..client import GenericEnvClient
from ..errors import (
    InvalidAction,
    InvalidArgument,
    MessageTooLarge,
    OpenEnvError,
    PolicyFailed,
    ResetRequired,
    StepFailed,
)
from ..types import StepResult
from .cases import Case
from .policy import Player, Policy

__all__ = ["Blame", "Episode", "Failure", "failed", "play"]

Blame = Literal["policy", "environment", "infrastructure"]
_SUCCESS = ("success", "is_success")
# Of rewards: the squares of what is larger are no floats any more, so nothing could be said of their mean.
MOST_REWARD = 1e50
# An action may be anything, also too deep to be written, or with a `__repr__` that raises.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120


class Failure(BaseModel):
    """Why an episode has no score.

    Attributes:
        blame: Who must act: the policy's author, the environment's, or whoever runs the machines.
        error: The class of the error.
        message: What happened.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    blame: Blame
    error: str
    message: str


class Episode(BaseModel):
    """What came of a case.

    Attributes:
        seed, split, index, repeat: The case.
        score: Its return, the sum of the rewards of its steps; None: it failed, or no step gave a reward.
        length: Steps.
        end: How it ended: by itself, cut short by the environment, cut short after `max_steps`, or with a failure.
        success: What its last observation said of success; None: nothing.
        failure: Why there is no score.
        attempts: How often it was played; more than once after failures of the infrastructure.
        seconds: Of the last time.
        episode_id: What its record calls it; None: it was not recorded.
    """

    model_config = ConfigDict(extra="forbid")

    seed: int | None = None
    split: str | None = None
    index: int | None = None
    repeat: int = 0
    score: float | None = None
    length: int = 0
    end: Literal["terminated", "truncated", "max_steps", "failed"]
    success: bool | None = None
    failure: Failure | None = None
    attempts: int = 1
    seconds: float = 0.0
    episode_id: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for the same case of another run."""
        return Case(self.seed, self.split, self.index, self.repeat).key


async def play(
    client: GenericEnvClient,
    case: Case,
    policy: Policy,
    first: StepResult[dict[str, Any]],
    max_steps: int,
    episode_id: str | None = None,
) -> Episode:
    """Plays one episode.

    Args:
        client: With a session of its own, which was reset.
        case: What is played.
        policy: Who acts.
        first: What the reset gave.
        max_steps: After so many it is over.
        episode_id: What it was called in the reset.

    Raises:
        OpenEnvError: It failed; `PolicyFailed` if the policy did.
    """
    began, result = time.monotonic(), first
    player = await policy.begin(case.seed)
    rewards: list[float] = []
    length = 0
    while not result.done and length < max_steps:
        result = await _step(client, player, result, policy.attempts)
        length += 1
        if result.reward is not None:
            rewards.append(_number(result.reward))
    end: Literal["terminated", "truncated", "max_steps"] = "max_steps"
    if result.done:
        end = "truncated" if result.truncated and not result.terminated else "terminated"
    return Episode(
        **_fields(case),
        score=math.fsum(rewards) if rewards else None,
        length=length,
        end=end,
        success=_success(result),
        seconds=time.monotonic() - began,
        episode_id=episode_id,
    )


def _fields(case: Case) -> dict[str, Any]:
    """The fields of a case, as an episode has them."""
    return {"seed": case.seed, "split": case.split, "index": case.index, "repeat": case.repeat}


def failed(case: Case, error: OpenEnvError, seconds: float) -> Episode:
    """What came of a case that failed."""
    blame: Blame = "policy" if error.blame == "client" else error.blame
    failure = Failure(blame=blame, error=_class_of(error), message=str(error) or error.message)
    return Episode(**_fields(case), end="failed", failure=failure, seconds=seconds)


def _class_of(error: OpenEnvError) -> str:
    """The error's class; of a policy that raised, the class of what it raised."""
    cause = error.__cause__
    return type(cause if isinstance(error, PolicyFailed) and cause is not None else error).__name__


async def _step(
    client: GenericEnvClient, player: Player, seen: StepResult[dict[str, Any]], attempts: int
) -> StepResult[dict[str, Any]]:
    """One step; a choice that is no action is the policy's failure, after so many."""
    for attempt in range(attempts):
        action = await player.act(seen.observation)
        try:
            return await client.step(action)
        except InvalidAction as error:
            if attempt + 1 == attempts:
                raise _no_action(action, error) from error
        except (InvalidArgument, MessageTooLarge, TypeError) as error:  # it cannot even be written
            raise _no_action(action, error) from error
        except ResetRequired as error:
            raise StepFailed(f"in the middle of the episode, the environment asked for a reset: {error}") from error
    raise AssertionError("attempts is at least 1")


def _no_action(action: Any, error: Exception) -> PolicyFailed:
    return PolicyFailed(f"what the policy chose, {_SHORT.repr(action)[:200]}, is no action: {error}")


def _number(reward: Any) -> float:
    number = float(reward)
    if not abs(number) <= MOST_REWARD:
        raise StepFailed(f"a step gave the reward {number}, which is no score")
    return number


def _success(result: StepResult[dict[str, Any]]) -> bool | None:
    """What an observation, its metadata or its info say of success."""
    metadata = result.metadata or {}
    info = result.observation.get("info") or metadata.get("info")
    for place in (result.observation, metadata, info):
        if isinstance(place, Mapping):
            for name in _SUCCESS:
                if isinstance(place.get(name), bool):
                    return bool(place[name])
    return None
