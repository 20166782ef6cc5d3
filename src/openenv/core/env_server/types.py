"""`openenv.types` under its older name."""

from ...types import Action, Observation, State

__all__ = ["Action", "Observation", "State"]
