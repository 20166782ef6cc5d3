"""From the name under which Gymnasium knows an environment to a class that can be served, and to an app.

`openenv serve gymnasium:CartPole-v1` comes here.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from types import GenericAlias
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import gymnasium
from pydantic import Field, create_model

from ...environment import Environment
from ...errors import UsageError
from .codec import SpaceCodec, codec_of
from .description import KEYWORD, describe
from .environment import GymnasiumAction, GymnasiumEnvironment, GymnasiumObservation, GymnasiumState

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["gymnasium_app", "gymnasium_environment", "parse_target"]

# Gymnasium's own environments whose step is a few microseconds of arithmetic, without a file, a window or a wait.
_QUICK = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")


def gymnasium_environment(env_id: str, **kwargs: Any) -> type[GymnasiumEnvironment]:
    """Makes a class that serves one registered Gymnasium environment; one instance is made to see its spaces.

    Args:
        env_id: A registered name, such as `CartPole-v1`, or `module:Name-v0` to import a module first.
        kwargs: Passed to `gymnasium.make`.

    Raises:
        UsageError: Gymnasium cannot make it with these arguments, or one of its spaces cannot be served.
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
        name = _class_name(env_id)
        observation_cls = _observation_cls(name, env.observation_space, observations)
        action_cls = _action_cls(name, env.action_space, actions)
        action_cls.__reference__ = (_action_again, env_id, kwargs)
        return type(
            name,
            (GymnasiumEnvironment,),
            {
                "__doc__": _description(env_id, env),
                "__module__": __name__,
                # What it is made for, as a class that is written down says it (PEP 560).
                "__orig_bases__": (GenericAlias(Environment, (action_cls, observation_cls, GymnasiumState)),),
                "env_id": env_id,
                "arguments": arguments,
                "action_cls": action_cls,
                "observation_cls": observation_cls,
                "_action_codec": actions,
                "_observation_codec": observations,
                "_observation_fields": set(observation_cls.model_fields),
                "execution": _execution(env),
                "__reference__": (_again, env_id, kwargs),
            },
        )
    finally:
        env.close()


def _again(env_id: str, kwargs: dict[str, Any]) -> type[GymnasiumEnvironment]:
    """The class that another process serves; made once in this one."""
    key = repr((env_id, kwargs))
    if key not in _made:
        _made[key] = gymnasium_environment(env_id, **kwargs)
    return _made[key]


def _action_again(env_id: str, kwargs: dict[str, Any]) -> type[GymnasiumAction]:
    return _again(env_id, kwargs).action_cls


_made: dict[str, type[GymnasiumEnvironment]] = {}


def gymnasium_app(env_id: str, **kwargs: Any) -> FastAPI:
    """Makes an app that serves a registered Gymnasium environment; arguments and errors as above."""
    from ...server import create_app

    environment = gymnasium_environment(env_id, **kwargs)
    return create_app(
        environment, environment.action_cls, environment.observation_cls, env_id, state_cls=GymnasiumState
    )


def parse_target(text: str) -> tuple[str, dict[str, Any]]:
    """Reads `ENV_ID?key=value&key=value`, percent-encoded where need be.

    A value is read as JSON where it is JSON, and is text otherwise: `sab=true` is a bool, `map_name=8x8` a str.

    Returns:
        The environment's name and the keyword arguments for `gymnasium.make`.

    Raises:
        UsageError: The text has no name, or its arguments are not of that form.
    """
    env_id, _, query = text.partition("?")
    if not env_id:
        raise UsageError(f"{text!r} names no environment: write ENV_ID?key=value&key=value")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UsageError(f"the arguments in {text!r} are not of the form key=value&key=value: {error}") from error
    kwargs = {key: _value(value) for key, value in pairs}
    if len(kwargs) < len(pairs):
        raise UsageError(f"an argument is given twice in {text!r}")
    return env_id, kwargs


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=float)
    except ValueError:
        return text


def _class_name(env_id: str) -> str:
    name = re.sub(r"\W", "_", env_id.rpartition(":")[2], flags=re.ASCII)
    return name if name[:1].isalpha() else f"Gymnasium_{name}"


def _description(env_id: str, env: gymnasium.Env[Any, Any]) -> str:
    documentation = inspect.getdoc(type(env.unwrapped)) or ""
    # Gymnasium's own pages start with a heading, which says nothing that the name does not.
    paragraphs = [part for part in documentation.split("\n\n") if part.strip() and not part.startswith("#")]
    summary = " ".join(paragraphs[0].split()) if paragraphs else "An environment of Gymnasium."
    return f"{env_id}: {summary}"


def _action_cls(name: str, space: gymnasium.Space[Any], codec: SpaceCodec) -> type[GymnasiumAction]:
    field = _field(space)
    return create_model(f"{name}_Action", __base__=GymnasiumAction, __module__=__name__, action=(codec.type, field))


def _observation_cls(name: str, space: gymnasium.Space[Any], codec: SpaceCodec) -> type[GymnasiumObservation]:
    field = _field(space)
    return create_model(
        f"{name}_Observation",
        __base__=GymnasiumObservation,
        __module__=__name__,
        observation=(codec.type, field),
    )


def _execution(env: gymnasium.Env[Any, Any]) -> str | None:
    """`inline` for what is quicker than the way to a thread and back; None leaves the environment its thread."""
    draws = env.render_mode == "human"
    return None if draws or not type(env.unwrapped).__module__.startswith(_QUICK) else "inline"


def _field(space: gymnasium.Space[Any]) -> Any:
    words = " ".join(str(space).split())
    return Field(description=words, json_schema_extra={KEYWORD: describe(space)})
