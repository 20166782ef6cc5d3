"""Backends and listening address of a gateway, from which every configuration is rendered."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from ...errors import UsageError

HEADER = "x-openenv-route"
"""Response header with the name of the backend; a request with this header goes to the same backend."""
PARAMETER = "route"
"""Query parameter of a request with the same meaning."""
COOKIE = "openenv_route"
"""Cookie with the same meaning, set by the response that opens a session over HTTP."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
# Valid DNS labels: checked here, since resolvers raise other errors for empty and for too long ones.
_HOST = re.compile(r"(?=[A-Za-z0-9])(?!.{254})[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*(?<=[A-Za-z0-9])")
_PATH = re.compile(r"/[A-Za-z0-9/._~-]*")
# Characters of file names that need no quoting in any of the three configuration formats.
_FILE = re.compile(r"[A-Za-z0-9/._@+~:-]+")
_PORTS = range(1, 65536)
HEAD_S = 30
"""Seconds that a client may take to send the headers of a request."""
BACKEND_IDLE_S = 4
"""uvicorn closes connections after 5 s of idle time; a request on a connection that is being closed would fail."""
# Zone of an IPv6 address: Python accepts any text after `%`. Linux allows 15 characters in an interface name.
_ZONE = re.compile(r"[A-Za-z0-9._-]{1,15}")


@dataclass(frozen=True, slots=True)
class Backend:
    """One server behind the gateway.

    Attributes:
        name: Its name, by which clients return to it: letters, digits, `.`, `_` and `-`, at most 63.
        host: Its address or host name.
        port: Its port.
        tls: Whether it speaks TLS.
        certified: The host name that its certificate must have. None if only an address is known.
        accepting: Whether it gets new sessions. Those that it has return to it in any case.

    Raises:
        UsageError: An invalid value.
    """

    name: str
    host: str
    port: int
    tls: bool = False
    certified: str | None = None
    accepting: bool = True

    def __post_init__(self) -> None:
        if self.certified is None and not self.is_address:
            object.__setattr__(self, "certified", self.host)
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a valid backend name: use at most 63 letters, digits, '.', '_' and '-'"
            )
        if not self.is_address and not _HOST.fullmatch(self.host):
            raise UsageError(f"backend {self.name}: {self.host!r} is neither an address nor a host name")
        if self.certified is not None and not _HOST.fullmatch(self.certified):
            raise UsageError(f"backend {self.name}: {self.certified!r} is not a valid host name of a certificate")
        if self.port not in _PORTS:
            raise UsageError(f"backend {self.name}: the port must be 1 to 65535, got {self.port!r}")

    @classmethod
    def parse(cls, text: str, name: str | None = None) -> Self:
        """Parses a backend of a command line: `host:port`, `https://host:port`, `NAME=host:port`.

        Only a URL may leave out its port.

        Args:
            text: The text.
            name: Its name; None takes the one before the `=`, or makes one of host and port.

        Raises:
            UsageError: The text has none of these forms.
        """
        given, equals, address = text.strip().rpartition("=")
        try:
            parts = urlsplit(address if "://" in address else f"http://{address}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        else:
            if parts.scheme not in {"http", "https", "ws", "wss"} or parts.path not in {"", "/"} or parts.query:
                host = ""
        if "@" in address:  # perhaps a password; the gateway would not pass it on
            raise UsageError(
                "the address of a backend must not contain a user: write host:port; clients send their keys"
            )
        if not host or (port is None and "://" not in address):
            raise UsageError(f"{text!r} is not a backend: write host:port, https://host:port or NAME=host:port")
        tls = parts.scheme in {"https", "wss"}
        port = (443 if tls else 80) if port is None else port
        return cls(name or (given if equals else plain_name(f"{host}-{port}")), host, port, tls)

    @property
    def is_address(self) -> bool:
        """Whether its host is an IP address, not a host name."""
        return _is_address(self.host)

    @property
    def place(self) -> str:
        """`host:port`, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A gateway and the servers behind it.

    Attributes:
        backends: The servers. Only they may change while the gateway runs.
        host: Address that it listens on: loopback by default.
        port: Port that it listens on; with Envoy, 0 takes a free one.
        tls_certificate: File with the certificate chain for clients; None: no TLS.
        tls_key: File with its key.
        backend_ca: File with the authorities that must have signed the certificates of backends with TLS.
        admin_port: Port on 127.0.0.1 for administration; 0 takes a free one (Envoy).
        max_sessions: Maximum of concurrent connections to all backends. Each takes two file descriptors.
        health_path: Path of the health checks; a backend that does not answer 200 gets no new session.
        health_interval_s: Seconds between two health checks.
        health_timeout_s: Seconds for an answer. A busy machine answers late.
        unhealthy_after: Consecutive failed health checks until a backend is unhealthy.
        connect_timeout_s: Seconds for a connection to a backend.

    Raises:
        UsageError: Two backends have the same name, or a value is invalid.
    """

    backends: tuple[Backend, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    tls_certificate: str | None = None
    tls_key: str | None = None
    backend_ca: str | None = None
    admin_port: int = 0
    max_sessions: int = 16_384
    health_path: str = "/health"
    health_interval_s: float = 1.0
    health_timeout_s: float = 5.0
    unhealthy_after: int = 2
    connect_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "backends", tuple(self.backends))
        self._check_backends()
        if not _is_address(self.host):
            raise UsageError(f"host must be an IP address such as 127.0.0.1 or 0.0.0.0, got {self.host!r}")
        if self.port not in range(65536) or self.admin_port not in range(65536):
            raise UsageError(f"ports must be 0 to 65535, got {self.port!r} and admin_port {self.admin_port!r}")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("TLS needs both tls_certificate and tls_key (--tls-cert and --tls-key)")
        for file in (self.tls_certificate, self.tls_key, self.backend_ca):
            if file is not None and not _FILE.fullmatch(file):
                raise UsageError(f"{file!r}: paths of files for a gateway must not contain spaces or quotes")
        if not _PATH.fullmatch(self.health_path):
            raise UsageError(f"health_path must be a path such as /health, got {self.health_path!r}")
        if self.max_sessions < 1 or self.unhealthy_after < 1:
            raise UsageError("max_sessions and unhealthy_after must be 1 or more")
        if min(self.health_interval_s, self.health_timeout_s, self.connect_timeout_s) <= 0:
            raise UsageError("health_interval_s, health_timeout_s and connect_timeout_s must be more than 0")

    @property
    def tls(self) -> bool:
        """Whether clients connect with TLS."""
        return self.tls_certificate is not None

    @property
    def listen(self) -> str:
        """`host:port` that it listens on, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def changed(self, **changes: Any) -> Self:
        """A copy with other values."""
        return replace(self, **changes)

    def _check_backends(self) -> None:
        names: set[str] = set()
        for backend in self.backends:
            if backend.name in names:
                raise UsageError(f"two backends have the name {backend.name!r}: write NAME=host:port for one of them")
            names.add(backend.name)
        if self.backend_ca is None and any(backend.tls for backend in self.backends):
            raise UsageError("backends with TLS need backend_ca (--backend-ca): the file of authorities to trust")


def _is_address(host: str) -> bool:
    """Whether a text is an IP address that is valid in a configuration."""
    address, percent, zone = host.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not percent or (":" in address and _ZONE.fullmatch(zone) is not None)


def plain_name(text: str) -> str:
    """A valid backend name from a string. Keeps the end of a long string, where names differ."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[-63:].strip("-._") or "backend"
