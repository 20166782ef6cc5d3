"""Serve an environment inside the process of its client, without a socket."""

from __future__ import annotations

import inspect
from typing import Any

from ..environment import Environment
from ..errors import UsageError
from ..server.declared_types import DeclaredTypes, declared_types
from ..types import Action


def app_in_process(env: Any, client_types: tuple[Any, ...] = ()) -> Any:
    """An app for an environment that its client steps in this process.

    Args:
        env: An `Environment` class, `functools.partial` of one, or a function that makes one.
        client_types: Action, observation and state of the client, which count where `env` does not say its types.

    Raises:
        UsageError: It is an instance, or nothing that makes one, or its types are not declared.
    """
    from ..server.app import app_of, server_of  # noqa: PLC0415 - only what serves HTTP loads the web framework

    if isinstance(env, Environment):
        name = type(env).__name__
        raise UsageError(f"env is an instance of {name}: pass the class, env={name}, and each session has its own")
    if not callable(env):
        raise UsageError(f"env is {env!r}: pass an Environment class, or a function that makes one")
    types = declared_types(env)
    if types.action is None and client_types and inspect.isclass(client_types[0]):
        types = DeclaredTypes(*client_types) if issubclass(client_types[0], Action) else types
    return app_of(server_of(env, types.complete(env, "env")))
