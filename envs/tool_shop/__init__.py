"""The back office of a shop: the agent calls tools, which read and change a database."""

from .client import ToolShopEnv
from .models import ToolShopObservation, ToolShopState, ToolShopTask

__all__ = ["ToolShopEnv", "ToolShopObservation", "ToolShopState", "ToolShopTask"]
