"""What whoever starts a server is told of it."""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Mapping
from typing import Any

import click

from .. import logs
from ..settings import ServerSettings
from .protection import key_words, warning_of_keys

__all__ = ["announce", "facts_of", "say"]


def facts_of(app: Any, target: str) -> dict[str, Any]:
    """What an app is called, and if it is one of ours, its `limit` of sessions and its `mode`."""
    environment = getattr(getattr(app, "state", None), "openenv", None)
    if environment is None:
        return {"name": target}
    mode = "production" if environment.porter.production else "simulation"
    return {"name": environment.env_name, "limit": environment.max_concurrent_envs, "mode": mode}


def announce(
    settings: ServerSettings,
    listener: socket.socket,
    serves: Mapping[str, Any],
    made_key: str | None,
    reload: bool = False,
) -> None:
    """Says in one line what there is now: address, UI, key, sessions, workers.

    Args:
        settings: Of the server.
        listener: Where it listens.
        serves: What it serves, as `facts_of` has it.
        made_key: The key that was made for it, if one was.
        reload: Whether it starts anew when a file changes.
    """
    address, limit = _address(settings, listener), serves.get("limit")
    parts = [f"{click.style(serves['name'], bold=True)} on {address}"]
    if limit is not None and settings.web_interface and serves.get("mode", settings.mode) != "production":
        # Every address of this machine is none that a browser can be sent to.
        reached = re.sub(r"//(0\.0\.0\.0|\[::\])", "//127.0.0.1", address)
        parts.append(f"UI {reached}/web")
    parts.append(key_words(settings, made_key))
    if limit is not None:
        parts.append(f"up to {limit} session" + ("s" if limit > 1 else ""))
    parts.append(f"{settings.workers} worker" + ("s" if settings.workers > 1 else ""))
    parts.append("fast path" + (", uvloop" if _has_uvloop() else ""))
    if settings.record is not None:
        parts.append(f"records into {settings.record}")
    if reload:
        parts.append("reloading")
    say(settings, " · ".join(parts))
    warning = warning_of_keys(settings)
    if warning is not None:
        say(settings, warning)


def _address(settings: ServerSettings, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def say(settings: ServerSettings, text: str) -> None:
    """Tells whoever started this something; where logs are JSON, all lines are."""
    click.echo(logs.notice(click.unstyle(text)) if settings.log_format == "json" else text, err=True)


def _has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None
