"""`openenv.protocol.forms` under its older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "Action",
    "CallToolAction",
    "ListToolsAction",
    "Observation",
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
]

__getattr__, __dir__ = take(__name__, __all__)
