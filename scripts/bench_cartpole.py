"""Compare CartPole-v1 through the vector client with Gymnasium's vector environments, in alternation.

    python scripts/bench_cartpole.py [--envs 256] [--workers 2] [--rounds 3] [--duration 2]

All three get the same random actions, and reset a finished environment with its next step. Every step ends with
arrays of all observations, rewards and dones, as a trainer would use them. Gymnasium's `AsyncVectorEnv` runs a
process for each environment, its `SyncVectorEnv` runs all of them in this one, without a server. The last line of
the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from openenv import GenericEnvClient
from openenv.bench.load import run_loop
from openenv.bench.machine import machine
from openenv.bench.served import ServedTarget
from openenv.client.vector import VectorEnvClient

ENV_ID = "CartPole-v1"
# Number of batches of actions, which are drawn before the measurement and repeated.
BATCHES = 64
WARM_UP = 10

Measure = Callable[[argparse.Namespace, np.ndarray], float]


def main() -> None:
    """Measures, and prints a table and a line of JSON."""
    options = _options()
    log = Console(stderr=True, highlight=False)
    actions = np.random.default_rng(0).integers(0, 2, (BATCHES, options.envs))
    systems: dict[str, Measure] = {"ours": _ours, "async": _gymnasium("async"), "sync": _gymnasium("sync")}
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(options.rounds):
        for name, measure in systems.items():
            rates[name].append(measure(options, actions))
            log.print(f"{name}: {rates[name][-1]:,.0f} steps a second")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratios = {name: medians["ours"] / medians[name] for name in ("async", "sync")}
    Console(highlight=False).print(_table(medians, options))
    document = {
        "command": " ".join(sys.argv),
        "machine": machine(),
        "envs": options.envs,
        "workers": options.workers,
        "steps_per_second": rates,
        "ratios": ratios,
    }
    sys.stdout.write(json.dumps(document) + "\n")


def _ours(options: argparse.Namespace, actions: np.ndarray) -> float:
    """Steps per second through the vector client, with one connection per worker."""
    batches = [[{"action": int(action)} for action in batch] for batch in actions]
    with ServedTarget(f"gymnasium:{ENV_ID}", options.workers, max_sessions=options.envs) as server:
        return run_loop(_drive(server.url, options, batches))


async def _drive(url: str, options: argparse.Namespace, batches: list[list[dict[str, int]]]) -> float:
    client = VectorEnvClient(
        GenericEnvClient,
        base_url=url,
        num_envs=options.envs,
        connections=options.workers,
        autoreset_mode="next_step",
    )
    async with client:
        await client.reset()

        async def step(number: int) -> None:
            results = await client.step(batches[number % BATCHES])
            for result in results:
                if result.error is not None:
                    raise result.error
            np.array([result.observation["observation"] for result in results], dtype=np.float32)
            np.array([result.reward for result in results], dtype=np.float64)
            np.array([result.done for result in results])

        for number in range(WARM_UP):
            await step(number)
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < options.duration:
            await step(done)
            done += 1
        return done * options.envs / (time.perf_counter() - began)


def _gymnasium(mode: str) -> Measure:
    def measure(options: argparse.Namespace, actions: np.ndarray) -> float:
        """Steps per second of Gymnasium's vector environment."""
        environments: Any = gymnasium.make_vec(ENV_ID, options.envs, vectorization_mode=mode)
        try:
            environments.reset(seed=0)
            for number in range(WARM_UP):
                environments.step(actions[number])
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < options.duration:
                environments.step(actions[done % BATCHES])
                done += 1
            return done * options.envs / (time.perf_counter() - began)
        finally:
            environments.close()

    return measure


def _table(medians: dict[str, float], options: argparse.Namespace) -> Table:
    title = f"{ENV_ID}, {options.envs} environments, {options.workers} workers: median of {options.rounds}"
    table = Table(title=title, title_justify="left")
    for name in ("", "steps a second", "ours / this"):
        table.add_column(name, justify="right" if name else "left")
    labels = {"ours": "openenv, vector client", "async": "AsyncVectorEnv", "sync": "SyncVectorEnv"}
    for name, rate in medians.items():
        table.add_row(labels[name], f"{rate:,.0f}", f"{medians['ours'] / rate:.2f}")
    return table


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares the vector client with Gymnasium's vector environments.")
    parser.add_argument("--envs", type=int, default=256, help="number of environments")
    parser.add_argument("--workers", type=int, default=2, help="workers of the server")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--duration", type=float, default=2.0, help="duration of each measurement in seconds")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
