"""Find clients and action classes by the name of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._imports import lazy as _lazy

if TYPE_CHECKING:
    from .auto_action import AutoAction
    from .auto_env import AutoEnv

__all__ = ["AutoAction", "AutoEnv"]

_HOMES = {"AutoAction": "openenv.auto.auto_action", "AutoEnv": "openenv.auto.auto_env"}

__getattr__, __dir__ = _lazy(__name__, _HOMES)
