"""The example that trains a model that calls tools, with a model that is made here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from openenv.providers import LaunchSpec, LocalProvider, deploy

from .tiny import call_token, tiny_model, tiny_tokenizer, unsaid

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]  # those of torch and trl

PROJECT = Path(__file__).parents[2]
CALLS = [call_token("guess", {"guess": "cat"}), call_token("guess", {"guess": "dog"})]


def test_the_model_plays_games_and_is_rewarded(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("grpo_tools", PROJECT / "examples/grpo_tools.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    tokenizer = tiny_tokenizer(CALLS)
    game = LaunchSpec(target=str(PROJECT / "envs/word_game"))
    with deploy(game, LocalProvider(max_sessions=example.GROUP)) as server:
        trainer = example.make_trainer(
            tiny_model(tokenizer),
            server.url,
            api_key=server.api_key,
            tokenizer=tokenizer,
            output_dir=str(tmp_path),
            max_steps=1,
            generation_kwargs={"suppress_tokens": unsaid(tokenizer, CALLS)},
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        )
        trainer.train()
    (step,) = [entry for entry in trainer.state.log_history if "tools/call_frequency" in entry]
    assert step["tools/call_frequency"] > 0
    assert step["rewards/WordGameEnvironment/mean"] != 0
