"""Trains a language model with GRPO (TRL): it plays the word game in `envs/word_game` by tool calls.

    python examples/grpo_tools.py --model Qwen/Qwen3-0.6B --steps 200

Each rollout is one game. The model calls the tool `guess`, and the reward of the rollout is the sum of the game's
rewards. The example needs `pip install openenv trl`, and a model with a chat template for tools, which TRL downloads
from the Hub.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from openenv.adapters.trl import environment_factory
from openenv.providers import LaunchSpec, LocalProvider, deploy

ENVS = Path(__file__).resolve().parent.parent / "envs"
sys.path.insert(0, str(ENVS))

from word_game import WordGameAction, WordGameEnv  # noqa: E402 - a project in envs/

PROMPT = "Find the hidden word of three letters. Call the tool `guess` until the game says that it is over."
GAME = {"length": 3, "lexicon": 12, "max_guesses": 5}
GROUP = 8  # GRPO compares the games of a group, which have the same hidden word


def main() -> None:
    options = arguments()
    with ExitStack() as stack:
        url, key = options.base_url, options.api_key
        if url is None:
            spec = LaunchSpec(target=str(ENVS / "word_game"))
            server = stack.enter_context(deploy(spec, LocalProvider(max_sessions=4 * GROUP)))
            url, key = server.url, server.api_key
        trainer = make_trainer(
            options.model, url, api_key=key, max_steps=options.steps, output_dir=options.output_dir
        )
        trainer.train()
        trainer.save_model(options.output_dir)


def make_trainer(
    model: Any, url: str, *, api_key: str | None = None, tokenizer: Any = None, **settings: Any
) -> GRPOTrainer:
    """A trainer whose rollouts are games.

    Args:
        model: The model, or its name on the Hub.
        url: URL of a server of the word game.
        api_key: API key of the server.
        tokenizer: Its tokenizer. By default TRL loads the one of the model.
        settings: Fields of `GRPOConfig` that override the defaults below.
    """
    defaults = {
        "per_device_train_batch_size": GROUP,
        "num_generations": GROUP,
        "max_completion_length": 1024,
        "max_tool_calling_iterations": GAME["max_guesses"],
        "learning_rate": 1e-6,
        "logging_steps": 1,
        "report_to": "none",
    }
    # All columns except the prompt are arguments of the environment's reset.
    rows = [{"prompt": [{"role": "user", "content": PROMPT}], "seed": seed, **GAME} for seed in range(4096)]
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        environment_factory=environment_factory(
            WordGameEnv, tools={"guess": WordGameAction}, base_url=url, api_key=api_key, columns=["seed", *GAME]
        ),
        train_dataset=Dataset.from_list(rows),
        args=GRPOConfig(**defaults | settings),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen3-0.6B", help="name of the model on the Hub")
    parser.add_argument("--steps", type=int, default=200, help="number of optimizer steps")
    parser.add_argument("--base-url", help="URL of a running server of the game; by default the example starts one")
    parser.add_argument("--api-key", help="API key of that server")
    parser.add_argument("--output-dir", default="out/grpo_tools", help="folder for the trained model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
