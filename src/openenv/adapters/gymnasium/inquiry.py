"""What a server says of its types: the whole JSON Schemas, which only its HTTP route `/schema` tells."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from ...client import GenericEnvClient
from ...client.headers import SECRET
from ...client.url import http_url, is_loopback
from ...errors import ConnectionFailed, Forbidden, OpenEnvError, ProtocolViolation, Unauthorized

__all__ = ["Schemas", "schemas_of"]

Schemas = Mapping[str, Mapping[str, Any]]
# A space lists its bounds; an image's are one number.
MOST_BYTES = 64 * 2**20


def schemas_of(client: GenericEnvClient) -> Schemas:
    """The schemas of `action` and `observation`, as the server of a client tells them. Blocks.

    Raises:
        ConnectionFailed: The server is not there, or has no such route; of several, the last one's.
        Unauthorized: It wants another key.
        ProtocolViolation: It answers something else.
    """
    if client._app is not None:
        return _checked(client._app.state.openenv.schemas, "the app")
    if client._endpoints is None:  # a provider starts the server first
        client.sync().connect()
    assert client._endpoints is not None
    failure: OpenEnvError = ConnectionFailed("there is no server")
    for endpoint in client._endpoints.all:
        try:
            return _asked(f"{http_url(endpoint.url)}/schema", client)
        except ConnectionFailed as error:
            failure = error
    raise failure


def _asked(url: str, client: GenericEnvClient) -> Schemas:
    options = client._options
    request = urllib.request.Request(url, headers=dict(options.headers))  # noqa: S310 - http_url makes no other kind
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else []
    try:
        with urllib.request.build_opener(_Redirects, *proxies).open(request, timeout=options.connect_timeout_s) as it:
            body = it.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error.code) from None
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", error)
        raise ConnectionFailed(f"{url} cannot be asked for the types of its environment: {why}") from None
    if len(body) > MOST_BYTES:
        raise ProtocolViolation(f"{url} answers with more than {MOST_BYTES >> 20} MiB")
    try:
        return _checked(json.loads(body), url)
    except (ValueError, RecursionError):
        raise ProtocolViolation(f"{url} answers what is no JSON: {body[:100]!r}") from None


def _refusal(url: str, status: int) -> OpenEnvError:
    if status == HTTPStatus.UNAUTHORIZED:
        return Unauthorized(f"{url} wants a key: pass api_key=..., or set OPENENV_API_KEY")
    if status == HTTPStatus.FORBIDDEN:
        return Forbidden(f"{url} does not let this api_key (OPENENV_API_KEY) read: pass one with a wider scope")
    return ConnectionFailed(
        f"{url} answers HTTP {status}, and no schemas: is that an openenv server? Else give observation_space, "
        "decode_observation, action_space and encode_action"
    )


def _checked(schemas: Any, place: str) -> Schemas:
    if isinstance(schemas, Mapping) and all(
        isinstance(schemas.get(name), Mapping) for name in ("action", "observation")
    ):
        return schemas
    raise ProtocolViolation(f"{place} says nothing of its action and observation: {schemas!s:.200}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows, but shows the key to no other server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        follow = super().redirect_request(req, fp, code, msg, headers, newurl)
        if follow is not None and urlsplit(req.full_url)[:2] != urlsplit(newurl)[:2]:
            follow.headers = {name: value for name, value in follow.headers.items() if name.lower() not in SECRET}
        return follow
