"""`/harness`: a client talks to the agent of an environment, over a real WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from openenv.core.harness import HarnessAction, HarnessEnvironment
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.server.app import HTTPEnvServer, create_app
from openenv.settings import ServerSettings
from openenv.types import Observation
from tests.harness.agents import PROGRAM, LineAgent

from .wires import served

PRODUCTION = ServerSettings(mode="production")
LIMIT_S = 30.0


class Lines(HarnessEnvironment):
    """An environment with the line agent, whose rubric is the length of the message."""

    made: list[Lines] = []
    program = PROGRAM

    def __init__(self) -> None:
        super().__init__(LineAgent(self.program), rubric=lambda action, observation: len(action.message))
        self.made.append(self)


class Broken(Lines):
    program = "import sys; sys.exit('secret trouble')"


class Hasty(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.adapter.config.session_timeout_s = 0.3


@pytest.fixture(autouse=True)
def forget() -> None:
    Lines.made.clear()


@asynccontextmanager
async def talking(env: Any = Lines, **more: Any) -> AsyncIterator[tuple[ClientConnection, HTTPEnvServer]]:
    app = create_app(env, action=HarnessAction, observation=Observation, settings=PRODUCTION, **more)
    with served(app) as address:
        async with connect(f"ws://{address}/harness", proxy=None) as client:
            yield client, app.state.openenv


async def frame(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        read: dict[str, Any] = json.loads(await client.recv())
    return read


async def said(client: ClientConnection, content: str) -> list[dict[str, Any]]:
    """The frames of a turn, up to its last."""
    await client.send(json.dumps({"type": "message", "content": content}))
    frames = [await frame(client)]
    while frames[-1]["type"] not in {"turn_complete", "error"}:
        frames.append(await frame(client))
    return frames


async def closed(client: ClientConnection) -> None:
    with pytest.raises(ConnectionClosed):
        await frame(client)


async def test_a_conversation_is_played_through_the_environment() -> None:
    async with talking() as (client, server):
        began = await frame(client)
        assert began["type"] == "session_started"
        assert began["data"]["harness"] == "lines"
        assert server.get_session_info(began["data"]["session_id"]) is not None
        assert [each["type"] for each in await said(client, "hello")] == ["text_output", "turn_complete"]
        assert (await said(client, "you"))[-1]["data"]["response"] == "YOU"
        (environment,) = Lines.made
        assert (environment.state.step_count, len(environment.trajectory)) == (2, 4)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"type": "other", "content": "x"}', "VALIDATION_ERROR"),
        ('{"type": "message"}', "VALIDATION_ERROR"),
    ],
)
async def test_a_bad_frame_is_answered_and_the_connection_stays(text: str, code: str) -> None:
    async with talking() as (client, _):
        await frame(client)
        await client.send(text)
        answer = await frame(client)
        assert (answer["type"], answer["data"]["code"]) == ("protocol_error", code)
        assert (await said(client, "still"))[-1]["type"] == "turn_complete"


@pytest.mark.parametrize(("env", "message"), [(Lines, "crash"), (Lines, "quiet"), (Hasty, "hang")])
async def test_a_failed_turn_ends_the_connection_without_the_text_of_the_exception(env: Any, message: str) -> None:
    async with talking(env) as (client, _):
        await frame(client)
        await client.send(json.dumps({"type": "message", "content": message}))
        frames = [await frame(client)]
        while frames[-1]["data"].get("recoverable") is not False:
            frames.append(await frame(client))
        assert frames[-1]["type"] == "error"
        assert "log of the server" in frames[-1]["data"]["message"]
        assert "secret" not in json.dumps(frames)
        await closed(client)


async def test_an_agent_that_does_not_start_is_an_error_without_its_text() -> None:
    async with talking(Broken) as (client, _):
        refusal = await frame(client)
        assert (refusal["type"], refusal["data"]["code"]) == ("error", "SESSION_ERROR")
        assert "secret" not in json.dumps(refusal)
        await closed(client)


async def test_a_full_server_refuses() -> None:
    settings = ServerSettings(mode="production", queue_timeout_s=0.0)
    app = create_app(Lines, action=HarnessAction, observation=Observation, settings=settings)
    with served(app) as address:
        first = await connect(f"ws://{address}/harness", proxy=None)
        await frame(first)
        async with connect(f"ws://{address}/harness", proxy=None) as second:
            assert (await frame(second))["data"]["code"] == "CAPACITY_REACHED"
        assert (await said(first, "hello"))[-1]["type"] == "turn_complete"
        await first.close()


async def test_a_client_that_disconnects_during_a_turn_ends_the_agent() -> None:
    async with talking() as (client, server):
        await frame(client)
        await client.send(json.dumps({"type": "message", "content": "hang"}))
        await frame(client)
        await client.close()
        agent = Lines.made[0].adapter
        assert isinstance(agent, LineAgent)
        async with asyncio.timeout(LIMIT_S):
            while server.active_sessions or agent.process.is_running():
                await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])


async def test_an_environment_that_a_function_makes_may_have_no_agent() -> None:
    async with talking(lambda: EchoEnvironment()) as (client, _):
        refusal = await frame(client)
        assert "no agent to talk to" in refusal["data"]["message"]
        await closed(client)


@pytest.mark.parametrize(("env", "mode"), [(Lines, "simulation"), (EchoEnvironment, "production")])
async def test_other_servers_have_no_such_path(env: Any, mode: str) -> None:
    settings = ServerSettings(mode=mode)
    app = create_app(env, action=HarnessAction, observation=Observation, settings=settings)
    with served(app) as address, pytest.raises(InvalidStatus):
        await connect(f"ws://{address}/harness", proxy=None)
