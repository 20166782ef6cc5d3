"""What tells an environment which mode its server is in."""

from __future__ import annotations

import functools
from typing import Any

from .environment import MCPEnvironment

__all__ = ["InMode"]


class InMode(functools.partial[Any]):
    """A factory whose environments know the mode: `InMode(factory).of("production")`.

    A partial, so that whoever looks for the class that a factory makes finds it.
    """

    mode: str | None = None

    def of(self, mode: str) -> InMode:
        """Sets the mode; returns itself."""
        self.mode = mode
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        environment = super().__call__(*args, **kwargs)
        if isinstance(environment, MCPEnvironment):
            environment._mode = self.mode
        return environment
