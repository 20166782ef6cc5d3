"""Every setting of this package, and the only place that reads `os.environ`.

A setting is a field with its default, its environment variables and one line of explanation.
`openenv serve --help` and `docs/settings.md` are made from the same fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import UsageError

__all__ = ["ServerSettings", "Setting", "proxy_for"]


def _setting(default: Any, variables: str, description: str, **bounds: Any) -> Any:
    names: list[Any] = list(variables.split())
    if isinstance(default, float) or bounds.get("gt") == 0:
        bounds["allow_inf_nan"] = False
    return Field(default=default, description=description, json_schema_extra={"variables": names}, **bounds)


class Setting(NamedTuple):
    """One row of the settings table."""

    name: str
    variables: tuple[str, ...]
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
            UsageError: A value is not valid; the message names the setting and its variable.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for setting in cls.table():
            found = next((environ[name] for name in setting.variables if environ.get(name)), None)
            if found is not None:
                values[setting.name] = found
        values.update({name: value for name, value in overrides.items() if value is not None})
        try:
            return cls(**values)
        except ValidationError as error:
            raise UsageError(cls._explain(error)) from None

    def export(self) -> None:
        """Makes `os.environ` say what these settings say, for apps and processes made from here on."""
        for setting in self.table():
            value = getattr(self, setting.name)
            for variable in setting.variables:
                os.environ.pop(variable, None)
            if value != setting.default:
                os.environ[setting.variables[0]] = str(value)

    @classmethod
    def table(cls) -> Iterator[Setting]:
        """The rows of this class, in the order in which they are declared."""
        for name, field in cls.model_fields.items():
            extra = field.json_schema_extra
            variables = extra["variables"] if isinstance(extra, dict) else []
            assert isinstance(variables, list)
            yield Setting(name, tuple(map(str, variables)), field.default, field.description or "")

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        variables = {setting.name: setting.variables for setting in cls.table()}
        return "; ".join(
            f"setting {fault['loc'][0]} ({', '.join(variables.get(str(fault['loc'][0]), ()))}): "
            f"{fault['msg']}, got {fault['input']!r}"
            for fault in error.errors()
        )


class ServerSettings(_Settings):
    """What a server reads when it starts."""

    host: str = _setting("127.0.0.1", "HOST", "Address to listen on")
    port: int = _setting(8000, "PORT", "Port to listen on; 0 takes a free one", ge=0, le=65535)
    workers: int = _setting(1, "WORKERS", "Worker processes", ge=1, le=1024)
    max_sessions: int | None = _setting(
        None,
        "OPENENV_MAX_SESSIONS",
        "Most sessions open at one time, by all workers together, whatever the app was built with",
        ge=1,
    )
    max_concurrent_envs: int | None = _setting(
        None, "MAX_CONCURRENT_ENVS", "The same for an app that was built without a limit of its own", ge=1
    )
    queue_timeout_s: float = _setting(
        0.0,
        "OPENENV_QUEUE_TIMEOUT_S",
        "Seconds a new session waits for a free slot before it is refused",
        ge=0,
    )
    idle_timeout_s: float | None = _setting(
        None,
        "OPENENV_IDLE_TIMEOUT_S",
        "Seconds without a call after which a session is closed; unset: never",
        gt=0,
    )
    max_message_mb: float = _setting(
        16.0, "OPENENV_MAX_MESSAGE_MB", "Largest message accepted from a client, in MiB", gt=0, le=2048
    )
    max_in_flight: int = _setting(
        64, "OPENENV_MAX_IN_FLIGHT", "Requests of one session (v1: connection) that may wait for their turn", ge=1
    )
    max_batch: int = _setting(1024, "OPENENV_MAX_BATCH", "Most calls in one batch (protocol v2)", ge=1)
    ping_interval_s: float = _setting(
        20.0,
        "OPENENV_PING_INTERVAL_S",
        "Seconds between WebSocket pings; two without an answer cut the connection, 0 turns them off",
        ge=0,
    )
    grace_s: float = _setting(
        30.0,
        "OPENENV_GRACE_S",
        "Seconds that open sessions are given to end when the server stops or a worker is replaced",
        ge=0,
    )
    worker_start_s: float = _setting(
        60.0, "OPENENV_WORKER_START_S", "Seconds a worker process has to become ready", gt=0
    )
    worker_silence_s: float = _setting(
        20.0,
        "OPENENV_WORKER_SILENCE_S",
        "Seconds a worker process may be silent before it is replaced, with all of its sessions",
        gt=0,
    )
    worker_restarts: int = _setting(
        10, "OPENENV_WORKER_RESTARTS", "Worker deaths within a minute after which the server gives up", ge=0
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = _setting(
        "warning", "OPENENV_LOG_LEVEL", "critical, error, warning, info or debug"
    )
    target: str | None = _setting(None, "OPENENV_TARGET", "What a worker process serves; set by `openenv serve`")
    readme_path: str | None = _setting(None, "ENV_README_PATH", "README shown by /metadata")

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 1024 * 1024)


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the process's environment names for a host (`HTTPS_PROXY`, `NO_PROXY`, ...), if any."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
