"""`openenv.protocol.forms` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...mcp.types import CallToolAction, ListToolsAction
    from ...protocol.forms import serialize_observation
    from ...types import Action, Observation
    from .._adapters import deserialize_action, deserialize_action_with_preprocessing

__all__ = [
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Action": "openenv.types",
        "CallToolAction": "openenv.mcp.types",
        "ListToolsAction": "openenv.mcp.types",
        "Observation": "openenv.types",
        "deserialize_action": "openenv.core._adapters",
        "deserialize_action_with_preprocessing": "openenv.core._adapters",
        "serialize_observation": "openenv.protocol.forms",
    },
)
