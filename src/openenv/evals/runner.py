"""The cases of an evaluation, and how one is played. The same case repeats the same episode."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from reprlib import Repr
from typing import Any, Literal

from pydantic import ConfigDict, Field

from .. import errors
from ..client import GenericEnvClient
from ..types import StepResult
from .policy import Agent, Policy
from .sampler import TaskSampler
from .statistics import EvalModel

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
            raise errors.InvalidArgument(
                f"{text!r:.80} are not seeds: write a range (0-199), a list (1,2,5), or both (0-9,20)"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first or last > MOST_SEED or last - first >= 10_000_000:
            raise errors.InvalidArgument(f"the range of seeds {part.strip()!r:.80} must rise, to {MOST_SEED} at most")
        found += range(first, last + 1)
    seen: set[int] = set()
    for seed in found:
        if seed in seen:
            raise errors.InvalidArgument(f"seed {seed} is listed twice: the second episode would be the same")
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
        raise errors.InvalidArgument(
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
        raise errors.InvalidArgument(f"split {split!r} has no tasks")
    most = count * repeats
    if episodes is not None and episodes > most:
        raise errors.InvalidArgument(
            f"{episodes} episodes need as many tasks, and split {split!r} has {count}: leave --episodes out, or "
            f"play each more often (--repeats {-(-episodes // count)})"
        )
    sampler = TaskSampler(count, split=split, seed=seed, repeats=repeats)
    cases = [Case((task.seed + task.repeat) & MOST_SEED, split, task.index, task.repeat) for task in sampler]
    return sorted(cases[:episodes], key=lambda case: (case.index, case.repeat))


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
            rewards.append(reward_of(result.reward))
        for name, part in rubric_of(result.metadata or {}).items():
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


def reward_of(reward: float) -> float:
    """A step's reward as a number. Raises `StepFailed` if it is too large, or none that can be added up."""
    reward = float(reward)
    if not abs(reward) <= MOST_REWARD:
        raise errors.StepFailed(f"a step gave the reward {reward}, which cannot be part of a return")
    return reward


def rubric_of(metadata: Mapping[str, Any]) -> dict[str, float]:
    """The scores of the rubric's parts in a step's metadata; a part without a score was not evaluated."""
    parts = metadata.get("rubric")
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

    Raises:
        InvalidArgument: A number is out of its range.
    """

    concurrency: int = 64
    max_steps: int = 10_000
    retries: int = 2

    def __post_init__(self) -> None:
        for name, least in {"concurrency": 1, "max_steps": 1, "retries": 0}.items():
            if getattr(self, name) < least:
                raise errors.InvalidArgument(f"{name} must be at least {least}: {getattr(self, name)!r}")
