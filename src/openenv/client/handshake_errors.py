"""Turns the HTTP answers to a WebSocket handshake (401, 403, 429, 502 to 504, redirects) into errors."""

from __future__ import annotations

import json
from http import HTTPStatus
from urllib.parse import urljoin, urlsplit

from picows import WSHandshakeError

from .._http import SECRET
from ..errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    Forbidden,
    LaunchFailed,
    NotReady,
    OpenEnvError,
    ProviderBusy,
    ProviderFailed,
    TooManyFailures,
    Unauthorized,
    from_wire,
)
from .endpoints import Headers

_REDIRECTS = (301, 302, 303, 307, 308)
_KEY_ERRORS: dict[int, tuple[type[Unauthorized], str]] = {
    HTTPStatus.UNAUTHORIZED: (
        Unauthorized,
        "pass api_key=..., or set OPENENV_API_KEY, to a key that the server knows (its OPENENV_API_KEYS)",
    ),
    HTTPStatus.FORBIDDEN: (
        Forbidden,
        "the api_key (OPENENV_API_KEY) does not cover that: pass one with a wider scope, as control:key among the "
        "server's OPENENV_API_KEYS",
    ),
    HTTPStatus.TOO_MANY_REQUESTS: (
        TooManyFailures,
        "too many wrong keys came from this address: wait a minute, then pass the right api_key (OPENENV_API_KEY)",
    ),
}


# A gateway between client and server may report why it reaches no server.
_GATEWAY_STATUSES = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
# The errors that a gateway can know. Only the server and this client know of lost sessions and broken protocol.
_GATEWAY_ERRORS = frozenset(
    (ConnectionFailed, ConnectionLost, ConnectTimeout, ProviderFailed, NotReady, LaunchFailed, ProviderBusy)
)


def handshake_error(url: str, error: WSHandshakeError) -> OpenEnvError | None:
    """The error for an answer about keys, or from a gateway that reaches no server; None for others."""
    if error.response is None:
        return None
    if error.response.status in _GATEWAY_STATUSES:
        return _reported_error(url, error) or ConnectionFailed(
            f"{url} leads to no server at the moment (HTTP {int(error.response.status)}): "
            "a gateway or a balancer in front of the servers answers so when it reaches none"
        )
    if error.response.status not in _KEY_ERRORS:
        return None
    cls, advice = _KEY_ERRORS[error.response.status]
    wait = error.response.headers.get("Retry-After", "")
    return cls(
        f"{url} refused the connection (HTTP {int(error.response.status)}): {advice}",
        retry_after_s=float(wait) if wait.isdecimal() else None,
    )


def _reported_error(url: str, error: WSHandshakeError) -> OpenEnvError | None:
    try:
        facts = json.loads(error.raw_body or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or facts.get("blame") != "infrastructure":
        return None
    reported = from_wire(facts)
    if type(reported) not in _GATEWAY_ERRORS:
        return None
    reported.message = f"{url}: {reported.message}"
    reported.args = (reported.message,)
    return reported


def redirect_target(url: str, headers: Headers, error: WSHandshakeError) -> tuple[str, Headers]:
    """The address that an answer redirects to, and the headers for it: another server gets no key.

    Raises:
        WSHandshakeError: Not a redirect.
        ConnectionFailed: It leads from an encrypted to an unencrypted address.
    """
    location = None
    if error.response is not None and error.response.status in _REDIRECTS:
        location = error.response.headers.get("Location")
    if location is None:
        raise error
    goal = urljoin(url, location)
    goal = goal.replace("http", "ws", 1) if goal.startswith("http") else goal
    before, after = urlsplit(url), urlsplit(goal)
    if before.scheme == "wss" and after.scheme != "wss":
        raise ConnectionFailed(f"{url} redirects to {goal}, which is not encrypted")
    safer = after.scheme == "wss" and after.hostname == before.hostname
    if before[:2] != after[:2] and not safer:
        headers = tuple((name, value) for name, value in headers if name.lower() not in SECRET)
    return goal, headers
