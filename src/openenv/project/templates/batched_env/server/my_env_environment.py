"""The environment: replace this class with your own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openenv import BatchedEnvironment
from openenv.types import State

from ..models import MyAction, MyObservation

__all__ = ["MyEnvironment"]

STRIDE = 0.1
REACH = 0.1
MOST_STEPS = 100


class MyEnvironment(BatchedEnvironment[MyAction, MyObservation, State]):
    """Push a puck to its goal. Every step costs the distance that is left; the episode ends after 100 steps.

    One instance plays `num_envs` episodes: each call takes and returns arrays with a row for each episode.
    """

    num_envs = 256
    # This class starts an episode only in `reset`. The server can do that for a client that wants it at the end of
    # each episode.
    autoreset = "disabled"

    def __init__(self) -> None:
        super().__init__()
        shape = (self.num_envs, 2)
        self._position, self._goal = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._steps = np.zeros(self.num_envs, np.int64)
        # One generator for each episode, so that its numbers do not depend on the other episodes.
        self._random = [np.random.default_rng() for _ in range(self.num_envs)]

    def reset(self, seeds: list[int | None], mask: NDArray[np.bool_]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts episodes.

        Args:
            seeds: The seed of each episode; None to continue its random numbers.
            mask: Which episodes start. The others must not change.

        Returns:
            The observations of all episodes: for each field, an array with num_envs rows. And `infos`, which may
            have further arrays.
        """
        for index in np.flatnonzero(mask):
            if seeds[index] is not None:
                self._random[index] = np.random.default_rng(seeds[index])
            places = self._random[index].uniform(-1, 1, (2, 2))
            self._position[index], self._goal[index] = places
        self._steps[mask] = 0
        return self._observed(), {}

    def step(
        self, actions: dict[str, Any], mask: NDArray[np.bool_]
    ) -> tuple[dict[str, Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one step in each episode of the mask. The others must not change.

        Args:
            actions: For each field, an array with num_envs rows. They are already checked: of the declared type and
                shape, and within their bounds.
            mask: Which episodes step.

        Returns:
            Observations, rewards, terminated, truncated and infos, with num_envs rows each.
        """
        pushed = np.clip(self._position + STRIDE * actions["push"], -1, 1)
        self._position = np.where(mask[:, np.newaxis], pushed, self._position).astype(np.float32)
        self._steps += mask
        distance = np.linalg.norm(self._goal - self._position, axis=1)
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        terminated = distance < REACH
        truncated = ~terminated & (self._steps >= MOST_STEPS)
        return self._observed(), -distance, terminated, truncated, {}

    def _observed(self) -> dict[str, Any]:
        # Copies, since the next call changes these arrays, and a client may still hold them.
        return {"position": self._position.copy(), "goal": self._goal.copy()}
