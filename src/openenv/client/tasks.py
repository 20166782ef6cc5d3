"""The tasks of an environment: over protocol v2, or by HTTP from servers that speak v1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from operator import index as as_index
from typing import TYPE_CHECKING, Any, overload
from urllib.parse import quote

from .._asyncio import on_thread
from .._http import HttpReply, fetch
from ..errors import OpenEnvError, ProtocolViolation, Unauthorized, UsageError, from_wire
from .endpoints import http_url

if TYPE_CHECKING:
    from .session_client import SessionClient

# For each method: its route, and the field of the answer.
_ROUTES = {
    "list_tasks": ("tasks", "tasks"),
    "num_tasks": ("num_tasks", "num_tasks"),
    "get_task": ("task", "task"),
    "get_task_range": ("task_range", "tasks"),
}
_NO_TASKS = 501


async def ask_by_http(
    client: SessionClient, method: str, arguments: Mapping[str, Any], timeout_s: float | None
) -> Any:
    """Asks a client's server by `POST /{env}/{route}`.

    Raises:
        UsageError: The environment has no tasks, or not these.
        ConnectionLost: The server did not answer.
    """
    url = client._url
    if url is None:
        raise UsageError("tasks needs a server: give base_url")
    base, headers = http_url(url), dict(client._options.headers)

    def ask() -> Any:
        names = fetch_json(f"{base}/list_environments", None, headers, timeout_s)
        if not isinstance(names, list) or not names:
            raise ProtocolViolation(f"the server names no environment: {names!r:.200}")
        environment = f"{base}/{quote(str(names[0]), safe='')}"
        if method == "list_splits":
            return fetch_json(f"{environment}/splits", None, headers, timeout_s)
        route, key = _ROUTES[method]
        answer = fetch_json(f"{environment}/{route}", dict(arguments), headers, timeout_s)
        return answer.get(key) if isinstance(answer, dict) else answer

    return await on_thread(ask)


def fetch_json(url: str, body: dict[str, Any] | None, headers: dict[str, str], timeout_s: float | None) -> Any:
    """The JSON that a server answers to a GET, or to a POST of `body`; blocks.

    Raises:
        Unauthorized, UsageError: The server refused. `OpenEnvError` of another class if it names one.
        ConnectionLost: It did not answer.
        ProtocolViolation: The answer is not JSON.
    """
    reply = fetch(url, headers, timeout_s, body)
    if reply.status >= 300:
        raise _http_error(reply)
    try:
        return reply.json()
    except ValueError as trouble:
        raise ProtocolViolation(f"{url} did not answer with JSON: {trouble}") from trouble


def _http_error(reply: HttpReply) -> OpenEnvError:
    status, body = reply.status, reply.body
    try:
        said = reply.json()
    except ValueError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), (dict, str)):
        return from_wire(said["error"] if isinstance(said["error"], dict) else said)
    detail = said.get("detail", said) if isinstance(said, dict) else body[:200].decode(errors="replace")
    if status in (401, 403):
        return Unauthorized(f"the server refused: {detail}")
    what = "the environment has no tasks" if status == _NO_TASKS else f"the server refused ({status})"
    return UsageError(f"{what}: {detail}")


# Tasks in one request of an iteration over all of them.
_AT_A_TIME = 100


class Tasks:
    """The tasks of a split, numbered from 0: fetched when used, and not cached.

    Each is the environment's own description of the task, as JSON. Like the methods of the client, these await in
    a running event loop and block without one.

    Attributes:
        split: Their split.
    """

    def __init__(self, client: SessionClient, split: str, count: int, timeout_s: float | None):
        self.split = split
        self._client = client
        self._count = count
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, which: int) -> Awaitable[Any]: ...

    @overload
    def __getitem__(self, which: slice) -> Awaitable[list[Any]]: ...

    def __getitem__(self, which: int | slice) -> Awaitable[Any]:
        """A task or a slice; negative indices count from the end. Raises `IndexError` if out of range."""
        if isinstance(which, slice):
            return self._client._offered(self._range(range(self._count)[which]))
        number = as_index(which)
        if not -self._count <= number < self._count:
            raise IndexError(f"split {self.split!r} has no task {number}: there are {self._count}, from 0")
        given = {"split": self.split, "index": number % self._count}
        return self._client._offered(_ask(self._client, "get_task", self._timeout_s, **given))

    def __iter__(self) -> Iterator[Any]:
        """Without an event loop: one after the other."""
        for start in range(0, self._count, _AT_A_TIME):
            yield from self._client.blocking(self._range(range(start, min(start + _AT_A_TIME, self._count))))

    async def __aiter__(self) -> AsyncIterator[Any]:
        for start in range(0, self._count, _AT_A_TIME):
            found = self._range(range(start, min(start + _AT_A_TIME, self._count)))
            for task in await self._client._routed(found):
                yield task

    def splits(self) -> Awaitable[list[dict[str, Any]]]:
        """All splits, each with its `name` and `type` (train, validation or test)."""
        return self._client._offered(_splits(self._client, self._timeout_s))

    async def _range(self, wanted: range) -> list[Any]:
        if not wanted:
            return []
        if wanted.step != 1:
            first, last = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
            found = await self._range(range(first, last + 1))
            return [found[number - first] for number in wanted]
        given = {"split": self.split, "start": wanted.start, "stop": wanted.stop}
        found = await _ask(self._client, "get_task_range", self._timeout_s, **given)
        if not isinstance(found, list):
            raise ProtocolViolation(f"the server's reply is not a list of tasks: {found!r:.200}")
        return found


class SyncTasks:
    """`Tasks` without `await`.

    Args:
        tasks: The wrapped `Tasks`; same session.
    """

    def __init__(self, tasks: Tasks):
        self._tasks = tasks

    @property
    def split(self) -> str:
        """Their split."""
        return self._tasks.split

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, which: int | slice) -> Any:
        """See `Tasks.__getitem__`."""
        return self._tasks._client.settled(self._tasks[which])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tasks)

    def splits(self) -> list[dict[str, Any]]:
        """See `Tasks.splits`."""
        found: list[dict[str, Any]] = self._tasks._client.settled(self._tasks.splits())
        return found


async def tasks_of(client: SessionClient, split: str | None, timeout_s: float | None) -> Tasks:
    """The tasks of a split; None takes `train`, else the first. Raises as `EnvClient.tasks`."""
    if split is None:
        names = [str(each.get("name")) for each in await _splits(client, timeout_s)]
        if not names:
            raise UsageError("the environment has no splits, and so no tasks")
        split = "train" if "train" in names else names[0]
    count = await _ask(client, "num_tasks", timeout_s, split=split)
    if type(count) is not int or count < 0:
        raise ProtocolViolation(f"the server's reply is not a number of tasks: {count!r:.200}")
    return Tasks(client, split, count, timeout_s)


async def _splits(client: SessionClient, timeout_s: float | None) -> list[dict[str, Any]]:
    found = await _ask(client, "list_splits", timeout_s)
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ProtocolViolation(f"the server's reply is not a list of splits: {found!r:.200}")
    return [dict(each) for each in found]


async def _ask(client: SessionClient, method: str, timeout_s: float | None, **arguments: Any) -> Any:
    """Asks in the session, or by HTTP if the server speaks only v1."""
    session = await client._open("tasks")
    if session.resumable is None:
        return await ask_by_http(client, method, arguments, timeout_s)
    await client._session_for("tasks")
    reply = await session.call("tasks", {"method": method, **arguments}, timeout_s)
    return reply.get("result")
