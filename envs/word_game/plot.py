"""Makes reward_curve.png: a player that begins without one word, and learns from the words it is shown.

In the folder above this one: `python -m word_game.plot` (it takes a minute, and needs matplotlib).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

from openenv import SyncEnvClient

from .client import WordGameEnv
from .models import Row, WordGameAction, WordGameObservation, WordGameState
from .server.marking import marks_of
from .server.word_game_environment import WordGameEnvironment

__all__ = ["Reader", "episode", "main"]

EPISODES = 3000
EVERY = 250
TESTED = 176
SEEDS = (1, 2, 3)

Client = SyncEnvClient[WordGameAction, WordGameObservation, WordGameState]


class Reader:
    """Guesses words it has seen that explain all marks; the ones of common letters first. Else it makes one up."""

    def __init__(self, seed: int) -> None:
        self.known: Counter[str] = Counter()
        self._random = Random(seed)  # noqa: S311 - a game

    def guess(self, seen: WordGameObservation) -> str:
        tried = {row.guess for row in seen.board}
        fitting = [word for word in self.known if word not in tried and fits(word, seen.board)]
        if not fitting:
            return "".join(self._random.choices(ascii_lowercase, k=seen.length))
        letters = Counter(letter for word in fitting for letter in set(word))
        return max(fitting, key=lambda word: (sum(letters[letter] for letter in set(word)), word))

    def learn(self, answer: str) -> None:
        self.known[answer] += 1


def fits(word: str, board: Sequence[Row]) -> bool:
    """Whether a word would have been marked so."""
    return all(marks_of(row.guess, word) == row.marks for row in board)


def episode(env: Client, reader: Reader, learn: bool, **of_reset: Any) -> tuple[float, bool]:
    """One game; returns its reward, and whether the word was found."""
    result, total = env.reset(**of_reset), 0.0
    while not result.done:
        result = env.step(WordGameAction(guess=reader.guess(result.observation)))
        total += float(result.reward or 0)
    if learn:
        reader.learn(str(result.observation.answer))
    return total, result.terminated


def run(seed: int) -> tuple[list[float], list[float]]:
    """Rewards of all training games, and the mean of the test games at the beginning and after each `EVERY`."""
    trained, tested = [], []
    with WordGameEnv(env=WordGameEnvironment).sync() as env:
        reader = Reader(seed)
        for number in range(EPISODES + 1):
            if number % EVERY == 0:
                rewards = [episode(env, reader, False, split="test", index=index)[0] for index in range(TESTED)]
                tested.append(sum(rewards) / len(rewards))
            trained.append(episode(env, reader, True, split="train", seed=seed * EPISODES + number)[0])
    return trained[:EPISODES], tested


def main() -> None:
    from matplotlib.figure import Figure

    runs = [run(seed) for seed in SEEDS]
    figure = Figure(figsize=(7.5, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    middles = [start + EVERY / 2 for start in range(0, EPISODES, EVERY)]
    for trained, tested in runs:
        means = [sum(trained[start : start + EVERY]) / EVERY for start in range(0, EPISODES, EVERY)]
        axes.plot(middles, means, color="#2166ac", alpha=0.8)
        axes.plot(range(0, EPISODES + 1, EVERY), tested, color="#d6604d", alpha=0.8)
        print(f"train {means[0]:.2f} -> {means[-1]:.2f}, test {tested[0]:.2f} -> {tested[-1]:.2f}")  # noqa: T201
    axes.lines[0].set_label(f"train: mean of {EVERY} games")
    axes.lines[1].set_label(f"test: {TESTED} words that it is never shown")
    axes.set(xlabel="training games", ylabel="reward of a game", title="word_game: a player that learns its words")
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
