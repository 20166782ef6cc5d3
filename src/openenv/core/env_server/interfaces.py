"""`openenv.environment` under its older name."""

from ...environment import Environment, Transform
from ...types import Action, Observation, State

__all__ = ["Action", "Environment", "Observation", "State", "Transform"]
