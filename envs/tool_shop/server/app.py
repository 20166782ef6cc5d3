"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""

from __future__ import annotations

from openenv import create_app
from openenv.mcp import CallToolAction

from ..models import ToolShopObservation
from .tool_shop_environment import ToolShopEnvironment

# Pass the class, not an instance: each session gets a new instance.
app = create_app(ToolShopEnvironment, action=CallToolAction, observation=ToolShopObservation, name="tool_shop")
