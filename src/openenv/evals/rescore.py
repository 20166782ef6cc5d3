"""Score stored episodes again: play their actions in the environment, and compare the rewards.

What is stored is a run of rollouts (`openenv rollout`, `openenv eval --model --record`), or any recording.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OpenEnvError, SchemaMismatch, UnreadableRecord, UsageError
from ..recording.reader import Episode, Recording
from ..replay import ReplayTarget
from ..rollouts.journal import read_rollouts, rollout_files
from ..rollouts.records import Rollout

__all__ = ["RescoreSummary", "RescoredEpisode", "StoredEpisode", "rescore", "stored_episodes"]


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """An episode on disk, as far as its score needs it.

    Attributes:
        name: Id of the episode or rollout.
        environment: Name of the environment.
        schema: Hash of its contract; None if the record has none.
        versions: Versions of openenv and of the environment, if recorded.
        arguments: Arguments of the reset.
        actions: The actions, in order.
        rewards: The reward of each; None where there was none.
        fault: Why it cannot be scored again; empty if it can.
    """

    name: str
    environment: str
    schema: str | None
    versions: dict[str, Any]
    arguments: dict[str, Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    fault: str = ""

    @property
    def total(self) -> float | None:
        """The stored return; None if no step had a reward."""
        return _total(self.rewards)


def _total(rewards: list[float | None]) -> float | None:
    given = [reward for reward in rewards if reward is not None]
    return math.fsum(given) if given else None


def stored_episodes(path: Path) -> Iterator[StoredEpisode]:
    """The episodes of a run, in the order of its files.

    Args:
        path: The folder of a run of rollouts; or a file or folder that was recorded.

    Raises:
        UsageError: There is nothing at the path.
        UnreadableRecord: A file of a run of rollouts is damaged.
    """
    if path.is_dir() and rollout_files(path):
        yield from map(_of_rollout, read_rollouts(path))
        return
    recording = Recording(path)
    yield from map(_of_recording, recording.episodes())
    if recording.damage.count:
        yield StoredEpisode(str(path), "", None, {}, {}, fault="; ".join(recording.damage.sentences()))


def _of_rollout(rollout: Rollout) -> StoredEpisode:
    steps = [step for turn in rollout.turns for step in turn.steps if step.action is not None and step.error is None]
    fault = _unseeded(rollout.task.reset_arguments)
    if not rollout.outcome.has_return:
        fault = f"it has no return: {rollout.failure.message if rollout.failure else rollout.outcome}"
    return StoredEpisode(
        rollout.rollout_id,
        rollout.environment,
        rollout.contract,
        {},
        rollout.task.reset_arguments,
        [step.action for step in steps],
        [step.reward for step in steps],
        fault,
    )


def _of_recording(episode: Episode) -> StoredEpisode:
    arguments: dict[str, Any] = {}
    actions: list[Any] = []
    rewards: list[float | None] = []
    fault = "" if episode.whole else "its record lacks the reset"
    try:
        for transition in episode.transitions():
            if transition.step:
                actions.append(transition.action)
                rewards.append(transition.reward)
            else:
                arguments = dict(transition.arguments or {})
                arguments |= {} if transition.seed is None else {"seed": transition.seed}
    except UnreadableRecord as error:
        fault = error.message
    name, versions = episode.episode_id, dict(episode.versions)
    fault = fault or _unseeded(arguments)
    return StoredEpisode(name, episode.environment, episode.schema, versions, arguments, actions, rewards, fault)


def _unseeded(arguments: dict[str, Any]) -> str:
    return "" if {"seed", "index"} & arguments.keys() else "it was reset without a seed or a task"


@dataclass(frozen=True, slots=True)
class RescoredEpisode:
    """An episode with both of its scores.

    Attributes:
        stored: The stored episode.
        rewards: The rewards of this time, as far as it could be played.
        fault: Why it could not be scored again, or not to its end; empty if it was.
    """

    stored: StoredEpisode
    rewards: list[float | None]
    fault: str = ""

    @property
    def total(self) -> float | None:
        """The return of this time; None if no step had a reward."""
        return _total(self.rewards)

    def first_difference(self, tolerance: float) -> int | None:
        """The number of the first step with another reward, from 1; None if all are the same.

        Args:
            tolerance: Relative difference that is allowed.
        """
        for number, (was, now) in enumerate(zip(self.stored.rewards, self.rewards, strict=False), 1):
            one, other = was or 0.0, now or 0.0
            if not math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance):
                return number
        return None


@dataclass(slots=True)
class RescoreSummary:
    """Counts of rescored episodes.

    Attributes:
        tolerance: Relative difference of rewards that is allowed.
        same: Number of episodes with the same rewards.
        different: The episodes with other rewards.
        failed: The episodes that could not be scored again.
        stored, again: Sums of the returns of the compared episodes.
    """

    tolerance: float
    same: int = 0
    different: list[RescoredEpisode] = field(default_factory=list)
    failed: list[RescoredEpisode] = field(default_factory=list)
    stored: float = 0.0
    again: float = 0.0

    def add(self, episode: RescoredEpisode) -> None:
        """Counts an episode. One that failed after a difference is different."""
        differs = episode.first_difference(self.tolerance) is not None
        if episode.fault and not differs:
            self.failed.append(episode)
            return
        self.stored += episode.stored.total or 0.0
        self.again += episode.total or 0.0
        if differs:
            self.different.append(episode)
        else:
            self.same += 1

    @property
    def compared(self) -> int:
        """Number of episodes that were scored again."""
        return self.same + len(self.different)

    def facts(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "episodes": self.compared + len(self.failed),
            "same": self.same,
            "different": [
                {
                    "episode": each.stored.name,
                    "stored": each.stored.total,
                    "again": each.total,
                    "step": each.first_difference(self.tolerance),
                    "note": each.fault,
                }
                for each in self.different
            ],
            "failed": [{"episode": each.stored.name, "why": each.fault} for each in self.failed],
            "mean_stored": self.stored / self.compared if self.compared else None,
            "mean_again": self.again / self.compared if self.compared else None,
        }


async def rescore(
    episodes: Iterator[StoredEpisode],
    target_of: Callable[[StoredEpisode], ReplayTarget],
    timeout_s: float | None,
    sessions: int,
    on_episode: Callable[[RescoredEpisode], None],
) -> None:
    """Scores episodes again, each in a session of its own.

    Args:
        episodes: The episodes, read as they are played.
        target_of: Returns where to play an episode.
        timeout_s: Limit of each call; None for no limit.
        sessions: Number of sessions at a time; fewer if the target has fewer.
        on_episode: Gets each episode.

    Raises:
        OpenEnvError: The target of an episode does not exist.
    """

    async def work() -> None:
        for episode in episodes:
            target = None if episode.fault else target_of(episode)
            if target is None:
                on_episode(RescoredEpisode(episode, [], episode.fault))
            else:
                async with limits.setdefault(target.name, asyncio.Semaphore(target.sessions or sessions)):
                    on_episode(await _rescored(episode, target, timeout_s))

    limits: dict[str, asyncio.Semaphore] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(work())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None  # it cancelled the others


async def _rescored(episode: StoredEpisode, target: ReplayTarget, timeout_s: float | None) -> RescoredEpisode:
    rewards: list[float | None] = []
    try:
        # A grader may be corrected without another version; other schemas are another environment.
        target.check(episode.schema, episode.environment, episode.versions)
    except SchemaMismatch as error:
        return RescoredEpisode(episode, [], error.message)
    client = target.client(timeout_s)
    try:
        await client.reset(**episode.arguments)
        for number, action in enumerate(episode.actions, 1):
            try:
                result = await client.step(action)
            except UsageError as error:
                if episode.rewards[number - 1] is not None:
                    return RescoredEpisode(episode, rewards, f"step {number} is refused: {error.message}")
                rewards.append(None)  # it was refused then, too
                continue
            rewards.append(None if result.reward is None else float(result.reward))
            if result.done and number < len(episode.actions):
                return RescoredEpisode(episode, rewards, f"it is over after {number} of {len(episode.actions)} steps")
    except OpenEnvError as error:
        where = f"step {len(rewards) + 1}"
        return RescoredEpisode(episode, rewards, f"{where} failed: {type(error).__name__}: {error.message}")
    finally:
        await client.close()
    return RescoredEpisode(episode, rewards)
