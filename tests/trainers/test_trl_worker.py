"""`RolloutWorker` under TRL's asynchronous trainer: rollouts are played while the trainer learns."""

from __future__ import annotations

import copy
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from openenv.adapters.trl import RolloutWorker
from openenv.errors import UsageError
from openenv.rollouts import RolloutBudget, RolloutTask
from openenv.rollouts.transformers_model import TransformersModel

from .environments import counter_app, served
from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

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


def policy(calls: list[str]) -> tuple[Any, Any, Any]:
    """Tokenizer, weights, and a model that samples from a copy of them, which says only these calls."""
    tokenizer = tiny_tokenizer(calls)
    weights = tiny_model(tokenizer)
    sampling = copy.deepcopy(weights)
    never = torch.zeros(len(tokenizer))
    never[unsaid(tokenizer, calls)] = -1e9
    sampling.lm_head.register_forward_hook(lambda module, given, logits: logits + never)
    return tokenizer, weights, TransformersModel(sampling, tokenizer)


class Weights:
    """Takes the place of the transfer to vLLM: counts how often the trainer sends its weights."""

    def __init__(self) -> None:
        self.sent = 0

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.sent += bool([*iterator])


def test_the_asynchronous_trainer_learns_from_rollouts(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "none")  # TRL asks for the name of a GPU
    tokenizer, weights, model = policy(CALLS)
    weights.save_pretrained(tmp_path / "model")
    worker = RolloutWorker(f"http://{address}", model, tasks(), group_size=4, sessions=8, tokenizer=tokenizer)
    transfer = Weights()
    trainer = AsyncGRPOTrainer(
        model=str(tmp_path / "model"),
        processing_class=tokenizer,
        args=AsyncGRPOConfig(
            output_dir=str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=1,
            token_budget=2048,
            vllm_server_timeout=1,
            learning_rate=0.01,
            report_to="none",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list([{"prompt": ""}]),
        rollout_worker=worker,
        weight_transfer=transfer,
    )
    trainer.train()

    assert trainer.state.global_step == 2
    assert any(entry.get("reward", 0) > 0 for entry in trainer.state.log_history)
    assert transfer.sent >= 2
    learned = dict(trainer.model.named_parameters())
    assert any(not torch.equal(learned[name], weight) for name, weight in weights.named_parameters())


def test_failed_rollouts_give_no_row_and_segments_have_one_advantage(address: str) -> None:
    tokenizer, _, model = policy([BAD, CALLS[1]])
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
    tokenizer, _, model = policy(CALLS)
    worker = RolloutWorker(f"http://{address}", model, tasks(), rows=1, group_size=2, sessions=4, tokenizer=tokenizer)
    worker.start()
    worker.rollout_buffer.get(timeout=PATIENCE_S)
    worker.stop()


def test_the_trainer_learns_why_the_worker_ended(address: str) -> None:
    _, _, model = policy(CALLS)
    worker = RolloutWorker(f"http://{address}", model, ["no task"])  # type: ignore[list-item]
    worker.start()
    with pytest.raises(UsageError, match="tasks"):
        while True:
            worker.check_health(PATIENCE_S)
    worker.stop()
