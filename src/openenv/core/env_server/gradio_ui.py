"""`openenv.server.page.gradio` under its older name."""

from __future__ import annotations

from .._homes import *

__all__ = [
    "EnvironmentMetadata",
    "ListToolsAction",
    "MCPEnvironment",
    "build_gradio_app",
    "get_gradio_display_title",
]

__getattr__, __dir__ = take(__name__, __all__)
