"""Draws reward_curve.png: least squares learns the number of legs of each animal from questions and right answers.

In the folder above this one: `python -m reasoning.plot` (it takes some seconds, and needs matplotlib).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from openenv import SyncEnvClient

from .client import ReasoningEnv
from .models import ReasoningAction, ReasoningObservation, ReasoningState
from .server.reasoning_environment import ReasoningEnvironment

__all__ = ["Counter", "episode", "main"]

TASK = "leg_counting"
QUESTIONS = 300
EVERY = 25

Client = SyncEnvClient[ReasoningAction, ReasoningObservation, ReasoningState]


class Counter:
    """Answers with a weighted sum of the numbers in a question. The word after a number determines its weight."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}
        self._seen: list[tuple[dict[str, int], float]] = []
        self._weights: Any = np.zeros(0)

    def answer(self, question: str) -> str:
        known = {self._words[word]: number for word, number in amounts(question).items() if word in self._words}
        total = sum(self._weights[place] * number for place, number in known.items() if place < len(self._weights))
        return str(round(float(total)))

    def learn(self, question: str, answer: str) -> None:
        counted = amounts(question)
        for word in counted:
            self._words.setdefault(word, len(self._words))
        self._seen.append((counted, float(answer)))
        table = np.zeros((len(self._seen), len(self._words)))
        for row, (numbers, _) in enumerate(self._seen):
            for word, number in numbers.items():
                table[row, self._words[word]] = number
        self._weights = np.linalg.lstsq(table, np.array([total for _, total in self._seen]), rcond=None)[0]


def amounts(question: str) -> dict[str, int]:
    """The numbers in a question, by the words after them: `13 woodlouses, 8 leechs` ..."""
    return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z ]+?)(?=[,?]| and )", question)}


def episode(env: Client, counter: Counter, learn: bool, **of_reset: Any) -> float:
    """Answers one question, and returns the reward. With `learn`, the counter then learns from the right answer."""
    question = env.reset(**of_reset).observation.question
    result = env.step(ReasoningAction(answer=counter.answer(question)))
    if learn:
        counter.learn(question, str(env.state().answer))
    return float(result.reward or 0)


def main() -> None:
    from matplotlib.figure import Figure

    trained, tested = [], []
    with ReasoningEnv(env=ReasoningEnvironment).sync() as env:
        counter = Counter()
        for number in range(QUESTIONS + 1):
            if number % EVERY == 0:
                rewards = [episode(env, counter, False, split=f"test/{TASK}", index=index) for index in range(100)]
                tested.append(sum(rewards) / len(rewards))
            trained.append(episode(env, counter, True, split=f"train/{TASK}", index=number))
    starts = range(0, QUESTIONS, EVERY)
    means = [sum(trained[start : start + EVERY]) / EVERY for start in starts]
    print(f"train {means[0]:.2f} -> {means[-1]:.2f}, test {tested[0]:.2f} -> {tested[-1]:.2f}")  # noqa: T201
    figure = Figure(figsize=(7.5, 3.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    label = f"train: mean of {EVERY} questions, each seen once"
    axes.plot([start + EVERY / 2 for start in starts], means, color="#2166ac", label=label)
    axes.plot(range(0, QUESTIONS + 1, EVERY), tested, color="#d6604d", label="test: 100 questions never learned from")
    axes.set(xlabel="training questions", ylabel="reward", title="reasoning, task leg_counting: least squares")
    axes.grid(color="#e4e4e4")
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).with_name("reward_curve.png"), facecolor="white")


if __name__ == "__main__":
    main()
