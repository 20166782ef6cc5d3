"""Tasks that an agent solves with Python programs."""

from .client import MyEnv
from .models import MyAction, MyObservation, MyState

__all__ = ["MyAction", "MyEnv", "MyObservation", "MyState"]
