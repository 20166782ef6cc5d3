"""An environment registered with Gymnasium as one of this package.

An action is `{"action": <member of the action space>}`, an observation has the fields `observation`,
`terminated` and `truncated`; Gymnasium's `info` is its metadata.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar
from uuid import uuid4

import gymnasium
from pydantic import Field

from ...environment import Environment
from ...errors import ResetRequired
from ...types import Action, Observation, State
from ..picture import as_html
from ..reset_arguments import check_reset_arguments
from .codec import SpaceCodec
from .duplicate import duplicate
from .plain import plain

__all__ = ["GymnasiumAction", "GymnasiumEnvironment", "GymnasiumObservation", "GymnasiumState"]

# Models forbid setting what is no field; their own methods go around that in this way.
_set = object.__setattr__
MOST_BUTTONS = 20


class GymnasiumAction(Action):
    """What `step` of a Gymnasium environment takes; subclasses type `action` by the space."""

    # How another process gets a class that no module has (`openenv.execution.process`).
    __reference__: ClassVar[tuple[Any, ...]]

    action: Any


class GymnasiumObservation(Observation):
    """What `reset` and `step` of a Gymnasium environment return; subclasses type `observation` by the space."""

    observation: Any = Field(description="A member of the observation space")
    terminated: bool = Field(default=False, description="The episode reached an end of its own")
    truncated: bool = Field(default=False, description="The episode was cut short, by a time limit for example")


class GymnasiumState(State):
    """What is known about the episode beside its observations."""

    env_id: str = Field(description="The name under which Gymnasium knows the environment")
    seed: int | None = Field(default=None, description="The seed given to the last reset")


class GymnasiumEnvironment(Environment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """One Gymnasium environment. Serve the subclasses that `gymnasium_environment` makes.

    Attributes:
        env_id: The name under which Gymnasium knows the environment.
        arguments: Keyword arguments for `gymnasium.make`.
        action_cls: Its action: one field `action`, typed by the action space.
        observation_cls: Its observation.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    env_id: ClassVar[str]
    arguments: ClassVar[dict[str, Any]]
    action_cls: ClassVar[type[GymnasiumAction]]
    observation_cls: ClassVar[type[GymnasiumObservation]]
    _action_codec: ClassVar[SpaceCodec]
    _observation_codec: ClassVar[SpaceCodec]
    _observation_fields: ClassVar[set[str]]

    def __init__(self) -> None:
        super().__init__()
        self._decode = self._action_codec.decode
        self._encode = self._observation_codec.encode
        self._refusal = "call reset() before the first step()"
        self._playing = False
        self._steps = 0
        self._seed: int | None = None
        self._episode_id: str | None = None
        # The arguments are copied, so that environments which keep and change them share nothing.
        self._env = gymnasium.make(self.env_id, **copy.deepcopy(self.arguments))

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> GymnasiumObservation:
        """Starts an episode.

        Args:
            seed: An integer of at least 0 makes this episode, and those after it, repeatable.
            episode_id: Name for the episode; one is made up if it is None.
            options: What the environment's own `reset` takes under this name.

        Raises:
            InvalidAction: Seed or options are of the wrong type.
        """
        check_reset_arguments(seed, options)
        self._playing = False
        observation, info = self._env.reset(seed=seed, options=options)
        self._playing = True
        self._steps = 0
        self._seed = seed
        self._episode_id = episode_id or uuid4().hex
        return self._observe(observation, None, False, False, info)

    def step(self, action: GymnasiumAction, timeout_s: float | None = None, **kwargs: Any) -> GymnasiumObservation:
        """Does one action.

        Raises:
            ResetRequired: No episode is running.
            InvalidAction: The action is not in the space, in a way that its type cannot express.
        """
        if not self._playing:
            raise ResetRequired(self._refusal)
        member = self._decode(action.action)
        observation, reward, terminated, truncated, info = self._env.step(member)
        self._steps += 1
        if terminated or truncated:
            self._playing = False
            how = "terminated" if terminated else "was truncated"
            self._refusal = f"the episode {how} at step {self._steps}: call reset() to start another one"
        return self._observe(observation, float(reward), bool(terminated), bool(truncated), info)

    @property
    def state(self) -> GymnasiumState:
        return GymnasiumState(
            episode_id=self._episode_id, step_count=self._steps, env_id=self.env_id, seed=self._seed
        )

    def close(self) -> None:
        self._env.close()

    def render_web(self, observation: Any) -> str | None:
        """What the environment renders: a picture with `render_mode=rgb_array`, text with `ansi`, else nothing."""
        if self._env.render_mode in (None, "human") or self._episode_id is None:
            return None
        return as_html(self._env.render())

    def web_actions(self, observation: Any) -> list[tuple[str, dict[str, Any]]]:
        """A button for each action, where there are few."""
        return _buttons(self._env) if self._playing else []

    def __deepcopy__(self, memo: dict[int, Any]) -> GymnasiumEnvironment:
        return duplicate(self, self._env, memo, shared=("_decode", "_encode"))

    def _observe(
        self, observation: Any, reward: float | None, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> GymnasiumObservation:
        values = {
            "done": terminated or truncated,
            "reward": reward,
            "metadata": plain(info) if info else {},
            "observation": self._encode(observation),
            "terminated": terminated,
            "truncated": truncated,
        }
        # Built as `model_construct` would: the encoder makes what the type says, and validating an image again
        # would cost more than many an environment's step.
        cls = self.observation_cls
        built = cls.__new__(cls)
        _set(built, "__dict__", values)
        _set(built, "__pydantic_fields_set__", self._observation_fields)
        _set(built, "__pydantic_extra__", None)
        _set(built, "__pydantic_private__", None)
        return built


def _buttons(env: gymnasium.Env[Any, Any]) -> list[tuple[str, dict[str, Any]]]:
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Discrete) or space.n > MOST_BUTTONS:
        return []
    values = range(int(space.start), int(space.start + space.n))
    meanings = getattr(env.unwrapped, "get_action_meanings", None)  # as games of the Arcade Learning Environment have
    names = list(map(str, meanings() if callable(meanings) else values))
    return [(name, {"action": value}) for name, value in zip(names, values, strict=False)]
