"""Environments that play many episodes, for tests."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI
from pydantic import Field

from openenv import BatchedEnvironment, create_app
from openenv.arrays import Array
from openenv.envs.cartpole import CartPoles
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State


class FewPoles(CartPoles):
    num_envs = 8
    max_episode_steps = 12


class CountAction(Action):
    by: int = Field(ge=-5, le=5)
    word: str = ""
    force: Annotated[np.ndarray, Array("float32", (2,), low=-1, high=1)] = Field(
        default_factory=lambda: np.zeros(2, np.float32)
    )


class CountObservation(Observation):
    total: int
    word: str
    force: Annotated[np.ndarray, Array("float32", (2,))]


class Counters(BatchedEnvironment[CountAction, CountObservation, State]):
    """Adds numbers. An episode ends at 5 or more, and is cut short at -5 or less. It begins at its seed, or 0.

    Attributes:
        calls: The masks of all steps of all instances.
        made: All instances.
        on_step: Called in each step, on its thread.
    """

    num_envs = 4
    calls: list[list[bool]] = []
    made: list[Counters] = []
    on_step: Any = staticmethod(lambda: None)

    def __init__(self) -> None:
        type(self).made.append(self)
        self.totals = np.zeros(self.num_envs, np.int64)
        self.words = [""] * self.num_envs
        self.forces = np.zeros((self.num_envs, 2), np.float32)
        self.closed = threading.Event()

    def reset(self, seeds: Sequence[int | None], mask: Any, start: int = 0) -> tuple[Any, Any]:
        for index in np.flatnonzero(mask):
            self.totals[index] = start if seeds[index] is None else seeds[index]
            self.words[index] = "begun"
        return self._observations(), {"begun": mask.astype(np.int64)}

    def step(self, actions: Mapping[str, Any], mask: Any) -> tuple[Any, Any, Any, Any, Any]:
        type(self).calls.append(mask.tolist())
        type(self).on_step()
        self.totals += np.where(mask, actions["by"], 0)
        for index in np.flatnonzero(mask):
            self.words[index] = actions["word"][index] if "word" in actions else ""
        if "force" in actions:
            self.forces[mask] = actions["force"][mask]
        # The arrays of this instance itself: what is sent must not change with the next call.
        infos = {"tripled": self.totals * 3}
        return self._observations(), self.totals / 2, self.totals >= 5, self.totals <= -5, infos

    def close(self) -> None:
        self.closed.set()

    def _observations(self) -> dict[str, Any]:
        return {"total": self.totals, "word": self.words, "force": self.forces}


def app_of(environment: Any, **settings: Any) -> FastAPI:
    return create_app(environment, settings=ServerSettings(**settings))
