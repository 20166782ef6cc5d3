"""`openenv serve`: an environment on the network."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from .. import logs
from ..errors import UnknownEnvironment, UsageError
from ..file_limit import raise_file_limit
from ..project import target as targets
from ..settings import ServerSettings, Setting
from .announcement import announce, facts_of, say
from .completing import TARGET
from .port_holder import holder_of
from .protection import check_tls, tls_options, with_keys

__all__ = ["run_here", "serve", "server_options"]

Command = TypeVar("Command", bound=Callable[..., Any])
_SETTINGS: dict[str, Setting] = {setting.name: setting for setting in ServerSettings.table()}
# Settings for the app's author, for rare cases, or for worker processes.
_NO_OPTION = (
    "max_abandoned_threads",
    "abandon_after_s",
    "max_concurrent_envs",
    "readme_path",
    "record_file_mb",
    "target",
    "max_batch",
    "max_constructing",
    "max_connection_in_flight",
    "max_unsent_mb",
    "max_header_kb",
    "max_key_failures",
    "handshake_timeout_s",
    "process_children",
    "process_files",
    "process_output_mb",
    "ssl_keyfile_password",
    "worker_start_s",
    "worker_silence_s",
    "worker_restarts",
)
# The kernel cuts it to its own limit (net.core.somaxconn).
BACKLOG = 65_535
# Seconds for connections to close when the sessions have ended.
SHUTDOWN_S = 5


def _option(
    name: str, kind: Any = str, flag: str | None = None, letter: str | None = None
) -> Callable[[Command], Command]:
    """An option for a setting, with the help text that the settings table has."""
    setting = _SETTINGS[name]
    default = "" if setting.default is None else f"; default {setting.default}"
    return click.option(
        *([f"-{letter}"] if letter else []),
        f"--{flag or name.removesuffix('_s').replace('_', '-')}",
        name,
        type=kind,
        help=f"{setting.description} [{', '.join(setting.variables)}{default}]",
    )


def _switch(name: str, flag: str | None = None) -> Callable[[Command], Command]:
    """An option for a setting that is on or off."""
    setting = _SETTINGS[name]
    return click.option(
        f"--{flag or name}/--no-{flag or name}",
        name,
        default=None,
        help=f"{setting.description} [{', '.join(setting.variables)}; default {'on' if setting.default else 'off'}]",
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

    TARGET is a folder with openenv.yaml (by default the current one), module:attribute (an app or an Environment
    class), gymnasium:ENV_ID, pettingzoo:MODULE, a bundled environment ({", ".join(targets.bundled())}), or an
    installed one, as `openenv list` calls it.

    Most options can also be set by the environment variable that stands behind them.

    \b
    Examples:
      openenv serve . --reload
      openenv serve echo
      openenv serve my_package.server.app:app --workers 4 --max-sessions 1000
      openenv serve gymnasium:CartPole-v1 --port 8001
      openenv serve echo --record runs/today --record-share 0.1
      openenv serve echo --host 0.0.0.0 --api-key control:SECRET,agent:OTHER
    """,
    epilog="Further variables: " + "; ".join(_without_option()) + ".",
)
@click.argument("target", default=".", shell_complete=TARGET)
@_option("host")
@_option("port", int, letter="p")
@_option("workers", int)
@_option("max_sessions", int)
@_option("max_sessions_per_key", int)
@_option("max_executing", int)
@_option("queue_limit", int)
@_option("queue_timeout_s", float)
@_option("mode")
@_option("resume_window_s", float)
@_option("idle_timeout_s", float)
@_option("isolation")
@_option("sandbox")
@_option("process_pool", int)
@_option("process_memory_mb", float)
@_option("process_cpu_s", float)
@_option("max_message_mb", float)
@_option("max_reply_mb", float)
@_option("max_in_flight", int)
@_option("ping_interval_s", float)
@_option("heartbeat_s", float)
@_option("api_keys", flag="api-key")
@_option("allowed_origins")
@_option("allowed_hosts")
@_option("ssl_certfile")
@_option("ssl_keyfile")
@_option("ssl_ca_certs")
@_option("grace_s", float)
@_option("record")
@_option("record_share", float)
@_option("record_max_mb", float)
@_option("log_level")
@_option("log_format")
@_switch("web_interface", "ui")
@_switch("metrics")
@_switch("tracing")
@click.option("--reload", is_flag=True, help="Start anew when a file of TARGET changes.")
def serve(target: str, reload: bool, **options: Any) -> None:
    target = _installed(target)
    settings = _possible(ServerSettings.read(target=target, **options), reload)
    logs.set_up(settings.log_format, settings.log_level)
    check_tls(settings)
    _check_record(settings)
    settings, made_key = with_keys(settings)
    raise_file_limit()
    # Apps read their settings where they are made: here, or in the worker processes.
    settings.export()
    if settings.workers > 1:
        sys.exit(_run_workers(settings, made_key))
    if reload:
        _run_reloading(settings, made_key)
        return
    app = targets.load(target)
    listener = _listen(settings)
    announce(settings, listener, facts_of(app, target), made_key)
    run_here(app, settings, listener)


def server_options(settings: ServerSettings) -> dict[str, Any]:
    """What `uvicorn.Config` is told wherever an app is served."""
    return {
        "ws_max_size": settings.max_message_bytes,
        "ws_ping_interval": settings.ping_interval_s or None,
        "ws_ping_timeout": settings.ping_interval_s or None,
        "log_config": logs.config(settings.log_format, settings.log_level),
        "log_level": settings.log_level,
        "access_log": settings.log_level == "debug",
        "timeout_graceful_shutdown": SHUTDOWN_S,
        **tls_options(settings),
    }


def _installed(target: str) -> str:
    """The folder of an installed environment that is called so; the target itself, if that is something else."""
    if not target or ":" in target or os.path.lexists(target) or target in targets.bundled():
        return target
    from ..auto.catalog import find

    try:
        entry = find(target)
    except UnknownEnvironment:  # who loads it says what targets there are
        return target
    return target if entry.manifest_path is None else str(entry.manifest_path.parent)


def _possible(settings: ServerSettings, reload: bool) -> ServerSettings:
    from ..supervisor import can_pass_sockets

    if settings.workers == 1 or (can_pass_sockets() and not reload):
        return settings
    reason = "--reload starts one process" if reload else "this platform cannot pass connections between processes"
    say(settings, f"{reason}: serving with 1 worker")
    return settings.model_copy(update={"workers": 1})


def _check_record(settings: ServerSettings) -> None:
    """Before worker processes are started, which would all fail for the same reason."""
    if settings.record is not None:
        from ..recording import check_folder

        check_folder(settings.record)


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = f"{os.strerror(error.errno)}, by {holder_of(settings.port)}"
        raise UsageError(
            f"cannot listen on {settings.host}:{settings.port}: {reason}; "
            "choose another address with --host or --port (0 takes a free port)"
        ) from None


def _run_workers(settings: ServerSettings, made_key: str | None) -> int:
    from ..supervisor import Supervisor
    from .worker import command

    listener = _listen(settings)

    def ready(serves: dict[str, Any]) -> None:
        announce(settings, listener, serves, made_key)

    return Supervisor(listener, settings, command, ready).run()


def run_here(
    app: Any, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] | None = None
) -> None:
    """Serves an app in this process until a signal ends it.

    Args:
        app: What is served.
        settings: Of the server.
        listener: Where.
        ready: Called when the app has started.

    Raises:
        KeyboardInterrupt: It was Ctrl-C.
    """
    from ..server.tuning import tune_process
    from ..supervisor.serving import DrainingServer

    class Server(DrainingServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and not self.should_exit:
                ready()

    config = _config(app, settings)
    tune_process()
    server = Server(config, settings.grace_s)
    server.run(sockets=[listener])
    if server.interrupted:
        raise KeyboardInterrupt


def _run_reloading(settings: ServerSettings, made_key: str | None) -> None:
    from .reload import Reloader, watched

    watched(str(settings.target))
    listener = _listen(settings)

    def ready(serves: dict[str, Any]) -> None:
        announce(settings, listener, serves, made_key, reload=True)

    Reloader(listener, settings, ready, partial(say, settings)).run()


def _config(app: Any, settings: ServerSettings, **more: Any) -> Any:
    import uvicorn

    from ..server.fastpath import FastPath
    from ..server.reception import Reception

    return uvicorn.Config(app, http=Reception, ws=FastPath, backlog=BACKLOG, **server_options(settings), **more)
