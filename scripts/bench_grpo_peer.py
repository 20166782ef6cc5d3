"""GRPO (TRL) on `word_game` through the released peer's harness, and through `rollouts`: returns and time.

    .venv-trainers/bin/python scripts/bench_grpo_peer.py [--seeds 0 1 2] [--steps 30] [--rollouts 128]

Both train the same tiny model with the same settings (`examples/grpo_rollouts.py`). The peer's `rollout_func` is made
by its `build_harness_rollout_func`, with a session in our server of `word_game` for each game. In both, the trainer's
model answers in this process. The peer's process takes its package from .venv-peer, and trl and torch from
.venv-trainers. Prints a line of JSON for each run: mean return of the first and the last tenth of the steps, time,
and CPU of the trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
GROUP = 32
GUESSES = 5
GAME = {"length": 3, "lexicon": 12, "max_guesses": GUESSES}
SCHEMA = {"type": "object", "properties": {"guess": {"type": "string"}}, "required": ["guess"]}


def main() -> None:
    options = arguments()
    if options.url is not None:
        print(json.dumps(measured(options)))
        return
    from openenv.bench.served import ServedProcess

    serve = [sys.executable, "-m", "openenv", "serve", str(ROOT / "envs" / "word_game"), "--port", "0"]
    peer_path = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    settings = ["--steps", str(options.steps), "--rollouts", str(options.rollouts)]
    with ServedProcess(serve) as server:
        for seed in options.seeds:
            ours = [sys.executable, str(ROOT / "examples" / "grpo_rollouts.py"), "word_game"]
            peer = [str(PEER_PYTHON), __file__, "--url", server.url]
            for name, command, environ in (("ours", ours, None), ("peer", peer, peer_path)):
                began = time.monotonic()
                done = subprocess.run(  # noqa: S603
                    [*command, *settings, "--seeds", str(seed)],
                    env=environ,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise SystemExit(f"{name}: {done.stderr[-2000:]}")
                result = json.loads(done.stdout.splitlines()[-1])
                took = round(time.monotonic() - began)
                print(json.dumps({"system": name, "seed": seed, **result, "process_s": took}), flush=True)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Trains with the peer in this process, and measures it as `examples/grpo_rollouts.py` does."""
    import torch

    torch.set_num_threads(1)
    began, cpu = time.monotonic(), time.process_time()
    (seed,) = options.seeds
    curve = train(options, seed)
    ends = max(1, options.steps // 10)
    return {
        "first_reward": [round(sum(curve[:ends]) / ends, 3)],
        "last_reward": [round(sum(curve[-ends:]) / ends, 3)],
        "wall_s": round(time.monotonic() - began, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
        "curve": [round(each, 3) for each in curve],
    }


def train(options: argparse.Namespace, seed: int) -> list[float]:
    """Trains a model through the peer's harness. Returns the mean reward of each step."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from openenv.core.harness import HarnessRunLimits, MCPHarnessAdapter, build_harness_rollout_func

    sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "envs" / "word_game" / "server")]
    from lexicon import words
    from tiny_model import make_model, make_tokenizer

    torch.manual_seed(seed)
    known = list(words(GAME["length"]))
    tokenizer = make_tokenizer(known, ["hit", "near", "miss"])
    # The harness gives a session the prompt alone, so that has the seed of the game. The model does not read it.
    prompts = [
        [{"role": "system", "content": "Guess"}, {"role": "user", "content": str(number)}] for number in range(1024)
    ]
    with TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=make_model(tokenizer, known),
            processing_class=tokenizer,
            rollout_func=build_harness_rollout_func(
                session_factory=game_factory(options.url),
                harness_adapter=MCPHarnessAdapter(),
                model_step_builder=lambda trainer, session: model_step(trainer),
                limits=HarnessRunLimits(max_turns=GUESSES),
            ),
            reward_funcs=lambda env_reward, **columns: env_reward,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.rollouts,
                num_generations=GROUP,
                max_completion_length=512,
                learning_rate=5e-3,
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
        trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def game_factory(url: str) -> Any:
    """Makes a session of the peer for each game."""
    from openenv.core import GenericEnvClient
    from openenv.core.env_server.mcp_types import Tool
    from openenv.core.harness import ResourceSessionFactory, StepEnvSessionAdapter, ToolResult, VerifyResult

    class Games(ResourceSessionFactory):  # type: ignore[type-arg]
        def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
            rewards: list[float] = []

            def tool_result(name: str, arguments: dict[str, Any], result: Any, state: Any) -> ToolResult:
                rewards.append(result.reward)
                return ToolResult(data=json.dumps(result.observation["board"]), done=result.done)

            return StepEnvSessionAdapter(
                GenericEnvClient(base_url=url),
                task=task,
                seed=int(task[-1]["content"]),
                tool_specs=[Tool(name="guess", description="Guesses a word.", input_schema=SCHEMA)],
                action_builder=lambda name, arguments: arguments,
                initial_messages_builder=lambda result, task: list(task),
                tool_result_builder=tool_result,
                verify_builder=lambda *_: VerifyResult(env_reward=sum(rewards), done=True),
                reset_kwargs=GAME,
            )

    return Games()


def model_step(trainer: Any) -> Any:
    """A step of the harness: the trainer's model answers with one token, which is a guess."""
    import torch

    from openenv.core.harness import ModelStepResult
    from openenv.core.llm_client import LLMResponse, ToolCall

    tokenizer = trainer.processing_class

    def step(messages: list[Any], tools: list[Any], sampling: dict[str, Any]) -> ModelStepResult:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        with torch.no_grad():
            given = trainer.model.generate(
                torch.tensor([prompt]),
                max_new_tokens=1,
                do_sample=True,
                top_k=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        token = int(given.sequences[0, -1])
        call = ToolCall(id="call", name="guess", args={"guess": tokenizer.decode([token])})
        logprob = float(torch.log_softmax(given.logits[0][0].float(), -1)[token])
        return ModelStepResult(LLMResponse("", [call]), prompt, [token], [logprob])

    return step


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rollouts", type=int, default=128, help=f"rollouts a step, a multiple of {GROUP}")
    parser.add_argument("--url", help=argparse.SUPPRESS)  # of the server: trains with the peer in this process
    return parser.parse_args()


if __name__ == "__main__":
    main()
