"""A page that an environment's author made with Gradio, at `/web/custom`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from html import escape
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from .action_form import action_fields
from .environment_server import HTTPEnvServer
from .gradio_ui import get_gradio_display_title, get_quick_start_markdown
from .metadata import load_environment_metadata
from .web_manager import WebInterfaceManager

__all__ = ["CUSTOM_PATH", "add_page"]

CUSTOM_PATH = "/web/custom"


def add_page(app: FastAPI, server: HTTPEnvServer, builder: Callable[..., Any], title: str | None = None) -> None:
    """Mounts what a builder makes at `/web/custom`; without Gradio, a page there that says how to get it.

    Args:
        app: Where it is mounted.
        server: Whose environment the page drives.
        builder: Called with `(web_manager, action_fields, metadata, is_chat_env, title, quick_start_md)`, all by
            position; it returns a `gradio.Blocks`. What it raises is raised here.
        title: In place of one with the environment's name.
    """
    if find_spec("gradio") is None:
        app.add_api_route(CUSTOM_PATH, _without_gradio(server.env_name), include_in_schema=False)
        return
    gradio = importlib.import_module("gradio")
    metadata = load_environment_metadata(server.env_factory, server.env_name)
    manager = WebInterfaceManager(server, metadata=metadata)
    fields = action_fields(server.action_cls)
    quick_start = get_quick_start_markdown(metadata, server.action_cls, server.observation_cls)
    blocks = builder(
        manager, fields, metadata, _is_chat(fields), title or get_gradio_display_title(metadata), quick_start
    )
    gradio.mount_gradio_app(app, blocks, path=CUSTOM_PATH)
    app.state.openenv_page = manager


def _without_gradio(name: str) -> Callable[[], HTMLResponse]:
    page = (
        f"<!doctype html><title>{escape(name)}</title><p>{escape(name)} has a page made with Gradio, "
        "which is not installed on this server. Install it and start the server again:</p>"
        "<pre>pip install gradio</pre>"
    )

    def custom_page() -> HTMLResponse:
        return HTMLResponse(page, 501)

    return custom_page


def _is_chat(fields: list[dict[str, Any]]) -> bool:
    """Whether actions are a model's tokens."""
    return any(field["name"] == "tokens" and field["type"] == "tensor" for field in fields)
