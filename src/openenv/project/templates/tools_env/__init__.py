"""A shop: what an agent does here is call tools."""

from .client import MyEnv
from .models import MyObservation, MyState, MyTask

__all__ = ["MyEnv", "MyObservation", "MyState", "MyTask"]
