"""Collects episodes of a harness into a folder in the result format of `collected.py`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ..client.portal import portal
from ..llm import LLMClient
from ..mcp.types import Tool
from .collected import (
    METADATA_FILENAME,
    RESULTS_FILENAME,
    EpisodeRecord,
    ResultsFile,
    episode_ids,
    publish_results,
    set_aside,
    write_metadata,
)
from .resource import HarnessAdapter, HarnessRunLimits, Message, ModelStep, ModelStepResult, ResourceSessionFactory
from .white_box import final_state_of

logger = logging.getLogger("openenv.rollouts")

# Settings of a request that `build_model_step` passes on.
_SAMPLING = frozenset({"temperature", "max_tokens", "top_p"})


class RolloutSerializer:
    """Writes episodes and facts of a collection to a folder.

    Args:
        output_dir: The folder; it is created when something is written.
    """

    def __init__(self, output_dir: str | Path):
        self._folder = Path(output_dir)

    @property
    def output_dir(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def results_path(self) -> Path:
        """The file of the episodes."""
        return self._folder / RESULTS_FILENAME

    @property
    def metadata_path(self) -> Path:
        """The file of the facts."""
        return self._folder / METADATA_FILENAME

    def write_episode(self, record: EpisodeRecord) -> None:
        """Appends an episode. After it returns, the episode is on disk.

        Raises:
            JournalInUse: Another process writes to the file.
            UnreadableRecord: A line of the file is no episode.
            OSError: It cannot be written.
        """
        with ResultsFile(self._folder) as results:
            results.append(record)

    def write_metadata(self, metadata: dict[str, Any]) -> None:
        """Writes the facts in place of earlier ones. Raises `OSError`."""
        write_metadata(self._folder, metadata)

    def collected_episode_ids(self) -> set[str]:
        """The ids of the episodes there; an incomplete last line, which a killed process left, is no episode.

        Raises:
            UnreadableRecord: A line is no episode; the message names it. It is a `ValueError`.
        """
        return episode_ids(self._folder)


@dataclass
class CollectResult:
    """What one run collected.

    Attributes:
        num_collected, num_skipped, num_dropped, num_failed: Episodes that were written, that were there before,
            that `should_keep` dropped, and that failed.
        episode_ids: The ids of all of them.
        avg_reward: Mean reward of the collected episodes; 0.0 without any.
        success_rate: Share of them with a reward above 0; 0.0 without any.
    """

    num_collected: int
    num_skipped: int
    num_dropped: int
    num_failed: int
    episode_ids: list[str]
    avg_reward: float
    success_rate: float


@dataclass
class CollectRunner:
    """Plays episodes one after the other, and writes each when it is finished.

    Args:
        session_factory: Makes the sessions.
        harness_adapter: Plays them.
        serializer: Has the folder.
        tasks: The task of each episode in order. A list begins again in each run. Without tasks, and after the last,
            the task is None.
        limits: Limits of each episode.
    """

    session_factory: ResourceSessionFactory[Any] = field(kw_only=True)
    harness_adapter: HarnessAdapter = field(kw_only=True)
    serializer: RolloutSerializer = field(kw_only=True)
    tasks: Iterable[Any] | None = field(default=None, kw_only=True)
    limits: HarnessRunLimits | None = field(default=None, kw_only=True)

    def run(
        self,
        *,
        model_step: ModelStep,
        num_episodes: int,
        episode_id_prefix: str = "ep",
        resume: bool = True,
        should_keep: Callable[[EpisodeRecord], bool] | None = None,
    ) -> CollectResult:
        """Plays the episodes that are not there yet.

        An episode that fails, as one without a reward or with a `should_keep` that raises, is logged and not written.

        Args:
            model_step: Samples the model.
            num_episodes: Number of episodes, with those that are there. Their ids are the prefix and a number.
            episode_id_prefix: Beginning of the ids.
            resume: Whether to keep the episodes that are there. If not, their file is renamed, with a warning.
            should_keep: Whether an episode is written; by default every one is.

        Raises:
            JournalInUse: Another process collects into the folder.
            UnreadableRecord: A line of the results is no episode.
            OSError: An episode cannot be written.
        """
        folder = self.serializer.output_dir
        if not resume and (moved := set_aside(folder, RESULTS_FILENAME)) is not None:
            warnings.warn(f"resume=False: the earlier episodes are now {moved}", RuntimeWarning, stacklevel=2)
        ids = [f"{episode_id_prefix}-{number:06d}" for number in range(num_episodes)]
        counts = {"skipped": 0, "dropped": 0, "failed": 0}
        rewards: list[float] = []
        with ResultsFile(folder) as results:
            for episode_id, task in zip(ids, self._drawn(num_episodes), strict=True):
                if episode_id in results.ids:
                    counts["skipped"] += 1
                    continue
                try:
                    record = self._play(model_step, episode_id, task)
                    keep = should_keep is None or should_keep(record)
                except Exception:  # the edge to foreign code
                    counts["failed"] += 1
                    logger.warning("episode %s failed, and is not written", episode_id, exc_info=True)
                    continue
                if keep:
                    results.append(record)
                    rewards.append(record.reward or 0.0)
                else:
                    counts["dropped"] += 1
        return CollectResult(
            num_collected=len(rewards),
            num_skipped=counts["skipped"],
            num_dropped=counts["dropped"],
            num_failed=counts["failed"],
            episode_ids=ids,
            avg_reward=fmean(rewards) if rewards else 0.0,
            success_rate=sum(reward > 0 for reward in rewards) / len(rewards) if rewards else 0.0,
        )

    def _drawn(self, number: int) -> Iterator[Any]:
        """The tasks of the episodes in order; None for each that has none."""
        tasks = iter(() if self.tasks is None else self.tasks)
        for drawn in range(number):
            try:
                yield next(tasks)
            except StopIteration:
                if self.tasks is not None:
                    what = f"there are {drawn} tasks for {number} episodes: the task of the others is None"
                    warnings.warn(what, RuntimeWarning, stacklevel=3)
                yield from (None for _ in range(drawn, number))
                return

    def _play(self, model_step: ModelStep, episode_id: str, task: Any) -> EpisodeRecord:
        session = self.session_factory.create(task=task, episode_id=episode_id)
        try:
            rollout = self.harness_adapter.run_white_box(model_step, session, self.limits)
            verify = session.verify(transcript=rollout.messages, final_state=final_state_of(rollout))
        finally:
            session.close()
        return EpisodeRecord.from_rollout(episode_id, rollout, verify, task=task)


def build_model_step(llm_client: LLMClient, *, system_prompt: str | None = None) -> ModelStep:
    """Makes a `ModelStep` of a client. Its results have no token ids.

    Args:
        llm_client: The client. All its calls run on one event loop of this process.
        system_prompt: Put before conversations that have no system message.

    Returns:
        The step. Of its sampling settings, `temperature`, `max_tokens` and `top_p` reach the model; others are
        dropped with a RuntimeWarning.
    """

    def model_step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        dropped = sorted(set(sampling) - _SAMPLING)
        if dropped:
            what = f"sampling settings {dropped} are dropped: the client takes {sorted(_SAMPLING)}"
            warnings.warn(what, RuntimeWarning, stacklevel=2)
        if system_prompt is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": system_prompt}, *messages]
        described = [
            {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tools
        ]
        given = {name: value for name, value in sampling.items() if name in _SAMPLING}
        call = llm_client.complete_with_tools(messages=messages, tools=described, **given)
        return ModelStepResult(portal().run(call))

    return model_step


def push_to_hf_hub(
    output_dir: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    commit_message: str | None = None,
    token: str | None = None,
) -> str:
    """Uploads the episodes of a folder as a dataset of the Hub; see `publish_results`."""
    message = commit_message or "Episodes collected with openenv"
    return publish_results(output_dir, repo_id, private=private, message=message, token=token)
