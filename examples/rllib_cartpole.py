"""PPO of RLlib learns CartPole-v1 through `RemoteVectorEnv`: each environment runner uses sessions of a server.

    python examples/rllib_cartpole.py                  # starts a server with 2 workers
    python examples/rllib_cartpole.py --base-url URL   # uses a running server: openenv serve gymnasium:CartPole-v1

The example needs `pip install 'openenv[gymnasium]' 'ray[rllib]' torch matplotlib`. The last line of the output is
JSON. With `--plot FILE` it plots the return.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.providers import LaunchSpec, LocalProvider, deploy

ENV_ID = "CartPole-v1"


def main() -> None:
    """Trains, prints the result, and plots it."""
    options = read_options()
    with ExitStack() as stack:
        if options.base_url is None:
            server = stack.enter_context(deploy(LaunchSpec(target=f"gymnasium:{ENV_ID}"), LocalProvider(workers=2)))
            options.base_url, options.api_key = server.url, server.api_key
        ray.init(num_cpus=max(2, options.runners + 1), include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        curve = train(options)
    if options.plot:
        plot(curve, options.plot)
    print(json.dumps({"first": curve[0], "last": curve[-1], "best": max(value for _, value in curve)}))


def make(config: dict[str, Any]) -> RemoteVectorEnv:
    """Makes the environments of a runner; RLlib adds their number to `env_config`."""
    return RemoteVectorEnv(config["base_url"], config["num_envs"], api_key=config["api_key"])


def train(options: argparse.Namespace) -> list[tuple[int, float]]:
    """Trains. Returns the number of steps so far and the mean return of recent episodes, for each iteration."""
    register_env("served", make)
    config = (
        PPOConfig()
        .environment("served", env_config={"base_url": options.base_url, "api_key": options.api_key})
        .env_runners(
            num_env_runners=options.runners, num_envs_per_env_runner=8, gym_env_vectorize_mode="vector_entry_point"
        )
        .training(lr=1e-3, train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=10, gamma=0.98)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    curve: list[tuple[int, float]] = []
    began = time.perf_counter()
    try:
        for number in range(1, options.iterations + 1):
            metrics: dict[str, Any] = algorithm.train()["env_runners"]
            curve.append((int(metrics["num_env_steps_sampled_lifetime"]), float(metrics["episode_return_mean"])))
            print(
                f"iteration {number}: return {curve[-1][1]:.1f} after {curve[-1][0]:,} steps, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
    finally:
        algorithm.stop()
    return curve


def plot(curve: list[tuple[int, float]], path: str) -> None:
    """Plots the return over the steps."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*curve, strict=True), marker="o", markersize=3)
    axes.set(
        xlabel="steps", ylabel="mean return", ylim=(0, 520), title=f"RLlib's PPO on {ENV_ID}, through RemoteVectorEnv"
    )
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    pyplot.close(figure)


def read_options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", help="URL of a running server; by default the example starts one")
    parser.add_argument("--api-key", help="API key of that server")
    parser.add_argument(
        "--runners", type=int, default=1, help="processes that run environments; 0: only this process"
    )
    parser.add_argument("--iterations", type=int, default=20, help="number of training iterations")
    parser.add_argument("--plot", metavar="FILE", help="plot the return in this file, as .svg or .png")
    return parser.parse_args()


if __name__ == "__main__":
    main()
