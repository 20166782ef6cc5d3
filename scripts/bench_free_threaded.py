"""Compare threads that run side by side with threads that take turns: steps a second of one server, of a synchronous
environment in pure Python, with and without the interpreter lock, in turns.

out/pythons/3.13t/bin/python scripts/bench_free_threaded.py [--rounds N] [--sessions N] [--duration S]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from openenv import Action, Environment, Observation, State


class Counting(Environment[Action, Observation, State]):
    """Its step is about 0.2 ms of arithmetic: it holds an interpreter lock, if there is one."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        total = 0
        for number in range(2_000):
            total += number & 7
        return Observation(reward=float(total))

    @property
    def state(self) -> State:
        return State()


def measure(lock: bool, sessions: int, duration_s: float) -> float:
    """Steps a second.

    Args:
        lock: Whether the server and its clients have the interpreter lock.
        sessions: Sessions of one vector client.
        duration_s: Length of the measurement.
    """
    # Clients are processes of their own, in which one thread does all the work.
    environment = {**os.environ, "PYTHON_GIL": "1" if lock else "0", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "openenv", "bench", "steps", "--serve", "bench_free_threaded:Counting"]
    command += ["--vector", str(sessions), "--duration", str(duration_s), "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603 - this program
    return float(json.loads(done.stdout)["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--duration", type=float, default=4.0)
    given = parser.parse_args()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        sys.exit("this Python always has the lock: start a free-threaded one, as scripts/install_pythons has")
    ratios = []
    for number in range(given.rounds):
        locked, free = (measure(lock, given.sessions, given.duration) for lock in (True, False))
        ratios.append(free / locked)
        print(f"round {number + 1}: {locked:,.0f} steps/s with the lock, {free:,.0f} without: {ratios[-1]:.2f} times")
    print(f"median: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
