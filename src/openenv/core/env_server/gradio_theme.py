"""The look of the page at `/web` for pages made with Gradio.

    gradio.mount_gradio_app(app, blocks, path="/mine", theme=OPENENV_GRADIO_THEME, css=OPENENV_GRADIO_CSS)

Importing this module raises `MissingExtra`, an ImportError, where Gradio is not installed.
"""

from __future__ import annotations

from ...server.page.gradio import load_gradio

__all__ = [
    "OPENENV_GRADIO_CSS",
    "OPENENV_GRADIO_THEME",
]

OPENENV_GRADIO_THEME = load_gradio().themes.Base(
    primary_hue="teal",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
)

OPENENV_GRADIO_CSS = """
.gradio-container { max-width: 72rem; margin: 0 auto; }
footer { display: none; }
"""
