"""Pages about environments, under their older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...environment import Environment
    from ...protocol.forms import serialize_observation
    from ...server.metadata import load_environment_metadata
    from ...server.page.episode import ActionLog, EpisodeState
    from ...server.page.gradio import (
        WebInterfaceManager,
        build_gradio_app,
        get_gradio_display_title,
        get_quick_start_markdown,
    )
    from ...server.page.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME  # noqa: F401 - `import *` needs no Gradio
    from ...types import Action, EnvironmentMetadata, Observation, State
    from .._adapters import deserialize_action_with_preprocessing
    from .._app import create_web_interface_app

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
        "OPENENV_GRADIO_CSS": "openenv.server.page.gradio_theme",
        "OPENENV_GRADIO_THEME": "openenv.server.page.gradio_theme",
        "Action": "openenv.types",
        "ActionLog": "openenv.server.page.episode",
        "Environment": "openenv.environment",
        "EnvironmentMetadata": "openenv.types",
        "EpisodeState": "openenv.server.page.episode",
        "Observation": "openenv.types",
        "State": "openenv.types",
        "WebInterfaceManager": "openenv.server.page.gradio",
        "build_gradio_app": "openenv.server.page.gradio",
        "create_web_interface_app": "openenv.core._app",
        "deserialize_action_with_preprocessing": "openenv.core._adapters",
        "get_gradio_display_title": "openenv.server.page.gradio",
        "get_quick_start_markdown": "openenv.server.page.gradio",
        "load_environment_metadata": "openenv.server.metadata",
        "serialize_observation": "openenv.protocol.forms",
    },
)
