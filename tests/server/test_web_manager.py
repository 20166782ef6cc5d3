from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv.errors import FactoryFailed, ResetRequired, ServerFull, StepFailed
from openenv.server import HTTPEnvServer
from openenv.server.auth import ANONYMOUS
from openenv.server.metadata import load_environment_metadata
from openenv.server.page import episode as web_episode
from openenv.server.page import gradio
from openenv.server.page.gradio import WebInterfaceManager
from openenv.settings import ServerSettings

from .probe import AsyncProbe, BrokenProbe, ProbeAction, ProbeEnvironment, ProbeObservation


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that halts for a moment loses no state."""
    monkeypatch.setattr(web_episode, "DRAWING_S", 20.0)


@asynccontextmanager
async def managed(environment: Any = ProbeEnvironment, **options: Any) -> AsyncIterator[WebInterfaceManager]:
    settings = ServerSettings.read({}, **options)
    server = HTTPEnvServer(environment, ProbeAction, ProbeObservation, settings=settings)
    try:
        yield WebInterfaceManager(server, metadata=load_environment_metadata(environment, "probe"))
    finally:
        await server.aclose()


@pytest.mark.parametrize("environment", [ProbeEnvironment, AsyncProbe])
async def test_an_episode(environment):
    async with managed(environment) as manager:
        assert manager.get_state() == {"episode_id": None, "step_count": 0}
        first = await manager.reset_environment({"seed": 4, "unforeseen": 1})
        assert (first["observation"]["value"], first["done"]) == (4, False)
        assert manager.episode_state.is_reset
        step = await manager.step_environment({"number": "6"})
        assert (step["observation"]["value"], step["reward"]) == (6, 1.5)
        assert manager.get_state() == {"episode_id": "probe", "step_count": 1}
        episode = manager.episode_state
        assert (episode.episode_id, episode.step_count, episode.is_reset) == ("probe", 1, False)
        assert episode.current_observation == step["observation"]
        (log,) = episode.action_logs
        assert (log.action["number"], log.observation, log.reward) == (6, step["observation"], 1.5)
        await manager.reset_environment()
        assert manager.episode_state.action_logs == []


async def test_all_who_look_share_one_session():
    async with managed() as manager:
        await manager.reset_environment()
        await asyncio.gather(*(manager.step_environment({}) for _ in range(5)))
        await manager.reset_environment()
        assert manager._server.active_sessions == 1


async def test_those_who_reset_at_the_same_time_share_one_session_too():
    async with managed() as manager:
        await asyncio.gather(*(manager.reset_environment() for _ in range(4)))
        assert manager._server.active_sessions == 1


async def test_the_log_has_an_end(monkeypatch):
    monkeypatch.setattr(WebInterfaceManager, "MAX_ACTION_LOGS", 2)
    async with managed(AsyncProbe) as manager:
        await manager.reset_environment()
        for number in range(4):
            await manager.step_environment({"number": number})
        assert [log.step_count for log in manager.episode_state.action_logs] == [3, 4]


async def test_actions_may_be_of_any_type():
    class Loose(AsyncProbe):
        async def step_async(self, action):
            return ProbeObservation(value=sorted(action))

    server = HTTPEnvServer(Loose, dict[str, Any], ProbeObservation, settings=ServerSettings.read({}))
    manager = WebInterfaceManager(server, metadata=load_environment_metadata(Loose))
    await manager.reset_environment()
    odd = object()
    assert (await manager.step_environment({"b": 1, "a": odd}))["observation"]["value"] == ["a", "b"]
    assert manager.episode_state.action_logs[0].action == {"b": 1, "a": repr(odd)}
    await server.aclose()


async def test_a_step_needs_a_reset():
    async with managed() as manager:
        with pytest.raises(ResetRequired, match="reset first"):
            await manager.step_environment({})


async def test_what_is_no_action_is_refused_and_the_episode_goes_on():
    async with managed() as manager:
        await manager.reset_environment()
        with pytest.raises(ValidationError):
            await manager.step_environment({"number": "many"})
        with pytest.raises(StepFailed):
            await manager.step_environment({"kind": "raise"})
        assert (await manager.step_environment({"number": 1}))["observation"]["value"] == 1


async def test_a_session_that_has_ended_is_replaced_by_a_reset():
    async with managed() as manager:
        await manager.reset_environment()
        episode = manager._episode
        assert episode is not None
        await episode.shared.close()
        with pytest.raises(ResetRequired, match="reset for a new one"):
            await manager.step_environment({})
        await manager.reset_environment()
        assert manager._episode is not episode
        assert (await manager.step_environment({}))["done"] is False


async def test_without_room_there_is_no_session():
    async with managed(max_sessions=1) as manager:
        other = await manager._server.shared_sessions.open(ANONYMOUS)
        with pytest.raises(ServerFull):
            await manager.reset_environment()
        await other.close()
        await manager.reset_environment()


async def test_an_environment_that_cannot_be_made():
    async with managed(BrokenProbe) as manager:
        with pytest.raises(FactoryFailed):
            await manager.reset_environment()


async def test_calls_come_from_any_event_loop():
    """Pages run their handlers on threads, some with an event loop for each call."""
    async with managed() as manager:
        manager.home = asyncio.get_running_loop()
        seen: list[Any] = []

        def handler() -> None:
            asyncio.run(manager.reset_environment())
            seen.append(asyncio.run(manager.step_environment({"number": 3})))
            seen.append(manager.get_state())

        thread = threading.Thread(target=handler)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert seen[0]["observation"]["value"] == 3
        assert seen[1]["step_count"] == 1


# Sockets that are sent the episode


def test_a_connected_socket_is_sent_the_episode_as_it_goes():
    server = HTTPEnvServer(ProbeEnvironment, ProbeAction, ProbeObservation, settings=ServerSettings.read({}))
    manager = WebInterfaceManager(server, metadata=load_environment_metadata(ProbeEnvironment, "probe"))
    app = FastAPI()

    @app.websocket("/episode")
    async def episode(websocket: WebSocket) -> None:
        await manager.connect_websocket(websocket)
        try:
            while True:
                await websocket.receive_text()
        except WebSocketDisconnect:
            await manager.disconnect_websocket(websocket)

    @app.post("/reset")
    async def reset() -> dict[str, Any]:
        return await manager.reset_environment()

    @app.post("/step")
    async def step() -> dict[str, Any]:
        return await manager.step_environment({"number": 3})

    with TestClient(app) as client:
        with client.websocket_connect("/episode") as one, client.websocket_connect("/episode") as other:
            assert one.receive_json() == {"type": "state_update", "episode_state": manager.episode_state.model_dump()}
            other.receive_json()
            client.post("/reset")
            client.post("/step")
            for socket in (one, other):
                assert socket.receive_json()["episode_state"]["is_reset"] is True
                told = socket.receive_json()["episode_state"]
                assert (told["step_count"], told["current_observation"]["value"]) == (1, 3)
            assert len(manager.connected_clients) == 2
        client.post("/step")
        assert manager.connected_clients == []
        client.portal.call(server.aclose)


async def test_a_socket_that_nobody_reads_delays_no_more_than_one_call(monkeypatch):
    monkeypatch.setattr(gradio, "SEND_S", 0.01)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "websocket.send":
            await asyncio.get_running_loop().create_future()

    async with managed() as manager:
        await manager.connect_websocket(WebSocket({"type": "websocket"}, receive, send))
        assert manager.connected_clients == []
        await manager.reset_environment()
        assert len(sent) == 2


async def test_a_socket_that_is_gone_is_forgotten():
    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            raise OSError("gone")

    async with managed() as manager:
        socket = WebSocket({"type": "websocket"}, receive, send)
        await manager.connect_websocket(socket)
        assert manager.connected_clients == []
        await manager.disconnect_websocket(socket)
        assert (await manager.reset_environment())["done"] is False


async def test_an_environment_has_a_server_of_its_own_there():
    """`WebInterfaceManager(env, action_cls, observation_cls)`, as existing code makes one."""
    environment = ProbeEnvironment()
    manager = WebInterfaceManager(environment, ProbeAction, ProbeObservation)
    assert manager.env is environment
    assert manager.metadata.name == "ProbeEnvironment"
    await manager.reset_environment()
    payload = await manager.step_environment({"number": 5})
    assert payload["observation"]["value"] == 5
