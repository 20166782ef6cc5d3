"""Draws reward_curve.png: one bandit for each kind of function learns which program to submit.

In the folder above this one: `python -m python_sandbox.plot` (it takes minutes, and needs matplotlib and bubblewrap).
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from random import Random

from openenv import SyncEnvClient

from .client import PythonSandboxEnv
from .models import PythonSandboxAction, PythonSandboxObservation, PythonSandboxState
from .server.python_sandbox_environment import PythonSandboxEnvironment

__all__ = ["Bandit", "evaluate", "main", "train"]

EPISODES = 400
EVERY = 20
SEEDS = 3

Client = SyncEnvClient[PythonSandboxAction, PythonSandboxObservation, PythonSandboxState]

# The bandit knows these programs, and learns which one solves which task. N and M are the numbers in the task.
PROGRAMS = [
    "def NAME(x): return sum(v for v in x if v % N == 0)",
    "def NAME(x): return sum(v for v in x if v > N)",
    "def NAME(x): return x[N % len(x):] + x[:N % len(x)] if x else []",
    "def NAME(x): return x[-N:] + x[:-N]",
    "def NAME(x): return ''.join(chr((ord(c) - 97 + N) % 26 + 97) if c.islower() else c for c in x)",
    "def NAME(x): return x[::-1]",
    "def NAME(x):\n s = ''\n while x >= N: x, r = divmod(x, N); s = str(r) + s\n return str(x) + s",
    "def NAME(x): return sum(len(w) > N for w in x.split())",
    "def NAME(x): return len(x.split())",
    "def NAME(x): return [min(max(v, N), M) for v in x]",
    "import itertools\ndef NAME(x): return [[k, len(list(g))] for k, g in itertools.groupby(x)]",
    "def NAME(x): return [c for v in x for c in (NAME(v) if isinstance(v, list) else [v + N])]",
    "def NAME(x): return sorted(x, reverse=True)[:N]",
    "def NAME(x): return sorted(x)[-N:]",
    "def NAME(x):\n for s in range(100):\n  if x <= 1: return s\n  x = 3 * x + N if x % 2 else x // 2\n return 100",
    "def NAME(x): return x",
]


class Bandit:
    """Chooses the program with the highest mean reward for a function so far, and sometimes a random one.

    Args:
        seed: Seed of the random choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - a game
        # An untried program counts as a good one, so the bandit tries each.
        self._means: defaultdict[str, list[float]] = defaultdict(lambda: [1.0] * len(PROGRAMS))
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(PROGRAMS))

    def choose(self, family: str, exploration: float) -> int:
        if self._random.random() < exploration:
            return self._random.randrange(len(PROGRAMS))
        means = self._means[family]
        return self._random.choice([index for index, each in enumerate(means) if each == max(means)])

    def learn(self, family: str, index: int, reward: float) -> None:
        self._counts[family][index] += 1
        self._means[family][index] += (reward - self._means[family][index]) / self._counts[family][index]


def episode(env: Client, seen: PythonSandboxObservation, index: int) -> float:
    """Submits a program with the numbers of the task, and returns its reward."""
    said = seen.task.split("Examples:")[0]
    numbers = re.findall(r"(?<![\w])-?\d+", said.replace("3n", "").replace("100 if", ""))
    if seen.family == "collatz":
        numbers = re.findall(r"\+ (\d+)", said)
    words = {"N": numbers[0] if numbers else "1", "M": numbers[-1] if numbers else "1", "NAME": seen.family}
    code = re.sub(r"\b(NAME|N|M)\b", lambda found: words[found[0]], PROGRAMS[index])
    return float(env.step(PythonSandboxAction(kind="submit", code=code)).reward or 0.0)


def train(env: Client, bandit: Bandit, episodes: int) -> list[float]:
    """Learns from the tasks of the split train in turn, and returns their rewards."""
    rewards = []
    for number in range(episodes):
        seen = env.reset(split="train", index=number % 200).observation
        index = bandit.choose(seen.family, 0.05 * (1 - number / episodes))
        rewards.append(episode(env, seen, index))
        bandit.learn(seen.family, index, rewards[-1])
    return rewards


def evaluate(env: Client, bandit: Bandit, episodes: int = 100) -> float:
    """The mean reward of tasks of the split test, without exploration."""
    total = 0.0
    for number in range(episodes):
        seen = env.reset(split="test", index=number).observation
        total += episode(env, seen, bandit.choose(seen.family, 0.0))
    return total / episodes


def main() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), dpi=80, layout="constrained")
    axes = figure.subplots()
    middles = [start + EVERY / 2 for start in range(0, EPISODES, EVERY)]
    curves, ends = [], []
    with PythonSandboxEnv(env=PythonSandboxEnvironment).sync() as env:
        for seed in range(SEEDS):
            bandit = Bandit(seed)
            rewards = train(env, bandit, EPISODES)
            ends.append(evaluate(env, bandit))
            curves.append([sum(rewards[start : start + EVERY]) / EVERY for start in range(0, EPISODES, EVERY)])
            axes.plot(middles, curves[-1], color="#2166ac", alpha=0.25, linewidth=1)
            print(f"seed {seed}: {curves[-1][0]:.2f} -> {curves[-1][-1]:.2f}, test {ends[-1]:.2f}")  # noqa: T201
    mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    axes.plot(middles, mean, color="#2166ac", linewidth=2, label=f"mean of {SEEDS} seeds (thin: each)")
    test = sum(ends) / len(ends)
    axes.axhline(test, color="#444444", linestyle="--", linewidth=1, label=f"then, on the test split: {test:.2f}")
    axes.set(xlabel="episodes", ylabel=f"reward, mean of {EVERY}", title="python_sandbox: a bandit chooses programs")
    axes.set_ylim(0, 1.05)
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
