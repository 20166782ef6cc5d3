"""A number to be guessed: the smallest environment that is a game."""

from .client import MyEnv
from .models import MyAction, MyObservation, MyState

__all__ = ["MyAction", "MyEnv", "MyObservation", "MyState"]
