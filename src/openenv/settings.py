"""Every setting of this package, and the only place that reads `os.environ`.

A setting is a field with its default, its environment variables and one line of explanation.
`openenv serve --help` and `docs/settings.md` are made from the same fields.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import InvalidArgument

__all__ = ["ClientSettings", "ServerSettings", "Setting", "proxy_for"]


def _setting(default: Any, description: str, *, variable: str | None = None, **bounds: Any) -> Any:
    """A field. Its variable is its name in capitals after `OPENENV_`, unless it has another one."""
    if isinstance(default, float) or bounds.get("gt") == 0:
        bounds["allow_inf_nan"] = False
    return Field(default=default, description=description, json_schema_extra={"variable": variable}, **bounds)


class Setting(NamedTuple):
    """One row of the settings table."""

    name: str
    variable: str
    default: Any
    description: str


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Self:
        """Reads the environment; an override that is not None wins over a variable.

        Args:
            environ: Read instead of `os.environ`, for tests.
            overrides: Values by field name, as given on a command line or to a constructor.

        Raises:
            InvalidArgument: A value is not valid; the message names the setting and its variable.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for setting in cls.table():
            if found := environ.get(setting.variable):
                values[setting.name] = found
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls(**values)
        except ValidationError as error:
            variables = {setting.name: setting.variable for setting in cls.table()}
            faults = (
                f"setting {fault['loc'][0]} ({variables.get(str(fault['loc'][0]), '')}): "
                f"{fault['msg']}, got {fault['input']!r}"
                for fault in error.errors()
            )
            raise InvalidArgument("; ".join(faults)) from None

    def export(self) -> None:
        """Makes `os.environ` say what these settings say, for apps and processes made from here on."""
        for setting in self.table():
            value = getattr(self, setting.name)
            os.environ.pop(setting.variable, None)
            if value != setting.default:
                os.environ[setting.variable] = str(value)

    @classmethod
    def table(cls) -> Iterator[Setting]:
        """The rows of this class, in the order in which they are declared."""
        for name, field in cls.model_fields.items():
            assert isinstance(field.json_schema_extra, dict)
            variable = field.json_schema_extra["variable"] or f"OPENENV_{name.upper()}"
            yield Setting(name, str(variable), field.default, field.description or "")


_Mode = Annotated[
    Literal["simulation", "production"],
    BeforeValidator(lambda mode: mode.lower() if isinstance(mode, str) else mode),
]


class ServerSettings(_Settings):
    """What a server reads when it starts."""

    host: str = _setting("127.0.0.1", "Address to listen on", variable="HOST")
    port: int = _setting(8000, "Port to listen on; 0 takes a free one", variable="PORT", ge=0, le=65535)
    workers: int = _setting(1, "Worker processes", variable="WORKERS", ge=1, le=1024)
    max_sessions: int | None = _setting(
        None,
        "Most sessions open at one time, by all workers together, in place of the limit that the app was built with",
        ge=1,
    )
    max_concurrent_envs: int | None = _setting(
        None,
        "Of existing code: `max_sessions` of an app that was built without a limit",
        variable="MAX_CONCURRENT_ENVS",
        ge=1,
    )
    max_sessions_per_key: int | None = _setting(None, "Most sessions open at one time under one API key", ge=1)
    max_executing: int | None = _setting(
        None, "Most calls that environments of one worker process execute at one time; further ones wait", ge=1
    )
    max_constructing: int | None = _setting(
        None, "Most environments that one worker process makes at one time; further ones wait", ge=1
    )
    max_abandoned_threads: int = _setting(
        16,
        "Most hung calls that are left behind on their threads, in each worker process; their slots are "
        "free again, the slots of further hung calls stay taken",
        ge=0,
    )
    abandon_after_s: float = _setting(
        30.0,
        "Seconds that a session which has ended waits for its call, or its environment's close, to return; then they "
        "are left behind. A call over its deadline is left behind at once",
        gt=0,
    )
    queue_limit: int = _setting(20_000, "Most new sessions that wait for a free slot, in each worker process", ge=0)
    queue_timeout_s: float = _setting(0.0, "Seconds a new session waits for a free slot before it is refused", ge=0)
    mode: _Mode = _setting(
        "simulation", "production: only keys of scope control may reset, step and read state; all others call tools"
    )
    resume_window_s: float = _setting(
        60.0,
        "Seconds that a session outlives its lost connection, for its client to come back (protocol v2); "
        "0: it ends with the connection",
        ge=0,
        le=86_400,
    )
    idle_timeout_s: float = _setting(
        3600.0,
        "Seconds without a call or a sign of life of its client after which a session is closed; 0: never",
        ge=0,
    )
    isolation: Literal["none", "process"] = _setting(
        "none", "process: each session in a separate process; none: as the class declares"
    )
    sandbox: Literal["none", "bwrap"] = _setting(
        "none", "bwrap: processes of sessions without network, with a read-only root and a private /tmp"
    )
    process_pool: int = _setting(4, "Session processes kept ready, in each worker process", ge=0, le=1024)
    process_memory_mb: float | None = _setting(None, "Address space of a session process, in MiB", gt=0)
    process_cpu_s: float | None = _setting(None, "CPU seconds of a session process, over its life", gt=0)
    process_children: int = _setting(
        256, "Most processes and threads that a session's process may have started", ge=1
    )
    process_files: int = _setting(1024, "Open files of a session process", ge=16)
    process_output_mb: float = _setting(
        64.0, "Largest reply of a session process, and largest file that it may write, in MiB", gt=0
    )
    max_message_mb: float = _setting(16.0, "Largest message accepted from a client, in MiB", gt=0, le=2048)
    max_reply_mb: float = _setting(100.0, "Largest message sent to a client, in MiB", gt=0, le=2048)
    max_unsent_mb: float = _setting(
        256.0,
        "Bytes that may wait in one connection, in each direction, and in all HTTP requests together, in MiB",
        gt=0,
    )
    max_header_kb: float = _setting(64.0, "Largest head of an HTTP request or WebSocket handshake, in KiB", gt=0)
    handshake_timeout_s: float = _setting(10.0, "Seconds a client has for the head of its first request", gt=0)
    max_in_flight: int = _setting(64, "Requests of one session (v1: connection) that may wait for their turn", ge=1)
    max_connection_in_flight: int = _setting(65_536, "Calls of one connection without a reply (protocol v2)", ge=1)
    max_batch: int = _setting(1024, "Most calls in one batch (protocol v2)", ge=1)
    ping_interval_s: float = _setting(
        20.0, "Seconds between WebSocket pings; two without an answer cut the connection, 0 turns them off", ge=0
    )
    heartbeat_s: float = _setting(
        20.0,
        "Seconds within which a client of protocol v2 sends a frame, at least a heartbeat; "
        "two silent periods cut the connection, 0 turns that off",
        ge=0,
        le=86_400,
    )
    api_keys: str | None = _setting(
        None,
        "Keys that clients must show: scope:key, separated by commas; scopes are control, agent and view, "
        "a key without a scope has control; none: the server asks for no key",
    )
    max_key_failures: int = _setting(
        20, "Wrong keys from one address within a minute after which the server refuses further ones", ge=1
    )
    allowed_origins: str | None = _setting(
        None, "Origins of web pages that may connect, separated by commas; *: any; unset: pages of this server"
    )
    allowed_hosts: str | None = _setting(
        None,
        "Host names, without port, that requests to a server on loopback without keys may use, beside those of "
        "loopback, separated by commas; *: any",
    )
    ssl_certfile: str | None = _setting(None, "Certificate file, to serve over TLS")
    ssl_keyfile: str | None = _setting(None, "Private key file of the certificate")
    ssl_keyfile_password: str | None = _setting(None, "Password of the private key file")
    ssl_ca_certs: str | None = _setting(
        None, "Authorities, one of which must have signed the certificate of a client"
    )
    grace_s: float = _setting(
        30.0, "Seconds that open sessions have to end when the server stops or a worker is replaced", ge=0
    )
    worker_start_s: float = _setting(60.0, "Seconds a worker process has to become ready", gt=0)
    worker_silence_s: float = _setting(
        20.0, "Seconds a worker process may be silent before it is replaced, with all of its sessions", gt=0
    )
    worker_restarts: int = _setting(10, "Worker deaths within a minute after which the server gives up", ge=0)
    metrics: bool = _setting(True, "Whether /metrics is served and phases are timed")
    tracing: bool = _setting(False, "Whether calls are traced with OpenTelemetry (extra otel)")
    record: str | None = _setting(None, "Folder into which episodes are recorded; workers and servers may share it")
    record_share: float = _setting(1.0, "Share of the sessions that is recorded, chosen by their ids", ge=0, le=1)
    record_file_mb: float = _setting(
        64.0, "Size of a file of records at which it is rotated to Parquet, in MiB", gt=0
    )
    record_max_mb: float | None = _setting(
        None, "Size of the whole folder at which recording stops, in MiB; nothing is ever deleted", gt=0
    )
    log_format: Literal["console", "json"] = _setting("console", "console or json")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = _setting(
        "warning", "critical, error, warning, info or debug"
    )
    target: str | None = _setting(None, "What a worker process serves; set by `openenv serve`")
    readme_path: str | None = _setting(None, "README shown by /metadata", variable="ENV_README_PATH")
    web_interface: bool = _setting(
        True,
        "Whether the web UI, and the page of a `gradio_builder`, is served at /web; in production mode it never is",
        variable="ENABLE_WEB_INTERFACE",
    )

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 1024 * 1024)

    @property
    def max_reply_bytes(self) -> int:
        return int(self.max_reply_mb * 1024 * 1024)

    @property
    def max_unsent_bytes(self) -> int:
        return int(self.max_unsent_mb * 1024 * 1024)


class ClientSettings(_Settings):
    """What a client reads when it is made."""

    api_key: str | None = _setting(None, "Key to show to the server (`api_key`)", repr=False)
    mode: _Mode = _setting(
        "simulation", "production: the server lets clients call tools only (`mode`)", variable="OPENENV_CLIENT_MODE"
    )
    hub_url: str = _setting(
        "https://huggingface.co", "The Hub that `from_env` takes projects from", variable="HF_ENDPOINT"
    )
    hub_registry: str = _setting("registry.hf.space", "Where the containers of the Hub's spaces are")
    trust_remote_code: bool = _setting(False, "Whether packages of the Hub may be installed, which runs their code")


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the process's environment names for a host (`HTTPS_PROXY`, `NO_PROXY`, ...), if any."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address means this machine, so that no proxy and no other machine reaches it."""
    host = (host or "").lower().rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def is_loopback_for_secrets(host: str | None) -> bool:
    """Whether a key may go to a host in plain text: names below `.localhost` may be resolved by other machines."""
    return is_loopback(host) and not (host or "").lower().rstrip(".").endswith(".localhost")


def ray_address() -> str | None:
    """The Ray cluster that the process's environment names, if any."""
    return os.environ.get("RAY_ADDRESS") or None


def variable_here(name: str) -> str | None:
    """A variable of the process's environment that a user has named; None: it is not set."""
    return os.environ.get(name)


def environ_of_environments() -> dict[str, str]:
    """The process's environment for processes that run environments: without the server's secrets."""
    secrets = {"OPENENV_API_KEY", "OPENENV_API_KEYS", "OPENENV_SSL_KEYFILE_PASSWORD"}
    return {name: value for name, value in os.environ.items() if name not in secrets}
