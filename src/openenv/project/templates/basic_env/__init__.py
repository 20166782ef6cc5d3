"""Guess a number: a short game."""

from .client import MyEnv
from .models import MyAction, MyObservation, MyState

__all__ = ["MyAction", "MyEnv", "MyObservation", "MyState"]
