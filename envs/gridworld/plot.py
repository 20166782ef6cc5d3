"""Draws reward_curve.png: tabular Q-learning with a table for each level.

In the folder above this one: `python -m gridworld.plot` (it takes a minute, and needs matplotlib).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

from openenv import SyncEnvClient

from .client import GridworldEnv
from .models import MOVES, GridworldAction, GridworldObservation, GridworldState, Move
from .server.gridworld_environment import GridworldEnvironment

__all__ = ["Table", "episode", "main"]

EPISODES = 400
EVERY = 20
LEVELS = range(5)
EXPLORATION_RATE = 0.2
"""The share of random moves in the first episode. It falls to 0 over three quarters of the episodes."""

Client = SyncEnvClient[GridworldAction, GridworldObservation, GridworldState]
_State = tuple[tuple[int, int], bool]


class Table:
    """Values of each move in each cell, with and without the key, from Q-learning.

    Args:
        seed: Seed of the random moves.
        rate: Learning rate.
        discount: Discount factor.

    Attributes:
        exploration_rate: Probability of a random move.
    """

    def __init__(self, seed: int, rate: float = 0.5, discount: float = 0.98) -> None:
        self._values: defaultdict[_State, dict[Move, float]] = defaultdict(lambda: dict.fromkeys(MOVES, 0.0))
        self._random = Random(seed)  # noqa: S311 - a game
        self._rate, self._discount, self.exploration_rate = rate, discount, EXPLORATION_RATE

    def move(self, observation: GridworldObservation) -> Move:
        if self._random.random() < self.exploration_rate:
            return self._random.choice(MOVES)
        values = self._values[_state_of(observation)]
        best = max(values.values())
        return self._random.choice([move for move in MOVES if values[move] == best])

    def learn(self, before: GridworldObservation, move: Move, reward: float, after: GridworldObservation) -> None:
        # A truncated episode would have continued: only a terminal state has no further value.
        future = 0.0 if after.terminated else max(self._values[_state_of(after)].values())
        values = self._values[_state_of(before)]
        values[move] += self._rate * (reward + self._discount * future - values[move])


def _state_of(observation: GridworldObservation) -> _State:
    return observation.position, observation.has_key


def episode(env: Client, table: Table, **reset_arguments: Any) -> float:
    """Plays one episode, and learns from it. Returns its return."""
    result, total = env.reset(**reset_arguments), 0.0
    while not result.done:
        before = result.observation
        move = table.move(before)
        result = env.step(GridworldAction(move=move))
        table.learn(before, move, float(result.reward or 0), result.observation)
        total += float(result.reward or 0)
    return total


def main() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    middles = [start + EVERY / 2 for start in range(0, EPISODES, EVERY)]
    curves, optimal = [], []
    with GridworldEnv(env=GridworldEnvironment).sync() as env:
        for level in LEVELS:
            table = Table(seed=level)
            rewards = []
            for number in range(EPISODES):
                table.exploration_rate = EXPLORATION_RATE * max(0.0, 1 - number / (0.75 * EPISODES))
                rewards.append(episode(env, table, split="train", index=level))
            optimal.append(env.state().optimal_return)
            curves.append([sum(rewards[start : start + EVERY]) / EVERY for start in range(0, EPISODES, EVERY)])
            axes.plot(middles, curves[-1], color="#2166ac", alpha=0.25, linewidth=1)
            print(f"train/{level}: {curves[-1][0]:.2f} -> {curves[-1][-1]:.2f} of {optimal[-1]:.2f}")  # noqa: T201
    mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    axes.plot(middles, mean, color="#2166ac", linewidth=2, label=f"mean of {len(curves)} levels (thin: each)")
    best = sum(optimal) / len(optimal)
    axes.axhline(best, color="#444444", linestyle="--", linewidth=1, label=f"shortest ways: {best:.2f}")
    axes.set(xlabel="walks in the level", ylabel=f"reward, mean of {EVERY}", title="gridworld: tabular Q-learning")
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
