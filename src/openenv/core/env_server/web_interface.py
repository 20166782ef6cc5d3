"""Pages about environments, under their older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import take

if TYPE_CHECKING:
    from .._homes import *

__all__ = [
    "Action",
    "ActionLog",
    "Environment",
    "EnvironmentMetadata",
    "EpisodeState",
    "Observation",
    "State",
    "WebInterfaceManager",
    "build_gradio_app",
    "create_web_interface_app",
    "deserialize_action_with_preprocessing",
    "get_gradio_display_title",
    "get_quick_start_markdown",
    "load_environment_metadata",
    "serialize_observation",
]

__getattr__, __dir__ = take(__name__, [*__all__, "OPENENV_GRADIO_CSS", "OPENENV_GRADIO_THEME"])
