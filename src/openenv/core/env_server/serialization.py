"""`openenv.protocol.forms` under its older name."""

from __future__ import annotations

from ...protocol.forms import serialize_observation
from .._adapters import deserialize_action, deserialize_action_with_preprocessing

__all__ = ["deserialize_action", "deserialize_action_with_preprocessing", "serialize_observation"]
