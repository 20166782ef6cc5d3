"""`RolloutWorker` under TRL's asynchronous trainer: rollouts are played while the trainer learns."""

from __future__ import annotations

import queue
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import PartialState

from openenv.errors import UsageError
from openenv.rollouts import RolloutBudget, RolloutTask
from openenv.rollouts.transformers_model import TransformersModel

from .environments import counter_app, served
from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL warns of its experimental modules
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout,
        FixedCountBatcher,
        RolloutQueueDataset,
    )

    from openenv.adapters.trl import RolloutWorker

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # TRL's own warnings

CALLS = [call_token("count", {"by": 1}), call_token("count", {"by": 4})]
BAD = call_token("count", {"by": 1, "mood": "bad"})
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield at


def tasks() -> Iterator[RolloutTask]:
    seed = 0
    while True:
        yield RolloutTask(seed=seed, arguments={"start": seed % 4})
        seed += 1


def policy(calls: list[str]) -> tuple[Any, Any]:
    """A tokenizer, and a model that says only these calls."""
    tokenizer = tiny_tokenizer(calls)
    sampling = tiny_model(tokenizer)
    never = torch.zeros(len(tokenizer))
    never[unsaid(tokenizer, calls)] = -1e9
    sampling.lm_head.register_forward_hook(lambda module, given, logits: logits + never)
    return tokenizer, TransformersModel(sampling, tokenizer)


def test_the_data_of_the_asynchronous_trainer_are_the_rollouts(address: str) -> None:
    """All of the trainer that runs without a GPU: its attention is FlashAttention 3."""
    tokenizer, model = policy(CALLS)
    worker = RolloutWorker(f"http://{address}", model, tasks(), group_size=4, sessions=8, tokenizer=tokenizer)
    metrics: dict[str, list[Any]] = defaultdict(list)
    PartialState(cpu=True)  # TRL's log wants it
    queued = RolloutQueueDataset(worker.rollout_buffer, lambda: 0, worker.check_health, PATIENCE_S, metrics)
    worker.start()
    try:
        rows = next(iter(FixedCountBatcher(queued, 1, 4)))
    finally:
        worker.stop()

    batch = DataCollatorForRollout(pad_token_id=tokenizer.pad_token_id, metrics=metrics)([rows])
    trained = sum(int(sample["completion_mask"].sum()) for row in rows for sample in row.samples)
    assert trained == batch["global_n_tokens"].item() > 0
    assert all(reward > 0 for reward in metrics["reward"])


def test_failed_rollouts_give_no_row_and_segments_have_one_advantage(address: str) -> None:
    tokenizer, model = policy([BAD, CALLS[1]])
    worker = RolloutWorker(
        f"http://{address}",
        model,
        [RolloutTask(seed=seed) for seed in range(3)],
        group_size=6,
        tokenizer=tokenizer,
        budget=RolloutBudget(turns=3),
    )
    worker.update_model_version(5)
    worker.start()
    rows = []
    try:
        with pytest.raises(UsageError, match="ran out"):
            while True:
                try:
                    rows.append(worker.rollout_buffer.get(timeout=0.1))
                except queue.Empty:
                    worker.check_health(PATIENCE_S)
    finally:
        worker.stop()

    assert 0 < len(rows) < 18  # some failed
    assert {row.model_version for row in rows} == {5}
    for group in {row.group_id for row in rows}:
        assert sum(row.advantage for row in rows if row.group_id == group) == pytest.approx(0, abs=1e-4)
    for row in rows:
        assert len(row.input_ids) == len(row.completion_mask) == len(row.old_log_probs)
        assert (row.old_log_probs[row.completion_mask == 1] <= 0).all()


def test_a_worker_stops_while_the_trainer_has_no_room_for_its_rows(address: str) -> None:
    tokenizer, model = policy(CALLS)
    worker = RolloutWorker(f"http://{address}", model, tasks(), rows=1, group_size=2, sessions=4, tokenizer=tokenizer)
    worker.start()
    worker.rollout_buffer.get(timeout=PATIENCE_S)
    worker.stop()


def test_the_trainer_learns_why_the_worker_ended(address: str) -> None:
    _, model = policy(CALLS)
    no_tasks: Any = ["no task"]
    worker = RolloutWorker(f"http://{address}", model, no_tasks)
    worker.start()
    with pytest.raises(UsageError, match="tasks"):
        while True:
            worker.check_health(PATIENCE_S)
    worker.stop()
