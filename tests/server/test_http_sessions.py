"""HTTP that remembers: sessions that requests name, in a header or a cookie, and sockets attached to them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from openenv.server.transports.uvicorn import FastPath

from .probe import AsyncProbe, BrokenProbe, InlineProbe, ProbeEnvironment, app_of
from .wires import PATIENCE_S, Closed, SocketWire, Wire, _Asgi, eventually, served

CONTROL, OTHER, AGENT = "the-first-key-of-control", "the-second-key-of-control", "the-key-of-an-agent-here"
KEYS = f"control:{CONTROL},control:{OTHER},agent:{AGENT}"


class Place:
    """A served app, and the ways to it."""

    def __init__(self, app: Any, client: Any, attach: Callable[[str], Wire]):
        self.app = app
        self.client = client
        self.attach = attach

    @property
    def active(self) -> int:
        return self.app.state.openenv.active_sessions

    def open(self, **headers: str) -> dict[str, str]:
        """Opens a session; returns the headers that name it."""
        answer = self.client.post("/sessions", headers=headers)
        assert answer.status_code == 200, answer.text
        self.client.cookies.clear()
        return {"X-Session-ID": answer.json()["session_id"], **headers}

    def step(self, headers: dict[str, str], kind: str = "ok", number: int = 0, **more: Any) -> Any:
        return self.client.post("/step", json={"action": {"kind": kind, "number": number}, **more}, headers=headers)


@contextmanager
def place(transport: str, environment: Any = ProbeEnvironment, max_sessions: int = 4, **settings: Any) -> Iterator:
    ProbeEnvironment.forget()
    app = app_of(environment, max_sessions, **settings)
    with ExitStack() as stack:
        stack.callback(ProbeEnvironment.gate.set)
        if transport == "asgi":
            client = stack.enter_context(TestClient(app, raise_server_exceptions=False))

            def attach(query: str) -> Wire:
                return _Asgi(stack.enter_context(client.websocket_connect(f"/ws?{query}")))

            yield Place(app, client, attach)
        else:
            fast = {"loop": "uvloop", "http": "httptools", "ws": FastPath}
            stock = {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"}
            address = stack.enter_context(served(app, **(fast if transport == "fast" else stock)))
            url = f"http://{address}"
            client = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S))

            def attach(query: str) -> Wire:
                wire = SocketWire(f"ws://{address}/ws?{query}")
                stack.callback(wire.close)
                return wire

            yield Place(app, client, attach)


@pytest.fixture(params=["asgi", "stock", "fast"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def here(transport: str) -> Iterator[Place]:
    with place(transport) as here:
        yield here


@pytest.mark.parametrize("environment", [ProbeEnvironment, InlineProbe, AsyncProbe])
def test_a_session_remembers(transport, environment):
    with place(transport, environment) as here:
        one, other = here.open(), here.open()
        assert here.client.post("/reset", json={"seed": 4}, headers=one).json()["observation"]["value"] == 4
        for count in (1, 2, 3):
            reply = here.step(one, number=6).json()
            assert (reply["observation"]["step_count"], reply["reward"], reply["done"]) == (count, 1.5, False)
        assert here.step(other).json()["observation"]["step_count"] == 1
        assert here.client.get("/state", headers=one).json() == {"episode_id": "probe", "step_count": 3}
        assert here.active == 2
        # One that names none stands alone, as ever.
        assert here.step({}).json()["observation"]["step_count"] == 1
        assert here.client.get("/state").json()["step_count"] == 0


def test_opening_tells_what_there_is(here):
    facts = here.client.post("/sessions").json()
    assert set(facts) == {"session_id", "token", "slot", "idle_timeout_s"}
    assert facts["slot"] == {"active_sessions": 1, "max_sessions": 4}
    assert facts["idle_timeout_s"] == 3600
    assert facts["session_id"] in [line["id"] for line in here.client.get("/sessions").json()]


def test_sync_calls_of_one_session_run_on_one_thread(here):
    session = here.open()
    threads = {here.client.post("/reset", headers=session).json()["observation"]["thread"]}
    threads |= {here.step(session).json()["observation"]["thread"] for _ in range(3)}
    assert len(threads) == 1


def test_closing_is_idempotent_and_one_that_never_was_is_unknown(here):
    session = here.open()
    path = f"/sessions/{session['X-Session-ID']}"
    for _ in range(2):
        assert here.client.delete(path).json() == {"session_id": session["X-Session-ID"], "closed": True}
    assert here.active == 0
    for method, url in (("DELETE", "/sessions/nobody"), ("GET", "/state")):
        answer = here.client.request(method, url, headers={"X-Session-ID": "nobody"})
        assert (answer.status_code, answer.json()["error"]) == (404, "UnknownSession")


@pytest.mark.parametrize(("method", "path"), [("POST", "/reset"), ("POST", "/step"), ("GET", "/state")])
@pytest.mark.parametrize("name", ["", "nobody", "1f.nobody", "../../etc", "x" * 3000])
def test_an_unknown_session_is_never_a_new_one(here, method, path, name):
    body = {"json": {"action": {}}} if path == "/step" else {}
    answer = here.client.request(method, path, headers={"X-Session-ID": name}, **body)
    facts = answer.json()
    assert (answer.status_code, facts["error"], facts["blame"]) == (404, "UnknownSession", "client")
    assert facts["retryable"] is False
    assert "POST /sessions" in facts["message"]
    assert here.active == 0


def test_a_cookie_names_a_session_for_pages_of_the_server(here):
    answer = here.client.post("/sessions")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("openenv_session=")
    for word in ("httponly", "samesite=strict", "path=/"):
        assert word in cookie
    assert "secure" not in cookie
    assert [here.step({}).json()["observation"]["step_count"] for _ in range(2)] == [1, 2]
    # The header wins.
    other = here.open()
    here.client.cookies.set("openenv_session", answer.json()["session_id"])
    assert here.step(other).json()["observation"]["step_count"] == 1
    deleted = here.client.delete(f"/sessions/{answer.json()['session_id']}")
    assert 'openenv_session=""' in deleted.headers["set-cookie"]


def test_over_tls_the_cookie_is_secure():
    app = app_of()
    with TestClient(app, base_url="https://testserver") as client:
        assert "secure" in client.post("/sessions").headers["set-cookie"].lower()


@pytest.mark.parametrize(("method", "path"), [("POST", "/step"), ("POST", "/reset"), ("GET", "/state")])
def test_a_page_elsewhere_cannot_use_the_cookie_of_a_visitor(here, method, path):
    here.client.post("/sessions")
    body = {"json": {"action": {}}} if path == "/step" else {}
    answer = here.client.request(method, path, headers={"Origin": "http://evil.example"}, **body)
    assert (answer.status_code, answer.json()["error"]) == (403, "Forbidden")
    assert here.client.get("/sessions").json()[0]["steps"] == 0


def test_calls_of_one_session_wait_for_one_another(here):
    session = here.open()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(here.step, session, "wait")
        assert ProbeEnvironment.waiting.wait(20)
        second = threads.submit(here.step, session)
        assert not second.done()
        ProbeEnvironment.gate.set()
        assert first.result().json()["observation"]["step_count"] == 1
        assert second.result().json()["observation"]["step_count"] == 2


def test_a_step_of_a_session_has_a_deadline(here):
    session = here.open()
    began = time.monotonic()
    answer = here.step(session, "wait", timeout_s=0.2, request_id="r1")
    assert time.monotonic() - began < 15  # the environment itself would give up after 20
    assert (answer.status_code, answer.json()["error"]) == (504, "StepTimeout")
    ProbeEnvironment.gate.set()
    # A thread cannot be stopped: the session is gone, and says so.
    answer = here.step(session)
    assert (answer.status_code, answer.json()["error"]) == (404, "UnknownSession")
    assert "thread" in answer.json()["message"]
    eventually(lambda: here.active == 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/reset", '{"timeout_s": 1%s}' % ("0" * 400)),
        ("/reset", '{"timeout_s": 1e300}'),
        ("/step", '{"action": {}, "timeout_s": 1e300}'),
    ],
)
def test_a_time_that_is_too_long_to_be_measured_is_no_limit(here, path, body):
    answer = here.client.post(path, content=body, headers={**here.open(), "Content-Type": "application/json"})
    assert answer.status_code == 200


def test_a_coroutine_is_stopped_at_the_deadline_and_its_session_goes_on(transport):
    with place(transport, AsyncProbe) as here:
        session = here.open()
        assert here.step(session, "hang", timeout_s=0.1).status_code == 504
        assert AsyncProbe.stopped.wait(20)
        assert here.client.post("/reset", json={"timeout_s": 5}, headers=session).status_code == 200
        assert here.step(session).status_code == 200


def test_an_invalid_action_is_422_and_the_session_goes_on(here):
    session = here.open()
    for action, place_ in (({"jump": 1}, ["jump"]), ({"kind": "invalid"}, ["kind"]), ({"number": "x"}, ["number"])):
        answer = here.client.post("/step", json={"action": action}, headers=session)
        facts = answer.json()
        assert (answer.status_code, facts["error"], facts["blame"]) == (422, "InvalidAction", "client")
        assert place_ in [fault["loc"] for fault in facts["detail"]]
    assert here.step(session).json()["observation"]["step_count"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"action": 5}',
        b'{"action": {"number": NaN}}',
        b'{"action": {"kind": "\\ud800"}}',
        b'{"action": {}, "timeout_s": -1}',
        b'{"action": {}, "timeout_s": NaN}',
        b'{"action": {}, "request_id": 7}',
    ],
)
def test_a_body_that_makes_no_sense_is_422_as_json(here, body):
    answer = here.client.post("/step", content=body, headers={"Content-Type": "application/json", **here.open()})
    assert answer.status_code == 422
    facts = answer.json()
    assert isinstance(facts["detail"], list)
    assert (facts["error"], facts["blame"], facts["retryable"]) == ("InvalidAction", "client", False)
    assert facts["message"]


def test_a_failed_step_is_500_and_the_session_goes_on(here):
    session = here.open()
    answer = here.step(session, "raise")
    facts = answer.json()
    assert (answer.status_code, facts["error"], facts["blame"]) == (500, "StepFailed", "environment")
    assert here.step(session).json()["observation"]["step_count"] == 2


def test_what_nobody_expected_is_500_as_json():
    app = app_of()

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError("of the owner's")

    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/broken")
        facts = answer.json()
        assert (answer.status_code, facts["error"], facts["blame"]) == (500, "OpenEnvError", "infrastructure")
        assert "ZeroDivisionError" in facts["message"]


def test_a_full_server_is_503_and_a_broken_environment_500(transport):
    with place(transport, max_sessions=1) as here:
        session = here.open()
        answer = here.client.post("/sessions")
        assert (answer.status_code, answer.json()["error"]) == (503, "ServerFull")
        here.client.delete(f"/sessions/{session['X-Session-ID']}")
        here.open()
    with place(transport, BrokenProbe) as here:
        answer = here.client.post("/sessions")
        assert (answer.status_code, answer.json()["error"]) == (500, "FactoryFailed")


def test_an_idle_session_is_gone_and_says_why(transport):
    with place(transport, idle_timeout_s=0.05) as here:
        session = here.open()
        eventually(lambda: here.active == 0)
        facts = here.step(session).json()
        assert facts["error"] == "UnknownSession"
        assert "idle_timeout_s" in facts["message"]


def test_a_session_is_for_the_key_that_opened_it_or_its_token(transport):
    with place(transport, api_keys=KEYS) as here:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in (CONTROL, OTHER))
        facts = here.client.post("/sessions", headers=mine).json()
        here.client.cookies.clear()
        named = {"X-Session-ID": facts["session_id"]}
        assert here.step({**named, **mine}).status_code == 200
        answer = here.step({**named, **other})
        assert (answer.status_code, answer.json()["error"]) == (401, "Unauthorized")
        assert here.client.delete(f"/sessions/{facts['session_id']}", headers=other).status_code == 401
        assert here.step({**named, **other, "X-Session-Token": facts["token"]}).status_code == 200
        assert here.step({**named, **mine, "X-Session-Token": "guessed"}).status_code == 401
        assert here.step(named).status_code == 401


def test_a_session_of_a_client_that_left_while_it_was_opened_is_closed():
    made = threading.Event()

    class Slow(ProbeEnvironment):
        def __init__(self) -> None:
            made.wait(20)
            super().__init__()

    with place("fast", Slow) as here:
        address = (here.client.base_url.host, here.client.base_url.port)
        with socket.create_connection(address, timeout=PATIENCE_S) as raw:
            raw.sendall(b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            eventually(lambda: here.active == 1)
        here.client.get("/health")  # when a later connection is answered, the end of this one has been heard
        made.set()
        eventually(lambda: here.active == 0)


# Sockets.


def test_a_socket_is_attached_to_a_session(here):
    session = here.open()
    here.step(session)
    wire = here.attach(f"session_id={session['X-Session-ID']}")
    assert wire.step()["data"]["observation"]["step_count"] == 2
    assert here.step(session).json()["observation"]["step_count"] == 3
    assert wire.ask({"type": "state"})["data"]["step_count"] == 3
    assert wire.ask({"type": "reset", "data": {"seed": 9}})["data"]["observation"]["value"] == 9
    assert wire.ask({"type": "step", "data": {"jump": 1}})["data"]["code"] == "VALIDATION_ERROR"
    second = here.attach(f"session_id={session['X-Session-ID']}")
    assert second.step()["data"]["observation"]["step_count"] == 1
    assert here.active == 1


def test_a_reply_to_an_attached_socket_that_is_too_large_is_an_error(transport):
    with place(transport, max_reply_mb=0.1) as here:
        session = here.open()
        wire = here.attach(f"session_id={session['X-Session-ID']}")
        assert "max_reply_mb" in wire.step("large", 200_000)["data"]["message"]
        assert wire.step()["data"]["observation"]["step_count"] == 2


def test_a_client_that_would_speak_the_second_protocol_is_attached_by_the_first():
    for fast in (True, False):
        with place("fast" if fast else "stock") as here:
            session = here.open()
            url = f"ws://{here.client.base_url.netloc.decode()}/ws?session_id={session['X-Session-ID']}"
            wire = SocketWire(url, subprotocols=["openenv.v2.json"])
            assert wire.subprotocol is None
            assert wire.step()["data"]["observation"]["step_count"] == 1
            wire.close()
            assert here.step(session).json()["observation"]["step_count"] == 2


@pytest.mark.parametrize("goodbye", [True, False])
def test_the_end_of_a_socket_is_not_that_of_its_session(here, goodbye):
    session = here.open()
    wire = here.attach(f"session_id={session['X-Session-ID']}")
    assert wire.step()["data"]["observation"]["step_count"] == 1
    if goodbye:
        wire.send(json.dumps({"type": "close"}))
        with pytest.raises(Closed) as closed:
            wire.receive()
        assert closed.value.code == 1000
    else:
        wire.close()
    assert here.step(session).json()["observation"]["step_count"] == 2
    again = here.attach(f"session_id={session['X-Session-ID']}")
    assert again.step()["data"]["observation"]["step_count"] == 3


@pytest.mark.parametrize("name", ["nobody", "", "7f.nobody"])
def test_a_socket_for_a_session_that_is_not_there_is_told_and_closed(here, name):
    wire = here.attach(f"session_id={name}")
    error = wire.receive()
    assert error["type"] == "error"
    assert (error["data"]["code"], error["data"]["error"]) == ("SESSION_ERROR", "UnknownSession")
    with pytest.raises(Closed) as closed:
        wire.receive()
    assert closed.value.code == 1000
    assert here.active == 0


def test_a_socket_is_told_when_its_session_is_closed(here):
    session = here.open()
    wire = here.attach(f"session_id={session['X-Session-ID']}")
    wire.send(json.dumps({"type": "step", "data": {"kind": "wait"}}))
    assert ProbeEnvironment.waiting.wait(20)
    with ThreadPoolExecutor() as threads:
        closing = threads.submit(here.client.delete, f"/sessions/{session['X-Session-ID']}")
        error = wire.receive()
        assert (error["data"]["code"], error["data"]["error"]) == ("SESSION_ERROR", "SessionLost")
        with pytest.raises(Closed):
            wire.receive()
        ProbeEnvironment.gate.set()
        assert closing.result().status_code == 200
    assert here.active == 0


def test_a_call_that_runs_when_its_socket_goes_away_ends_by_itself(here):
    session = here.open()
    wire = here.attach(f"session_id={session['X-Session-ID']}")
    wire.send(json.dumps({"type": "step", "data": {"kind": "wait"}}))
    assert ProbeEnvironment.waiting.wait(20)
    threading.Timer(0.05, ProbeEnvironment.gate.set).start()
    wire.close()
    assert here.step(session).json()["observation"]["step_count"] == 2


def test_a_socket_needs_the_key_or_the_token(transport):
    with place(transport, api_keys=KEYS) as here:
        facts = here.client.post("/sessions", headers={"Authorization": f"Bearer {CONTROL}"}).json()
        name = facts["session_id"]

        def attach(key: str, token: str = "") -> Wire:
            if transport == "asgi":
                here.client.headers["Authorization"] = f"Bearer {key}"
                return here.attach(f"session_id={name}{token}")
            url = f"ws://{here.client.base_url.netloc.decode()}/ws?session_id={name}{token}"
            return SocketWire(url, additional_headers={"Authorization": f"Bearer {key}"})

        wire = attach(CONTROL)
        assert wire.step()["data"]["observation"]["step_count"] == 1
        wire.close()
        wire = attach(AGENT)
        assert wire.receive()["data"]["error"] == "Unauthorized"
        wire.close()
        # An agent that was given the token comes in, and may do what an agent may.
        wire = attach(AGENT, f"&token={facts['token']}")
        assert wire.step()["data"]["error"] == "Forbidden"
        wire.close()


def test_a_token_in_an_address_is_not_logged(caplog):
    stock: dict[str, Any] = {"loop": "asyncio", "http": "h11", "ws": "websockets-sansio"}
    with caplog.at_level("INFO", "uvicorn.error"), served(app_of(), **stock) as address:
        facts = httpx.post(f"http://{address}/sessions", trust_env=False, timeout=PATIENCE_S).json()
        wire = SocketWire(f"ws://{address}/ws?session_id={facts['session_id']}&token={facts['token']}")
        assert wire.step()["data"]["observation"]["step_count"] == 1
        wire.close()
    assert f"/ws?session_id={facts['session_id']}&token=(not shown)" in caplog.text
    assert facts["token"] not in caplog.text
