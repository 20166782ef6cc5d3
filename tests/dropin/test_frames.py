"""The same apps under the released peer and under ours: frames and answers have the same shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from openenv.project.checks import Outcome
from openenv.project.checks.url import check_url

from .installation import HERE, Installation
from .server import Server

pytestmark = [pytest.mark.real, pytest.mark.slow]

# These are for people.
WORDS = {"message", "msg", "description", "title", "detail", "session_id", "text"}
# What a library of the peer's tells of its tools, under names that MCP does not have; what repeats the request.
FOREIGN = {"meta", "execution", "input", "url"}
RESET = {"type": "reset"}
TOOLS_LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


def step(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "step", "data": {"kind": kind, **fields}}


def tool_step(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "step", "data": {"type": "call_tool", "tool_name": name, "arguments": arguments}}


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


# App, and frames that are sent one after the other on one connection.
CONVERSATIONS: dict[str, tuple[str, list[Any]]] = {
    "reset": ("app", [RESET]),
    "reset with arguments": ("app", [{"type": "reset", "data": {"seed": 3, "episode_id": "mine", "text": "hello"}}]),
    "reset with arguments nobody takes": ("app", [{"type": "reset", "data": {"seed": 3, "prompt": "say"}}]),
    "every kind of reward": ("app", [RESET, *(step(kind) for kind in ("float", "int", "true", "none", "zero"))]),
    "done": ("app", [RESET, step("done")]),
    "metadata": ("app", [RESET, step("metadata")]),
    "nested models": ("app", [RESET, step("plain", point={"x": 3, "y": 0.25}), step("plain", point={"x": 3})]),
    "metadata of an action": ("app", [RESET, step("plain", metadata={"who": "me"})]),
    "state": ("app", [{"type": "state"}, RESET, step("plain"), {"type": "state"}]),
    "invalid json": ("app", ["{", RESET]),
    "empty frame": ("app", ["", RESET]),
    "unknown type": ("app", [{"type": "dance"}, RESET]),
    "no type": ("app", [{"data": {}}, RESET]),
    "a step without an action": ("app", [RESET, {"type": "step"}, step("plain")]),
    "a step whose action is no object": ("app", [RESET, {"type": "step", "data": 3}, step("plain")]),
    "a reset whose data is no object": ("app", [{"type": "reset", "data": [1]}, RESET]),
    "a field that nobody knows": ("app", [RESET, step("plain", dance=1), step("plain")]),
    "a field of a wrong type": ("app", [RESET, step("plain", amount="many"), step("plain")]),
    "a field out of bounds": ("app", [RESET, step("plain", amount=-1), step("plain")]),
    "a nested field of a wrong type": ("app", [RESET, step("plain", point={"x": "far"}), step("plain")]),
    "a frame with a key too many": ("app", [{"type": "reset", "data": {}, "more": 1}, RESET]),
    "a state with a key too many": ("app", [{"type": "state", "data": {}}, RESET]),
    "an environment that raises in reset": ("app", [{"type": "reset", "data": {"fail": True}}, RESET]),
    "an environment that raises in step": ("app", [RESET, step("fail"), step("plain")]),
    "mcp for an environment without tools": ("app", [{"type": "mcp", "data": TOOLS_LIST}, RESET]),
    "tools in steps": (
        "tools",
        [RESET, {"type": "step", "data": {"type": "list_tools"}}, tool_step("double", number=2), {"type": "state"}],
    ),
    "failing tools in steps": ("tools", [RESET, tool_step("fail"), tool_step("double"), tool_step("nothing")]),
    "a tool call without a name": ("tools", [RESET, {"type": "step", "data": {"type": "call_tool"}}]),
    "mcp frames": (
        "tools",
        [
            {"type": "mcp", "data": TOOLS_LIST},
            {"type": "mcp", "data": rpc("tools/call", name="double", arguments={"number": 4})},
        ],
    ),
    "failing mcp frames": (
        "tools",
        [
            {"type": "mcp", "data": rpc("tools/call", arguments={})},
            {"type": "mcp", "data": rpc("no/such")},
            {"type": "mcp", "data": {"id": 1, "method": "tools/list"}},
            {"type": "mcp"},
            RESET,
        ],
    ),
}

REQUESTS: dict[str, tuple[str, str, str, Any]] = {
    "health": ("app", "GET", "/health", None),
    "metadata": ("app", "GET", "/metadata", None),
    "schema": ("app", "GET", "/schema", None),
    "environments": ("app", "GET", "/list_environments", None),
    "reset": ("app", "POST", "/reset", {}),
    "reset with arguments": ("app", "POST", "/reset", {"seed": 1, "text": "hello", "prompt": "x"}),
    "reset without a body": ("app", "POST", "/reset", None),
    "step": ("app", "POST", "/step", {"action": {"kind": "float"}}),
    "step with metadata": (
        "app",
        "POST",
        "/step",
        {"action": {"kind": "metadata"}, "timeout_s": 5, "request_id": "r"},
    ),
    "state": ("app", "GET", "/state", None),
    "no action": ("app", "POST", "/step", {}),
    "wrong action": ("app", "POST", "/step", {"action": {"dance": 1}}),
    "splits": ("app", "GET", "/frames/splits", None),
    "tasks": ("app", "POST", "/frames/tasks", {"split": "train"}),
    "number of tasks": ("app", "POST", "/frames/num_tasks", {"split": "train"}),
    "task": ("app", "POST", "/frames/task", {"split": "train", "index": 1}),
    "task range": ("app", "POST", "/frames/task_range", {"split": "train", "start": 1}),
    "no such task": ("app", "POST", "/frames/task", {"split": "train", "index": 5}),
    "no split": ("app", "POST", "/frames/tasks", {}),
    "no such environment": ("app", "GET", "/other/splits", None),
    "no tasks": ("tools", "GET", "/tools/splits", None),
    "tools/list": ("tools", "POST", "/mcp", TOOLS_LIST),
    "tools/call": ("tools", "POST", "/mcp", rpc("tools/call", name="double", arguments={"number": 4})),
    "tools/call without a name": ("tools", "POST", "/mcp", rpc("tools/call")),
    "unknown method": ("tools", "POST", "/mcp", rpc("no/such")),
    "session": ("tools", "POST", "/mcp", rpc("openenv/session/create")),
    "close without a session": ("tools", "POST", "/mcp", rpc("openenv/session/close")),
    "close of an unknown session": ("tools", "POST", "/mcp", rpc("openenv/session/close", session_id="nobody")),
    "no json-rpc": ("tools", "POST", "/mcp", {"id": 1}),
    "tools of an environment without any": ("app", "POST", "/mcp", TOOLS_LIST),
}


class Servers:
    """All apps of one system."""

    def __init__(self, installation: Installation, folder: Path, stack: ExitStack):
        environ = {"PYTHONPATH": f"{HERE / 'peer_scripts'}:{installation.environ.get('PYTHONPATH', '')}"}
        self.by_app = {
            app: Server(installation, f"frames_app:{app}", "app", folder, environ)
            for app in ("app", "tools", "broken", "single")
        }
        with ThreadPoolExecutor() as pool:
            list(pool.map(stack.enter_context, self.by_app.values()))

    def connect(self, app: str) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.by_app[app].port}/ws", proxy=None)


@pytest.fixture(scope="module")
def ours_served(ours: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(ours, tmp_path_factory.mktemp("frames"), stack)


@pytest.fixture(scope="module")
def peer_served(peer: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(peer, tmp_path_factory.mktemp("frames"), stack)


def replies(servers: Servers, app: str, frames: list[Any]) -> list[Any]:
    """What a server says to frames; at last the code of the close, if it closed."""
    said: list[Any] = []
    with servers.connect(app) as socket:
        try:
            for frame in frames:
                socket.send(frame if isinstance(frame, str) else json.dumps(frame))
                said.append(json.loads(socket.recv(timeout=30)))
        except ConnectionClosed as closed:
            said.append({"closed with": closed.rcvd.code if closed.rcvd else None})
    return said


def refusal(servers: Servers, app: str) -> list[Any]:
    """What a server says of itself to a newcomer, and the code it closes with."""
    with servers.connect(app) as socket:
        said = [json.loads(socket.recv(timeout=30))]
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    return [*said, {"closed with": closed.value.rcvd.code}]


def differences(mine: Any, theirs: Any, exact: bool = True, place: str = "") -> list[str]:
    """Where an answer of ours is not what a program that knows the peer expects.

    Args:
        exact: Ours says nothing more; else it may have further keys, as errors and results of MCP do.
    """
    key = place.rpartition(".")[2]
    if isinstance(theirs, dict) and isinstance(mine, dict):
        # What is null may as well be left out where more may be said.
        keys = (
            set(theirs) | set(mine)
            if exact
            else {key for key in theirs if theirs[key] is not None and key not in FOREIGN}
        )
        missing = [
            f"{place}.{key}: ours {key in mine}, theirs {key in theirs}" for key in keys - (set(mine) & set(theirs))
        ]
        both = sorted(keys & set(mine) & set(theirs))
        return missing + [
            text for key in both for text in differences(mine[key], theirs[key], exact, f"{place}.{key}")
        ]
    if isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        pairs = enumerate(zip(mine, theirs, strict=True))
        return [text for n, (one, other) in pairs for text in differences(one, other, exact, f"{place}.{n}")]
    same = mine == theirs and type(mine) is type(theirs)
    words = key in WORDS or ".errors." in place
    if same or (words and isinstance(mine, str) and isinstance(theirs, str)):
        return []
    return [f"{place}: ours {mine!r}, theirs {theirs!r}"]


def is_exact(frame: Any) -> bool:
    """Observations and states are read by classes that forbid unknown fields; errors and MCP may say more."""
    return isinstance(frame, dict) and frame.get("type") in {"observation", "state"} and "tools" not in str(frame)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_frames_are_the_same(ours_served: Servers, peer_served: Servers, conversation: str) -> None:
    app, frames = CONVERSATIONS[conversation]
    mine, theirs = (replies(servers, app, frames) for servers in (ours_served, peer_served))
    assert len(mine) == len(theirs) == len(frames)
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert differences(one, other, is_exact(other), str(number)) == []


@pytest.mark.parametrize("request_name", REQUESTS)
def test_answers_over_http_are_the_same(ours_served: Servers, peer_served: Servers, request_name: str) -> None:
    app, method, path, body = REQUESTS[request_name]
    mine, theirs = (servers.by_app[app].get(path, body, method) for servers in (ours_served, peer_served))
    assert mine[0] == theirs[0], mine
    assert differences(mine[1], theirs[1], exact=False) == []


def test_an_environment_that_cannot_be_made_is_told_alike(ours_served: Servers, peer_served: Servers) -> None:
    mine, theirs = (refusal(servers, "broken") for servers in (ours_served, peer_served))
    assert differences(mine, theirs, exact=False) == []
    assert mine[0]["data"]["code"] == "FACTORY_ERROR"
    assert mine[1] == {"closed with": 1000}


def test_a_full_server_refuses_alike(ours_served: Servers, peer_served: Servers) -> None:
    said = []
    for servers in (ours_served, peer_served):
        with servers.connect("single") as first:
            first.send(json.dumps(RESET))
            first.recv(timeout=30)
            said.append(refusal(servers, "single"))
            first.send(json.dumps({"type": "close"}))  # its slot is free when that is answered, for the next test
            with pytest.raises(ConnectionClosed):
                first.recv(timeout=30)
    mine, theirs = said
    assert differences(mine, theirs, exact=False) == []
    assert mine[0]["data"]["code"] == "CAPACITY_REACHED"
    assert mine[0]["data"]["active_sessions"] == mine[0]["data"]["max_sessions"] == 1
    assert mine[1] == {"closed with": 1000}


def test_close_is_answered_by_closing(ours_served: Servers, peer_served: Servers) -> None:
    for servers in (ours_served, peer_served):
        with servers.connect("app") as socket:
            socket.send(json.dumps(RESET))
            socket.recv(timeout=30)
            socket.send(json.dumps({"type": "close"}))
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=30)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1000


def test_a_slot_is_free_when_its_connection_has_ended(ours_served: Servers, peer_served: Servers) -> None:
    for servers in (ours_served, peer_served):
        for _ in range(3):
            with servers.connect("single") as socket:
                socket.send(json.dumps(RESET))
                assert json.loads(socket.recv(timeout=30))["type"] == "observation"
                socket.send(json.dumps({"type": "close"}))
                with pytest.raises(ConnectionClosed):
                    socket.recv(timeout=30)


@pytest.mark.parametrize("app", ["app", "tools", "single"])
def test_validate_finds_no_fault_in_either(ours_served: Servers, peer_served: Servers, app: str) -> None:
    mine, theirs = (check_url(servers.by_app[app].url) for servers in (ours_served, peer_served))
    assert [each for each in (*mine.findings, *theirs.findings) if each.outcome is Outcome.FAIL] == []
    # A number is no message; the released peer ends the session over it.
    doubts = {each.check for each in theirs.findings if each.outcome is Outcome.WARNING}
    assert doubts - {each.check for each in mine.findings if each.outcome is Outcome.WARNING} == {"url.odd-frames"}
