"""Trains a small language model from random weights with GRPO (TRL) to play the word game in `envs/word_game`.

The example creates the model, a transformer, and downloads nothing. Its tokens are 215 words and the marks. The model
writes a word, and the environment returns a mark for each letter, until the hidden word is found or no guess remains.
At first the model writes any word. Nearly all words are not in the game, and each of these costs 0.1. The model
learns which 12 words the game has, and not to repeat a word.

    python examples/grpo_word_game.py --plot docs/images/grpo_word_game.svg

The example needs `pip install openenv trl matplotlib`. The last line of its output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from openenv import StepResult, SyncVectorEnvClient
from openenv.providers import LaunchSpec, LocalProvider, deploy

ENVS = Path(__file__).resolve().parent.parent / "envs"
sys.path.insert(0, str(ENVS))

from word_game import WordGameAction, WordGameEnv  # noqa: E402 - a project in envs/
from word_game.server.lexicon import words  # noqa: E402

MARKS = {"hit": "+", "near": "?", "miss": "-"}
START, END, PAD = "<start>", "<end>", "<pad>"
GAME = {"length": 3, "lexicon": 12, "max_guesses": 5}
WORDS = words(GAME["length"])  # all words of three letters; the game has the first 12 of them
GROUP = 16  # GRPO compares the episodes of a group, which have the same hidden word


def main() -> None:
    """Trains the model, prints the result, and plots the rewards."""
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the model is small, and the server uses the other core
    began = time.monotonic()
    with ExitStack() as stack:
        if options.base_url is None:
            spec = LaunchSpec(target=str(ENVS / "word_game"))
            server = stack.enter_context(deploy(spec, LocalProvider(max_sessions=options.episodes)))
            options.base_url, options.api_key = server.url, server.api_key
        games = SyncVectorEnvClient(WordGameEnv, options.base_url, options.episodes, api_key=options.api_key)
        trainer = make_trainer(options, stack.enter_context(games), stack.enter_context(TemporaryDirectory()))
        trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    ends = max(1, len(rewards) // 10)
    if options.plot:
        plot(rewards, options.episodes, options.plot)
    result = {
        "steps": len(rewards),
        "episodes": len(rewards) * options.episodes,
        "weights": sum(each.numel() for each in trainer.model.parameters()),
        "first_reward": round(sum(rewards[:ends]) / ends, 3),
        "last_reward": round(sum(rewards[-ends:]) / ends, 3),
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(time.process_time(), 1),
    }
    print(json.dumps(result))


def make_trainer(options: argparse.Namespace, games: SyncVectorEnvClient[Any, Any], folder: str) -> GRPOTrainer:
    tokenizer = make_tokenizer()
    trainer = GRPOTrainer(
        model=make_model(tokenizer),
        processing_class=tokenizer,
        reward_funcs=reward_of_the_episode,
        rollout_func=lambda prompts, trainer: play(games, prompts, trainer.model, tokenizer),
        # A prompt is a seed, which determines the hidden word. The model does not see it.
        train_dataset=Dataset.from_list([{"prompt": str(seed)} for seed in range(4096)]),
        args=GRPOConfig(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.episodes,
            num_generations=GROUP,
            max_completion_length=64,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            logging_steps=1,
            seed=options.seed,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Progress())
    return trainer


def play(games: SyncVectorEnvClient[Any, Any], prompts: list[str], model: Any, tokenizer: Any) -> dict[str, Any]:
    """Plays one episode per prompt, all in parallel. The model writes guesses, the environment writes the marks."""
    start = tokenizer.convert_tokens_to_ids(START)
    episodes = [Episode() for _ in prompts]
    for episode, result in zip(episodes, games.reset(seeds=[int(prompt) for prompt in prompts], **GAME), strict=True):
        episode.add_result(result, [])
    while playing := [index for index, episode in enumerate(episodes) if not episode.over]:
        text = torch.tensor([[start, *episodes[index].ids] for index in playing])
        with torch.no_grad():
            logits = model(text).logits[:, -1]
        chosen = torch.distributions.Categorical(logits=logits).sample().tolist()
        guesses = tokenizer.convert_ids_to_tokens(chosen)
        games.send([WordGameAction(guess=guess) for guess in guesses], env_ids=playing)
        for index, token in zip(playing, chosen, strict=True):
            episodes[index].add_tokens([token], by_model=True)
        for index, result in games.recv(min_ready=len(playing)):
            board = result.observation.board if result.error is None else []
            valid = bool(board) and result.observation.valid
            marks = [MARKS[mark] for mark in board[-1].marks] if valid else ["!"] * GAME["length"]
            episodes[index].add_result(result, tokenizer.convert_tokens_to_ids(marks))
    return {
        "prompt_ids": [[start] for _ in episodes],
        "completion_ids": [episode.ids for episode in episodes],
        "logprobs": None,
        "env_mask": [episode.by_model for episode in episodes],
        "episode_reward": [episode.reward for episode in episodes],
    }


@dataclass
class Episode:
    """The tokens and the reward of one game.

    Attributes:
        ids: The tokens of the model and of the environment.
        by_model: 1 for each token of the model, 0 for each token of the environment, which the model does not learn.
        reward: The sum of rewards so far. None after a failure, which does not depend on the model.
        over: Whether the game has ended or failed.
    """

    ids: list[int] = field(default_factory=list)
    by_model: list[int] = field(default_factory=list)
    reward: float | None = 0.0
    over: bool = False

    def add_tokens(self, tokens: list[int], by_model: bool) -> None:
        self.ids += tokens
        self.by_model += [int(by_model)] * len(tokens)

    def add_result(self, result: StepResult[Any], marks: list[int]) -> None:
        self.over = result.done or result.error is not None
        if result.error is not None or self.reward is None:
            self.reward = None
            return
        self.reward += result.reward or 0.0
        if not self.over:
            self.add_tokens(marks, by_model=False)


def reward_of_the_episode(episode_reward: list[float | None], **_: Any) -> list[float | None]:
    return episode_reward


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word and each mark."""
    tokens = [START, END, PAD, *WORDS, *MARKS.values(), "!"]
    inner = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=PAD))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=PAD, padding_side="left")


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """A transformer with two layers and random weights."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


class Progress(TrainerCallback):
    """Prints the mean reward of every tenth step and of the last one."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "reward" in logs and (state.global_step % 10 == 1 or state.global_step == state.max_steps):
            print(f"step {state.global_step:4} of {state.max_steps}: mean reward {logs['reward']:.3f}", flush=True)


def plot(rewards: list[float], episodes: int, output: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(range(1, len(rewards) + 1), rewards, color="tab:blue", alpha=0.3, label=f"mean of {episodes} episodes")
    smooth = [
        sum(rewards[max(0, at - 9) : at + 1]) / len(rewards[max(0, at - 9) : at + 1]) for at in range(len(rewards))
    ]
    axes.plot(range(1, len(rewards) + 1), smooth, color="tab:blue", label="mean of 10 steps")
    axes.set(
        title="GRPO on the word game, from random weights", xlabel="optimizer step", ylabel="reward of an episode"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", help="URL of a running server of the game; by default the example starts one")
    parser.add_argument("--api-key", help="API key of that server")
    parser.add_argument("--steps", type=int, default=120, help="number of optimizer steps (default 120)")
    parser.add_argument(
        "--episodes", type=int, default=256, help="number of episodes per step, a multiple of 16 (default 256)"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the rewards in this file, as .svg or .png")
    options = parser.parse_args()
    if options.steps < 1 or options.episodes < GROUP or options.episodes % GROUP:
        parser.error(f"--steps must be at least 1, and --episodes a multiple of {GROUP}")
    return options


if __name__ == "__main__":
    main()
