"""Play evaluation episodes concurrently, and repeat those that failed because of the infrastructure."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from reprlib import Repr
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from .. import errors
from .._backoff import Backoff
from ..client import GenericEnvClient
from ..types import StepResult
from .cases import Case
from .policy import Agent, Policy

Blame = Literal["policy", "environment", "infrastructure"]
_SUCCESS = ("success", "is_success")
# Bound of rewards: the squares of larger values overflow a float, so their mean could not be computed.
MOST_REWARD = 1e50
# An action may be any object, even one that is nested too deeply to print, or has a `__repr__` that raises.
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120


class EpisodeFailure(BaseModel):
    """Why an episode has no score.

    Attributes:
        blame: Who must fix it: the policy's author, the environment's author, or the operator of the machines.
        error: Class of the error.
        message: Message of the error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    blame: Blame
    error: str
    message: str


class EpisodeResult(BaseModel):
    """The result of a case.

    Attributes:
        seed, split, index, repeat: The case.
        score: Return, the sum of the steps' rewards; None if the episode failed, or no step gave a reward.
        length: Number of steps.
        end: How it ended: terminated, truncated by the environment, cut short after `max_steps`, or failed.
        success: Whether it succeeded, by its last observation; None if the observation does not say.
        failure: The failure; None for an episode that did not fail.
        attempts: Number of attempts; more than one after failures of the infrastructure.
        seconds: Duration of the last attempt.
        episode_id: Id in the record; None if it was not recorded.
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
    failure: EpisodeFailure | None = None
    attempts: int = 1
    seconds: float = 0.0
    episode_id: str | None = None

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
    length = 0
    while not result.done and length < max_steps:
        result = await _step(client, agent, result, policy.attempts)
        length += 1
        if result.reward is not None:
            reward = float(result.reward)
            if not abs(reward) <= MOST_REWARD:
                raise errors.StepFailed(f"a step gave the reward {reward}, which is no score")
            rewards.append(reward)
    return EpisodeResult(
        **asdict(case),
        score=math.fsum(rewards) if rewards else None,
        length=length,
        end=end_of(result) or "max_steps",
        success=_success(result),
        seconds=time.monotonic() - began,
        episode_id=episode_id,
    )


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
                f"in the middle of the episode, the environment asked for a reset: {error}"
            ) from error
    raise AssertionError("attempts is at least 1")


def _no_action(action: Any, error: Exception) -> errors.PolicyFailed:
    return errors.PolicyFailed(f"what the policy chose, {_SHORT.repr(action)[:200]}, is no action: {error}")


def _success(result: StepResult[dict[str, Any]]) -> bool | None:
    """Whether an observation, its metadata or its info report success."""
    metadata = result.metadata or {}
    info = result.observation.get("info") or metadata.get("info")
    for place in (result.observation, metadata, info):
        if isinstance(place, Mapping):
            for name in _SUCCESS:
                if isinstance(place.get(name), bool):
                    return bool(place[name])
    return None


# Seconds before a case is tried again, doubled each time, and their maximum.
PAUSE_S, MOST_PAUSE_S = 0.25, 8.0
# Seconds that a case waits for a free slot of the server.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How to play the cases.

    Attributes:
        concurrency: Episodes at the same time, each in its own session.
        max_steps: Most steps of an episode.
        retries: Most repeats of an episode that failed because of the infrastructure, with the same seed.
        named: Whether episodes get ids, by which their records are found.
    """

    concurrency: int = 64
    max_steps: int = 10_000
    retries: int = 2
    named: bool = False


@dataclass(slots=True)
class _Progress:
    """The progress of a case."""

    case: Case
    attempts: int = 0
    began: float = field(default_factory=time.monotonic)
    backoff: Backoff = field(default_factory=lambda: Backoff(PAUSE_S, MOST_PAUSE_S))
    refused_at: float | None = None


class Runner:
    """Plays cases with a policy.

    A failure ends only its episode. A failure of the policy or of the environment would recur, so the episode is not
    repeated. A failure of the infrastructure says nothing about the policy, so the episode is played again, with the
    same seed, in a new session. An error of the whole run (an unknown task, a wrong key) ends the run.

    If the server is full, fewer episodes are played at the same time.

    Args:
        connect: Makes a client with its own session.
        policy: The policy.
        cases: The cases to play.
        options: How to play them.
        on_episode: Called after each episode.

    Attributes:
        episodes: The finished episodes, in the order in which they ended; complete when `run` returns, and readable
            after it was cancelled.
        players: Number of episodes played concurrently.
    """

    def __init__(
        self,
        connect: Callable[[], GenericEnvClient],
        policy: Policy,
        cases: Sequence[Case],
        options: EvalOptions | None = None,
        on_episode: Callable[[EpisodeResult], None] = lambda episode: None,
    ):
        self._connect = connect
        self._policy = policy
        self._waiting = deque(_Progress(case) for case in cases)
        self._options = options or EvalOptions()
        self._on_episode = on_episode
        # Clients that have a session.
        self._with_session: set[GenericEnvClient] = set()
        self.episodes: list[EpisodeResult] = []
        self.players = min(self._options.concurrency, len(self._waiting))

    async def run(self) -> list[EpisodeResult]:
        """Plays all cases.

        Raises:
            OpenEnvError: No episode can be played, for a reason outside of the policy and the environment.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.players):
                    group.create_task(self._play_cases())
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return self.episodes

    async def _play_cases(self) -> None:
        """Plays in one session after another, while cases are left."""
        more = True
        while more and self._waiting:
            client = self._connect()
            try:
                more = await self._in_session(client)
            finally:
                self._with_session.discard(client)
                with suppress(errors.OpenEnvError):
                    await client.close()

    async def _in_session(self, client: GenericEnvClient) -> bool:
        """Plays until the session is no longer usable. Returns whether to open another one."""
        while self._waiting:
            progress = self._waiting.popleft()
            progress.attempts += 1
            try:
                progress.began = time.monotonic()
                case, named = progress.case, {}
                if self._options.named:
                    name = f"seed-{case.seed}" if case.index is None else f"{case.split}-{case.index}-{case.repeat}"
                    again = "" if progress.attempts == 1 else f"-again-{progress.attempts - 1}"
                    named["episode_id"] = f"{name}{again}"
                first = await client.reset(**case.arguments(), **named)
                self._with_session.add(client)
                most_steps = self._options.max_steps
                episode = await play(client, case, self._policy, first, most_steps, named.get("episode_id"))
            except errors.CapacityError as error:
                return await self._wait_for_room(progress, error)
            except errors.OpenEnvError as error:
                if not await self._after_failure(progress, error):
                    return True
            except asyncio.CancelledError:
                self._waiting.appendleft(progress)
                raise
            else:
                self._note(progress, episode)
        return False

    async def _wait_for_room(self, progress: _Progress, error: errors.CapacityError) -> bool:
        """Returns a case to the queue since the server has no free slot; waits if no other client has a session."""
        now = time.monotonic()
        progress.refused_at = progress.refused_at or now
        if not self._with_session and now - progress.refused_at > PATIENCE_S:
            self._note(progress, failed_episode(progress.case, error, now - progress.began))
            return True
        progress.attempts -= 1
        self._waiting.appendleft(progress)
        if self._with_session:
            self.players -= 1
            return False
        await asyncio.sleep(error.retry_after_s or MOST_PAUSE_S / 8)
        return True

    async def _after_failure(self, progress: _Progress, error: errors.OpenEnvError) -> bool:
        """Handles a failed case: repeats or records it. Returns whether the session may be used again."""
        if error.blame == "client" and not isinstance(error, errors.PolicyFailed):
            raise error
        if error.blame == "infrastructure" and progress.attempts <= self._options.retries:
            self._waiting.append(progress)
            await asyncio.sleep(progress.backoff.grow())
            return False
        self._note(progress, failed_episode(progress.case, error, time.monotonic() - progress.began))
        return isinstance(error, errors.PolicyFailed)

    def _note(self, progress: _Progress, episode: EpisodeResult) -> None:
        episode.attempts = progress.attempts
        self.episodes.append(episode)
        self._on_episode(episode)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error in a group, which cancelled the other tasks."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
