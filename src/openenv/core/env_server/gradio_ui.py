"""`openenv.server.page.gradio` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...mcp.environment import MCPEnvironment
    from ...mcp.types import ListToolsAction
    from ...server.page.gradio import build_gradio_app, get_gradio_display_title
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
        "build_gradio_app": "openenv.server.page.gradio",
        "get_gradio_display_title": "openenv.server.page.gradio",
    },
)
