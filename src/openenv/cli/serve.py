"""`openenv serve`: an environment on the network."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import UsageError
from ..file_limit import raise_file_limit
from ..settings import ServerSettings, Setting
from . import target as targets

__all__ = ["serve", "worker_app"]

Command = TypeVar("Command", bound=Callable[..., Any])
_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in ServerSettings.table()}
# The kernel cuts it to its own limit (net.core.somaxconn).
BACKLOG = 65_535
# Seconds for connections to end after Ctrl-C or SIGTERM.
SHUTDOWN_S = 5
# Seconds a worker may be too busy to answer its parent before it is replaced, with all of its sessions.
WORKER_SILENCE_S = 20


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
    """The settings that are no option: for the app's author, or for worker processes."""
    names = ("max_concurrent_envs", "readme_path", "target")
    return [f"{_SETTINGS[name].variables[0]} ({_SETTINGS[name].description})" for name in names]


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
@_option("log_level")
@click.option("--reload", is_flag=True, help="Start anew when a Python file changes.")
def serve(target: str, reload: bool, **options: Any) -> None:
    settings = ServerSettings.read(target=target, **options)
    raise_file_limit()
    # Apps read their settings where they are made: here, or in the worker processes.
    settings.export()
    app = targets.load(target)
    listener = _listen(settings)
    _announce(app, settings, listener, reload)
    if settings.workers > 1 or reload:
        _run_processes(settings, listener, reload)
    else:
        _run_here(app, settings, listener)


def worker_app() -> Any:
    """Makes the app inside a worker process, from the settings that `openenv serve` exported."""
    settings = ServerSettings.read()
    if settings.target is None:
        raise UsageError("OPENENV_TARGET is not set: start workers with `openenv serve`")
    return targets.load(settings.target)


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; "
            "choose another address with --host or --port (0 takes a free port)"
        ) from None


def _announce(app: Any, settings: ServerSettings, listener: socket.socket, reload: bool) -> None:
    host, port = listener.getsockname()[:2]
    server = getattr(getattr(app, "state", None), "openenv", None)
    name = getattr(server, "env_name", settings.target)
    limit = getattr(server, "max_concurrent_envs", None)
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    parts = [
        f"{click.style(name, bold=True)} on {address}",
        f"{settings.workers} worker" + ("s" if settings.workers > 1 else ""),
    ]
    if limit is not None:
        parts.append(
            f"up to {limit} session" + ("s" if limit > 1 else "") + (" each" if settings.workers > 1 else "")
        )
    parts.append("fast path" + (", uvloop" if _has_uvloop() else ""))
    if reload:
        parts.append("reloading")
    click.echo(" · ".join(parts), err=True)


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return False
    return True


def _config(app: Any, settings: ServerSettings, **more: Any) -> Any:
    import uvicorn

    from ..server.fastpath import FastPath

    return uvicorn.Config(
        app,
        http="httptools",
        ws=FastPath,
        ws_max_size=settings.max_message_bytes,
        ws_ping_interval=settings.ping_interval_s or None,
        ws_ping_timeout=settings.ping_interval_s or None,
        log_level=settings.log_level,
        access_log=settings.log_level == "debug",
        backlog=BACKLOG,
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_worker_healthcheck=WORKER_SILENCE_S,
        **more,
    )


def _run_here(app: Any, settings: ServerSettings, listener: socket.socket) -> None:
    import uvicorn

    # uvicorn raises the signal that stopped it once more when all is closed: asked to stop, and stopped, is success.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.Server(_config(app, settings)).run(sockets=[listener])


def _run_processes(settings: ServerSettings, listener: socket.socket, reload: bool) -> None:
    import uvicorn
    from uvicorn.supervisors import ChangeReload, Multiprocess

    class Workers(Multiprocess):
        def keep_subprocess_alive(self) -> None:
            # Only the worker may hold its end of the pipe, else the parent waits for the answer of a dead one.
            for process in self.processes:
                process.child_conn.close()
            super().keep_subprocess_alive()

    config = _config("openenv.cli.serve:worker_app", settings, factory=True, workers=settings.workers, reload=reload)
    if reload:
        ChangeReload(config, target=uvicorn.Server(config).run, sockets=[listener]).run()
    else:
        Workers(config, sockets=[listener]).run()
