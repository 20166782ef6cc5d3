"""Access control of a server: keys and their scopes, allowed origins and host names. No I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum, auto
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from ..errors import Forbidden, Hidden, InvalidArgument, TooManyFailures, Unauthorized, UsageError
from ..settings import ServerSettings, is_loopback
from ..telemetry.tracing import ConnectionTracer
from ..types import ServerMode


class Scope(StrEnum):
    """What a key allows."""

    CONTROL = "control"
    """Everything."""
    AGENT = "agent"
    """Tools, and nothing that ends or restarts an episode."""
    VIEW = "view"
    """Reading facts about the server and its environment."""


class Principal(NamedTuple):
    """A client with a checked key.

    Attributes:
        scope: The scope of its key.
        holder: Number of its key, from 1; 0 on a server without keys.
        peer: Its address, as text: `127.0.0.1:41234`.
        traceparent: The `traceparent` header of the client (W3C trace context); empty if it sent none.
        trail: Traces its requests; None if they are not traced.
        session: The session that its URL asks to attach to; None for a new session.
        token: The token of that session, in addition to the key.
        worker_ended: Whether its URL names a worker process that has ended.
    """

    scope: Scope
    holder: int
    peer: str
    traceparent: str = ""
    trail: ConnectionTracer | None = None
    session: str | None = None
    token: str | None = None
    worker_ended: bool = False


ANONYMOUS = Principal(Scope.CONTROL, 0, "")
"""The client of a server without keys."""


# Shorter keys can be guessed in the lifetime of a server.
SHORT_KEY = 16
WINDOW_S = 60.0
# Addresses remembered; counting does not stop a client with more addresses than that.
MOST_ADDRESSES = 10_000
NO_KEYS = "none"


class Right(Enum):
    """A right that the scope of a key can include."""

    READ = auto()
    """Metadata and schema of the environment."""
    WATCH = auto()
    """Metrics of the server and the documentation of its routes."""
    CONNECT = auto()
    """Connections to the environment endpoint, and the client's own sessions there: open, attach, close."""
    TOOLS = auto()
    """Tools: `mcp` frames, and steps for which `is_tool_call` is true."""
    DRIVE = auto()
    """Reset, state, and every other step."""
    EVERYTHING = auto()
    """All other requests: sessions of other clients, and routes that the app's owner added."""


_ALLOWED: dict[Scope, frozenset[Right]] = {
    Scope.CONTROL: frozenset(Right),
    Scope.AGENT: frozenset({Right.READ, Right.CONNECT, Right.TOOLS}),
    Scope.VIEW: frozenset({Right.READ, Right.WATCH}),
}

_TOOL_ACTIONS = frozenset({"list_tools", "call_tool"})


def allows(scope: Scope, right: Right) -> bool:
    """Whether a key of a scope allows something.

    Call this before acting for a `Principal`. `Scope.CONTROL` includes every right, so the path of a step skips the
    call for it. The error for a missing right is `refusal(scope, what)`.
    """
    return right in _ALLOWED[scope]


def refusal(scope: Scope, what: str) -> Forbidden:
    """The error for a right that a scope lacks; `what` is an operation such as "reset" or "GET /sessions"."""
    return Forbidden(f"a key of scope {scope} does not permit {what}: use a key of scope {Scope.CONTROL}")


def is_tool_call(action: Any) -> bool:
    """Whether a validated action uses a tool, by its `type`. If so it requires `Right.TOOLS`, otherwise `DRIVE`.

    A `type` that the action's class does not declare does not count, since the environment does not read it.
    """
    if isinstance(action, Mapping):
        kind = action.get("type")
    elif "type" in getattr(type(action), "model_fields", ("type",)):
        kind = getattr(action, "type", None)
    else:
        return False
    return isinstance(kind, str) and kind in _TOOL_ACTIONS


def forbidden_call(scope: Scope, kind: str, action: Any = None) -> Forbidden | None:
    """The error if a key of a scope does not permit a call of a session.

    Args:
        scope: The scope of the key.
        kind: The type of the message: "reset", "step", "mcp", "close" and others.
        action: The validated action of a step; None if it is invalid.
    """
    right = Right.DRIVE
    if kind == "close":
        right = Right.CONNECT
    elif kind == "mcp" or (kind == "step" and is_tool_call(action)):
        right = Right.TOOLS
    what = "a step that is not a tool call" if kind == "step" else kind
    return None if allows(scope, right) else refusal(scope, what)


class Keyring:
    """The keys of a server.

    Attributes:
        open: Whether clients need no key.
        short: Numbers of the keys that are short enough to be guessed.
    """

    __slots__ = ("_holders", "open", "short")

    def __init__(self, keys: list[tuple[Scope, str]]):
        # Digests, so that a comparison takes the same time at all lengths.
        self._holders = [(_digest(key.encode()), scope) for scope, key in keys]
        self.open = not keys
        self.short = [number for number, (_, key) in enumerate(keys, 1) if len(key) < SHORT_KEY]

    @classmethod
    def parse(cls, text: str | None) -> Keyring:
        """Reads the setting `api_keys`.

        Args:
            text: `scope:key` or `key`, separated by commas; None or "none" for a server without keys.

        Raises:
            UsageError: The text is invalid. The message gives the position of the entry and never shows the key.
        """
        if text is None or text.strip() == NO_KEYS:
            return cls([])
        keys: list[tuple[Scope, str]] = []
        for place, entry in enumerate(filter(None, map(str.strip, text.split(","))), 1):
            before, colon, key = entry.partition(":")
            if not colon:
                before, key = Scope.CONTROL, entry
                if entry == NO_KEYS:
                    raise _keys_error(f"entry {place} is {NO_KEYS!r}, which must be the only entry")
            if before not in set(Scope):
                raise _keys_error(f"the scope of entry {place} is not one of {', '.join(Scope)}")
            if not key:
                raise _keys_error(f"entry {place} has no key")
            if key in (earlier for _, earlier in keys):
                raise _keys_error(f"entry {place} repeats an earlier key")
            keys.append((Scope(before), key))
        if not keys:
            raise _keys_error("it contains no key")
        return cls(keys)

    def find(self, presented: bytes) -> tuple[Scope, int] | None:
        """The scope and the number (from 1) of a key; None for an unknown key.

        Takes the same time for every key.
        """
        digest = _digest(presented)
        found: tuple[Scope, int] | None = None
        for number, (held, scope) in enumerate(self._holders, 1):
            if hmac.compare_digest(digest, held):
                found = (scope, number)
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _keys_error(what: str) -> UsageError:
    return UsageError(
        f"setting api_keys (OPENENV_API_KEYS): {what}; write scope:key,scope:key, or {NO_KEYS} to require no key"
    )


class FailedKeyLimiter:
    """Counts the wrong keys of each address.

    Args:
        limit: Wrong keys from one address within a minute. After that, the server answers each further one with the
            time to wait.
        most: Most addresses to remember. Above that, the one whose minute began first is forgotten.
    """

    def __init__(self, limit: int, most: int = MOST_ADDRESSES):
        self._limit = limit
        self._most = most
        self._minutes: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._minutes)

    def failed(self, address: str, now: float) -> float | None:
        """Notes a wrong key.

        Returns:
            The seconds until the next key is checked; None while there are fewer wrong keys than the limit.
        """
        place = _network(address)
        began, count = self._minutes.get(place, (now, 0))
        if now - began >= WINDOW_S:
            del self._minutes[place]
            began, count = now, 0
        if count >= self._limit:
            return WINDOW_S - (now - began)
        self._minutes[place] = (began, count + 1)
        if len(self._minutes) > self._most:
            self._minutes.popitem(last=False)
        return None


def _network(address: str) -> str:
    """The part that counts as one address: for IPv6, the prefix that one subscriber gets."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return address
    mapped = ip.ipv4_mapped
    return str(mapped) if mapped else str(ipaddress.ip_network((int(ip), 64), strict=False))


_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_ANY = "*"
_ELSEWHERE = frozenset({b"cross-site", b"same-site"})
# Characters of a request that an error shows.
MOST_SHOWN = 200


class _Origin(NamedTuple):
    scheme: str
    host: str | None
    port: int | None


class Origins:
    """The origins that may use a server in addition to its own, and the host names of a server on loopback.

    Args:
        origins: The setting `allowed_origins`.
        hosts: The setting `allowed_hosts`.

    Raises:
        UsageError: An entry is not an origin, or not a host name.
    """

    def __init__(self, origins: str | None, hosts: str | None = None):
        names = _listed(origins)
        self._any = _ANY in names
        self._allowed: set[_Origin] = set()
        for name in filter(_ANY.__ne__, names):
            origin = _parse(name)
            if origin.host is None and name != "null":
                setting = "setting allowed_origins (OPENENV_ALLOWED_ORIGINS)"
                raise UsageError(f"{setting}: {name!r} is not an origin: write https://example.org:8443")
            self._allowed.add(origin)
        named = _listed(hosts)
        self._any_host = _ANY in named
        self._hosts = {origin.host for origin in self._allowed if origin.host is not None}
        for name in filter(_ANY.__ne__, named):
            host = _parse(f"http://{name}").host
            if host is None or " " in host:
                setting = "setting allowed_hosts (OPENENV_ALLOWED_HOSTS)"
                raise UsageError(f"{setting}: {name!r} is not a host name: write example.org")
            self._hosts.add(host)

    def check(self, origin: bytes, host: bytes, local: str | None) -> None:
        """Checks one request of a web page.

        After DNS rebinding (a page's name is made to point to this machine after the page was loaded), the origin of
        the page equals the request's `Host`. So a server on a loopback address accepts only the names of loopback.

        Args:
            origin: Its `Origin` header.
            host: Its `Host` header.
            local: The server's address of the connection; None if it is not known.

        Raises:
            Forbidden: Pages of that origin may not use this server.
        """
        page = _parse(origin.decode("latin-1"))
        if self._any or page in self._allowed:
            return
        own = _parse(f"{page.scheme}://{host.decode('latin-1')}")
        if page.host is not None and page == own and (not is_loopback(local) or is_loopback(page.host)):
            return
        shown = origin[:MOST_SHOWN].decode("latin-1")
        raise Forbidden(
            f"pages from {shown} may not use this server: "
            "add their origin to allowed_origins (--allowed-origins, OPENENV_ALLOWED_ORIGINS)"
        )

    def check_host(self, host: bytes | None, local: str | None) -> None:
        """Checks the `Host` of a request to a loopback address.

        After DNS rebinding (a page's name is made to point to this machine after the page was loaded), the page sends
        no `Origin` with a GET to its own name, and may read the answer. Its name is in `Host`.

        Args:
            host: Its `Host` header; None if it has none (every browser sends one).
            local: The server's address of the connection; None if it is not known.

        Raises:
            Forbidden: This server does not know the name.
        """
        if host is None or self._any_host or not is_loopback(local):
            return
        name = _parse(f"http://{host.decode('latin-1')}").host
        if name is not None and (is_loopback(name) or name in self._hosts):
            return
        shown = host[:MOST_SHOWN].decode("latin-1")
        raise Forbidden(
            f"this server listens on loopback and does not accept the host name {shown!r}: add it to allowed_hosts "
            "(--allowed-hosts, OPENENV_ALLOWED_HOSTS), for example behind a reverse proxy that forwards it"
        )

    def check_site(self, site: bytes) -> None:
        """Checks a request without an `Origin` by its `Sec-Fetch-Site`.

        Raises:
            Forbidden: A page of another site sent it: as the URL of an image or of a frame, or as a link.
        """
        if site in _ELSEWHERE and not self._any:
            raise Forbidden(f"a page of another site sent this request (Sec-Fetch-Site: {site.decode()})")


def _parse(text: str) -> _Origin:
    """An origin in parts. A text that is not an origin (`null`) has no host, and equals only itself."""
    try:
        parts = urlsplit(text.strip().lower())
        port = parts.port
    except ValueError:
        return _Origin(text, None, None)
    if not parts.scheme or not parts.hostname or parts.path.strip("/") or parts.query or parts.username is not None:
        return _Origin(text, None, None)
    return _Origin(parts.scheme, parts.hostname, port or _PORTS.get(parts.scheme))


def _listed(text: str | None) -> list[str]:
    return [name for part in (text or "").split(",") if (name := part.strip())]


# The method of a WebSocket handshake in `Request.method`.
HANDSHAKE = "WEBSOCKET"
# Browsers cannot add headers to a handshake, but can offer subprotocols: this one, and the key in base64url.
KEY_OFFER = "openenv.key."
# For clients behind a gateway that needs the Authorization header for itself.
_KEY_HEADER = b"x-openenv-key"
_OFFERS = b"sec-websocket-protocol"
_TRACE = b"traceparent"
_FETCH_SITE = b"sec-fetch-site"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# These are GET requests, but without a named session the server makes an environment for the answer.
_MAKES_ENVIRONMENTS = ("/state", "/splits")
_GET = {
    Right.READ: ("/metadata", "/schema", "/list_environments", "/web/metadata", "/web/panel"),
    Right.WATCH: ("/metrics", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
}
# The right that a request needs; `Right.EVERYTHING` for requests that are not listed.
RIGHTS: dict[tuple[str, str], Right] = {
    **{("GET", path): right for right, paths in _GET.items() for path in paths},
    **{(method, "/mcp"): Right.TOOLS for method in ("POST", "GET", "DELETE", HANDSHAKE)},
    (HANDSHAKE, "/ws"): Right.CONNECT,
}
_FOR_ALL = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/ready"))


class RequestHead(NamedTuple):
    """The parts of a request that access control reads.

    Attributes:
        method: `HANDSHAKE` for a WebSocket.
        path: The path without the prefix that the app is mounted under.
        fields: The headers, as `header_fields` returns them.
        peer: Host and port of the client, if they are known.
        local: The server's address of the connection.
    """

    method: str
    path: str
    fields: Mapping[bytes, bytes]
    peer: tuple[str, int] | None = None
    local: str | None = None

    def __str__(self) -> str:
        """The request in one line of bounded length, with its path quoted."""
        return f"{self.method} {quote(self.path[:MOST_SHOWN])}"


def header_fields(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name in lower case. The values of a repeated header are joined as a list (RFC 9110, 5.3)."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        lower = name.lower()
        fields[lower] = fields[lower] + b"," + value if lower in fields else value
    return fields


def is_production(mode: str) -> bool:
    """Whether a mode (in upper or lower case) is production. Raises `InvalidArgument` for an unknown mode."""
    if mode.lower() not in set(ServerMode):
        raise InvalidArgument(f"setting mode (OPENENV_MODE): {mode!r} is not one of {', '.join(ServerMode)}")
    return mode.lower() == ServerMode.PRODUCTION


class Authenticator:
    """Checks keys and origins.

    Args:
        settings: Keys, origins and the limit of wrong keys.
        clock: Monotonic seconds.

    Raises:
        UsageError: A setting is invalid.

    Attributes:
        keys: The keys of the server.
        production: Whether only keys of scope control permit more than tools. On a server without keys, HTTP then
            offers only tools, and a WebSocket drives its own episode.
    """

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]):
        self.keys = Keyring.parse(settings.api_keys)
        self.production = is_production(settings.mode)
        self._origins = Origins(settings.allowed_origins, settings.allowed_hosts)
        self._failures = FailedKeyLimiter(settings.max_key_failures)
        self._clock = clock

    def admit(self, head: RequestHead) -> Principal:
        """Admits a request.

        A right key is admitted regardless of the wrong keys from its address: clients behind one router share it.

        Raises:
            Unauthorized: The request has no key, or a wrong one.
            TooManyFailures: Its address sent too many wrong keys.
            Forbidden: Its key does not permit it, or its origin or host name is not allowed.
        """
        peer = "" if head.peer is None else f"{head.peer[0]}:{head.peer[1]}"
        if (head.method, head.path) in _FOR_ALL:
            return Principal(Scope.VIEW, 0, peer)
        shown = _presented_keys(head.fields)
        if self.keys.open:
            # In production, no HTTP route drives an episode. Over `/ws`, clients without keys may drive their own.
            drives = not self.production or (head.method, head.path) == (HANDSHAKE, "/ws")
            principal = Principal(Scope.CONTROL if drives else Scope.AGENT, 0, peer)
        else:
            principal = self._recognize(head, shown, peer)
        if _TRACE in head.fields:
            principal = principal._replace(traceparent=head.fields[_TRACE].decode("latin-1"))
        if self.keys.open:  # without keys, a page of any other origin would be admitted
            self._origins.check_host(head.fields.get(b"host"), head.local)
        self._check_origin(head, bool(shown))
        right = RIGHTS.get(("GET" if head.method == "HEAD" else head.method, head.path), Right.EVERYTHING)
        # Without keys, our own routes hide what production does not offer; the app's owner decides on added routes.
        if not self.keys.open and not allows(principal.scope, right):
            if self.production:
                hidden = "is disabled in production mode (OPENENV_MODE), except for keys of scope"
                raise Hidden(f"{head} {hidden} {Scope.CONTROL}")
            raise refusal(principal.scope, str(head))
        return principal

    def _recognize(self, head: RequestHead, shown: list[bytes], peer: str) -> Principal:
        for key in shown:
            found = self.keys.find(key)
            if found is not None:
                return Principal(*found, peer)
        if not shown:
            raise Unauthorized(
                "this server requires an API key: pass EnvClient(..., api_key=KEY), set OPENENV_API_KEY, "
                "or send the header 'Authorization: Bearer KEY'"
            )
        wait_s = self._failures.failed(head.peer[0] if head.peer else "", self._clock())
        if wait_s is not None:
            raise TooManyFailures(
                "this address sent too many wrong keys within a minute "
                "(max_key_failures, OPENENV_MAX_KEY_FAILURES): send a valid key, or retry later",
                retry_after_s=round(wait_s, 3),
            )
        raise Unauthorized("invalid API key: use one of the keys in the server's OPENENV_API_KEYS")

    def _check_origin(self, head: RequestHead, has_key: bool) -> None:
        origin = head.fields.get(b"origin")
        # CORS decides whether another page may read a response. This check decides whether its request is executed.
        reads = head.method in _READING and not head.path.endswith(_MAKES_ENVIRONMENTS)
        if origin is None:
            if head.method in _READING and not reads:
                self._origins.check_site(head.fields.get(_FETCH_SITE, b""))
            return
        if reads and not has_key and b"cookie" not in head.fields:
            return
        self._origins.check(origin, head.fields.get(b"host", b""), head.local)


def _presented_keys(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """The keys in the headers and subprotocols of a request."""
    keys = []
    scheme, _, credentials = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        keys.append(credentials.strip())
    if _KEY_HEADER in fields:
        keys.append(fields[_KEY_HEADER].strip())
    offers = (offer.strip() for offer in fields.get(_OFFERS, b"").split(b","))
    prefix = KEY_OFFER.encode()
    offered = next((offer.removeprefix(prefix) for offer in offers if offer.startswith(prefix)), None)
    if offered is not None:
        try:
            keys.append(base64.b64decode(offered + b"=" * (-len(offered) % 4), altchars=b"-_", validate=True))
        except binascii.Error:
            keys.append(b"")
    return keys
