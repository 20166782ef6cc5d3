"""Tasks to be solved by writing Python."""

from .client import MyEnv
from .models import MyAction, MyObservation, MyState

__all__ = ["MyAction", "MyEnv", "MyObservation", "MyState"]
