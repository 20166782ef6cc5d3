"""An environment of which there are two releases. It imports nothing of the tests, so that it can be copied."""

from __future__ import annotations

import os
from typing import Any

from openenv import Action, Environment, Observation, State

RELEASE = os.environ.get("RELEASE", "1")


class Look(Action):
    """One step.

    Attributes:
        expression: What the step evaluates, as Python.
    """

    expression: str = "None"


class View(Observation):
    release: str
    steps: int
    pid: int
    value: str


class Released(Environment[Look, View, State]):
    """Its episodes end when they are reset."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> View:
        self._steps = 0
        return self._view("None")

    def step(self, action: Look, timeout_s: Any = None, **kwargs: Any) -> View:
        self._steps += 1
        return self._view(action.expression)

    def _view(self, expression: str) -> View:
        return View(
            release=RELEASE,
            steps=self._steps,
            pid=os.getpid(),
            value=repr(eval(expression)),
            reward=1.0,
        )

    @property
    def state(self) -> State:
        return State()
