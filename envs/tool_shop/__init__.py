"""The back office of a shop: what an agent does here is call tools, which change a database."""

from .client import ToolShopEnv
from .models import ToolShopObservation, ToolShopState, ToolShopTask

__all__ = ["ToolShopEnv", "ToolShopObservation", "ToolShopState", "ToolShopTask"]
