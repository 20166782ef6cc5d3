"""`openenv.server.page.gradio_theme` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._imports import lazy

if TYPE_CHECKING:
    from ...server.page.gradio_theme import OPENENV_GRADIO_CSS, OPENENV_GRADIO_THEME

__all__ = [
    "OPENENV_GRADIO_CSS",
    "OPENENV_GRADIO_THEME",
]

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(__all__, "openenv.server.page.gradio_theme"))
