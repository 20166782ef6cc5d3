"""Rubrics that judge a whole episode when it is over."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from .._scoring import finite_score, rubric_label
from .base import Rubric, Steps, settle, settled

logger = logging.getLogger(__name__)


class TrajectoryRubric(Rubric):
    """Remembers the steps of an episode and judges them at its end.

    The environment resets it at the start of each episode (`self._reset_rubric()` in its `reset`). Every step is kept
    until then, without a bound: an episode of a million steps is a list of a million pairs.

    Args:
        intermediate_reward: The score of each step before the last.
    """

    intermediate_reward: float = 0.0
    _final: float | None = None

    def __init__(self, intermediate_reward: float = 0.0):
        super().__init__()
        self.intermediate_reward = intermediate_reward

    @abstractmethod
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Any:
        """The score of an episode, or an awaitable of it.

        Args:
            trajectory: Its steps, as pairs of action and observation.
        """

    @abstractmethod
    def compute_step_rewards(self) -> Any:
        """The reward of each step so far, as shares of the episode's score."""

    @property
    def _trajectory(self) -> list[tuple[Any, Any]]:
        # Made at first use, so that a subclass without `super().__init__()` has one too.
        steps: list[tuple[Any, Any]] = self.__dict__.setdefault("_steps", [])
        return steps

    @_trajectory.setter
    def _trajectory(self, steps: list[tuple[Any, Any]]) -> None:
        self.__dict__["_steps"] = steps

    @property
    def trajectory(self) -> list[tuple[Any, Any]]:
        """The steps since the last reset, as pairs of action and observation."""
        return list(self._trajectory)

    def forward(self, action: Any, observation: Any) -> Any:
        """The intermediate reward; the score of the trajectory when the observation is done."""
        if self._final is not None:
            logger.warning(
                "%s: a step after the end of the episode joins that episode's trajectory: "
                "call self._reset_rubric() in the environment's reset()",
                rubric_label(self),
            )
            self._final = None
        self._trajectory.append((action, observation))
        done = observation.get("done") if isinstance(observation, Mapping) else getattr(observation, "done", False)
        return settle(self._judging()) if done else self.intermediate_reward

    def _judging(self) -> Steps[float]:
        self._final = finite_score((yield self.score_trajectory(self.trajectory)), self)
        return self._final

    def reset(self) -> Any:
        """Forgets the steps, in this rubric and in all below it."""
        self._trajectory, self._final = [], None
        return super().reset()

    def state_dict(self) -> dict[str, Any]:
        """The settings, without the steps."""
        return {"intermediate_reward": self.intermediate_reward, **super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.intermediate_reward = state.get("intermediate_reward", self.intermediate_reward)
        super().load_state_dict(state)


class ExponentialDiscountingTrajectoryRubric(TrajectoryRubric):
    """Discounts the score R of an episode of T steps: `r_t = gamma ** (T - 1 - t) * R`.

    Args:
        gamma: In [0, 1]; 1 gives each step the whole score, 0 the last one alone.
        intermediate_reward: As in `TrajectoryRubric`.

    Raises:
        ValueError: `gamma` is not in [0, 1].
    """

    gamma: float = 0.99

    def __init__(self, gamma: float = 0.99, intermediate_reward: float = 0.0):
        super().__init__(intermediate_reward)
        self.gamma = _checked_gamma(gamma)

    @settled
    def compute_step_rewards(self) -> Steps[list[float]]:
        """The discounted rewards, one for each step so far.

        Returns:
            A list; an awaitable of it if `score_trajectory` is asynchronous and the episode is not over yet.
        """
        steps = self.trajectory
        if not steps:
            return []
        score = self._final
        if score is None:
            score = finite_score((yield self.score_trajectory(steps)), self)
        return [self.gamma ** (len(steps) - 1 - at) * score for at in range(len(steps))]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "gamma": self.gamma}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gamma = _checked_gamma(state.get("gamma", self.gamma))
        super().load_state_dict(state)


def _checked_gamma(gamma: float) -> float:
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be in [0, 1], got {gamma}")
    return gamma
