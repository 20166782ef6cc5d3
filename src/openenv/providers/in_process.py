"""Serve an environment inside the process of its client, without a socket."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

from .._introspection import type_arguments, unwrap_partial
from ..environment import Environment
from ..errors import UsageError
from ..types import Action, Observation, State


def app_in_process(env: Any, client_types: tuple[Any, ...] = ()) -> Any:
    """An app for an environment that its client steps in this process.

    Args:
        env: An `Environment` class, `functools.partial` of one, or a function that makes one.
        client_types: Action, observation and state of the client, if it says them: what a function makes is not known
            before it is called.

    Raises:
        UsageError: It is an instance, or nothing that makes one, or its types are not declared.
    """
    from ..server import create_app

    if isinstance(env, Environment):
        name = type(env).__name__
        raise UsageError(f"env is an instance of {name}: pass the class, env={name}, and each session has its own")
    made = _class_of(env)
    if made is not None:
        action, observation, state = types_of(made, f"env={made.__name__}")
    elif callable(env) and client_types and inspect.isclass(client_types[0]) and issubclass(client_types[0], Action):
        action, observation, state = client_types
    else:
        raise UsageError(
            f"env is {env!r}: pass an Environment class, or a function that makes one to a client with types, "
            "class MyEnv(EnvClient[MyAction, MyObservation, State])"
        )
    return create_app(env, action, observation, state_cls=state)


def _class_of(env: Any) -> type[Environment[Any, Any, Any]] | None:
    env = unwrap_partial(env)
    return env if inspect.isclass(env) and issubclass(env, Environment) else None


def types_of(cls: type[Environment[Any, Any, Any]], what: str) -> tuple[Any, Any, Any]:
    """What an environment takes and gives: from `Environment[A, O, S]`, or from the annotations of `step`.

    Args:
        cls: The environment.
        what: What the error is about.

    Raises:
        UsageError: It declares no types.
    """
    arguments = type_arguments(cls, Environment)
    if len(arguments) == 3:
        return arguments
    hints = _hints(cls.step)
    names = list(inspect.signature(cls.step).parameters)
    action = hints.get(names[1]) if len(names) > 1 else None
    observation = hints.get("return")
    for found, base in ((action, Action), (observation, Observation)):
        if not (inspect.isclass(found) and issubclass(found, base)):
            raise UsageError(
                f"{what}: the types of {cls.__name__} are not declared: write "
                f"class {cls.__name__}(Environment[MyAction, MyObservation, State]), or make the app with create_app"
            )
    return action, observation, State


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:
        return {}
