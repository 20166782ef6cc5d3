"""Evaluate a model: rollouts of the engine as the episodes of a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ..rollouts.engine import RolloutRun
from ..rollouts.groups import RolloutProgress
from ..rollouts.journal import read_rollouts
from ..rollouts.records import Rollout, RolloutOutcome, RolloutTask
from .report import EvalReport, RunInfo, report_of
from .runner import Blame, Case, EpisodeFailure, EpisodeResult


class ModelEvaluation:
    """One evaluation of a model.

    Args:
        begin: Makes the run. Called on the event loop.
        planned: Number of episodes to play.
        about: Metadata for the report; the run sets `began` and `seconds`.
        folder: Where the run is recorded: the episodes of an interrupted run count, and are not played again.

    Attributes:
        planned: Number of episodes to play.
        progress: What the run has done.
        episodes: The finished episodes.
    """

    def __init__(self, begin: Callable[[], RolloutRun], planned: int, about: RunInfo, folder: Path | None = None):
        self.planned = planned
        self.progress = RolloutProgress()
        self.episodes: list[EpisodeResult] = []
        self._begin = begin
        self._about = about
        self._folder = folder
        self._began = time.monotonic()

    async def run(self) -> EvalReport:
        """Plays all episodes. With a folder, an interrupted run goes on.

        Raises:
            OpenEnvError: No episode can be played, for a reason outside of the model and the environment.
        """
        self._about.began, self._began = time.time(), time.monotonic()
        async with self._begin() as run:
            run.progress = self.progress
            async for group in run:
                if self._folder is None:
                    self._take((*group.rollouts, *group.failed))
        return self.report()

    def report(self) -> EvalReport:
        """The report on the finished episodes."""
        if self._folder is not None:
            self.episodes = []
            self._take(read_rollouts(self._folder))
        self.episodes.sort(key=lambda episode: (episode.index or 0, episode.seed or 0, episode.repeat))
        self._about.seconds = round(time.monotonic() - self._began, 3)
        return report_of(self.episodes, max(self.planned, len(self.episodes)), self._about)

    def _take(self, rollouts: Iterable[Rollout]) -> None:
        self.episodes += [episode_of(rollout) for rollout in rollouts]


def tasks_of(cases: Iterable[Case]) -> list[RolloutTask]:
    """The tasks of cases, without their repeats: those are rollouts of one group, with one seed."""
    return [RolloutTask(case.seed, case.split, case.index) for case in cases if not case.repeat]


def episode_of(rollout: Rollout) -> EpisodeResult:
    """A rollout as an episode of a report."""
    said = [step.success for turn in rollout.turns for step in turn.steps if step.success is not None]
    outcome, failure = rollout.outcome, rollout.failure
    return EpisodeResult.model_validate(
        {
            "seed": rollout.task.seed,
            "split": rollout.task.split,
            "index": rollout.task.index,
            "repeat": rollout.member,
            "score": rollout.reward,
            "rubric": rollout.rubric,
            "length": len(rollout.turns),
            "end": "failed" if failure is not None else str(outcome),
            "success": said[-1] if said and failure is None else None,
            "failure": failure
            and EpisodeFailure(blame=_blame(rollout), error=failure.error, message=failure.message),
            "attempts": rollout.attempts,
            "seconds": rollout.seconds,
            "episode_id": rollout.rollout_id,
            "tokens": rollout.usage.completion_tokens,
            "cost": rollout.usage.cost,
        }
    )


def _blame(rollout: Rollout) -> Blame:
    """Who must act. A model that refuses, or gives no valid actions, fails as a policy does."""
    failure = rollout.failure
    if failure is None or failure.error in {"ModelUnavailable", "ModelTimeout"}:
        return "infrastructure"
    if failure.blame == "client" or rollout.outcome in {RolloutOutcome.REFUSED, RolloutOutcome.MODEL_FAILED}:
        return "policy"
    return "environment" if failure.blame == "environment" else "infrastructure"
