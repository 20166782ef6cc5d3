"""`openenv.server.page.gradio_theme` under its older name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._homes import take

if TYPE_CHECKING:
    from .._homes import *

__all__ = [
    "OPENENV_GRADIO_CSS",
    "OPENENV_GRADIO_THEME",
]

__getattr__, __dir__ = take(__name__, __all__)
