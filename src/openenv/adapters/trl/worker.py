"""The rollout worker of TRL's `AsyncGRPOTrainer`: rollouts of the engine, played while the trainer learns."""

from __future__ import annotations

import contextlib
import queue
import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

from ...client.portal import portal
from ...errors import MissingExtra, UsageError
from ...rollouts.engine import RolloutRun, rollouts
from ...rollouts.groups import TaskSource
from ...rollouts.model import Model
from ...rollouts.records import RolloutGroup
from ...rollouts.tokens import segments

try:
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
except ModuleNotFoundError as missing:
    raise MissingExtra("trl", None) from missing

__all__ = ["RolloutWorker"]

# Seconds until `stop` takes effect while the trainer has no room.
_STOPS_WITHIN_S = 0.2


class RolloutWorker:
    """The `rollout_worker` of TRL's `AsyncGRPOTrainer`: rollouts are played while the trainer learns::

        worker = RolloutWorker(url, OpenAIModel(...), tasks, group_size=8, max_staleness=3)
        AsyncGRPOTrainer(model, rollout_worker=worker, args=AsyncGRPOConfig(max_staleness=3, ...))

    Each training segment of a rollout is one row; all rows of a rollout have its advantage, the distance of its
    return from the mean of its group in standard deviations. Rollouts that failed give no row.

    Args:
        env: As in `rollouts`.
        model: As there.
        tasks: As there.
        rows: Most rows that wait for the trainer.
        options: Further arguments of `rollouts`. `policy_version` is the trainer's.

    Attributes:
        rollout_buffer, metrics_queue: The rows, and metrics of the worker, for the trainer.
    """

    def __init__(self, env: Any, model: Model, tasks: TaskSource, *, rows: int = 1024, **options: Any) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(rows)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._version = 0
        self._run: RolloutRun = rollouts(env, model, tasks, policy_version=lambda: self._version, **options)
        self._thread = threading.Thread(target=self._play, name="openenv-rollouts", daemon=True)
        self._stopped = threading.Event()
        self._end: BaseException | None = None

    def start(self) -> None:
        """Begins to play."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the run and its sessions."""
        self._stopped.set()
        portal().run(self._run.aclose())
        if self._thread.is_alive():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """Takes the version of the policy that the model has from now on."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises what ended the run: the error of `rollouts`, or a `UsageError` if the tasks ran out."""
        if self._end is not None and self.rollout_buffer.empty():
            raise self._end

    def _play(self) -> None:
        try:
            while batch := portal().run(self._run.batch(1)):
                for sample in _samples(batch[0]):
                    while not self._stopped.is_set():  # until the trainer has room
                        with contextlib.suppress(queue.Full):
                            self.rollout_buffer.put(sample, timeout=_STOPS_WITHIN_S)
                            break
            self._end = UsageError("the tasks ran out before the training ended: give more tasks, or max_steps")
        except BaseException as error:  # noqa: BLE001 - the trainer's thread raises it
            self._end = error


def _samples(group: RolloutGroup) -> Iterator[Any]:
    """The rows of a group for the trainer."""
    rewards = {rollout.member: rollout.reward for rollout in group.rollouts if rollout.reward is not None}
    mean, deviation = statistics.fmean(rewards.values() or [0.0]), statistics.pstdev(rewards.values() or [0.0])
    for rollout in group.rollouts:
        for segment in segments(rollout) if rollout.member in rewards else ():
            if segment.logprobs is None:
                raise UsageError(f"{rollout.model} sends no logprobs, which the trainer needs")
            before = len(segment.prompt_ids)
            yield RolloutSample(
                prompt=rollout.turns[segment.turns[0]].prompt,
                completion=rollout.conversation(segment.turns[-1] + 1),
                input_ids=np.asarray(segment.prompt_ids + segment.completion_ids, dtype=np.int64),
                completion_mask=np.asarray([0] * before + segment.mask, dtype=np.int64),
                old_log_probs=np.asarray([0.0] * before + segment.logprobs, dtype=np.float32),
                advantage=(rewards[rollout.member] - mean) / (deviation + 1e-8),
                model_version=segment.version or 0,
                group_id=int(group.group),
                metrics={"reward": rewards[rollout.member], "reward_std": deviation},
                enqueued_at=time.time(),
            )
