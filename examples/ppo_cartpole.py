"""PPO of Stable-Baselines3 learns CartPole-v1 on a served environment.

    python examples/ppo_cartpole.py                    # starts a server with 2 workers, trains with three seeds
    python examples/ppo_cartpole.py --compare          # also trains in one process, without a server
    python examples/ppo_cartpole.py --base-url URL     # uses a running server: openenv serve gymnasium:CartPole-v1

The example needs `pip install 'openenv[gymnasium]' stable-baselines3 matplotlib`. The last line of the output is
JSON. With `--plot FILE` it plots the measured returns.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.adapters.stable_baselines3 import SB3VecEnv
from openenv.providers import LaunchSpec, LocalProvider, deploy

ENV_ID = "CartPole-v1"
ENVS = 32
WORKERS = 2
STEPS = 65_536
EPISODES = 20  # in the evaluation
SOLVED = 450.0


def main() -> None:
    """Trains, prints the results, and plots them."""
    options = read_options()
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib")
    torch.set_num_threads(1)  # in both cases: the networks are small, and the server uses the other cores
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if options.base_url is None:
            server = stack.enter_context(
                deploy(LaunchSpec(target=f"gymnasium:{ENV_ID}"), LocalProvider(workers=WORKERS))
            )
            options.base_url, options.api_key = server.url, server.api_key
        for seed in options.seeds:
            systems = ["served", "in process"] if options.compare else ["served"]
            for system in systems if seed % 2 else systems[::-1]:  # alternate which one is first
                run = train(served(options) if system == "served" else in_process(), seed, options.steps)
                run["system"] = system
                runs.append(run)
                print("{system}, seed {seed}: {return:.1f} in {wall_s:.1f} s".format(**run), flush=True)
    result: dict[str, Any] = {"worst_return": min(run["return"] for run in runs)}
    if options.compare:
        wall = {name: sum(run["wall_s"] for run in runs if run["system"] == name) for name in systems}
        result["ratio"] = wall["served"] / wall["in process"]
    if options.plot:
        plot(runs, options.plot)
    brief = [{name: value for name, value in run.items() if name != "curve"} for run in runs]
    print(json.dumps({**result, "runs": brief}))
    if result["worst_return"] < SOLVED:
        raise SystemExit(f"the mean return of {result['worst_return']:.1f} is less than {SOLVED}")


class Curve(BaseCallback):
    """Records the mean return of the last episodes after each rollout.

    Attributes:
        points: Pairs of the number of steps and the mean return.
    """

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        if episodes:
            self.points.append((self.num_timesteps, float(np.mean([episode["r"] for episode in episodes]))))


def train(envs: VectorEnv, seed: int, steps: int) -> dict[str, Any]:
    """Trains once. Returns the mean return of the final evaluation, the training time, and the curve."""
    environments = VecMonitor(SB3VecEnv(envs))
    curve = Curve()
    # The rest are the defaults of Stable-Baselines3: 2,048 steps per update, batches of 64, 10 epochs.
    model = PPO(
        "MlpPolicy",
        environments,
        n_steps=2048 // ENVS,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
        stats_window_size=50,
    )
    began = time.perf_counter()
    model.learn(steps, callback=curve)
    wall_s = time.perf_counter() - began
    environments.seed(1000)
    mean, deviation = evaluate_policy(model, environments, n_eval_episodes=EPISODES)
    environments.close()
    return {
        "seed": seed,
        "return": float(mean),
        "deviation": float(deviation),
        "wall_s": wall_s,
        "curve": curve.points,
    }


def served(options: argparse.Namespace) -> RemoteVectorEnv:
    """The environments on a server."""
    return RemoteVectorEnv(
        options.base_url, ENVS, autoreset_mode="SameStep", connections=WORKERS, api_key=options.api_key
    )


def in_process() -> SyncVectorEnv:
    """The same environments in this process, without a server."""
    return SyncVectorEnv([lambda: gymnasium.make(ENV_ID)] * ENVS, autoreset_mode="SameStep")


def plot(runs: list[dict[str, Any]], path: str) -> None:
    """Plots the mean return of the last 50 episodes over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, seed in enumerate(sorted({run["seed"] for run in runs})):
        for run in runs:
            if run["seed"] == seed:
                local = run["system"] != "served"
                style = {"linestyle": (0, (2, 2)), "linewidth": 3.5, "alpha": 0.45} if local else {"linewidth": 1.6}
                label = f"{run['system']}, seed {seed}: {run['return']:.0f} in {run['wall_s']:.1f} s"
                axes.plot(*zip(*run["curve"], strict=True), color=f"C{number}", label=label, **style)
    axes.axhline(SOLVED, color="grey", linewidth=0.8)
    axes.set(xlabel="steps", ylabel="return of the last 50 episodes", ylim=(0, 520), title=f"PPO on {ENV_ID}")
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(figure)


def read_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", help="URL of a running server; by default the example starts one")
    parser.add_argument("--api-key", help="API key of that server, if it needs one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run for each seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps in each run")
    parser.add_argument("--compare", action="store_true", help="also train in one process")
    parser.add_argument("--plot", metavar="FILE", help="plot the returns in this file, as .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
