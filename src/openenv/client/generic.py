"""A client for any environment, without its types."""

from __future__ import annotations

from typing import Any

from .env_client import EnvClient

__all__ = ["GenericAction", "GenericEnvClient"]


class GenericAction(dict[str, Any]):
    """An action by its fields: `GenericAction(message="hi")`."""

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class GenericEnvClient(EnvClient[dict[str, Any], dict[str, Any], dict[str, Any]]):
    """Takes actions as mappings (or models) and returns observations and states as dicts.

    The server still validates every action; `GET /schema` says what it takes.
    """
