"""The HTTP endpoints of the task API: what there is to train and to test on."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import UsageError
from ..messages import GetTaskRangeRequest, GetTaskRequest, ListTasksRequest, NumTasksRequest
from .answer import answer_to
from .guard import head_of, visitor_of
from .http import server_of
from .task_provider import NoTasks, ask, encode_tasks, splits_of

__all__ = ["Unserved", "environments", "num_tasks", "splits", "task", "task_range", "tasks"]

NOT_IMPLEMENTED, NOT_FOUND = 501, 404
_ENDPOINTS = frozenset({"splits", "tasks", "num_tasks", "task", "task_range"})


async def environments(request: Request) -> list[str]:
    """The names of the environments that are served here: one."""
    return [server_of(request).env_name]


async def splits(request: Request) -> Response:
    """The splits of the environment's tasks, each with its name and type."""
    told = await _ask(request, "list_splits")
    return told if isinstance(told, Response) else _json(splits_of(told))


async def tasks(request: Request, body: ListTasksRequest) -> Response:
    """Every task of a split."""
    told = await _ask(request, "list_tasks", split=body.split)
    return told if isinstance(told, Response) else _json({"tasks": told, "env_name": server_of(request).env_name})


async def num_tasks(request: Request, body: NumTasksRequest) -> Response:
    """How many tasks a split has."""
    told = await _ask(request, "num_tasks", split=body.split)
    return told if isinstance(told, Response) else _json({"num_tasks": told})


async def task(request: Request, body: GetTaskRequest) -> Response:
    """One task of a split, counted from 0."""
    told = await _ask(request, "get_task", split=body.split, index=body.index)
    return told if isinstance(told, Response) else _json({"task": told})


async def task_range(request: Request, body: GetTaskRangeRequest) -> Response:
    """The tasks of a split from `start` to the one before `stop`."""
    told = await _ask(request, "get_task_range", split=body.split, start=body.start, stop=body.stop)
    return told if isinstance(told, Response) else _json({"tasks": told})


class Unserved:
    """Answers what no route matches: asked for the tasks of another environment, it says which one there is.

    Args:
        otherwise: Answers all else.
        name: The environment that there is.
    """

    def __init__(self, otherwise: ASGIApp, name: str):
        self._otherwise = otherwise
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._otherwise
        if scope["type"] == "http":
            _, *names = head_of(scope).path.split("/")
            if len(names) == 2 and names[1] in _ENDPOINTS and names[0] != self._name:
                unknown = f"no environment {names[0]!r:.80} on this server: it serves {self._name!r}"
                answer = answer_to(UsageError(unknown), NOT_FOUND)
        await answer(scope, receive, send)


async def _ask(request: Request, method: str, **arguments: Any) -> Any:
    server = server_of(request)
    try:
        return await ask(server, visitor_of(request.scope, server), method, **arguments)
    except NoTasks as error:
        return answer_to(UsageError(error.message), NOT_IMPLEMENTED)


def _json(answer: Any) -> Response:
    return Response(encode_tasks(answer), media_type="application/json")
