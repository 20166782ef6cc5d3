"""The socket beside the page."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from openenv.server.page import episode

from .stage import TooDeep, app_of


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that halts for a moment loses no state."""
    monkeypatch.setattr(episode, "DRAWING_S", 20.0)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app_of()) as client:
        yield client


def reset(client: TestClient, **headers: str) -> dict[str, Any]:
    told: dict[str, Any] = client.post("/web/reset", json={"seed": 1}, headers=headers).json()
    return told


def episode_of(socket: Any) -> Any:
    message = socket.receive_json()
    assert message["type"] == "state_update"
    return message["episode_state"]


@pytest.mark.parametrize("way", ["url", "header", "cookie"])
def test_an_episode_is_told_as_it_goes(client, way):
    told = reset(client)
    name, token = told["session_id"], told["token"]
    if way != "cookie":
        client.cookies.clear()
    url = f"/ws/ui?session_id={name}&token={token}" if way == "url" else "/ws/ui"
    headers = {"X-Session-ID": name, "X-Session-Token": token}
    with client.websocket_connect(url, headers=headers if way == "header" else {}) as socket:
        first = episode_of(socket)
        assert (first["episode_id"], first["step_count"], first["is_reset"]) == ("seed-1", 0, True)
        assert (first["current_observation"]["said"], first["action_logs"]) == ("reset", [])
        client.post("/web/step", json={"action": {"line": "x"}}, headers=headers)
        second = episode_of(socket)
        assert (second["step_count"], second["is_reset"], second["current_observation"]["said"]) == (1, False, "x")
        (log,) = second["action_logs"]
        assert (log["action"]["line"], log["reward"], log["done"], log["step_count"]) == ("x", 0.5, False, 1)
        assert log["timestamp"].endswith("+00:00")
        client.post("/web/reset", json={}, headers=headers)
        assert episode_of(socket)["action_logs"] == []


def test_who_comes_later_hears_what_was_before(client):
    reset(client)
    for line in "abc":
        client.post("/web/step", json={"action": {"line": line}})
    with client.websocket_connect("/ws/ui") as one, client.websocket_connect("/ws/ui") as other:
        for socket in (one, other):
            assert [log["action"]["line"] for log in episode_of(socket)["action_logs"]] == ["a", "b", "c"]


def test_what_is_kept_has_limits(client, monkeypatch):
    monkeypatch.setattr(episode, "MOST_LOGS", 3)
    monkeypatch.setattr(episode, "LOG_BYTES", 2000)
    reset(client)
    for number in range(5):
        client.post("/web/step", json={"action": {"line": str(number)}})
    with client.websocket_connect("/ws/ui") as socket:
        assert [log["step_count"] for log in episode_of(socket)["action_logs"]] == [3, 4, 5]
    client.post("/web/step", json={"action": {"odd": "x" * 3000}})
    with client.websocket_connect("/ws/ui") as socket:
        assert [log["step_count"] for log in episode_of(socket)["action_logs"]] == [6]


def test_an_episode_that_cannot_be_said_in_json_is_an_error_and_no_silence():
    with TestClient(app_of(TooDeep)) as client:
        for TooDeep.levels in range(240, 260):
            if client.post("/web/reset").status_code != 200:
                break
            with client.websocket_connect("/ws/ui") as socket:
                message = socket.receive_json()
                if message["type"] == "error":
                    break
        assert message["data"]["error"] == "StepFailed"
        assert "cannot be shown" in message["data"]["message"]


def test_the_end_of_the_session_is_told(client):
    told = reset(client)
    with client.websocket_connect("/ws/ui") as socket:
        episode_of(socket)
        client.delete(f"/sessions/{told['session_id']}")
        message = socket.receive_json()
        assert (message["type"], message["data"]["error"]) == ("error", "SessionLost")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
        assert closed.value.code == 1008


@pytest.mark.parametrize("url", ["/ws/ui", "/ws/ui?session_id=nobody", "/ws/ui?session_id="])
def test_without_a_session_there_is_nothing_to_tell(client, url):
    with client.websocket_connect(url) as socket:
        assert socket.receive_json()["data"]["error"] == "UnknownSession"
        with pytest.raises(WebSocketDisconnect):
            socket.receive_json()


def test_whoever_watches_and_leaves_disturbs_nobody(client):
    reset(client)
    server = client.app.state.openenv
    with client.websocket_connect("/ws/ui") as socket:
        episode_of(socket)
        socket.send_text("what is said here is not heard")
    assert client.post("/web/step", json={"action": {}}).json()["step_count"] == 1
    (shared,) = server.shared_sessions._sessions.values()
    assert (shared.page.watchers, shared.on_lost) == (set(), [])


KEY = "the-key-of-those-in-control"


def test_it_asks_for_a_key_which_browsers_show_among_the_subprotocols():
    with TestClient(app_of(api_keys=f"control:{KEY},agent:the-key-of-an-agent")) as client:
        told = reset(client, Authorization=f"Bearer {KEY}")
        url = f"/ws/ui?session_id={told['session_id']}"
        shown = "openenv.key." + base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
        with client.websocket_connect(url, subprotocols=["openenv.ui", shown]) as socket:
            assert socket.accepted_subprotocol == "openenv.ui"
            assert episode_of(socket)["episode_id"] == "seed-1"
        for headers, status in (({}, 401), ({"Authorization": "Bearer the-key-of-an-agent"}, 403)):
            with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect(url, headers=headers):
                pass
            assert refused.value.status_code == status
