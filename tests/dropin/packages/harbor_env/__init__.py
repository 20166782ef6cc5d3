"""Ships that wait for a berth."""

from .client import HarborEnv
from .models import HarborAction, HarborObservation, HarborState

__all__ = ["HarborAction", "HarborEnv", "HarborObservation", "HarborState"]
