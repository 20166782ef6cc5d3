"""A server that says what none says: fields are checked before they are used, and a reward is a number or none."""

from __future__ import annotations

import asyncio
import math

import pytest
from pydantic_core import to_json

from openenv import GenericEnvClient, VectorEnvClient
from openenv.client.mcp_client import MCPToolClient, rpc_error
from openenv.client.recorded import recorder_at
from openenv.errors import ProtocolViolation, ServerFull, UsageError

from ..asynchronous import until
from ..recording.lines import lines_in
from .peers import TEXT, serving
from .scripted import HELLO, ScriptedApp, outcome

NO_REWARDS = ["x", [], {}, math.nan, math.inf, -math.inf]


async def opened(app: ScriptedApp, **options):
    """A client with a session, and the server's end of its connection."""
    env = GenericEnvClient(app=app, **options)
    opening = asyncio.create_task(env.connect())
    peer = await app.peer()
    request = await peer.asked(1)
    peer.reply(request, {"ok": True, "session": request["session"], "token": "t", "seq": 0})
    await opening
    return env, peer


@pytest.mark.parametrize("reward", NO_REWARDS)
async def test_what_is_no_reward_is_an_error_for_its_client_and_in_its_record(reward, tmp_path):
    folder = tmp_path / "records"
    env, peer = await opened(ScriptedApp(), record=folder)
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(2), {**outcome(), "reward": reward})
    with pytest.raises(ProtocolViolation, match=r"the reward .*, which is neither a finite number"):
        await step
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(3), outcome(2.0))
    assert (await step).reward == 2.0
    await env.close()
    recorder_at(folder).close()
    refused, taken = lines_in(folder)
    assert (refused["reward"], refused["observation"]) == (None, None)
    assert refused["error"].startswith("ProtocolViolation")
    assert (taken["reward"], taken["error"]) == (2.0, None)


@pytest.mark.slow
@pytest.mark.parametrize("reward", NO_REWARDS)
async def test_what_is_no_reward_is_an_error_on_protocol_v1(reward):
    async def behave(peer):
        await peer.accept()
        await peer.message()
        data = {"observation": {}, "reward": reward, "done": False}
        peer.send(TEXT, to_json({"type": "observation", "data": data}, inf_nan_mode="constants"))
        await peer.ended()

    async with serving(behave) as place:
        env = GenericEnvClient(place.url)
        with pytest.raises(ProtocolViolation, match="neither a finite number"):
            await env.reset()
        await env.close()


@pytest.mark.parametrize("reward", NO_REWARDS)
async def test_what_is_no_reward_is_an_error_of_its_environment_in_a_vector(reward):
    app = ScriptedApp()
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=2)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    batch = await peer.asked(1)
    made = {"ok": True, "token": "t", "seq": 0}
    replies = [made if call["op"] == "open" else outcome() for call in batch["calls"]]
    peer.results(batch, dict(enumerate(replies)))
    await reset
    step = asyncio.create_task(envs.step([{}, {}]))
    peer.results(await peer.asked(2), {0: {**outcome(), "reward": reward}, 1: outcome(1.0)})
    first, second = await step
    assert isinstance(first.error, ProtocolViolation)
    assert first.reward is None
    assert (second.error, second.reward) == (None, 1.0)
    await envs.close()


async def test_heartbeats_that_are_wanted_all_the_time_leave_time_for_calls():
    app = ScriptedApp()
    app.hello = {**HELLO, "heartbeat_s": 1e-9}
    env, peer = await opened(app)
    await until(lambda: any(request["op"] == "heartbeat" for request in peer.requests))
    state = asyncio.create_task(env.state())
    await until(lambda: any(request["op"] == "state" for request in peer.requests))
    request = next(request for request in peer.requests if request["op"] == "state")
    peer.reply(request, {"ok": True, "state": {"step_count": 1}})
    assert (await state)["step_count"] == 1
    await env.close()


@pytest.mark.parametrize("capabilities", [5, None, "forks", {}])
async def test_capabilities_that_are_none(capabilities):
    app = ScriptedApp()
    app.hello = {**HELLO, "capabilities": capabilities}
    env, _ = await opened(app)
    with pytest.raises(UsageError, match="does not know fork"):
        await env.fork()
    await env.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [[], {}, "1", None, 1.5])
async def test_an_answer_of_mcp_to_a_request_that_nobody_made_is_dropped(number):
    async def behave(peer):
        await peer.accept()
        request = await peer.message()
        peer.reply({"jsonrpc": "2.0", "id": number, "result": {}})
        peer.reply({"jsonrpc": "2.0", "id": request["id"], "result": {"tools": []}})
        await peer.ended()

    async with serving(behave) as place:
        client = MCPToolClient(place.url, mode="production")
        assert await client.list_tools() == []
        await client.close()


def test_facts_of_a_full_server_that_are_no_numbers():
    facts = {"max_sessions": "many", "active_sessions": []}
    error = rpc_error("", {"code": -32000, "message": "full", "data": facts})
    assert isinstance(error, ServerFull)
    assert (error.max_sessions, error.active_sessions, error.message) == (0, 0, "full")
