"""CartPole with many poles in one instance: the physics of Gymnasium's CartPole-v1, written with arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from openenv.arrays import Array
from openenv.batched import BatchedEnvironment
from openenv.types import Action, Observation, State

__all__ = ["CartPoleAction", "CartPoleObservation", "CartPoles"]

_ANGLE = 12 * 2 * np.pi / 360
_POSITION = 2.4
_HIGH = (2 * _POSITION, np.inf, 2 * _ANGLE, np.inf)


class CartPoleAction(Action):
    """Pushes the cart."""

    action: int = Field(ge=0, le=1, description="0: to the left; 1: to the right")


class CartPoleObservation(Observation):
    """Position of the cart, its velocity, angle of the pole, its angular velocity."""

    observation: Annotated[np.ndarray, Array("float32", (4,))] = Field(description="In m, m/s, rad and rad/s")
    truncated: bool = Field(default=False, description="Whether the episode ended by its time limit of 500 steps")


class CartPoles(BatchedEnvironment[CartPoleAction, CartPoleObservation, State]):
    """Balances poles on carts. A reward of 1 for each step; an episode ends when its pole falls, or after 500 steps.

    Subclass it for another `num_envs`.
    """

    num_envs = 256
    execution = "inline"
    max_episode_steps = 500

    def __init__(self) -> None:
        super().__init__()
        self._state = np.zeros((4, self.num_envs))
        self._steps = np.zeros(self.num_envs, np.int64)
        # One generator for each episode, as in as many environments of Gymnasium.
        self._random = [np.random.default_rng(self.rng.getrandbits(64)) for _ in range(self.num_envs)]

    def reset(
        self, seeds: Sequence[int | None], mask: NDArray[np.bool_]
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Starts episodes near the upright position, as Gymnasium does with the same seeds."""
        chosen = np.flatnonzero(mask)
        drawn = np.empty((len(chosen), 4))
        for row, index in zip(drawn, chosen.tolist(), strict=True):
            if (seed := seeds[index]) is not None:
                self._random[index] = np.random.default_rng(seed)
            self._random[index].random(out=row)
        self._state[:, chosen] = (-0.05 + 0.1 * drawn).T
        self._steps[chosen] = 0
        return {"observation": self._state.T.astype(np.float32)}, {}

    def step(self, actions: Mapping[str, Any], mask: NDArray[np.bool_]) -> tuple[Any, Any, Any, Any, Any]:
        """Simulates 0.02 s."""
        x, speed, angle, spin = self._state
        force = np.where(actions["action"] == 1, 10.0, -10.0)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * np.square(spin) * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * np.square(cosine) / 1.1))
        acceleration = push - 0.05 * turn * cosine / 1.1
        moved = np.stack((x + 0.02 * speed, speed + 0.02 * acceleration, angle + 0.02 * spin, spin + 0.02 * turn))
        self._state = moved if mask.all() else np.where(mask, moved, self._state)
        self._steps += mask
        fell = (np.abs(self._state[0]) > _POSITION) | (np.abs(self._state[2]) > _ANGLE)
        late = self._steps >= self.max_episode_steps
        return {"observation": self._state.T.astype(np.float32)}, np.ones(self.num_envs), fell, late, {}
