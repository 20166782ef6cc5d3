"""Who may come in: looks at the head of every request, whatever transport it came by."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from ..errors import Hidden, InvalidArgument, TooManyFailures, Unauthorized
from ..settings import ServerSettings
from ..types import ServerMode
from .keys import FailureBook, Keyring, Right, allows, refusal
from .origin import MOST_SHOWN, Origins
from .visitor import Scope, Visitor

__all__ = ["HANDSHAKE", "KEY_OFFER", "RIGHTS", "Head", "Porter", "fields_of", "production_of", "without_keys"]

# Stands where requests have their method.
HANDSHAKE = "WEBSOCKET"
# Browsers can add no header to a handshake, but offer any subprotocol: this, and the key in base64url.
KEY_OFFER = "openenv.key."
# Where a gateway in between takes the header Authorization for itself.
_KEY_HEADER = b"x-openenv-key"
_OFFERS = b"sec-websocket-protocol"
_TRACE = b"traceparent"
_FETCH_SITE = b"sec-fetch-site"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
# Though they are asked for by GET: without a session named, an environment is made for the answer.
_MAKES_ENVIRONMENTS = ("/state", "/splits")
# What a request takes; for all that is not named it is `Right.EVERYTHING`.
RIGHTS: dict[tuple[str, str], Right] = {
    ("GET", "/metadata"): Right.READ,
    ("GET", "/schema"): Right.READ,
    ("GET", "/list_environments"): Right.READ,
    ("GET", "/web/metadata"): Right.READ,
    ("GET", "/web/panel"): Right.READ,
    ("GET", "/metrics"): Right.WATCH,
    ("GET", "/docs"): Right.WATCH,
    ("GET", "/docs/oauth2-redirect"): Right.WATCH,
    ("GET", "/redoc"): Right.WATCH,
    ("GET", "/openapi.json"): Right.WATCH,
    ("POST", "/mcp"): Right.TOOLS,
    ("GET", "/mcp"): Right.TOOLS,
    ("DELETE", "/mcp"): Right.TOOLS,
    (HANDSHAKE, "/mcp"): Right.TOOLS,
    (HANDSHAKE, "/ws"): Right.CONNECT,
}
_FOR_ALL = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/ready"))


class Head(NamedTuple):
    """What of a request decides whether it is let in.

    Attributes:
        method: `HANDSHAKE` for a WebSocket.
        path: Where to, without the prefix that the app is mounted under.
        fields: Its headers, as `fields_of` gives them.
        peer: Host and port it came from, where that is known.
        local: The address it came to.
    """

    method: str
    path: str
    fields: Mapping[bytes, bytes]
    peer: tuple[str, int] | None = None
    local: str | None = None

    def __str__(self) -> str:
        """The request in one line of bounded length, whatever its path holds."""
        return f"{self.method} {quote(self.path[:MOST_SHOWN])}"


def fields_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by their name in lower case. One that was sent twice has both values, as in a list (RFC 9110, 5.3)."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        lower = name.lower()
        fields[lower] = fields[lower] + b"," + value if lower in fields else value
    return fields


def without_keys(offers: Iterable[str]) -> list[str]:
    """The subprotocols among what was offered: nobody behind the porter sees a key, or answers with one."""
    return [offer for offer in offers if not offer.strip().startswith(KEY_OFFER)]


def production_of(mode: str) -> bool:
    """Whether a mode, in upper or lower case, is that of production. Raises `InvalidArgument` for another text."""
    if mode.lower() not in set(ServerMode):
        raise InvalidArgument(f"setting mode (OPENENV_MODE): {mode!r} is none of {', '.join(ServerMode)}")
    return mode.lower() == ServerMode.PRODUCTION


class Porter:
    """Checks keys and origins.

    Args:
        settings: Keys, origins and the limit of wrong keys.
        clock: Monotonic seconds.

    Raises:
        UsageError: A setting cannot be read.

    Attributes:
        keys: Those that it knows.
        production: Only keys of scope control are for more than tools. Where no key is asked for, HTTP offers tools
            alone, and a WebSocket drives its own episode.
    """

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic):
        self.keys = Keyring.parse(settings.api_keys)
        self.production = production_of(settings.mode)
        self._origins = Origins(settings.allowed_origins, settings.allowed_hosts)
        self._failures = FailureBook(settings.max_key_failures)
        self._clock = clock

    def admit(self, head: Head) -> Visitor:
        """Lets a request in.

        A right key is let in however many wrong ones came from its address: everybody behind one router has one.

        Raises:
            Unauthorized: It shows no key, or none of ours.
            TooManyFailures: The same, once too often.
            Forbidden: Its key does not allow it, it comes from a page elsewhere, or to a name that is not known.
        """
        peer = "" if head.peer is None else f"{head.peer[0]}:{head.peer[1]}"
        if (head.method, head.path) in _FOR_ALL:
            return Visitor(Scope.VIEW, 0, peer)
        shown = _shown(head.fields)
        visitor = self._anybody(head, peer) if self.keys.open else self._recognize(head, shown, peer)
        if _TRACE in head.fields:
            visitor = visitor._replace(traceparent=head.fields[_TRACE].decode("latin-1"))
        if self.keys.open:  # a page elsewhere has no key to show
            self._origins.check_host(head.fields.get(b"host"), head.local)
        self._check_origin(head, bool(shown))
        right = RIGHTS.get(("GET" if head.method == "HEAD" else head.method, head.path), Right.EVERYTHING)
        # Without keys, what is not for everybody is left out by its own routes; the owner's are his own matter.
        if not self.keys.open and not allows(visitor.scope, right):
            raise _hidden(head) if self.production else refusal(visitor.scope, str(head))
        return visitor

    def _anybody(self, head: Head, peer: str) -> Visitor:
        # In production, no HTTP route drives an episode. Over `/ws`, clients without keys may drive their own.
        drives = not self.production or (head.method, head.path) == (HANDSHAKE, "/ws")
        return Visitor(Scope.CONTROL if drives else Scope.AGENT, 0, peer)

    def _recognize(self, head: Head, shown: list[bytes], peer: str) -> Visitor:
        for key in shown:
            found = self.keys.find(key)
            if found is not None:
                return Visitor(*found, peer)
        if not shown:
            raise Unauthorized(
                "this server asks for a key: EnvClient(..., api_key=KEY) or OPENENV_API_KEY, "
                "which is the header 'Authorization: Bearer KEY'"
            )
        wait_s = self._failures.failed(head.peer[0] if head.peer else "", self._clock())
        if wait_s is not None:
            raise TooManyFailures(
                "too many wrong keys came from this address within a minute "
                "(max_key_failures, OPENENV_MAX_KEY_FAILURES); only a right one is answered now",
                retry_after_s=round(wait_s, 3),
            )
        raise Unauthorized("the key is none of this server's: see its OPENENV_API_KEYS")

    def _check_origin(self, head: Head, has_key: bool) -> None:
        origin = head.fields.get(b"origin")
        # Whether another page may read an answer is the matter of CORS; here, what it may do.
        reads = head.method in _READING and not head.path.endswith(_MAKES_ENVIRONMENTS)
        if origin is None:
            if head.method in _READING and not reads:
                self._origins.check_site(head.fields.get(_FETCH_SITE, b""))
            return
        if reads and not has_key and b"cookie" not in head.fields:
            return
        self._origins.check(origin, head.fields.get(b"host", b""), head.local)


def _hidden(head: Head) -> Hidden:
    return Hidden(f"{head} is not there in production mode (OPENENV_MODE), but for keys of scope {Scope.CONTROL}")


def _shown(fields: Mapping[bytes, bytes]) -> list[bytes]:
    """The keys that a request shows: in its headers, among its subprotocols."""
    keys = []
    scheme, _, credentials = fields.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        keys.append(credentials.strip())
    if _KEY_HEADER in fields:
        keys.append(fields[_KEY_HEADER].strip())
    offers = (offer.strip() for offer in fields.get(_OFFERS, b"").split(b","))
    prefix = KEY_OFFER.encode()
    keys += [_decoded(offer.removeprefix(prefix)) for offer in offers if offer.startswith(prefix)][:1]
    return keys


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return b""
