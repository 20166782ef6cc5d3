"""Stored episodes are scored again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from openenv import Action, Environment, Observation, State, create_app
from openenv.chat import Chat, TagAnswer
from openenv.errors import InvalidAction, UsageError
from openenv.evals.rescore import RescoreSummary, rescore, stored_episodes
from openenv.replay import app_target
from openenv.rollouts import FunctionModel, rollouts


class Guess(Action):
    number: int


class Hint(Observation):
    text: str


class Guessing(Environment[Guess, Hint, State]):
    """The guess of 1 to 3 that the seed chose is worth 1; four guesses."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    chat = Chat(system="Answer <guess>1</guess>.", observation="{text}", answer=TagAnswer(tag="guess"))
    worth = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._secret = self._left = 0

    def reset(self, seed: int | None = None, **kwargs: Any) -> Hint:
        self._secret, self._left = self.rng.randint(1, 3), 4
        return Hint(text="guess")

    def step(self, action: Guess, **kwargs: Any) -> Hint:
        if action.number > 9:
            raise InvalidAction("a guess has one digit")
        self._left -= 1
        right = action.number == self._secret
        return Hint(text="hm", reward=self.worth * right, done=right or not self._left)

    @property
    def state(self) -> State:
        return State()


class Corrected(Guessing):
    """The same, with half of the reward."""

    worth = 0.5


def summary_of(path: Path, cls: type[Environment[Any, Any, Any]]) -> RescoreSummary:
    """Scores what is stored again, in an environment."""
    summary = RescoreSummary(1e-6)

    async def main() -> None:
        target = app_target("guessing", create_app(cls, name="guessing"))
        try:
            await rescore(stored_episodes(path), lambda _: target, 10.0, 4, summary.add)
        finally:
            await target.aclose()

    asyncio.run(main())
    return summary


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of eight rollouts, whose model guesses 1, 2 and 3."""

    def guess(messages: Sequence[dict[str, Any]]) -> str:
        turns = sum(message["role"] == "assistant" for message in messages)
        return f"<guess>{min(turns + 1, 3)}</guess>"

    async def main() -> None:
        groups = [
            group async for group in rollouts(Guessing, FunctionModel(guess), range(8), folder=tmp_path / "run")
        ]
        assert len(groups) == 8

    asyncio.run(main())
    return tmp_path / "run"


def test_the_scores_of_a_run_repeat(run: Path) -> None:
    facts = summary_of(run, Guessing).facts()
    assert (facts["same"], facts["different"], facts["failed"]) == (8, [], [])
    assert facts["mean_stored"] == facts["mean_again"] == 1.0


def test_a_corrected_grader_gives_other_scores_for_the_same_actions(run: Path) -> None:
    facts = summary_of(run, Corrected).facts()
    assert facts["same"] == 0
    assert [(each["stored"], each["again"]) for each in facts["different"]] == [(1.0, 0.5)] * 8
    assert facts["mean_again"] == 0.5


def test_a_path_without_a_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing"):
        list(stored_episodes(tmp_path / "nothing"))
