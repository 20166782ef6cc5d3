"""One HTTP request to a server, by the standard library: one rule for proxies, redirects, credentials and sizes."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from functools import lru_cache
from http.client import HTTPException, IncompleteRead
from typing import Any
from urllib.parse import urlsplit

from .errors import ConnectionLost, ProtocolViolation
from .settings import is_loopback

SECRET = ("authorization", "cookie")
"""Headers that only one server may get, in lower case."""
# Header of the metrics: the scope of the key that was sent.
SCOPE_HEADER = "X-OpenEnv-Scope"
# A space lists its bounds; those of an image are one number.
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HttpReply:
    """The reply of a server, of any status."""

    status: int
    body: bytes
    headers: Message = field(default_factory=Message)

    def json(self) -> Any:
        """The value that the body holds. Raises `ValueError` if the body is not JSON."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def bearer(api_key: str | None) -> dict[str, str]:
    """The headers that send an API key."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def reason_of(error: object) -> str:
    """Why a connection failed, in words without the number of the error."""
    if isinstance(error, urllib.error.URLError):  # the `reason` of an SSL error is a word without its details
        error = error.reason
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused"
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def fetch(url: str, headers: Mapping[str, str], timeout_s: float | None, body: Any = None) -> HttpReply:
    """Sends a GET, or a POST of JSON if there is a body; blocks.

    Uses the proxy from the environment variables, but none for this machine. Follows redirects, and sends credentials
    only to the original server.

    Args:
        url: An http or https address.
        headers: Sent with the request.
        timeout_s: Seconds of silence after which the request fails; None for no limit.
        body: Value that is sent as JSON; bytes are sent as they are; None sends a GET.

    Raises:
        ConnectionLost: The server did not answer, or its answer is incomplete.
        ProtocolViolation: The answer is larger than `MOST_BYTES`.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    kind = {} if data is None else {"Content-Type": "application/json"}
    proxies = {} if is_loopback(urlsplit(url).hostname) else urllib.request.getproxies()
    try:
        request = urllib.request.Request(url, data, {**headers, **kind})  # noqa: S310 - callers check the scheme
        try:
            reply = _opener(tuple(proxies.items())).open(request, timeout=timeout_s)
        except urllib.error.HTTPError as refusal:
            reply = refusal
        with reply:
            content = reply.read(MOST_BYTES + 1)
        # With a size, `read` returns incomplete data if the connection ends.
        length = reply.headers.get("Content-Length", "")
        if length.isdecimal() and len(content) < min(int(length), MOST_BYTES):
            raise IncompleteRead(content, int(length) - len(content))
    except (OSError, HTTPException) as error:
        raise ConnectionLost(f"no answer from {url}: {reason_of(error)}; is the server up?") from error
    if len(content) > MOST_BYTES:
        raise ProtocolViolation(f"the answer of {url} is larger than {MOST_BYTES >> 20} MiB")
    return HttpReply(reply.status, content, reply.headers)


@lru_cache(maxsize=8)
def _opener(proxies: tuple[tuple[str, str], ...]) -> urllib.request.OpenerDirector:
    """Opens URLs through these proxies. It is kept: since Python 3.12, each loads all certificates (30 ms)."""
    return urllib.request.build_opener(_Redirects(), urllib.request.ProxyHandler(dict(proxies)))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without credentials if they lead to another server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and urlsplit(req.full_url)[:2] != urlsplit(newurl)[:2]:
            follow.headers = {name: value for name, value in follow.headers.items() if name.lower() not in SECRET}
        return follow
