"""Draws reward_curve.png: a player that knows no word at first learns the answers of its games.

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

__all__ = ["VocabularyPlayer", "episode", "main"]

EPISODES = 3000
EVERY = 250
TEST_GAMES = 176
SEEDS = (1, 2, 3)

Client = SyncEnvClient[WordGameAction, WordGameObservation, WordGameState]


class VocabularyPlayer:
    """Guesses a known word that fits all marks, preferably one with common letters, or else random letters.

    Args:
        seed: Seed of the random letters.

    Attributes:
        known: The answers of earlier games.
    """

    def __init__(self, seed: int) -> None:
        self.known: Counter[str] = Counter()
        self._random = Random(seed)  # noqa: S311 - a game

    def guess(self, observation: WordGameObservation) -> str:
        tried = {row.guess for row in observation.board}
        candidates = [word for word in self.known if word not in tried and fits(word, observation.board)]
        if not candidates:
            return "".join(self._random.choices(ascii_lowercase, k=observation.length))
        letters = Counter(letter for word in candidates for letter in set(word))
        return max(candidates, key=lambda word: (sum(letters[letter] for letter in set(word)), word))

    def learn(self, answer: str) -> None:
        self.known[answer] += 1


def fits(word: str, board: Sequence[Row]) -> bool:
    """Whether all marks are right if the word is the answer."""
    return all(marks_of(row.guess, word) == row.marks for row in board)


def episode(env: Client, player: VocabularyPlayer, learn: bool, **reset_arguments: Any) -> tuple[float, bool]:
    """Plays one game. Returns its reward, and whether the word was found."""
    result, total = env.reset(**reset_arguments), 0.0
    while not result.done:
        result = env.step(WordGameAction(guess=player.guess(result.observation)))
        total += float(result.reward or 0)
    if learn:
        player.learn(str(result.observation.answer))
    return total, result.terminated


def run(seed: int) -> tuple[list[float], list[float]]:
    """The rewards of all training games, and the mean test reward at the start and after every `EVERY` games."""
    train_rewards, test_means = [], []
    with WordGameEnv(env=WordGameEnvironment).sync() as env:
        player = VocabularyPlayer(seed)
        for number in range(EPISODES + 1):
            if number % EVERY == 0:
                rewards = [episode(env, player, False, split="test", index=index)[0] for index in range(TEST_GAMES)]
                test_means.append(sum(rewards) / len(rewards))
            train_rewards.append(episode(env, player, True, split="train", seed=seed * EPISODES + number)[0])
    return train_rewards[:EPISODES], test_means


def main() -> None:
    from matplotlib.figure import Figure

    runs = [run(seed) for seed in SEEDS]
    figure = Figure(figsize=(7.5, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    middles = [start + EVERY / 2 for start in range(0, EPISODES, EVERY)]
    for train_rewards, test_means in runs:
        means = [sum(train_rewards[start : start + EVERY]) / EVERY for start in range(0, EPISODES, EVERY)]
        axes.plot(middles, means, color="#2166ac", alpha=0.8)
        axes.plot(range(0, EPISODES + 1, EVERY), test_means, color="#d6604d", alpha=0.8)
        print(f"train {means[0]:.2f} -> {means[-1]:.2f}, test {test_means[0]:.2f} -> {test_means[-1]:.2f}")  # noqa: T201
    axes.lines[0].set_label(f"train: mean of {EVERY} games")
    axes.lines[1].set_label(f"test: {TEST_GAMES} words that it is never shown")
    axes.set(xlabel="training games", ylabel="reward of a game", title="word_game: a player that learns its words")
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
