"""`rollout_func` for TRL's `GRPOTrainer`: rollouts of the engine, with the tokens that the model sampled."""

from __future__ import annotations

import contextlib
import math
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from ...client.portal import portal
from ...errors import InvalidArgument, UsageError
from ...rollouts.engine import rollouts
from ...rollouts.groups import RolloutBudget
from ...rollouts.model import Model, Sampling
from ...rollouts.records import Rollout, RolloutTask
from ...rollouts.tokens import TrainingSegment, segments
from ...rollouts.transformers_model import TransformersModel

__all__ = ["rollout_func", "rollout_return", "task_rows"]


def task_rows(tasks: Iterable[RolloutTask | int]) -> list[dict[str, str]]:
    """The rows of a dataset for `rollout_func`: each prompt is a task, or a seed, as JSON."""
    given = (RolloutTask(seed=task) if isinstance(task, int) else task for task in tasks)
    return [{"prompt": msgspec.json.encode(task).decode()} for task in given]


def rollout_return(rollout: Sequence[Rollout], **columns: Any) -> list[float | None]:
    """The reward function for `rollout_func`: the returns; None for a rollout that failed, which TRL leaves out."""
    return [each.reward for each in rollout]


def rollout_func(env: Any, model: Model | None = None, **options: Any) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Makes the `rollout_func` of a `GRPOTrainer`::

        trainer = GRPOTrainer(
            model,
            rollout_func=rollout_func("http://localhost:8000"),
            reward_funcs=rollout_return,
            train_dataset=Dataset.from_list(task_rows(RolloutTask(split="train", index=i) for i in range(100))),
        )

    Rows with the same task have the same seed. Reward functions get the records as `rollout`. A rollout that failed
    has the reward None and no token to learn from. One whose prompt does not extend the tokens before it failed, too:
    TRL takes one sequence of tokens a rollout.

    Args:
        env: As in `rollouts`.
        model: The model; None for the trainer's own, on this device.
        options: Further arguments of `rollouts`. `sampling` and the budget for tokens are by default the trainer's.
            With `folder`, each batch is recorded in a new folder in it.

    Raises:
        InvalidArgument: `on_break="split"`.
    """
    if options.setdefault("on_break", "fail") != "fail":
        raise InvalidArgument("on_break='split': TRL takes one sequence of tokens a rollout; use AsyncGRPOTrainer")

    def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        counts = [(task, len([*same])) for task, same in groupby(map(_task_in, prompts))]
        size = math.gcd(*(count for _, count in counts))
        tasks = [task for task, count in counts for _ in range(count // size)]
        with _model_of(trainer, model) as policy:
            groups = portal().run(_played(env, policy, tasks, size, _options_for(trainer, options)))
        played = [
            each for group in groups for each in sorted(group.rollouts + group.failed, key=lambda it: it.member)
        ]
        # A failed rollout has no tokens to learn from; of another, `on_break="fail"` leaves one segment.
        pad = trainer.processing_class.eos_token_id
        nothing = TrainingSegment([pad], [pad], [0], [0.0])
        rows = [segments(each)[0] if each.reward is not None and each.turns else nothing for each in played]
        logprobs = [row.logprobs for row in rows]
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": None if None in logprobs else logprobs,
            "env_mask": [row.mask for row in rows],
            "rollout": played,
        }

    return play


def _task_in(prompt: Any) -> RolloutTask:
    try:
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        task = msgspec.json.decode(text, type=RolloutTask)
    except (msgspec.MsgspecError, LookupError, TypeError) as error:
        raise UsageError(f"the prompt {prompt!r:.100} is no task: make the dataset of task_rows(tasks)") from error
    if task.seed is not None:
        return task
    return msgspec.structs.replace(task, seed=zlib.crc32(text.encode()) >> 1)


@contextlib.contextmanager
def _model_of(trainer: Any, model: Model | None) -> Iterator[Model]:
    if model is not None:
        yield model
        return
    if trainer.use_vllm:
        raise UsageError("use_vllm=True: give rollout_func the model of that server, as in OpenAIModel(...)")
    weights = trainer.accelerator.unwrap_model(trainer.model)
    own = TransformersModel(weights, trainer.processing_class)
    own.version = trainer.state.global_step
    try:
        yield own
    finally:
        portal().run(own.aclose())


def _options_for(trainer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `rollouts`, with the trainer's settings where the caller gave none."""
    extra = {"top_k": trainer.top_k, "min_p": trainer.min_p, "repetition_penalty": trainer.repetition_penalty}
    sampling = Sampling(
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        max_tokens=trainer.max_completion_length,
        extra={name: value for name, value in extra.items() if value not in (None, 0, 1.0)},
    )
    given = {
        "sampling": sampling,
        "budget": RolloutBudget(tokens=trainer.max_completion_length),
        "tokenizer": trainer.processing_class,
        **options,
    }
    if given.get("folder") is not None:
        Path(given["folder"]).mkdir(parents=True, exist_ok=True)
        given["folder"] = tempfile.mkdtemp(prefix=f"step-{trainer.state.global_step:06d}-", dir=given["folder"])
    return given


async def _played(env: Any, model: Model, tasks: list[RolloutTask], size: int, options: dict[str, Any]) -> Any:
    groups = [group async for group in rollouts(env, model, tasks, group_size=size, **options)]
    return sorted(groups, key=lambda group: group.group)  # in the order of the tasks
