"""A maze of the older shape."""

from .client import MazeEnv
from .models import MazeAction, MazeObservation

__all__ = ["MazeAction", "MazeEnv", "MazeObservation"]
