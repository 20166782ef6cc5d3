"""`openenv.server.gradio_ui` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ...mcp.environment import MCPEnvironment
    from ...mcp.types import ListToolsAction
    from ...server.gradio_ui import build_gradio_app, get_gradio_display_title
    from ...types import EnvironmentMetadata

__all__ = [
    "EnvironmentMetadata",
    "ListToolsAction",
    "MCPEnvironment",
    "build_gradio_app",
    "get_gradio_display_title",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "EnvironmentMetadata": "openenv.types",
        "ListToolsAction": "openenv.mcp.types",
        "MCPEnvironment": "openenv.mcp.environment",
        "build_gradio_app": "openenv.server.gradio_ui",
        "get_gradio_display_title": "openenv.server.gradio_ui",
    },
)
