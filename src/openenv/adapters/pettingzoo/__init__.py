"""Serve PettingZoo's multi-agent environments: `openenv serve pettingzoo:MODULE`."""

from __future__ import annotations

from ...errors import MissingExtra

try:
    import pettingzoo as _pettingzoo  # noqa: F401
except ModuleNotFoundError as missing:
    raise MissingExtra("pettingzoo", "pettingzoo") from missing

from .environment import (
    PettingZooAction,
    PettingZooEnvironment,
    PettingZooObservation,
    PettingZooState,
    pettingzoo_app,
    pettingzoo_environment,
)

__all__ = [
    "PettingZooAction",
    "PettingZooEnvironment",
    "PettingZooObservation",
    "PettingZooState",
    "pettingzoo_app",
    "pettingzoo_environment",
]
