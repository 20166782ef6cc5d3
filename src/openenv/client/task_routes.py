"""The task API of servers that speak v1: by HTTP, with the standard library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ..background import on_thread
from ..errors import ConnectionLost, OpenEnvError, ProtocolViolation, Unauthorized, UsageError, from_wire
from .url import http_url

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["ask_by_http"]

# Of each method: its route, and what holds the answer.
_ROUTES = {
    "list_tasks": ("tasks", "tasks"),
    "num_tasks": ("num_tasks", "num_tasks"),
    "get_task": ("task", "task"),
    "get_task_range": ("task_range", "tasks"),
}
_NO_TASKS = 501


async def ask_by_http(
    client: EnvClient[Any, Any, Any], method: str, arguments: Mapping[str, Any], timeout_s: float | None
) -> Any:
    """Asks the server of a client, as `POST /{env}/{route}`.

    Raises:
        UsageError: The environment has no tasks, or not these.
        ConnectionLost: The server did not answer.
    """
    url = client._url
    if url is None:
        raise UsageError("tasks needs a server: give base_url")
    base, headers = http_url(url), dict(client._options.headers)

    def ask() -> Any:
        names = _fetch(f"{base}/list_environments", None, headers, timeout_s)
        if not isinstance(names, list) or not names:
            raise ProtocolViolation(f"the server names no environment: {names!r:.200}")
        place = f"{base}/{quote(str(names[0]), safe='')}"
        if method == "list_splits":
            return _fetch(f"{place}/splits", None, headers, timeout_s)
        route, key = _ROUTES[method]
        answer = _fetch(f"{place}/{route}", dict(arguments), headers, timeout_s)
        return answer.get(key) if isinstance(answer, dict) else answer

    return await on_thread(ask)


def _fetch(url: str, body: dict[str, Any] | None, headers: dict[str, str], timeout_s: float | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {**headers, "Content-Type": "application/json"})  # noqa: S310 - http, as given
    try:
        with urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
            return json.loads(reply.read())
    except HTTPError as refusal:
        with refusal:
            raise _refused(refusal.code, refusal.read()) from None
    except (URLError, OSError, HTTPException) as trouble:
        raise ConnectionLost(f"{url} did not answer: {trouble}") from trouble
    except ValueError as trouble:
        raise ProtocolViolation(f"{url} did not answer with JSON: {trouble}") from trouble


def _refused(status: int, body: bytes) -> OpenEnvError:
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), (dict, str)):
        return from_wire(said["error"] if isinstance(said["error"], dict) else said)
    detail = said.get("detail", said) if isinstance(said, dict) else body[:200].decode(errors="replace")
    if status in (401, 403):
        return Unauthorized(f"the server refused: {detail}")
    what = "the environment has no tasks" if status == _NO_TASKS else f"the server refused ({status})"
    return UsageError(f"{what}: {detail}")
