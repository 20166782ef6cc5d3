"""A text adventure."""

from .client import MyEnv
from .models import MyAction, MyObservation, MyState

__all__ = ["MyAction", "MyEnv", "MyObservation", "MyState"]
