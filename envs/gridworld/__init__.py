"""A grid world: walk to the flag, past walls and lava, with the key to the door."""

from .client import GridworldEnv
from .models import GridworldAction, GridworldObservation, GridworldState

__all__ = ["GridworldAction", "GridworldEnv", "GridworldObservation", "GridworldState"]
