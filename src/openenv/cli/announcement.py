"""What `openenv serve` checks and prints before it serves: keys, TLS, address."""

from __future__ import annotations

import importlib.util
import re
import secrets
import socket
import ssl
from collections.abc import Mapping
from typing import Any

import click

from ..errors import UsageError
from ..settings import ServerSettings, is_loopback
from ..telemetry import logs

KEY_BYTES = 24


def with_keys(settings: ServerSettings) -> tuple[ServerSettings, str | None]:
    """The settings with a decision about keys: those that are set, none on loopback, else one that is made here.

    Returns:
        The settings, and the key if one was made.

    Raises:
        UsageError: Keys or origins cannot be read; said here, before a process is started that could not either.
    """
    from ..server.auth import NO_KEYS, Keyring, Origins

    Keyring.parse(settings.api_keys)
    Origins(settings.allowed_origins, settings.allowed_hosts)
    if settings.api_keys is not None:
        return settings, None
    if is_loopback(settings.host):
        return settings.model_copy(update={"api_keys": NO_KEYS}), None
    key = secrets.token_urlsafe(KEY_BYTES)
    return settings.model_copy(update={"api_keys": key}), key


def key_words(settings: ServerSettings, made_key: str | None) -> str:
    """The part about keys of the line that announces a server: only here is a key shown that was made."""
    from ..server.auth import NO_KEYS

    if made_key is not None:
        return f'clients show api_key="{made_key}" (choose your own by OPENENV_API_KEYS or --api-key; none: no key)'
    return "no key" if settings.api_keys == NO_KEYS else "asks for a key"


def warning_of_keys(settings: ServerSettings) -> str | None:
    """A warning for servers that answer without a key on other addresses than loopback."""
    from ..server.auth import NO_KEYS

    if settings.api_keys != NO_KEYS or is_loopback(settings.host):
        return None
    return "warning: no key is asked for (--api-key none): anybody who can reach this address can use it"


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
    """Reads what TLS needs, before a process is started that could not.

    Raises:
        UsageError: It is not complete, or cannot be read.
    """
    if settings.ssl_certfile is None:
        if settings.ssl_keyfile or settings.ssl_ca_certs:
            raise UsageError("TLS needs a certificate: set --ssl-certfile (OPENENV_SSL_CERTFILE) too")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password in any case, or the terminal would be asked for one.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_keyfile_password or "")
        if settings.ssl_ca_certs is not None:
            context.load_verify_locations(settings.ssl_ca_certs)
    except OSError as error:  # also what ssl raises
        raise UsageError(
            f"the files for TLS cannot be used ({error.strerror or error}): see --ssl-certfile, --ssl-keyfile, "
            "--ssl-ca-certs and OPENENV_SSL_KEYFILE_PASSWORD"
        ) from None


def facts_of(app: Any, target: str) -> dict[str, Any]:
    """What an app is called, and if it is one of ours, its `limit` of sessions and its `mode`."""
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
) -> None:
    """Says in one line what there is now: address, UI, key, sessions, workers.

    Args:
        settings: Of the server.
        listener: Where it listens.
        serves: What it serves, as `facts_of` has it.
        made_key: The key that was made for it, if one was.
        reload: Whether it starts anew when a file changes.
    """
    host, port = listener.getsockname()[:2]
    address = f"{'https' if settings.ssl_certfile else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    limit = serves.get("limit")
    parts = [f"{click.style(serves['name'], bold=True)} on {address}"]
    if limit is not None and settings.web_interface and serves.get("mode", settings.mode) != "production":
        # Every address of this machine is none that a browser can be sent to.
        reached = re.sub(r"//(0\.0\.0\.0|\[::\])", "//127.0.0.1", address)
        parts.append(f"UI {reached}/web")
    parts.append(key_words(settings, made_key))
    if limit is not None:
        parts.append(f"up to {limit} session" + ("s" if limit > 1 else ""))
    parts.append(f"{settings.workers} worker" + ("s" if settings.workers > 1 else ""))
    parts.append("fast path" + (", uvloop" if importlib.util.find_spec("uvloop") else ""))
    if settings.record is not None:
        parts.append(f"records into {settings.record}")
    if reload:
        parts.append("reloading")
    say(settings, " · ".join(parts))
    warning = warning_of_keys(settings)
    if warning is not None:
        say(settings, warning)


def say(settings: ServerSettings, text: str) -> None:
    """Prints a line on stderr; where logs are JSON, as JSON."""
    click.echo(logs.json_line(click.unstyle(text)) if settings.log_format == "json" else text, err=True)
