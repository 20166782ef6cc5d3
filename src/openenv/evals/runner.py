"""Play one episode of an evaluation, and its result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from reprlib import Repr
from typing import Any, Literal

from pydantic import ConfigDict, Field

from .. import errors
from ..client import GenericEnvClient
from ..types import StepResult
from .cases import Case
from .policy import Agent, Policy
from .statistics import EvalModel

Blame = Literal["policy", "environment", "infrastructure"]
CutShort = Literal["max_steps", "out_of_turns", "out_of_tokens", "out_of_context"]
_SUCCESS = ("success", "is_success")
# Bound of rewards: the squares of larger values overflow a float, so their mean could not be computed.
MOST_REWARD = 1e50
# An action may be any object, even one that is nested too deeply to print, or has a `__repr__` that raises.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120


class EpisodeFailure(EvalModel):
    """Why an episode has no score.

    Attributes:
        blame: Who must fix it: the policy's author, the environment's author, or the operator of the machines.
        error: Class of the error.
        message: Message of the error.
    """

    model_config = ConfigDict(frozen=True)

    blame: Blame
    error: str
    message: str


class EpisodeResult(EvalModel):
    """The result of a case.

    Attributes:
        seed, split, index, repeat: The case.
        score: Return, the sum of the steps' rewards; None if the episode failed, or no step gave a reward.
        rubric: Sums over the steps of the scores of the rubric's parts, if the environment reports them
            (`REPORT_RUBRIC`).
        length: Number of steps.
        end: How it ended: terminated, truncated by the environment, cut short after `max_steps` or at a budget of the
            model (`RolloutOutcome`), or failed.
        success: Whether it succeeded, by its last observation; None if the observation does not say.
        failure: The failure; None for an episode that did not fail.
        attempts: Number of attempts; more than one after failures of the infrastructure.
        seconds: Duration of the last attempt.
        episode_id: Id in the record; None if it was not recorded.
        tokens: Tokens that the model sampled; None for a policy that is no model.
        cost: Price of all tokens; None if unknown.
    """

    seed: int | None = None
    split: str | None = None
    index: int | None = None
    repeat: int = 0
    score: float | None = None
    rubric: dict[str, float] = Field(default_factory=dict)
    length: int = 0
    end: Literal["terminated", "truncated", "failed"] | CutShort
    success: bool | None = None
    failure: EpisodeFailure | None = None
    attempts: int = 1
    seconds: float = 0.0
    episode_id: str | None = None
    tokens: int | None = None
    cost: float | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of the case across runs."""
        return Case(self.seed, self.split, self.index, self.repeat).key


async def play(
    client: GenericEnvClient,
    case: Case,
    policy: Policy,
    first: StepResult[dict[str, Any]],
    max_steps: int,
    episode_id: str | None = None,
) -> EpisodeResult:
    """Plays one episode.

    Args:
        client: A client with a separate session, after its reset.
        case: The case.
        policy: The policy.
        first: The result of the reset.
        max_steps: Most steps.
        episode_id: Id that the reset got.

    Raises:
        OpenEnvError: The episode failed; `PolicyFailed` if the policy failed.
    """
    began, result = time.monotonic(), first
    agent = await policy.begin(case.seed)
    rewards: list[float] = []
    rubric: dict[str, float] = {}
    length = 0
    while not result.done and length < max_steps:
        result = await _step(client, agent, result, policy.attempts)
        length += 1
        if result.reward is not None:
            reward = float(result.reward)
            if not abs(reward) <= MOST_REWARD:
                raise errors.StepFailed(f"a step gave the reward {reward}, which cannot be part of a score")
            rewards.append(reward)
        for name, part in _rubric_of(result).items():
            rubric[name] = rubric.get(name, 0.0) + part
    return EpisodeResult(
        **asdict(case),
        score=math.fsum(rewards) if rewards else None,
        rubric=rubric,
        length=length,
        end=end_of(result) or "max_steps",
        success=success_of(result.observation, result.metadata or {}),
        seconds=time.monotonic() - began,
        episode_id=episode_id,
    )


def _rubric_of(result: StepResult[dict[str, Any]]) -> dict[str, float]:
    """The scores of the rubric's parts in a step; a part without a score was not evaluated."""
    parts = (result.metadata or {}).get("rubric")
    if not isinstance(parts, Mapping):
        return {}
    scores = {str(name): part for name, part in parts.items() if isinstance(part, (int, float))}
    return {name: float(score) for name, score in scores.items() if abs(score) <= MOST_REWARD}


def end_of(result: StepResult[Any]) -> Literal["terminated", "truncated"] | None:
    """How an episode ended; None if it continues."""
    if not result.done:
        return None
    return "truncated" if result.truncated and not result.terminated else "terminated"


def failed_episode(case: Case, error: errors.OpenEnvError, seconds: float) -> EpisodeResult:
    """The result of a failed case."""
    blame: Blame = "policy" if error.blame == "client" else error.blame
    # If the policy raised, the class of its exception.
    cause = error.__cause__ if isinstance(error, errors.PolicyFailed) else None
    failure = EpisodeFailure(blame=blame, error=type(cause or error).__name__, message=str(error) or error.message)
    return EpisodeResult(**asdict(case), end="failed", failure=failure, seconds=seconds)


async def _step(
    client: GenericEnvClient, agent: Agent, seen: StepResult[dict[str, Any]], attempts: int
) -> StepResult[dict[str, Any]]:
    """Takes one step. After `attempts` invalid actions, the policy has failed."""
    for attempt in range(attempts):
        action = await agent.act(seen.observation)
        try:
            return await client.step(action)
        except errors.InvalidAction as error:
            if attempt + 1 == attempts:
                raise _no_action(action, error) from error
        except (errors.InvalidArgument, errors.MessageTooLarge, TypeError) as error:  # it cannot be encoded
            raise _no_action(action, error) from error
        except errors.ResetRequired as error:
            raise errors.StepFailed(
                f"the environment required a reset in the middle of the episode: {error}"
            ) from error
    raise AssertionError("attempts is at least 1")


def _no_action(action: Any, error: Exception) -> errors.PolicyFailed:
    return errors.PolicyFailed(f"the policy chose {_SHORT.repr(action)[:200]}, which is not a valid action: {error}")


def success_of(observation: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool | None:
    """Whether an observation, its metadata or its info report success; None if they do not say."""
    info = observation.get("info") or metadata.get("info")
    for place in (observation, metadata, info):
        if isinstance(place, Mapping):
            for name in _SUCCESS:
                if isinstance(place.get(name), bool):
                    return bool(place[name])
    return None


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How to play the cases.

    Attributes:
        concurrency: Episodes at the same time, each in its own session.
        max_steps: Most steps of an episode.
        retries: Most repeats of an episode that failed because of the infrastructure, with the same seed.
    """

    concurrency: int = 64
    max_steps: int = 10_000
    retries: int = 2
