"""Echo: the smallest environment, for a first look and for smoke tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openenv.envs.echo.models import EchoAction, EchoObservation

if TYPE_CHECKING:
    from openenv.envs.echo.client import EchoEnv

__all__ = ["EchoAction", "EchoEnv", "EchoObservation"]


def __getattr__(name: str) -> Any:
    # Imported lazily: servers also import this package, and do not need the client.
    if name == "EchoEnv":
        from openenv.envs.echo.client import EchoEnv  # noqa: PLC0415

        return EchoEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
