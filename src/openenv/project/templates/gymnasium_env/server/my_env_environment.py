"""The environment: replace this class with your own.

`openenv serve gymnasium:CartPole-v1` serves an environment of Gymnasium without a project. A project like this one
has named and typed fields instead of arrays, and lets you change rewards, and add texts for a language model or a
picture.
"""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

import gymnasium

from openenv.environment import Environment
from openenv.errors import ResetRequired

from ..models import MyAction, MyObservation, MyState

__all__ = ["MyEnvironment"]

ENV_ID = "CartPole-v1"
PUSHES = {"left": 0, "right": 1}


class MyEnvironment(Environment[MyAction, MyObservation, MyState]):
    """Keep a pole upright by pushing the cart under it. Every step is worth 1; the episode ends after 500 steps."""

    # A server may run many instances, since they share no data. Keep all data in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True
    # A step takes microseconds, less than the cost of a thread. Remove this line if your steps take longer.
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self._env = gymnasium.make(ENV_ID)
        self._state = MyState(env_id=ENV_ID)
        self._playing = False
        self._seen = [0.0] * 4

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyObservation:
        """Puts the pole almost upright.

        Args:
            seed: An integer of at least 0: the same seed gives the same start, which is that of Gymnasium itself.
            episode_id: Id of the episode.
        """
        seen, _ = self._env.reset(seed=seed)
        self._state = MyState(episode_id=episode_id or uuid4().hex, env_id=ENV_ID, seed=seed)
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return self._observed(seen)

    def step(self, action: MyAction, timeout_s: float | None = None, **kwargs: Any) -> MyObservation:
        """Pushes the cart."""
        if not self._playing:
            raise ResetRequired("no pole is standing: call reset() to begin")
        seen, reward, terminated, truncated, _ = self._env.step(PUSHES[action.push])
        self._state.step_count += 1
        self._playing = not (terminated or truncated)
        return self._observed(seen, reward=float(reward), terminated=bool(terminated), truncated=bool(truncated))

    @property
    def state(self) -> MyState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> MyAction:
        """The next action of a solution: pushes the cart under the pole, and slowly back to the middle."""
        x, velocity, angle, pole_velocity = self._seen
        return MyAction(push="right" if 0.02 * x + 0.1 * velocity + angle + 0.3 * pole_velocity > 0 else "left")

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that ignores the pole, and that of a solution."""
        return 25.0, 500.0

    def close(self) -> None:
        """Called once, at the end of the session, to release resources."""
        self._env.close()

    def render_web(self, observation: Any) -> str:
        """The cart and its pole, drawn for the web page. `observation` has the fields of the observation."""
        x, degrees = 150 + 50 * observation.cart_position, math.degrees(observation.pole_angle)
        return (
            '<svg viewBox="0 0 300 110" width="100%" role="img" aria-label="cart and pole">'
            '<line x1="30" y1="100" x2="270" y2="100" stroke="gray"/>'
            f'<g transform="translate({x:.1f} 90)"><rect x="-20" y="-10" width="40" height="20" fill="steelblue"/>'
            f'<line y2="-70" stroke="chocolate" stroke-width="6" transform="rotate({degrees:.1f})"/></g></svg>'
        )

    def _observed(
        self, seen: Any, reward: float | None = None, terminated: bool = False, truncated: bool = False
    ) -> MyObservation:
        self._seen = [float(value) for value in seen]
        position, velocity, angle, pole_velocity = self._seen
        return MyObservation(
            cart_position=position,
            cart_velocity=velocity,
            pole_angle=angle,
            pole_velocity=pole_velocity,
            reward=reward,
            done=terminated or truncated,
            terminated=terminated,
            truncated=truncated,
        )
