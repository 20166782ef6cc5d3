"""The classes of `environment_factory` under the trainer that they are made for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from openenv.adapters.trl import environment_factory

from .environments import CountAction, CounterEnv, counter_app, served
from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # theirs are not ours to mend

CALLS = [call_token("count", {"by": 1}), call_token("count", {"by": 4})]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(counter_app()) as at:
        yield at


def trainer_of(factory: Any, path: Path, calls: list[str], **options: Any) -> GRPOTrainer:
    tokenizer = tiny_tokenizer(calls)
    settings = {
        "output_dir": str(path),
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 400,
        "max_tool_calling_iterations": 3,
        "generation_kwargs": {"suppress_tokens": unsaid(tokenizer, calls)},
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "seed": 3,
    }
    prompt = [{"role": "user", "content": "Count to ten. "}]
    rows = options.pop("rows", [{"prompt": prompt, "start": start} for start in range(4)])
    return GRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        args=GRPOConfig(**settings | options),
        train_dataset=Dataset.from_list(rows),
        environment_factory=factory,
    )


def test_two_optimizer_steps_call_tools_and_get_rewards(address: str, tmp_path: Path) -> None:
    factory = environment_factory(CounterEnv, tools={"count": CountAction}, base_url=address)
    trainer = trainer_of(factory, tmp_path, CALLS)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}

    trainer.train()

    steps = [entry for entry in trainer.state.log_history if "rewards/CounterEnvironment/mean" in entry]
    assert trainer.state.global_step == 2
    assert len(steps) == 2
    assert all(entry["tools/call_frequency"] > 0 for entry in steps)
    assert all(entry["rewards/CounterEnvironment/mean"] > 0 for entry in steps)
    assert any(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


def test_the_model_is_told_of_the_tools_alone_and_of_their_types(address: str, tmp_path: Path) -> None:
    factory = environment_factory(CounterEnv, base_url=address)

    trainer = trainer_of(factory, tmp_path, CALLS)

    assert [tool.__name__ for tool in trainer.tools] == ["count"]
    assert get_json_schema(trainer.tools[0])["function"] == {
        "name": "count",
        "description": "Counts on.",
        "parameters": {
            "type": "object",
            "properties": {
                "by": {"type": "integer", "description": "How far to count (at least 1; at most 9)"},
                "mood": {"type": "string", "enum": ["fine", "bad"], "description": 'How it feels (default "fine")'},
            },
            "required": ["by"],
        },
        "return": {"type": "string", "description": "What the environment answers."},
    }


def test_an_episode_that_the_environment_failed_in_is_left_out_and_not_worth_0(address: str, tmp_path: Path) -> None:
    factory = environment_factory(CounterEnv, base_url=address)
    calls = [call_token("count", {"by": 1, "mood": "bad"}), call_token("count", {"by": 4})]
    trainer = trainer_of(factory, tmp_path, calls)
    scored: list[list[float | None]] = []
    score = trainer.reward_funcs[0]

    def watched(environments: list[Any], **kwargs: Any) -> list[float | None]:
        scored.append(score(environments=environments, **kwargs))
        assert [reward is None for reward in scored[-1]] == [each.failure is not None for each in environments]
        return scored[-1]

    trainer.reward_funcs[0] = watched
    trainer.train()

    rewards = [reward for batch in scored for reward in batch]
    assert trainer.state.global_step == 2
    assert None in rewards
    assert any(reward is not None and reward > 0 for reward in rewards)


def test_wrong_calls_are_told_to_the_model_and_do_not_end_the_episode(address: str, tmp_path: Path) -> None:
    factory = environment_factory(CounterEnv, base_url=address)
    calls = [call_token("count", {"by": 99}), call_token("count", {"of": 1}), call_token("close", {})]
    trainer = trainer_of(factory, tmp_path, calls)

    trainer.train()

    (*_, last) = [entry for entry in trainer.state.log_history if "tools/failure_frequency" in entry]
    assert last["tools/failure_frequency"] == 1
    assert last["rewards/CounterEnvironment/mean"] == 0  # nobody did anything: that is worth 0
    assert all(environment.failure is None for environment in trainer.environments)


def test_a_server_that_comes_back_between_two_batches_costs_no_episode(tmp_path: Path) -> None:
    """Instances are pooled for the whole run: the second batch finds their sessions gone."""
    with ExitStack() as first:
        address = first.enter_context(served(counter_app()))
        factory = environment_factory(CounterEnv, base_url=address)
        trainer = trainer_of(factory, tmp_path, CALLS)

        with ExitStack() as second:

            class Restart(TrainerCallback):
                def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                    if state.global_step == 1:
                        first.close()
                        second.enter_context(served(counter_app(), port=int(address.split(":")[1])))

            trainer.add_callback(Restart())
            trainer.train()

            rewards = [entry["rewards/CounterEnvironment/mean"] for entry in trainer.state.log_history[:2]]
            assert all(reward > 0 for reward in rewards)
            assert [environment.failure for environment in trainer.environments] == [None] * 4


def test_environments_of_two_kinds_in_one_run_keep_their_rewards_apart(address: str, tmp_path: Path) -> None:
    factories = {
        name: environment_factory(CounterEnv, name=name.title(), base_url=address) for name in ("near", "far")
    }
    rows = [
        {"prompt": [{"role": "user", "content": "Count. "}], "environment": name, "start": start}
        for start in range(4)
        for name in ("near", "far")
    ]

    trainer = trainer_of(factories, tmp_path, CALLS, rows=rows)
    trainer.train()

    names = {key for entry in trainer.state.log_history for key in entry if key.startswith("rewards/")}
    assert {"rewards/Near/mean", "rewards/Far/mean"} <= names
