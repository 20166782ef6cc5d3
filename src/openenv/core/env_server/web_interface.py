"""Pages about environments, under their older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy

if TYPE_CHECKING:
    from ...environment import Environment
    from ...protocol.forms import serialize_observation
    from ...server.app import create_web_interface_app
    from ...server.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME  # noqa: F401 - `import *` needs no Gradio
    from ...server.gradio_ui import build_gradio_app, get_gradio_display_title, get_quick_start_markdown
    from ...server.metadata import load_environment_metadata
    from ...server.web_manager import ActionLog, EpisodeState, WebInterfaceManager
    from ...types import Action, EnvironmentMetadata, Observation, State
    from .._adapters import deserialize_action_with_preprocessing

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

__getattr__, __dir__ = lazy(
    __name__,
    {
        "OPENENV_GRADIO_CSS": "openenv.server.gradio_theme",
        "OPENENV_GRADIO_THEME": "openenv.server.gradio_theme",
        "Action": "openenv.types",
        "ActionLog": "openenv.server.web_manager",
        "Environment": "openenv.environment",
        "EnvironmentMetadata": "openenv.types",
        "EpisodeState": "openenv.server.web_manager",
        "Observation": "openenv.types",
        "State": "openenv.types",
        "WebInterfaceManager": "openenv.server.web_manager",
        "build_gradio_app": "openenv.server.gradio_ui",
        "create_web_interface_app": "openenv.server.app",
        "deserialize_action_with_preprocessing": "openenv.core._adapters",
        "get_gradio_display_title": "openenv.server.gradio_ui",
        "get_quick_start_markdown": "openenv.server.gradio_ui",
        "load_environment_metadata": "openenv.server.metadata",
        "serialize_observation": "openenv.protocol.forms",
    },
)
