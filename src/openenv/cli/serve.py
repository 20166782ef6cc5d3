"""`openenv serve` and its worker processes: keys, TLS and address are checked and printed first."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import secrets
import socket
import ssl
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from .._processes import raise_file_limit
from ..errors import OpenEnvError, UnknownEnvironment, UsageError
from ..project import target as targets
from ..providers.redaction import redact
from ..server.auth import NO_KEYS, Keyring, Origins
from ..settings import CaptureSettings, ServerSettings, Setting, is_loopback
from ..telemetry import logs
from .terminal import complete_target, cut

if TYPE_CHECKING:
    from ..server.workers.pipe import Pipe
    from ..server.workers.table import SharedMetrics, WorkerRow, WorkerTable

KEY_BYTES = 24


def with_keys(settings: ServerSettings) -> tuple[ServerSettings, str | None]:
    """Decides about API keys: the given ones, else no key on loopback and a generated key on other addresses.

    Returns:
        The settings, and the key if one was generated.

    Raises:
        UsageError: Keys or origins cannot be parsed. Checked before worker processes start, which would all fail.
    """
    Keyring.parse(settings.api_keys)
    Origins(settings.allowed_origins, settings.allowed_hosts)
    if settings.api_keys is not None:
        return settings, None
    if is_loopback(settings.host):
        return settings.model_copy(update={"api_keys": NO_KEYS}), None
    key = secrets.token_urlsafe(KEY_BYTES)
    return settings.model_copy(update={"api_keys": key}), key


def key_words(settings: ServerSettings, made_key: str | None) -> str:
    """The part about keys in the line that announces a server, the only place that shows a generated key."""
    if made_key is not None:
        return f'clients show api_key="{made_key}" (choose your own by OPENENV_API_KEYS or --api-key; none: no key)'
    return "no key" if settings.api_keys == NO_KEYS else "asks for a key"


def warning_of_keys(settings: ServerSettings) -> str | None:
    """A warning for servers that answer without a key on other addresses than loopback."""
    if settings.api_keys != NO_KEYS or is_loopback(settings.host):
        return None
    return "warning: no key is asked for (--api-key none): every client that reaches this address can use it"


def tls_options(settings: ServerSettings) -> dict[str, Any]:
    """The arguments of `uvicorn.Config` for TLS; none if there is no certificate."""
    if settings.ssl_certfile is None:
        return {}
    return {
        "ssl_certfile": settings.ssl_certfile,
        "ssl_keyfile": settings.ssl_keyfile,
        "ssl_keyfile_password": settings.ssl_keyfile_password,
        "ssl_ca_certs": settings.ssl_ca_certs,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if settings.ssl_ca_certs else ssl.CERT_NONE,
    }


def check_tls(settings: ServerSettings) -> None:
    """Reads the files for TLS, so that errors appear before a process is started.

    Raises:
        UsageError: The TLS configuration is incomplete, or a file cannot be read.
    """
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile or settings.ssl_ca_certs:
            raise UsageError("TLS needs a certificate: also set --ssl-certfile (OPENENV_SSL_CERTFILE)")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # A password is always passed, since OpenSSL would otherwise prompt for one on the terminal.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_keyfile_password or "")
        if settings.ssl_ca_certs is not None:
            context.load_verify_locations(settings.ssl_ca_certs)
    except OSError as error:  # also what ssl raises
        raise UsageError(
            f"the files for TLS cannot be used ({error.strerror or error}): see --ssl-certfile, --ssl-keyfile, "
            "--ssl-ca-certs and OPENENV_SSL_KEYFILE_PASSWORD"
        ) from None


def facts_of(app: Any, target: str) -> dict[str, Any]:
    """The name of an app, and for an app of ours its `limit` of sessions and its `mode`."""
    environment = getattr(getattr(app, "state", None), "openenv", None)
    if environment is None:
        return {"name": target}
    mode = "production" if environment.authenticator.production else "simulation"
    return {"name": environment.env_name, "limit": environment.max_sessions, "mode": mode}


def announce(
    settings: ServerSettings,
    listener: socket.socket,
    serves: Mapping[str, Any],
    made_key: str | None,
    reload: bool = False,
    capture: str = "",
) -> None:
    """Announces the server in one line: address, UI, key, sessions, workers.

    Args:
        settings: Settings of the server.
        listener: Its listening socket.
        serves: The facts of the served app, as `facts_of` returns them.
        made_key: The key that was generated for it, if any.
        reload: Whether it restarts when a file changes.
        capture: What to say of its capture proxy.
    """
    host, port = listener.getsockname()[:2]
    address = f"{'https' if settings.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    limit = serves.get("limit")
    parts = [f"{click.style(serves['name'], bold=True)} on {address}"]
    if limit is not None and settings.web_interface and serves.get("mode", settings.mode) != "production":
        # A browser cannot open the wildcard address.
        reached = re.sub(r"//(0\.0\.0\.0|\[::\])", "//127.0.0.1", address)
        parts.append(f"UI {reached}/web")
    parts.append(key_words(settings, made_key))
    if limit is not None:
        parts.append(f"up to {limit} session" + ("s" if limit > 1 else ""))
    parts.append(f"{settings.workers} worker" + ("s" if settings.workers > 1 else ""))
    parts.append("fast path" + (", uvloop" if importlib.util.find_spec("uvloop") else ""))
    if settings.record is not None:
        parts.append(f"records into {settings.record}")
    if capture:
        parts.append(capture)
    if reload:
        parts.append("reloading")
    text = " · ".join(parts)
    if sys.stderr.isatty() and settings.log_format != "json":
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        # Users copy keys and addresses, so neither may be broken across lines.
        lines = textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        text = "\n".join(lines)
    say(settings, text)
    warning = warning_of_keys(settings)
    if warning is not None:
        say(settings, warning)


def say(settings: ServerSettings, text: str) -> None:
    """Prints a line on stderr; where logs are JSON, as JSON."""
    click.echo(logs.json_line(click.unstyle(text)) if settings.log_format == "json" else text, err=True)


PROC = Path("/proc")
# State of a listening socket in /proc/net.
_LISTENS = "0A"
# Maximum length of a displayed command line, in characters.
WIDTH = 100
_SECRET = re.compile(r"((?:key|token|secret|password)\S*?[ =])\S+", re.IGNORECASE)


def holder_of(port: int) -> str:
    """The process that listens on a TCP port, with its command line; `another process` if it cannot be found."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == _LISTENS:
                    sockets.add(f"socket:[{fields[9]}]")
    pids: list[int] = []
    with suppress(OSError):
        pids = sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    for pid in pids:  # oldest process first: it opened the socket that others inherited
        with suppress(OSError):
            for entry in (PROC / str(pid) / "fd").iterdir():
                with suppress(OSError):  # closed meanwhile
                    if str(entry.readlink()) in sockets:
                        return f"process {pid} ({_command(pid)})"
    return "another process"


def _command(pid: int) -> str:
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        text = "".join(each if each.isprintable() else "?" for each in " ".join(words))
        if text:
            return cut(redact(_SECRET.sub(r"\1***", text), ()), WIDTH)
    return "its command cannot be read"


def run_workers(settings: ServerSettings, listener: socket.socket, ready: Callable[[dict[str, Any]], None]) -> int:
    """Serves by worker processes until a signal ends it. Returns the exit code.

    Workers are forks, which have what this process has imported. It imports no environment: after a SIGHUP, they have
    new code of that.
    """
    from ..server import app  # noqa: F401
    from ..server.workers import worker  # noqa: F401
    from ..server.workers.serving import tune_process
    from ..server.workers.supervisor import Supervisor

    tune_process()
    return Supervisor(listener, settings, partial(run_worker, settings), ready).run()


def run_worker(
    settings: ServerSettings, pipe: Pipe, table: WorkerTable, metrics: SharedMetrics, row: WorkerRow
) -> None:
    """Serves the target in a worker process, on connections from its parent.

    Args:
        settings: Those of the server.
        pipe: Its end of the pipe to the parent.
        table, metrics: What all workers share.
        row: Its row in both.
    """
    from ..server.workers.pipe import MOST_BYTES, MessageKind
    from ..server.workers.serving import tune_process
    from ..server.workers.table import KEY, WorkerLoad
    from ..server.workers.worker import Worker, WorkerConfig, exit_with_parent

    exit_with_parent(pipe.fileno())
    metrics.join(row.index, row.get(KEY))
    try:
        app = load_app(str(settings.target), settings)
    except OpenEnvError as error:
        pipe.send(MessageKind.FAILED, error.message.encode()[: MOST_BYTES - 1])
        sys.exit(1)
    config = WorkerConfig(app, WorkerLoad(row), **server_options(settings))
    tune_process()
    Worker(config, pipe, table, row, settings).run()


def load_app(target: str, settings: ServerSettings) -> Any:
    """The app of a target, with the capture proxy if the settings have an engine.

    Raises:
        UsageError: The target cannot be loaded, or its app takes no proxy; or the engine's URL is invalid.
        JournalInUse: Another proxy records into the folder.
    """
    app = targets.load(target)
    if settings.capture is None:
        return app
    from ..capture.server import CaptureMiddleware
    from ..capture.service import CaptureOptions, CaptureService

    if not hasattr(app, "add_middleware"):
        raise UsageError(f"{target} is no app of openenv: run `openenv capture serve {settings.capture}` beside it")
    keys = CaptureSettings.read()
    options = CaptureOptions(
        llm_url=settings.capture, api_key=keys.api_key, admin_key=keys.admin_key, folder=settings.capture_folder
    )
    app.add_middleware(CaptureMiddleware, service=CaptureService(options))
    return app


def with_capture_key(settings: ServerSettings) -> str:
    """The words about the capture proxy in the line that announces a server. Chooses an admin key if none is set.

    Raises:
        UsageError: There are several workers, and so several proxies.
    """
    if settings.capture is None:
        return ""
    if settings.workers > 1:
        raise UsageError(
            "--capture needs one worker: leave --workers out, or run `openenv capture serve --workers` beside this"
        )
    keys = CaptureSettings.read()
    if keys.admin_key is not None:
        return "capture at /capture"
    keys = keys.model_copy(update={"admin_key": secrets.token_urlsafe(KEY_BYTES)})
    keys.export()
    return f'capture at /capture, admin key "{keys.admin_key}" (choose your own by OPENENV_CAPTURE_ADMIN_KEY)'


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


class ServeCommand(click.Command):
    """Its help ends with the settings that have no option."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for row in (_SETTINGS[name] for name in _NO_OPTION):
            default = "" if row.default is None else f" [default {row.default}]"
            rows.append((row.variable, f"{row.description}{default}"))
        with formatter.section("Further variables"):
            formatter.write_dl(rows)


# The kernel cuts it to its own limit (net.core.somaxconn).
BACKLOG = 65_535
# Seconds for connections to close when the sessions have ended.
SHUTDOWN_S = 5


# Options that are not named like their settings.
_FLAGS = {"api_keys": "api-key", "web_interface": "ui"}
_LETTERS = {"port": ["-p"]}


def _setting_options(command: Command) -> Command:
    """Adds the options that the settings table defines; switches come last."""
    rows = [row for row in _SETTINGS.values() if row.name not in _NO_OPTION]
    rows.reverse()  # the first option is added last
    rows.sort(key=lambda row: not isinstance(row.default, bool))
    for row in rows:
        flag = _FLAGS.get(row.name, row.name.removesuffix("_s").replace("_", "-"))
        annotation = ServerSettings.model_fields[row.name].annotation
        kind: Any = next((each for each in (int, float) if each in (annotation, *get_args(annotation))), str)
        default = row.default
        if isinstance(default, bool):
            flag, kind, default = f"{flag}/--no-{flag}", None, "on" if default else "off"
        variable = row.variable + ("" if default is None else f"; default {default}")
        command = click.option(
            *_LETTERS.get(row.name, ()),
            f"--{flag}",
            row.name,
            type=kind,
            default=None,
            help=f"{row.description} [{variable}]",
        )(command)
    return command


@click.command(
    cls=ServeCommand,
    help=f"""Serves TARGET over WebSocket and HTTP.

    TARGET is a folder with openenv.yaml (by default the current one), module:attribute (an app or an Environment
    class), gymnasium:ENV_ID, pettingzoo:MODULE, envpool:TASK_ID, pufferlib:NAME, verifiers:NAME,
    inspect:TASK, ors:URL, a bundled environment ({", ".join(targets.bundled())}), or an installed one, as
    `openenv list` calls it.

    Most options can also be set by the environment variable in brackets.

    \b
    Examples:
      openenv serve . --reload
      openenv serve echo
      openenv serve my_package.server.app:app --workers 4 --max-sessions 1000
      openenv serve gymnasium:CartPole-v1 --port 8001
      openenv serve echo --record runs/today --record-share 0.1
      openenv serve echo --host 0.0.0.0 --api-key control:SECRET,agent:OTHER
    """,
)
@click.argument("target", default=".", shell_complete=complete_target)
@_setting_options
@click.option("--reload", is_flag=True, help="Restart when a file of TARGET changes.")
def serve(target: str, reload: bool, **options: Any) -> None:
    if target and ":" not in target and not os.path.lexists(target) and target not in targets.bundled():
        from ..project.catalog import find

        with suppress(UnknownEnvironment):  # the error of the loader lists the possible targets
            installed = find(target).manifest_path
            target = target if installed is None else str(installed.parent)
    settings = ServerSettings.read(target=target, **options)
    if settings.workers > 1:
        from ..server.workers import can_pass_sockets

        if not (reload or can_pass_sockets()):
            raise UsageError(
                f"--workers {settings.workers} needs Linux, where processes pass connections to one another: serve "
                "with --workers 1, or start several servers behind a gateway (openenv gateway)"
            )
        if reload:
            say(settings, "--reload starts one process: serving with 1 worker")
            settings = settings.model_copy(update={"workers": 1})
    logs.configure_logging(settings.log_format, settings.log_level)
    check_tls(settings)
    if (
        settings.record is not None
    ):  # checked before worker processes start, since all of them would fail for the same reason
        from ..recording import check_folder

        check_folder(settings.record)
    settings, made_key = with_keys(settings)
    captures = with_capture_key(settings)
    raise_file_limit()
    # An app reads its settings from the environment of the process that creates it: this one, or a worker.
    settings.export()
    if reload:
        from .reload import Reloader, watched

        watched(target)  # before the socket is bound
    app = None if reload or settings.workers > 1 else load_app(target, settings)
    listener = listen(settings)

    def ready(serves: dict[str, Any]) -> None:
        announce(settings, listener, serves, made_key, reload, captures)

    if settings.workers > 1:
        sys.exit(run_workers(settings, listener, ready))
    if reload:
        Reloader(listener, settings, ready, partial(say, settings)).run()
    else:
        ready(facts_of(app, target))
        run_here(app, settings, listener)


def serve_app(make: Callable[[ServerSettings], Any], settings: ServerSettings) -> None:
    """Serves an app that is no target in this process, until a signal ends it.

    Args:
        make: Makes the app, from the settings with their keys.
        settings: Settings of the server.

    Raises:
        KeyboardInterrupt: The signal was SIGINT (Ctrl-C).
        UsageError: It cannot listen there.
    """
    logs.configure_logging(settings.log_format, settings.log_level)
    check_tls(settings)
    settings, made_key = with_keys(settings)
    raise_file_limit()
    app = make(settings)
    listener = listen(settings)
    announce(settings, listener, facts_of(app, ""), made_key)
    run_here(app, settings, listener)


def server_options(settings: ServerSettings) -> dict[str, Any]:
    """The arguments of `uvicorn.Config`, in this process and in workers."""
    return {
        "ws_max_size": settings.max_message_bytes,
        "ws_ping_interval": settings.ping_interval_s or None,
        "ws_ping_timeout": settings.ping_interval_s or None,
        "log_config": logs.logging_config(settings.log_format, settings.log_level),
        "log_level": settings.log_level,
        "access_log": settings.log_level == "debug",
        "timeout_graceful_shutdown": SHUTDOWN_S,
        **tls_options(settings),
    }


def listen(settings: ServerSettings) -> socket.socket:
    """The listening socket at the address of the settings. Raises `UsageError` if it cannot be bound."""
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


def run_here(
    app: Any, settings: ServerSettings, listener: socket.socket, ready: Callable[[], None] | None = None
) -> None:
    """Serves an app in this process until a signal ends it.

    Args:
        app: The served app.
        settings: Settings of the server.
        listener: Its listening socket.
        ready: Called when the app has started.

    Raises:
        KeyboardInterrupt: The signal was SIGINT (Ctrl-C).
    """
    import uvicorn

    from ..server.transports.uvicorn import FastPath, HTTPProtocol
    from ..server.workers.serving import DrainingServer, tune_process

    class AnnouncedServer(DrainingServer):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and not self.should_exit:
                ready()

    config = uvicorn.Config(app, http=HTTPProtocol, ws=FastPath, backlog=BACKLOG, **server_options(settings))
    tune_process()
    server = AnnouncedServer(config, settings.grace_s)
    server.run(sockets=[listener])
    if server.interrupted:
        raise KeyboardInterrupt
