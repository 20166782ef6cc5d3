"""Serve a registered Gymnasium environment: the class that wraps it, and the app for `gymnasium:ENV_ID`."""

from __future__ import annotations

import copy
import inspect
import re
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import gymnasium
from pydantic import Field

from ...environment import Environment
from ...errors import ResetRequired, UsageError
from ...types import Action, Observation, State
from ..farama import as_html, check_reset_arguments, duplicate, plain, served_class
from .codec import SpaceCodec, codec_of, field_of

if TYPE_CHECKING:
    from fastapi import FastAPI

# Bypasses the check of pydantic models, which forbid attributes that are not fields.
_set = object.__setattr__
MOST_BUTTONS = 20


class GymnasiumAction(Action):
    """What `step` of a Gymnasium environment takes; subclasses type `action` by the space."""

    # Another process makes the class, which no module has, from this (`openenv.runtime.process`).
    __reference__: ClassVar[tuple[Any, ...]]

    action: Any


class GymnasiumObservation(Observation):
    """What `reset` and `step` of a Gymnasium environment return; subclasses type `observation` by the space."""

    observation: Any = Field(description="A member of the observation space")
    terminated: bool = Field(default=False, description="The episode reached an end of its own")
    truncated: bool = Field(default=False, description="The episode was cut short, by a time limit for example")


class GymnasiumState(State):
    """Facts about the episode in addition to its observations."""

    env_id: str = Field(description="The name under which Gymnasium knows the environment")
    seed: int | None = Field(default=None, description="The seed given to the last reset")


class GymnasiumEnvironment(Environment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """One Gymnasium environment. Serve the subclasses that `gymnasium_environment` makes.

    Attributes:
        env_id: Name of the environment in Gymnasium's registry.
        arguments: Keyword arguments for `gymnasium.make`.
        action_cls: Its action class: one field `action`, typed by the action space.
        observation_cls: Its observation class.
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
        # A copy, since environments may keep and change their arguments.
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
            episode_id: Id of the episode; None to generate one.
            options: The `options` of the environment's own `reset`.

        Raises:
            InvalidAction: Seed or options have the wrong type.
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
        """Takes one step.

        Raises:
            ResetRequired: No episode is running.
            InvalidAction: The action is not in the space, by a rule that its type cannot express.
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
        """The rendered view: a picture with `render_mode=rgb_array`, text with `ansi`, otherwise None."""
        if self._env.render_mode in (None, "human") or self._episode_id is None:
            return None
        return as_html(self._env.render())

    def web_actions(self, observation: Any) -> list[tuple[str, dict[str, Any]]]:
        """A button for each action, if they are few."""
        space = self._env.action_space
        if not self._playing or not isinstance(space, gymnasium.spaces.Discrete) or space.n > MOST_BUTTONS:
            return []
        values = range(int(space.start), int(space.start + space.n))
        # Games of the Arcade Learning Environment name their actions.
        meanings = getattr(self._env.unwrapped, "get_action_meanings", None)
        names = list(map(str, meanings() if callable(meanings) else values))
        return [(name, {"action": value}) for name, value in zip(names, values, strict=False)]

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
        # Built like `model_construct`: the codec returns valid values, and validating an image again would cost more
        # than the step of many environments.
        cls = self.observation_cls
        built = cls.__new__(cls)
        _set(built, "__dict__", values)
        _set(built, "__pydantic_fields_set__", self._observation_fields)
        _set(built, "__pydantic_extra__", None)
        _set(built, "__pydantic_private__", None)
        return built


# Gymnasium's own environments with a step of a few microseconds of arithmetic, without a file, window or wait.
_QUICK = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")


def gymnasium_environment(env_id: str, **kwargs: Any) -> type[GymnasiumEnvironment]:
    """Makes a class that serves one registered Gymnasium environment; one instance is created to read its spaces.

    Args:
        env_id: A registered name, such as `CartPole-v1`, or `module:Name-v0` to import a module first.
        kwargs: Passed to `gymnasium.make`.

    Raises:
        UsageError: Gymnasium cannot create it with these arguments, or one of its spaces cannot be served.
    """
    arguments = {"disable_env_checker": True, **kwargs}
    try:
        env = gymnasium.make(env_id, **copy.deepcopy(arguments))
    except Exception as error:
        raise UsageError(
            f"Gymnasium cannot make {env_id!r} with {kwargs}: {type(error).__name__}: {error}"
        ) from error
    try:
        actions, observations = codec_of(env.action_space), codec_of(env.observation_space)
        made: type[GymnasiumEnvironment] = served_class(
            class_name_of(env_id),
            GymnasiumEnvironment,
            (GymnasiumAction, GymnasiumObservation, GymnasiumState),
            {"action": (actions.type, field_of(env.action_space))},
            {"observation": (observations.type, field_of(env.observation_space))},
            (gymnasium_environment, env_id, kwargs),
            __doc__=f"{env_id}: {summary_of(env)}",
            env_id=env_id,
            arguments=arguments,
            _action_codec=actions,
            _observation_codec=observations,
            _observation_fields=set(GymnasiumObservation.model_fields),
            execution=execution_of(env),
        )
        return made
    finally:
        env.close()


def execution_of(env: Any) -> str | None:
    """What the environment or a wrapper of it declares; else `"inline"` for quick steps, and None for a thread."""
    layer = env
    while layer is not None:
        if hasattr(type(layer), "execution"):
            declared: str = type(layer).execution
            return declared
        layer = getattr(layer, "env", None)
    is_quick = env.render_mode != "human" and type(env.unwrapped).__module__.startswith(_QUICK)
    return "inline" if is_quick else None


def class_name_of(env_id: str) -> str:
    """The name of the class that serves an environment."""
    name = re.sub(r"\W", "_", env_id.rpartition(":")[2], flags=re.ASCII)
    return name if name[:1].isalpha() else f"Gymnasium_{name}"


def summary_of(env: Any) -> str:
    """The first paragraph of an environment's documentation."""
    documentation = inspect.getdoc(type(env.unwrapped)) or ""
    if documentation in map(inspect.getdoc, (gymnasium.Env, gymnasium.vector.VectorEnv)):  # inherited
        documentation = ""
    # Gymnasium's documentation starts with a heading, which repeats the name.
    paragraphs = [part for part in documentation.split("\n\n") if part.strip() and not part.startswith("#")]
    return " ".join(paragraphs[0].split()) if paragraphs else "An environment of Gymnasium."


def gymnasium_app(env_id: str, *, vectorized: bool = False, **kwargs: Any) -> FastAPI:
    """An app for a registered Gymnasium environment.

    Args:
        env_id: As for `gymnasium_environment`.
        vectorized: Serve its `vector_entry_point`, as `gymnasium_batch` does; `num_envs` is then required.
        kwargs: As for `gymnasium_environment`, or `gymnasium_batch`.

    Raises:
        UsageError: As these two.
    """
    from ...server.app import create_app  # noqa: PLC0415 - only what serves HTTP loads the web framework

    if type(vectorized) is not bool:
        raise UsageError(f"vectorized={vectorized!r} of {env_id!r}: give true or false")
    if not vectorized:
        return create_app(gymnasium_environment(env_id, **kwargs), name=env_id)
    from .batched import gymnasium_batch  # noqa: PLC0415 - it imports this module

    return create_app(gymnasium_batch(env_id, **kwargs), name=env_id)
