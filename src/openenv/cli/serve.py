"""`openenv serve`: an environment on the network."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import UsageError
from ..file_limit import raise_file_limit
from ..settings import ServerSettings, Setting
from . import target as targets

__all__ = ["serve", "server_options"]

Command = TypeVar("Command", bound=Callable[..., Any])
_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in ServerSettings.table()}
# Settings for the app's author, for rare cases, or for worker processes.
_NO_OPTION = (
    "max_concurrent_envs",
    "readme_path",
    "target",
    "max_batch",
    "worker_start_s",
    "worker_silence_s",
    "worker_restarts",
)
# The kernel cuts it to its own limit (net.core.somaxconn).
BACKLOG = 65_535
# Seconds for connections to close when the sessions have ended.
SHUTDOWN_S = 5


def _option(name: str, kind: Any = str) -> Callable[[Command], Command]:
    """An option for a setting, with the help text that the settings table has."""
    setting = _SETTINGS[name]
    default = "" if setting.default is None else f"; default {setting.default}"
    return click.option(
        f"--{name.removesuffix('_s').replace('_', '-')}",
        name,
        type=kind,
        help=f"{setting.description} [{', '.join(setting.variables)}{default}]",
    )


def _without_option() -> list[str]:
    """The settings that are no option, for the help."""
    rows = (_SETTINGS[name] for name in _NO_OPTION)
    return [
        f"{row.variables[0]} ({row.description}{'' if row.default is None else f'; default {row.default}'})"
        for row in rows
    ]


@click.command(
    short_help="Serve an environment over WebSocket and HTTP.",
    help=f"""Serves TARGET over WebSocket and HTTP.

    TARGET is module:attribute (an app or an Environment class), a folder with openenv.yaml, gymnasium:ENV_ID, or a
    bundled environment: {", ".join(targets.bundled())}.

    Most options can also be set by the environment variable that stands behind them.

    \b
    Examples:
      openenv serve echo
      openenv serve my_package.server.app:app --workers 4 --max-sessions 1000
      openenv serve gymnasium:CartPole-v1 --port 8001
    """,
    epilog="Further variables: " + "; ".join(_without_option()) + ".",
)
@click.argument("target")
@_option("host")
@_option("port", int)
@_option("workers", int)
@_option("max_sessions", int)
@_option("queue_timeout_s", float)
@_option("idle_timeout_s", float)
@_option("max_message_mb", float)
@_option("max_in_flight", int)
@_option("ping_interval_s", float)
@_option("grace_s", float)
@_option("log_level")
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes.")
def serve(target: str, reload: bool, **options: Any) -> None:
    settings = _possible(ServerSettings.read(target=target, **options), reload)
    raise_file_limit()
    # Apps read their settings where they are made: here, or in the worker processes.
    settings.export()
    if settings.workers > 1:
        sys.exit(_run_workers(settings))
    app = targets.load(target)
    listener = _listen(settings)
    environment = getattr(getattr(app, "state", None), "openenv", None)
    limit = getattr(environment, "max_concurrent_envs", None)
    _announce(settings, listener, getattr(environment, "env_name", target), limit, reload)
    if reload:
        _run_reloading(settings, listener)
    else:
        _run_here(app, settings, listener)


def server_options(settings: ServerSettings) -> dict[str, Any]:
    """What `uvicorn.Config` is told wherever an app is served."""
    return {
        "ws_max_size": settings.max_message_bytes,
        "ws_ping_interval": settings.ping_interval_s or None,
        "ws_ping_timeout": settings.ping_interval_s or None,
        "log_level": settings.log_level,
        "access_log": settings.log_level == "debug",
        "timeout_graceful_shutdown": SHUTDOWN_S,
    }


def _possible(settings: ServerSettings, reload: bool) -> ServerSettings:
    from ..supervisor import can_pass_sockets

    if settings.workers == 1 or (can_pass_sockets() and not reload):
        return settings
    reason = "--reload starts one process" if reload else "this platform cannot pass connections between processes"
    click.echo(f"{reason}: serving with 1 worker", err=True)
    return settings.model_copy(update={"workers": 1})


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another address with --host or --port (0 takes a free port)"
        ) from None


def _announce(settings: ServerSettings, listener: socket.socket, name: str, limit: int | None, reload: bool) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    parts = [
        f"{click.style(name, bold=True)} on {address}",
        f"{settings.workers} worker" + ("s" if settings.workers > 1 else ""),
    ]
    if limit is not None:
        parts.append(f"up to {limit} session" + ("s" if limit > 1 else ""))
    parts.append("fast path" + (", uvloop" if _has_uvloop() else ""))
    if reload:
        parts.append("reloading")
    click.echo(" · ".join(parts), err=True)


def _has_uvloop() -> bool:
    return importlib.util.find_spec("uvloop") is not None


def _run_workers(settings: ServerSettings) -> int:
    from ..supervisor import Supervisor
    from .worker import command

    listener = _listen(settings)

    def ready(serves: dict[str, Any]) -> None:
        _announce(settings, listener, serves["name"], serves.get("limit"), reload=False)

    return Supervisor(listener, settings, command, ready).run()


def _run_here(app: Any, settings: ServerSettings, listener: socket.socket) -> None:
    from ..server.tuning import tune_process
    from ..supervisor.serving import DrainingServer

    config = _config(app, settings)
    tune_process()
    server = DrainingServer(config, settings.grace_s)
    server.run(sockets=[listener])
    if server.interrupted:
        raise KeyboardInterrupt


def _run_reloading(settings: ServerSettings, listener: socket.socket) -> None:
    import uvicorn
    from uvicorn.supervisors import ChangeReload

    config = _config("openenv.cli.worker:worker_app", settings, factory=True, reload=True)
    ChangeReload(config, target=uvicorn.Server(config).run, sockets=[listener]).run()


def _config(app: Any, settings: ServerSettings, **more: Any) -> Any:
    import uvicorn

    from ..server.fastpath import FastPath

    return uvicorn.Config(app, http="httptools", ws=FastPath, backlog=BACKLOG, **server_options(settings), **more)
