"""The app: `openenv serve .` serves it, and so does any other ASGI server."""

from __future__ import annotations

from openenv.mcp import CallToolAction
from openenv.server import create_app

from ..models import ToolShopObservation, ToolShopState, ToolShopTask
from .tool_shop_environment import ToolShopEnvironment

# The class, and not an instance: each session gets one of its own.
app = create_app(
    ToolShopEnvironment,
    CallToolAction,
    ToolShopObservation,
    env_name="tool_shop",
    state_cls=ToolShopState,
    reset_observation_cls=ToolShopTask,
)
