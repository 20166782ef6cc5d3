"""What an environment has to train and to test on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from operator import index as as_index
from typing import TYPE_CHECKING, Any, overload

from ..errors import ProtocolViolation, UsageError

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["SyncTasks", "Tasks", "tasks_of"]

# What is asked for at a time where all of them are wanted.
_AT_A_TIME = 100


class Tasks:
    """The tasks of a split, from 0 on: fetched when they are asked for, and not kept.

    Each is what the environment tells of it, as JSON has it. What gives tasks awaits in a running event loop, and
    blocks without one, as methods of the client do.

    Attributes:
        split: Their split.
    """

    def __init__(self, client: EnvClient[Any, Any, Any], split: str, count: int, timeout_s: float | None):
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
        """One of them, or a range, counted from the end too. Raises `IndexError` for one that is not there."""
        if isinstance(which, slice):
            return self._client._offered(self._range(range(self._count)[which]))
        number = as_index(which)
        if not -self._count <= number < self._count:
            raise IndexError(f"split {self.split!r} has no task {number}: there are {self._count}, from 0")
        return self._client._offered(self._one(number % self._count))

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
        """All splits there are, each with its `name` and `type` (train, validation or test)."""
        return self._client._offered(_splits(self._client, self._timeout_s))

    async def _one(self, number: int) -> Any:
        return await _ask(self._client, "get_task", self._timeout_s, split=self.split, index=number)

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
            raise ProtocolViolation(f"the server's reply is no list of tasks: {found!r:.200}")
        return found


class SyncTasks:
    """`Tasks` without `await`.

    Args:
        tasks: What it asks; both are of one session.
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


async def tasks_of(client: EnvClient[Any, Any, Any], split: str | None, timeout_s: float | None) -> Tasks:
    """The tasks of a split; None: of that named `train`, or else of the first. Raises as `EnvClient.tasks`."""
    if split is None:
        names = [str(each.get("name")) for each in await _splits(client, timeout_s)]
        if not names:
            raise UsageError("the environment has no splits, and so no tasks")
        split = "train" if "train" in names else names[0]
    count = await _ask(client, "num_tasks", timeout_s, split=split)
    if type(count) is not int or count < 0:
        raise ProtocolViolation(f"the server's reply is no number of tasks: {count!r:.200}")
    return Tasks(client, split, count, timeout_s)


async def _splits(client: EnvClient[Any, Any, Any], timeout_s: float | None) -> list[dict[str, Any]]:
    found = await _ask(client, "list_splits", timeout_s)
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ProtocolViolation(f"the server's reply is no list of splits: {found!r:.200}")
    return [dict(each) for each in found]


async def _ask(client: EnvClient[Any, Any, Any], method: str, timeout_s: float | None, **arguments: Any) -> Any:
    """In the session itself, or by HTTP from a server that speaks v1 only."""
    session = await client._open()
    if session.linked is None:
        from .task_routes import ask_by_http

        return await ask_by_http(client, method, arguments, timeout_s)
    await client._session_for("tasks")
    reply = await session.call("tasks", {"method": method, **arguments}, timeout_s)
    return reply.get("result")
