"""Environments for language models: one of text, one of tools."""

from __future__ import annotations

from typing import Any

import fastmcp

from openenv.environment import Environment
from openenv.mcp import CallToolObservation, MCPEnvironment
from openenv.types import Action, Observation, State

__all__ = ["Counter", "Guess"]


class GuessAction(Action):
    guess: int


class GuessObservation(Observation):
    text: str


class Guess(Environment[GuessAction, GuessObservation, State]):
    """A number from 1 to 10 is to be guessed; a task sets it."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **kwargs: Any,
    ) -> GuessObservation:
        self._number = self.rng.randint(1, 10) if index is None else index + 1
        return GuessObservation(text="Guess a number from 1 to 10.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **kwargs: Any) -> GuessObservation:
        if action.guess == 99:
            raise ValueError("out of order")
        right = action.guess == self._number
        said = "Right." if right else "Too low." if action.guess < self._number else "Too high."
        return GuessObservation(text=said, reward=1.0 if right else -0.125, done=right)

    @property
    def state(self) -> State:
        return State()

    @staticmethod
    def list_splits() -> list[str]:
        return ["test"]

    @staticmethod
    def num_tasks(split: str) -> int:
        return {"test": 4}[split]


class Counter(MCPEnvironment):
    """Pays what is added, until it is 3 or more."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: Any = fastmcp.FastMCP("counter")
        self.count = 0

        @server.tool()
        def add(by: int = 1) -> int:
            """Adds to the count."""
            if by < 0:
                raise ValueError("never less")
            self.count += by
            return self.count

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.count = 0
        return Observation()

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        before = self.count
        seen = super().step(action, timeout_s, **kwargs)
        if isinstance(seen, CallToolObservation):
            seen.reward = float(self.count - before)
            seen.done = self.count >= 3
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()
