"""Push pucks to their goals: a batch of episodes in numpy."""

from .client import MyEnv
from .models import MyAction, MyObservation

__all__ = ["MyAction", "MyEnv", "MyObservation"]
