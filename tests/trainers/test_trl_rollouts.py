"""`rollout_func` under TRL's trainer: what the model sampled is what it learns from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from openenv.adapters.trl import rollout_func, rollout_return, task_rows
from openenv.errors import ConnectionFailed, InvalidArgument, UsageError
from openenv.rollouts import RolloutBudget, RolloutTask, read_rollouts

from .environments import counter_app, served
from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # TRL's own warnings

CALLS = [call_token("count", {"by": 1}), call_token("count", {"by": 4})]
BAD = call_token("count", {"by": 1, "mood": "bad"})
STARTS = [RolloutTask(seed=start, arguments={"start": start}) for start in range(4)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield at


def trainer_of(function: Any, path: Path, calls: list[str], **options: Any) -> GRPOTrainer:
    tokenizer = tiny_tokenizer(calls)
    model = tiny_model(tokenizer)
    never = torch.zeros(len(tokenizer))
    never[unsaid(tokenizer, calls)] = -1e9
    model.lm_head.register_forward_hook(lambda module, given, logits: logits + never)
    rows = options.pop("rows", task_rows(STARTS))
    settings = {
        "output_dir": str(path),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 60,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 3,
    }
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(**settings | options),
        train_dataset=Dataset.from_list(rows),
        reward_funcs=rollout_return,
        rollout_func=function,
    )


def watched(function: Any, seen: list[dict[str, Any]]) -> Any:
    def play(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        seen.append({"prompts": prompts, **function(prompts, trainer)})
        return {name: value for name, value in seen[-1].items() if name != "prompts"}

    return play


def test_two_optimizer_steps_learn_from_the_sampled_tokens(address: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    trainer = trainer_of(watched(rollout_func(f"http://{address}"), seen), tmp_path, CALLS)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}

    trainer.train()

    assert len(seen) == 2
    for batch in seen:
        for number, rollout in enumerate(batch["rollout"]):
            assert batch["prompts"][number] == task_rows([rollout.task])[0]["prompt"]
            if rollout.reward is None:
                continue
            sampled = [token for turn in rollout.turns for token in turn.completion_ids]
            ids, mask = batch["completion_ids"][number], batch["env_mask"][number]
            assert [token for token, own in zip(ids, mask, strict=True) if own] == sampled
            assert batch["prompt_ids"][number] + ids == rollout.context_ids()
            assert {turn.tokens for turn in rollout.turns} == {"sampled"}
        assert any(0 in mask and 1 in mask for mask in batch["env_mask"])  # turns, and what is between them
    assert all(entry["rewards/rollout_return/mean"] > 0 for entry in trainer.state.log_history[:2])
    assert any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


def test_the_logprobs_are_those_of_the_trainers_model(address: str, tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path, CALLS)
    prompts = [task_rows([1])[0]["prompt"]] * 2
    played = rollout_func(f"http://{address}")(prompts, trainer)

    for prompt, completion, logprobs, mask in zip(
        *(played[name] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")), strict=True
    ):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        again = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        own = torch.tensor(mask).bool()
        assert torch.allclose(again[own], torch.tensor(logprobs)[own], atol=1e-4)


def test_a_failed_rollout_has_no_reward_and_no_token_to_learn_from(address: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    trainer = trainer_of(watched(rollout_func(f"http://{address}"), seen), tmp_path, [BAD, CALLS[1]])

    trainer.train()

    failed = [
        (rollout, mask)
        for batch in seen
        for rollout, mask in zip(batch["rollout"], batch["env_mask"], strict=True)
        if rollout.failure is not None
    ]
    assert trainer.state.global_step == 2
    assert failed
    assert all(rollout.reward is None and not any(mask) for rollout, mask in failed)
    assert any(rollout.reward for batch in seen for rollout in batch["rollout"])


def test_rows_of_one_task_have_one_seed_and_uneven_runs_are_played(address: str, tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path, CALLS)
    one, other = (row["prompt"] for row in task_rows([RolloutTask(arguments={"start": 9}), 7]))
    played = rollout_func(f"http://{address}", budget=RolloutBudget(turns=1))([one] * 4 + [other] * 2, trainer)

    tasks = [rollout.task for rollout in played["rollout"]]
    assert [task.arguments for task in tasks] == [{"start": 9}] * 4 + [{}] * 2
    assert len({task.seed for task in tasks[:4]}) == 1
    assert tasks[4].seed == tasks[5].seed == 7


def test_each_batch_is_recorded_in_a_folder(address: str, tmp_path: Path) -> None:
    trainer = trainer_of(rollout_func(f"http://{address}", folder=tmp_path / "runs"), tmp_path, CALLS)
    trainer.train()

    folders = sorted((tmp_path / "runs").iterdir())
    assert [len([*read_rollouts(folder)]) for folder in folders] == [8, 8]


def test_mistakes_have_one_clear_error_each(address: str, tmp_path: Path) -> None:
    trainer = trainer_of(None, tmp_path, CALLS)
    with pytest.raises(UsageError, match="task_rows"):
        rollout_func(f"http://{address}")(["Count to ten."], trainer)
    with pytest.raises(InvalidArgument, match="AsyncGRPOTrainer"):
        rollout_func(f"http://{address}", on_break="split")
    with pytest.raises(ConnectionFailed):
        rollout_func("http://127.0.0.1:9", connect_timeout_s=0.2)([task_rows([1])[0]["prompt"]], trainer)
