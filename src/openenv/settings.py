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

__all__ = ["CaptureSettings", "ClientSettings", "ModelSettings", "ServerSettings", "Setting", "proxy_for"]


def _setting(default: Any, description: str, *, variable: str | None = None, **bounds: Any) -> Any:
    """Makes a field. By default, its environment variable is `OPENENV_` and the field's name in capitals."""
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
            environ: Replaces `os.environ`, for tests.
            overrides: Values by field name, from a command line or a constructor.

        Raises:
            InvalidArgument: A value is invalid; the message names the setting and its variable.
        """
        environ = os.environ if environ is None else environ
        variables = {setting.name: setting.variable for setting in cls.table()}
        found = {name: value for name, variable in variables.items() if (value := environ.get(variable))}
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**{**found, **given})
        except ValidationError as error:
            faults = (
                f"setting {fault['loc'][0]} ({variables.get(str(fault['loc'][0]), '')}): "
                f"{fault['msg']}, got {fault['input']!r}"
                for fault in error.errors()
            )
            raise InvalidArgument("; ".join(faults)) from None

    def export(self) -> None:
        """Writes these settings to `os.environ`, for apps and processes that start later."""
        for setting in self.table():
            value = getattr(self, setting.name)
            os.environ.pop(setting.variable, None)
            if value != setting.default:
                os.environ[setting.variable] = str(value)

    @classmethod
    def table(cls) -> Iterator[Setting]:
        """The rows of this class, in the order of their declaration."""
        for name, field in cls.model_fields.items():
            assert isinstance(field.json_schema_extra, dict)
            variable = field.json_schema_extra["variable"] or f"OPENENV_{name.upper()}"
            yield Setting(name, str(variable), field.default, field.description or "")


_Mode = Annotated[
    Literal["simulation", "production"],
    BeforeValidator(lambda mode: mode.lower() if isinstance(mode, str) else mode),
]


class ServerSettings(_Settings):
    """The settings of a server, read when it starts."""

    host: str = _setting("127.0.0.1", "Address to listen on", variable="HOST")
    port: int = _setting(8000, "Port to listen on; 0 takes a free one", variable="PORT", ge=0, le=65535)
    workers: int = _setting(1, "Worker processes", variable="WORKERS", ge=1, le=1024)
    max_sessions: int | None = _setting(
        None,
        "Most concurrent sessions of all workers together; overrides the limit that the app was built with",
        ge=1,
    )
    max_concurrent_envs: int | None = _setting(
        None,
        "For existing code: the `max_sessions` of an app that was built without a limit",
        variable="MAX_CONCURRENT_ENVS",
        ge=1,
    )
    max_sessions_per_key: int | None = _setting(None, "Most concurrent sessions of one API key", ge=1)
    max_executing: int | None = _setting(
        None, "Most calls that environments of one worker process execute concurrently; further calls wait", ge=1
    )
    max_constructing: int | None = _setting(
        None, "Most environments that one worker process constructs concurrently; further ones wait", ge=1
    )
    max_abandoned_threads: int = _setting(
        16,
        "Most hung calls that are left behind on their threads, in each worker process. Their slots become free; "
        "the slots of further hung calls stay taken",
        ge=0,
    )
    abandon_after_s: float = _setting(
        30.0,
        "Seconds that an ended session waits for its call, or for its environment's close, before it leaves them "
        "behind. A call over its deadline is left behind at once",
        gt=0,
    )
    gather_window_us: int = _setting(
        1000,
        "Most microseconds that a call of a session waits for calls of the other sessions that share its "
        "`BatchedEnvironment`",
        ge=0,
        le=10_000_000,
    )
    queue_limit: int = _setting(20_000, "Most new sessions that wait for a free slot, in each worker process", ge=0)
    queue_timeout_s: float = _setting(0.0, "Seconds a new session waits for a free slot before it is refused", ge=0)
    mode: _Mode = _setting(
        "simulation", "production: only keys of scope control may reset, step and read state; all others call tools"
    )
    resume_window_s: float = _setting(
        60.0,
        "Seconds that a session outlives a lost connection, so that its client can reconnect (protocol v2); "
        "0: it ends with the connection",
        ge=0,
        le=86_400,
    )
    idle_timeout_s: float = _setting(
        3600.0,
        "Seconds without a call, and without any frame of its client, after which a session is closed; 0: never",
        ge=0,
    )
    isolation: Literal["none", "process"] = _setting(
        "none", "process: each session runs in its own process; none: the environment class decides"
    )
    sandbox: Literal["none", "bwrap"] = _setting(
        "none", "bwrap: session processes have no network, a read-only root and a private /tmp; none: no sandbox"
    )
    process_pool: int = _setting(4, "Session processes kept ready, in each worker process", ge=0, le=1024)
    process_memory_mb: float | None = _setting(None, "Most address space of a session process, in MiB", gt=0)
    process_cpu_s: float | None = _setting(None, "Most CPU seconds of a session process over its lifetime", gt=0)
    process_children: int = _setting(256, "Most processes and threads that a session process may start", ge=1)
    process_files: int = _setting(1024, "Most open files of a session process", ge=16)
    process_output_mb: float = _setting(
        64.0, "Largest reply of a session process, and largest file that it may write, in MiB", gt=0
    )
    max_message_mb: float = _setting(16.0, "Largest message accepted from a client, in MiB", gt=0, le=2048)
    max_reply_mb: float = _setting(100.0, "Largest message sent to a client, in MiB", gt=0, le=2048)
    max_unsent_mb: float = _setting(
        256.0,
        "Most buffered data of one connection, in each direction, and of all HTTP requests together, in MiB",
        gt=0,
    )
    shared_memory_mb: float = _setting(
        256.0,
        "Most memory of one connection for large arrays, which its client on the same machine reads without the "
        "network (Linux, protocol v2), in MiB; 0: none",
        ge=0,
        le=65_536,
    )
    max_header_kb: float = _setting(64.0, "Largest head of an HTTP request or WebSocket handshake, in KiB", gt=0)
    handshake_timeout_s: float = _setting(10.0, "Seconds a client has for the head of its first request", gt=0)
    max_in_flight: int = _setting(64, "Most waiting requests of one session (v1: of one connection)", ge=1)
    max_connection_in_flight: int = _setting(
        65_536, "Most calls of one connection without a reply (protocol v2)", ge=1
    )
    max_batch: int = _setting(1024, "Most calls in one batch (protocol v2)", ge=1)
    ping_interval_s: float = _setting(
        20.0, "Seconds between WebSocket pings; two unanswered pings cut the connection, 0 turns them off", ge=0
    )
    heartbeat_s: float = _setting(
        20.0,
        "Seconds within which a client of protocol v2 must send a frame, at least a heartbeat; "
        "two silent periods cut the connection, 0 turns this off",
        ge=0,
        le=86_400,
    )
    api_keys: str | None = _setting(
        None,
        "API keys of clients: scope:key, separated by commas. Scopes are control, agent and view; "
        "a key without a scope has control. none: the server requires no key",
    )
    max_key_failures: int = _setting(
        20, "Wrong keys from one address within a minute after which the server refuses further wrong keys", ge=1
    )
    allowed_origins: str | None = _setting(
        None, "Origins of web pages that may connect, separated by commas; *: any; unset: pages of this server only"
    )
    allowed_hosts: str | None = _setting(
        None,
        "Host names (without port, separated by commas) that a server on loopback without keys accepts in addition "
        "to those of loopback; *: any",
    )
    ssl_certfile: str | None = _setting(None, "Certificate file, to serve over TLS")
    ssl_keyfile: str | None = _setting(None, "Private key file of the certificate")
    ssl_keyfile_password: str | None = _setting(None, "Password of the private key file")
    ssl_ca_certs: str | None = _setting(
        None, "File of certificate authorities; clients must present a certificate that one of them signed"
    )
    grace_s: float = _setting(
        30.0, "Seconds that open sessions have to end when the server stops or replaces a worker", ge=0
    )
    worker_start_s: float = _setting(60.0, "Seconds within which a worker process must be ready", gt=0)
    worker_silence_s: float = _setting(
        20.0, "Seconds after which a silent worker process is replaced; its sessions are lost", gt=0
    )
    worker_restarts: int = _setting(10, "Most worker restarts within a minute; then the server exits", ge=0)
    metrics: bool = _setting(True, "Whether /metrics is served and phases are timed")
    tracing: bool = _setting(False, "Whether calls are traced with OpenTelemetry (extra otel)")
    record: str | None = _setting(None, "Folder in which episodes are recorded; workers and servers may share it")
    record_share: float = _setting(1.0, "Fraction of sessions to record, chosen by their ids", ge=0, le=1)
    record_file_mb: float = _setting(
        64.0, "Size at which a file of records is converted to Parquet and a new file begins, in MiB", gt=0
    )
    record_max_mb: float | None = _setting(
        None, "Size of the folder at which recording stops, in MiB; no record is ever deleted", gt=0
    )
    capture: str | None = _setting(
        None,
        "URL of an engine of models: agents reach it through a capture proxy at /capture, which records calls",
    )
    capture_folder: str | None = _setting(
        None, "Folder of what the capture proxy records; unset: nothing is kept when the server ends"
    )
    log_format: Literal["console", "json"] = _setting("console", "console or json")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = _setting(
        "warning", "critical, error, warning, info or debug"
    )
    target: str | None = _setting(None, "The app that is served; set by `openenv serve`")
    readme_path: str | None = _setting(None, "README shown by /metadata", variable="ENV_README_PATH")
    web_interface: bool = _setting(
        True,
        "Whether the web UI and the page of a `gradio_builder` are served at /web; never in production mode",
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

    @property
    def shared_memory_bytes(self) -> int:
        return int(self.shared_memory_mb * 1024 * 1024)


class ClientSettings(_Settings):
    """The settings of a client, read when it is made."""

    api_key: str | None = _setting(None, "API key to send to the server (`api_key`)", repr=False)
    mode: _Mode = _setting(
        "simulation", "production: the server permits only tool calls (`mode`)", variable="OPENENV_CLIENT_MODE"
    )
    hub_url: str = _setting(
        "https://huggingface.co", "URL of the Hub from which `from_env` downloads projects", variable="HF_ENDPOINT"
    )
    hub_registry: str = _setting("registry.hf.space", "Registry of the container images of Hub Spaces")
    trust_remote_code: bool = _setting(False, "Whether packages from the Hub may be installed; this runs their code")


class ModelSettings(_Settings):
    """The keys of language models, read by the commands that play with one."""

    openai_api_key: str | None = _setting(
        None, "Key of `--provider openai` and `responses`", variable="OPENAI_API_KEY", repr=False
    )
    anthropic_api_key: str | None = _setting(
        None, "Key of `--provider anthropic`", variable="ANTHROPIC_API_KEY", repr=False
    )
    model_api_key: str | None = _setting(
        None, "Key of any provider that has no key of its own", variable="API_KEY", repr=False
    )

    @classmethod
    def variables(cls) -> str:
        """The environment variables of keys, as a list in text."""
        return ", ".join(setting.variable for setting in cls.table())

    def key_for(self, provider: str) -> str | None:
        """The key of a provider, if there is one."""
        return (self.anthropic_api_key if provider == "anthropic" else self.openai_api_key) or self.model_api_key


class CaptureSettings(_Settings):
    """The settings of the capture proxy, read by `openenv capture` and `openenv serve`."""

    admin_key: str | None = _setting(
        None,
        "Key of those who open and read sessions of the capture proxy; unset: a random one",
        variable="OPENENV_CAPTURE_ADMIN_KEY",
        repr=False,
    )
    api_key: str | None = _setting(
        None, "Key of the engine behind the capture proxy", variable="OPENENV_LLM_API_KEY", repr=False
    )


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy for a host from environment variables (`HTTPS_PROXY`, `NO_PROXY`, ...), if any."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address is a loopback one, which no proxy and no other machine can reach."""
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
    """Whether a key may be sent to a host in plain text. Other machines may resolve names below `.localhost`."""
    return is_loopback(host) and not (host or "").lower().rstrip(".").endswith(".localhost")


def variable_here(name: str) -> str | None:
    """An environment variable of another program, or one whose name a user has given; None if it is not set."""
    return os.environ.get(name)


def environ_of_environments() -> dict[str, str]:
    """The environment variables for processes that run environments: without the server's secrets."""
    secrets = {
        "OPENENV_CAPTURE_ADMIN_KEY",
        "OPENENV_LLM_API_KEY",
        "OPENENV_API_KEY",
        "OPENENV_API_KEYS",
        "OPENENV_SSL_KEYFILE_PASSWORD",
    }
    return {name: value for name, value in os.environ.items() if name not in secrets}
