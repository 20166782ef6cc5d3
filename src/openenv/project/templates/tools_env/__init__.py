"""A shop, in which an agent acts with tool calls."""

from .client import MyEnv
from .models import MyObservation, MyState, MyTask

__all__ = ["MyEnv", "MyObservation", "MyState", "MyTask"]
