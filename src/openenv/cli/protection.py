"""What `openenv serve` does so that nobody else comes in: keys and TLS."""

from __future__ import annotations

import secrets
import ssl
from typing import Any

from ..errors import UsageError
from ..settings import ServerSettings

__all__ = ["check_tls", "key_words", "tls_options", "warning_of_keys", "with_keys"]

KEY_BYTES = 24


def with_keys(settings: ServerSettings) -> tuple[ServerSettings, str | None]:
    """The settings with a decision about keys: those that are set, none on loopback, else one that is made here.

    Returns:
        The settings, and the key if one was made.

    Raises:
        UsageError: Keys or origins cannot be read; said here, before a process is started that could not either.
    """
    from ..server.keys import NO_KEYS, Keyring
    from ..server.origin import Origins, is_loopback

    Keyring.parse(settings.api_keys)
    Origins(settings.allowed_origins, settings.allowed_hosts)
    if settings.api_keys is not None:
        return settings, None
    if is_loopback(settings.host):
        return settings.model_copy(update={"api_keys": NO_KEYS}), None
    key = secrets.token_urlsafe(KEY_BYTES)
    return settings.model_copy(update={"api_keys": key}), key


def key_words(settings: ServerSettings, made_key: str | None) -> str:
    """What the line that announces a server says of keys: the one that was made is told here and nowhere else."""
    from ..server.keys import NO_KEYS

    if made_key is not None:
        return f'clients show api_key="{made_key}" (choose your own by OPENENV_API_KEYS or --api-key; none: no key)'
    return "no key" if settings.api_keys == NO_KEYS else "asks for a key"


def warning_of_keys(settings: ServerSettings) -> str | None:
    """What whoever starts a server that everybody can use is warned of."""
    from ..server.keys import NO_KEYS
    from ..server.origin import is_loopback

    if settings.api_keys != NO_KEYS or is_loopback(settings.host):
        return None
    return "warning: no key is asked for (--api-key none): anybody who can reach this address can use it"


def tls_options(settings: ServerSettings) -> dict[str, Any]:
    """What `uvicorn.Config` is told to serve over TLS; nothing if there is no certificate."""
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
