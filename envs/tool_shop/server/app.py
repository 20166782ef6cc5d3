"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv import create_app
from openenv.mcp import CallToolAction

from ..models import ToolShopObservation
from .tool_shop_environment import ToolShopEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(ToolShopEnvironment, action=CallToolAction, observation=ToolShopObservation, name="tool_shop")
