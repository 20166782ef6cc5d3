"""Pages about environments, under their older name."""

from __future__ import annotations

from ...server.app import create_web_interface_app
from ...server.metadata import load_environment_metadata
from ...server.web_manager import ActionLog, EpisodeState, WebInterfaceManager

__all__ = [
    "ActionLog",
    "EpisodeState",
    "WebInterfaceManager",
    "create_web_interface_app",
    "load_environment_metadata",
]
