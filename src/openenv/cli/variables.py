"""Environment variables for servers, as they are given on a command line."""

from __future__ import annotations

from ..errors import UsageError
from ..providers.secrecy import secrets_of
from ..settings import variable_here

__all__ = ["variable"]


def variable(text: str) -> tuple[str, str]:
    """The name and value of `NAME=VALUE`, or of `NAME`, whose value is the one that it has here.

    Raises:
        UsageError: It is not set here; or a secret stands on the command line.
    """
    name, given, value = text.partition("=")
    if given:
        if secrets_of({name: value}):
            raise UsageError(f"a command line can be read by everybody: set {name} here, and give --env {name} alone")
        return name, value
    here = variable_here(name)
    if here is None:
        raise UsageError(f"--env {name}: it is not set here; give --env {name}=VALUE")
    return name, here
