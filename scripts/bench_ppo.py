"""Wall time of PPO (Stable-Baselines3) on ALE/Pong-v5: served, and in the trainer's process, in alternation.

    .venv-trainers/bin/python scripts/bench_ppo.py [--envs 16] [--workers 2] [--rounds 3] [--steps 4096]

Both have the same preprocessing, hyperparameters and seeds. The measured time is that of `learn`, without the start
of the server. The last line of the output is JSON. `make test-trainers` makes .venv-trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bare import ROOT
from benchmarks.image_envs import PLAYED
from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.adapters.stable_baselines3 import SB3VecEnv
from openenv.bench.machine import machine
from openenv.bench.served import ServedTarget

ENV_ID = "ALE/Pong-v5"
# Those of Schulman et al. 2017 for Atari games.
HYPERPARAMETERS = {"n_steps": 128, "n_epochs": 4, "batch_size": 256, "learning_rate": 2.5e-4, "clip_range": 0.1}


def main() -> None:
    """Measures, and prints a line of JSON."""
    options = read_options()
    seconds: dict[str, list[float]] = {"served": [], "in process": []}
    with ServedTarget(f"gymnasium:{PLAYED}?played={ENV_ID}", options.workers, options.envs * 2, cwd=ROOT) as server:
        for seed in range(options.rounds):
            for system, found in seconds.items():
                envs = remote(server.url, options) if system == "served" else local(options)
                with closing(SB3VecEnv(envs)) as vec_env:
                    found.append(learn(vec_env, seed, options.steps))
                print(f"{system}, seed {seed}: {found[-1]:.1f} s", flush=True)
    document = {
        "command": " ".join(sys.argv),
        "machine": machine(),
        "seconds": seconds,
        "ratio": statistics.median(
            ours / theirs for ours, theirs in zip(seconds["served"], seconds["in process"], strict=True)
        ),
    }
    print(json.dumps(document))


def remote(url: str, options: argparse.Namespace) -> VectorEnv:
    """The served environments."""
    return RemoteVectorEnv(url, options.envs, autoreset_mode="SameStep", connections=options.workers)


def local(options: argparse.Namespace) -> VectorEnv:
    """The same environments in this process."""
    mode = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return gymnasium.make_vec(PLAYED, options.envs, "sync", vector_kwargs=mode, played=ENV_ID)


def learn(vec_env: SB3VecEnv, seed: int, steps: int) -> float:
    """Seconds of a training."""
    model = PPO("CnnPolicy", vec_env, seed=seed, device="cpu", **HYPERPARAMETERS)
    began = time.perf_counter()
    model.learn(steps)
    return time.perf_counter() - began


def read_options() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Compares PPO on served environments with PPO in one process.")
    parser.add_argument("--envs", type=int, default=16, help="number of environments")
    parser.add_argument("--workers", type=int, default=2, help="workers of the server")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each")
    parser.add_argument("--steps", type=int, default=4096, help="steps of each training")
    return parser.parse_args()


if __name__ == "__main__":
    main()
