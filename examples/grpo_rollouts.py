"""Trains a small language model from random weights by GRPO (TRL), with episodes that `rollouts` plays.

The example creates the model and its tokenizer, and downloads nothing. There are three environments:

- `word_game`: find a hidden word. The model's tokens are 215 words, and 12 of them are in the game.
- `tool_shop`: do what a customer wants by tool calls. The model's tokens are 12 whole calls; which of them a customer
  needs, and that `finish` ends the work, it must find out.
- `repo_repair`: repair the fault of a small repository. The model's tokens are 10 whole actions: eight edits, each of
  which repairs one of the repositories, `list`, and `submit`.

    python examples/grpo_rollouts.py word_game --seeds 0 1 2 --plot docs/images/grpo_word_game.svg

The example needs `pip install openenv[mcp,transformers] trl matplotlib`. The last line of its output is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib
import torch
from datasets import Dataset
from tiny_model import make_model, make_tokenizer
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from openenv import Chat, JsonAnswer, RegexAnswer
from openenv.adapters.trl import rollout_func, rollout_return, task_rows
from openenv.rollouts import RolloutBudget, RolloutTask, Sampling

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))

GROUP = 32  # GRPO compares the rollouts of a group, which have the same task and seed
SESSIONS = 64  # rollouts at the same time


@dataclass(frozen=True)
class Course:
    """What the model learns.

    Attributes:
        env: The environment, for `rollouts`.
        tasks: The tasks.
        answers: What the model can say: one token each.
        reads: The words that it can read.
        turns: Most answers of a rollout.
        chat: How the environment speaks with the model; None for the way that it declares.
    """

    env: Any
    tasks: list[RolloutTask]
    answers: list[str]
    reads: list[str]
    turns: int
    chat: Chat | None = None


def word_game() -> Course:
    from word_game.server.lexicon import words
    from word_game.server.word_game_environment import WordGameEnvironment

    game = {"length": 3, "lexicon": 12, "max_guesses": 5}
    chat = Chat(system="Guess", observation="{board}", answer=RegexAnswer(pattern=r"(?P<guess>\w+)"))
    tasks = [RolloutTask(seed=seed, arguments=game) for seed in range(1024)]
    return Course(WordGameEnvironment, tasks, list(words(3)), ["hit", "near", "miss"], 5, chat)


def tool_shop() -> Course:
    from tool_shop.server.app import app

    calls = [(tool, {"order_id": order}) for tool in ("refund", "cancel_order") for order in range(1, 6)]
    calls += [("list_orders", {"customer_id": 1}), ("finish", {})]
    answers = [f"<tool_call>{json.dumps({'name': name, 'arguments': given})}</tool_call>" for name, given in calls]
    # In these tasks, the customer with the number 1 wants a refund, or to cancel, and the orders are 1 to 5.
    tasks = [RolloutTask(split="train", index=index) for index in (2, 17, 37, 147, 63, 163, 188, 218)]
    reads = ["finn", "ben", "ada", "dan", "cleo", "eve", "refund", "cancel", "placed", "shipped", "delivered"]
    return Course(app, tasks, answers, [*reads, "cancelled", "refunded", *"12345"], 6)


def repo_repair() -> Course:
    from repo_repair.server.repo_repair_environment import RepoRepairEnvironment
    from repo_repair.server.tasks import task

    tasks = [task("train", index) for index in range(8)]
    edits = [{"kind": "replace", **asdict(each.repair)} for each in tasks]
    answers = [json.dumps(action) for action in (*edits, {"kind": "list"}, {"kind": "submit"})]
    # The model reads which function the report names, and whether an action was possible.
    reads = [*dict.fromkeys(re.search(r"reports that (\w+)", each.prompt)[1] for each in tasks), "times", "no"]
    chat = Chat(system="Repair", observation="{task}\n{output}", answer=JsonAnswer())
    starts = [RolloutTask(split="train", index=each.index) for each in tasks]
    return Course(RepoRepairEnvironment, starts, answers, reads, 6, chat)


def main() -> None:
    """Trains a model for each seed, prints the result, and plots the rewards."""
    options = arguments()
    torch.set_num_threads(1)  # the model is small
    course = {"word_game": word_game, "tool_shop": tool_shop, "repo_repair": repo_repair}[options.environment]()
    began = time.monotonic()
    curves = [train(course, options, seed) for seed in options.seeds]
    if options.plot:
        plot(curves, options)
    ends = max(1, options.steps // 10)
    result = {
        "environment": options.environment,
        "steps": options.steps,
        "rollouts": options.steps * options.rollouts,
        "first_reward": [round(sum(curve[:ends]) / ends, 3) for curve in curves],
        "last_reward": [round(sum(curve[-ends:]) / ends, 3) for curve in curves],
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(time.process_time(), 1),
    }
    print(json.dumps(result))


def train(course: Course, options: argparse.Namespace, seed: int) -> list[float]:
    """Trains a model from random weights. Returns the mean reward of each step."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(course.answers, course.reads)
    with TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=make_model(tokenizer, course.answers),
            processing_class=tokenizer,
            rollout_func=rollout_func(
                course.env,
                sampling=Sampling(max_tokens=1),  # an answer is one token
                budget=RolloutBudget(turns=course.turns),
                sessions=SESSIONS,
                chat=course.chat,
                folder=options.output,
            ),
            reward_funcs=rollout_return,
            train_dataset=Dataset.from_list(task_rows(course.tasks)),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.rollouts,
                num_generations=GROUP,
                max_completion_length=512,
                learning_rate=options.learning_rate,
                lr_scheduler_type="constant",
                logging_steps=1,
                seed=seed,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Progress(seed))
        trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


class Progress(TrainerCallback):
    """Prints the mean reward of every tenth step and of the last one."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "reward" in logs and (state.global_step % 10 == 1 or state.global_step == state.max_steps):
            step = f"step {state.global_step:4} of {state.max_steps}"
            print(f"seed {self.seed}, {step}: mean reward {logs['reward']:.3f}", flush=True)


def plot(curves: Sequence[Sequence[float]], options: argparse.Namespace) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for seed, curve in zip(options.seeds, curves, strict=True):
        smooth = [
            sum(curve[max(0, at - 4) : at + 1]) / len(curve[max(0, at - 4) : at + 1]) for at in range(len(curve))
        ]
        (line,) = axes.plot(range(1, len(curve) + 1), smooth, label=f"seed {seed}, mean of 5 steps")
        axes.plot(range(1, len(curve) + 1), curve, color=line.get_color(), alpha=0.25)
    axes.set(
        title=f"{options.environment}: GRPO through rollouts, from random weights",
        xlabel="optimizer step",
        ylabel=f"return, mean of {options.rollouts} rollouts",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.plot)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", choices=["word_game", "tool_shop", "repo_repair"])
    parser.add_argument("--steps", type=int, default=30, help="number of optimizer steps (default 30)")
    parser.add_argument(
        "--rollouts", type=int, default=128, help=f"rollouts a step, a multiple of {GROUP} (default 128)"
    )
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="record the rollouts here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot the rewards in this file, as .svg or .png")
    options = parser.parse_args()
    if options.steps < 1 or options.rollouts < GROUP or options.rollouts % GROUP:
        parser.error(f"--steps must be at least 1, and --rollouts a multiple of {GROUP}")
    return options


if __name__ == "__main__":
    main()
