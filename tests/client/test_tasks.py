"""What there is to train on, as a client sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from openenv.client import GenericEnvClient, MCPToolClient
from openenv.errors import ConnectionFailed, StepFailed, UsageError
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..environments import AsyncPlain, InlinePlain, Plain
from ..mcp.environments import ToolEnvironment
from ..server.wires import served


class Quiz(Plain):
    """Questions by number; an episode asks one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Any = None

    def list_splits(self) -> list[Any]:
        return ["test", "train", {"name": "hard", "type": "validation"}]

    def num_tasks(self, split: str) -> int:
        return {"train": 250, "test": 3, "hard": 0}[split]

    def get_task(self, split: str, index: int) -> Any:
        if index == 2 and split == "test":
            raise LookupError("the file is gone")
        return {"split": split, "number": np.int64(index)}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return [self.get_task(split, index) for index in range(*slice(start, stop).indices(self.num_tasks(split)))]

    def list_tasks(self, split: str) -> list[Any]:
        return self.get_task_range(split)

    def reset(self, split: str = "train", index: int = 0) -> Observation:
        self.asked = self.get_task(split, index)
        return Observation(metadata={"question": f"{split} {index}"})


class InlineQuiz(Quiz, InlinePlain):
    """The same on the loop."""


class AsyncQuiz(AsyncPlain):
    """The same, asynchronously."""

    async def list_splits(self) -> list[Any]:
        return ["test", "train"]

    async def num_tasks(self, split: str) -> int:
        return Quiz().num_tasks(split)

    async def get_task(self, split: str, index: int) -> Any:
        return Quiz().get_task(split, index)

    async def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return Quiz().get_task_range(split, start, stop)


class MixedQuiz(InlinePlain):
    """Synchronous steps on the loop, and tasks that are awaited."""

    async def list_splits(self) -> list[Any]:
        return ["train"]

    async def num_tasks(self, split: str) -> int:
        return 1

    async def get_task(self, split: str, index: int) -> Any:
        if split != "train":
            raise LookupError(split)
        return "the only one"


def app_of(environment: Any, **settings: Any) -> Any:
    given = ServerSettings(**settings)
    return create_app(environment, Action, Observation, env_name="quiz", max_concurrent_envs=4, settings=given)


@pytest.fixture(params=["socket", "v1"])
def url(request, monkeypatch) -> Iterator[str]:
    with served(app_of(Quiz)) as address:
        if request.param == "v1":
            monkeypatch.setattr("openenv.client.websocket.SUBPROTOCOLS", ())
            WITHOUT_V2.add(address)
        yield address


WITHOUT_V2: set[str] = set()


async def seen(env: Any) -> None:
    tasks = await env.tasks()
    assert (tasks.split, len(tasks)) == ("train", 250)
    assert await tasks[3] == {"split": "train", "number": 3}
    assert await tasks[-1] == {"split": "train", "number": 249}
    assert [task["number"] for task in await tasks[10:13]] == [10, 11, 12]
    assert [task["number"] for task in await tasks[13:10:-1]] == [13, 12, 11]
    assert [task["number"] for task in await tasks[248:400]] == [248, 249]
    assert await tasks[5:5] == []
    assert [task["number"] async for task in tasks] == list(range(250))
    assert "train" in [split["name"] for split in await tasks.splits()]
    for index in (250, -251):
        with pytest.raises(IndexError, match="there are 250"):
            await tasks[index]
    with pytest.raises(TypeError):
        await tasks["first"]
    assert len(await env.tasks("test")) == 3


@pytest.mark.parametrize("environment", [Quiz, InlineQuiz, AsyncQuiz])
async def test_tasks_in_the_session_itself(environment):
    app = app_of(environment)
    async with GenericEnvClient(app=app) as env:
        await seen(env)
        assert app.state.openenv.active_sessions == 1


async def test_tasks_over_a_socket_and_from_a_server_of_v1(url):
    async with GenericEnvClient(base_url=url) as env:
        await seen(env)
        with pytest.raises((UsageError, StepFailed), match="no split|unknown|LookupError"):
            await env.tasks("unknown")
        tasks = await env.tasks("test")
        with pytest.raises((UsageError, StepFailed), match="the file is gone|2"):
            await tasks[2]
        assert env._held is not None
        assert (env._held.resumable is None) is (url in WITHOUT_V2)
        result = await env.reset(split=tasks.split, index=1)
        assert result.metadata == {"question": "test 1"}


def test_tasks_without_an_event_loop():
    with GenericEnvClient(app=app_of(Quiz)) as env:
        tasks: Any = env.tasks("test")
        assert (len(tasks), tasks[0]) == (3, {"split": "test", "number": 0})
        env.reset(split=tasks.split, index=2 - 1)
        sync = env.sync().tasks()
        assert (sync.split, len(sync), sync[1]["number"]) == ("train", 250, 1)
        assert [task["number"] for task in sync[:2]] == [0, 1]
        assert len(list(sync)) == 250
        assert {"name": "hard", "type": "validation"} in sync.splits()
        assert list(env.sync().tasks("hard")) == []


async def test_tasks_of_an_inline_environment_may_be_awaited_for():
    async with GenericEnvClient(app=app_of(MixedQuiz)) as env:
        tasks = await env.tasks()
        assert await tasks[0] == "the only one"
        with pytest.raises((UsageError, StepFailed)):
            await env._session_for("tasks")
            await env._held.call("tasks", {"method": "get_task", "split": "other", "index": 0}, 5)


async def test_an_environment_without_tasks_says_so():
    async with GenericEnvClient(app=app_of(Plain)) as env:
        with pytest.raises(UsageError, match="no tasks"):
            await env.tasks()
        with pytest.raises(UsageError, match="no tasks"):
            await env.tasks("train")
        await env.reset()


async def test_a_question_without_its_arguments_is_refused():
    async with GenericEnvClient(app=app_of(Quiz)) as env:
        session = await env._session_for("tasks")
        with pytest.raises(UsageError, match="get_task needs split and index"):
            await session.call("tasks", {"method": "get_task"}, 5)


async def test_a_server_of_v1_that_is_gone_is_named(url, monkeypatch):
    monkeypatch.setattr("openenv.client.tasks.http_url", lambda endpoint: "http://127.0.0.1:1")
    monkeypatch.setattr("openenv.client.websocket.SUBPROTOCOLS", ())
    async with GenericEnvClient(base_url=url) as env:
        with pytest.raises(ConnectionFailed, match="no answer from"):
            await env.tasks()


@pytest.mark.parametrize("answer", ["HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[", "nothing of HTTP\r\n\r\n", ""])
async def test_a_server_of_v1_that_breaks_off_is_named(url, monkeypatch, answer):
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setattr("openenv.client.tasks.http_url", lambda endpoint: f"http://127.0.0.1:{port}")
        monkeypatch.setattr("openenv.client.websocket.SUBPROTOCOLS", ())
        async with GenericEnvClient(base_url=url) as env:
            with pytest.raises(ConnectionFailed, match="did not answer|no answer from"):
                await env.tasks()


async def test_a_task_that_is_no_json_is_an_error_of_the_environment():
    class Odd(Quiz):
        def get_task(self, split: str, index: int) -> Any:
            return {"made of": object()} if index else {"inner": Observation(done=True)}

    async with GenericEnvClient(app=app_of(Odd)) as env:
        tasks = await env.tasks()
        assert (await tasks[0])["inner"]["done"] is True


@pytest.mark.parametrize("splits", [None, 5])
@pytest.mark.parametrize("kind", [Plain, InlinePlain])
async def test_splits_that_are_no_list_are_an_error_of_the_environment(kind, splits):
    class Odd(kind):
        def list_splits(self) -> Any:
            return splits

    async with GenericEnvClient(app=app_of(Odd)) as env:
        with pytest.raises(StepFailed, match="list_splits"):
            await asyncio.wait_for(env.tasks(), 5)
        await env.reset()


@pytest.mark.parametrize(
    ("answer", "said"), [(2**70, "cannot be sent"), ("x" * 3_000_000, "max_reply_mb"), (1.5, "")]
)
async def test_a_task_that_no_reply_can_hold_is_an_error_and_the_session_goes_on(answer, said):
    class Odd(InlineQuiz):
        def get_task(self, split: str, index: int) -> Any:
            return answer

    async with GenericEnvClient(app=app_of(Odd, max_reply_mb=2)) as env:
        tasks = await env.tasks()
        if said:
            with pytest.raises(StepFailed, match=said):
                await tasks[0]
        else:
            assert await tasks[0] == answer
        await env.reset()


async def test_a_tool_is_called_by_an_op_of_its_own():
    async with MCPToolClient(env=ToolEnvironment) as env:
        await env.reset()
        link = env._held.link
        call = {"session": env._held.ref.session, "seq": 2, "tool": "increase", "arguments": {"by": 4}}
        for _ in range(2):  # the second time it is the stored reply
            reply = await link.request("call", call)
            assert reply["observation"]["tool_name"] == "increase"
            assert reply["observation"]["error"] is None
        assert (await env._held.call("state", None, 5)) is not None
        env._held._state.seq = 2
        assert await env.call_tool("increase") == {"count": 5}
