from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount

from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.errors import UsageError
from openenv.project.checks import Finding, Outcome, ValidationReport
from openenv.project.checks import url as url_checks
from openenv.project.checks.url import CHECKS, TIMEOUT_S, check_url
from openenv.project.checks.url_server import ServerUnderTest
from openenv.server import create_app
from tests.trainers.environments import served

from .foreign import PAYLOAD, SCHEMAS, foreign, raw

pytestmark = pytest.mark.real

CONTROL, AGENT = "control:the-key-of-control", "agent:the-key-of-agents"
SHORT_S = 0.2
PATIENCE_S = 20.0


def of(report: ValidationReport, outcome: Outcome) -> set[str]:
    return {finding.check for finding in report.findings if finding.outcome is outcome}


def finding(report: ValidationReport, check: str) -> Finding:
    return next(each for each in report.findings if each.check == check)


def patient_until(monkeypatch: pytest.MonkeyPatch, check: str) -> Callable[[Finding], None]:
    """What comes up to a finding has its time, however short the timeout is. To be heard with."""
    short = ServerUnderTest.seconds
    monkeypatch.setattr(ServerUnderTest, "seconds", lambda site: PATIENCE_S)

    def heard(each: Finding) -> None:
        if each.check == check:
            monkeypatch.setattr(ServerUnderTest, "seconds", short)

    return heard


def echo(**options: Any) -> Any:
    from openenv.envs.echo.models import EchoAction, EchoObservation

    return create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", **options)


def test_our_server_passes_every_check() -> None:
    with served(echo(max_concurrent_envs=1)) as address:
        report = check_url(address)
    assert report.passed
    assert report.target == f"http://{address}"
    assert of(report, Outcome.SKIPPED) == {"url.production"}
    assert of(report, Outcome.WARNING) == set()
    assert [each.check for each in report.findings] == [check.id for check in CHECKS]


def test_our_server_in_production_passes_with_a_warning_that_anyone_may_reset() -> None:
    with served(echo(mode="production")) as address:
        report = check_url(f"http://{address}/")
    assert report.passed
    assert "production" in finding(report, "url.mode").saw
    assert of(report, Outcome.WARNING) == {"url.production"}
    assert "OPENENV_API_KEYS" in str(finding(report, "url.production").mend)
    assert finding(report, "url.reset").outcome is Outcome.SKIPPED


def test_a_server_with_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", f"{CONTROL},{AGENT}")
    with served(echo(max_concurrent_envs=4)) as address:
        without = check_url(address)
        wrong = check_url(address, api_key="no-such-key-of-anybody")
        agent = check_url(address, api_key=AGENT.partition(":")[2])
        control = check_url(address, api_key=CONTROL.partition(":")[2])
    for report in (without, wrong):
        assert of(report, Outcome.FAIL) == {"url.key"}
        assert "--api-key" in str(finding(report, "url.key").mend)
        assert finding(report, "url.schema").outcome is Outcome.SKIPPED
    assert not agent.passed
    assert "--api-key" in str(finding(agent, "url.mode").mend)
    assert control.passed
    assert not of(control, Outcome.WARNING)


def test_a_key_of_control_is_let_in_in_production_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", CONTROL)
    with served(echo(mode="production")) as address:
        report = check_url(address, api_key=CONTROL.partition(":")[2])
    assert report.passed
    assert finding(report, "url.order").outcome is Outcome.PASS


@pytest.mark.parametrize("form", ["http://{}", "http://{}/", "ws://{}/ws", "{}"])
def test_an_address_in_any_form(form: str) -> None:
    with served(foreign()) as address:
        report = check_url(form.format(address))
    assert report.passed
    assert report.target == f"http://{address}"


@pytest.mark.parametrize("url", ["ftp://a.example", "http://", "http://host:port", "http://a.example:99999", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="not the address of a server"):
        check_url(url)


def test_a_key_that_cannot_be_sent_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="api_key") as caught:
        check_url("127.0.0.1:1", api_key="secret\r\nX: y")
    assert "secret" not in caught.value.message


def test_a_server_of_another_implementation_passes() -> None:
    heard: list[Finding] = []
    with served(foreign()) as address:
        report = check_url(address, heard=heard.append)
    assert [each for each in report.findings if each.outcome not in {Outcome.PASS, Outcome.SKIPPED}] == []
    assert heard == report.findings


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in SCHEMAS.items() if key != name}


def observing(**changes: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {**PAYLOAD, **changes}}


NO_DATA = '{"type": "observation"}'
OPENAPI = {"openapi": "3.1.0", "info": {"version": "1"}, "paths": {}}

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "health is another word": ({"health": {"status": "ok"}}, "url.health"),
    "health is a list": ({"health": ["healthy"]}, "url.health"),
    "health fails": ({"health": 500}, "url.health"),
    "health is no JSON": ({"health": Response("healthy")}, "url.health"),
    "metadata is not there": ({"metadata": None}, "url.metadata"),
    "metadata without a name": ({"metadata": {"description": "x"}}, "url.metadata"),
    "metadata of numbers": ({"metadata": {"name": 3, "description": "x"}}, "url.metadata"),
    "openapi is not there": ({"openapi": None}, "url.openapi"),
    "openapi of another age": ({"openapi": {"swagger": "2.0"}}, "url.openapi"),
    "openapi whose version is a number": ({"openapi": {**OPENAPI, "info": {"version": 1.0}}}, "url.openapi"),
    "openapi without information": ({"openapi": {"openapi": "3.0.0", "info": None, "paths": {}}}, "url.openapi"),
    "schema without state": ({"schema": without("state")}, "url.schema"),
    "schema that is no schema": ({"schema": {**SCHEMAS, "action": {"type": "objekt"}}}, "url.schema"),
    "schema with a list of properties": ({"schema": {**SCHEMAS, "action": {"properties": []}}}, "url.schema"),
    "schema of a number": ({"schema": {**SCHEMAS, "action": {"type": "integer"}}}, "url.schema"),
    "schema that leads nowhere": ({"schema": {**SCHEMAS, "state": {"$ref": "#/$defs/Gone"}}}, "url.schema"),
    "schema that leads elsewhere": (
        {"schema": {**SCHEMAS, "state": {"$ref": "http://127.0.0.1:1/x.json"}}},
        "url.schema",
    ),
    "schema that is null": ({"schema": {**SCHEMAS, "state": None}}, "url.schema"),
    "tools that are no list": ({"mcp": {"jsonrpc": "2.0", "id": 1, "result": {"tools": {}}}}, "url.mcp"),
    "tools without schema": ({"mcp": {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "a"}]}}}, "url.mcp"),
    "another id": ({"mcp": {"jsonrpc": "2.0", "id": 9, "result": {"tools": []}}}, "url.mcp"),
    "no version of JSON-RPC": ({"mcp": {"id": 1, "result": {"tools": []}}}, "url.mcp"),
    "errors without a code": ({"mcp": {"jsonrpc": "2.0", "id": 1, "error": "no"}}, "url.mcp"),
    "results for what is no request": (
        {"mcp": {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}},
        "url.mcp-errors",
    ),
    "mcp fails": ({"mcp": 503}, "url.mcp"),
    "reset alone is not served": ({"reset": None}, "url.mode"),
    "state alone is served": ({"reset": None, "step": None}, "url.mode"),
    "reset over HTTP gives no observation": ({"reset": {"ok": True}}, "url.mode"),
    "reset over HTTP fails": ({"reset": 500}, "url.mode"),
    "a step without an action is taken": ({"step": PAYLOAD}, "url.mode"),
    "production lists what it does not serve": (
        {"reset": None, "step": None, "state": None, "openapi": {**OPENAPI, "paths": {"/reset": {}}}},
        "url.mode",
    ),
    "reset is refused": ({"frames": {"reset": {"type": "error", "data": {"code": "FACTORY_ERROR"}}}}, "url.reset"),
    "reset ends the connection": ({"frames": {"reset": 1011}}, "url.reset"),
    "reset gives a state": ({"frames": {"reset": {"type": "state", "data": {}}}}, "url.reset"),
    "reset gives no data": ({"frames": {"reset": NO_DATA}}, "url.reset"),
    "reset gives a list": ({"frames": {"reset": "[]"}}, "url.reset"),
    "reset gives no JSON": ({"frames": {"reset": "hello"}}, "url.reset"),
    "reset gives a deep nothing": ({"frames": {"reset": "[" * 100_000}}, "url.reset"),
    "the reward is no number": ({"frames": {"reset": observing(reward="high")}}, "url.reset"),
    "the reward is NaN": ({"frames": {"reset": json.dumps(observing(reward=float("nan")))}}, "url.reset"),
    "done is null": ({"frames": {"reset": observing(done=None)}}, "url.reset"),
    "the observation is a list": ({"frames": {"reset": observing(observation=[])}}, "url.reset"),
    "the state is an observation": ({"frames": {"state": observing()}}, "url.state"),
    "steps are counted backwards": (
        {"frames": {"state": {"type": "state", "data": {"step_count": -1}}}},
        "url.state",
    ),
    "a step ends the session": ({"frames": {"step": 1011}}, "url.step"),
    "a step gives what its schema denies": (
        {"frames": {"step": observing(observation={"number": "one"})}},
        "url.truth",
    ),
    "the state is not of its schema": (
        {"frames": {"state": {"type": "state", "data": {"step_count": 1.5}}}},
        "url.state",
    ),
    "no JSON ends the session": ({"frames": {"json": 1003}}, "url.bad-frames"),
    "an unknown type has another code": (
        {"frames": {"unknown": {"type": "error", "data": {"code": "OOPS", "message": "?"}}}},
        "url.bad-frames",
    ),
    "an invalid action is taken": ({"frames": {"invalid": observing()}}, "url.bad-frames"),
    "errors without a message": (
        {"frames": {"invalid": {"type": "error", "data": {"code": "VALIDATION_ERROR"}}}},
        "url.bad-frames",
    ),
    "close is answered": ({"frames": {"close": {"type": "closed", "data": {}}}}, "url.close"),
    "close ends with another code": ({"frames": {"close": 1011}}, "url.close"),
}


@pytest.fixture(scope="module")
def faulty() -> Iterator[str]:
    """All of them behind one address, as behind a proxy that goes by the path."""
    apps = [Mount(f"/{number}", foreign(**knobs)) for number, (knobs, _) in enumerate(FAULTS.values())]
    with served(Starlette(routes=apps)) as address:
        yield address


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_how_to_mend_it_is_said(faulty: str, fault: str) -> None:
    check = FAULTS[fault][1]
    report = check_url(f"http://{faulty}/{list(FAULTS).index(fault)}/")
    assert check in of(report, Outcome.FAIL)
    assert not report.passed
    for each in report.findings:
        assert "\n" not in each.saw
        assert (each.mend is not None) is (each.outcome in {Outcome.FAIL, Outcome.WARNING})


def test_replies_out_of_order_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that answers nothing leaves the reply of the next frame in its place."""
    said: list[int] = []

    class Skipping(dict[str, Any]):
        def get(self, kind: str, default: Any = None) -> Any:
            said.append(0)
            return None if kind == "json" and sum(1 for _ in said) > 8 else default

    with served(foreign(frames=Skipping(a=1))) as address:
        report = check_url(address, timeout_s=1, heard=patient_until(monkeypatch, "url.bad-frames"))
    assert finding(report, "url.order").outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("knobs", "check"),
    [
        ({"mcp": None}, "url.mcp"),
        ({"frames": {"odd": 1011}}, "url.odd-frames"),
        ({"frames": {"step": {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "no"}}}}, "url.step"),
        ({"frames": {"reset": observing(observation={})}}, "url.truth"),
        ({"openapi": OPENAPI}, "url.mode"),
        ({"reset": None, "step": None, "state": None}, "url.production"),
    ],
)
def test_what_is_odd_and_no_fault_is_a_warning(knobs: dict[str, Any], check: str) -> None:
    answers = {**knobs}
    if "mcp" in answers:
        answers["mcp"] = 404
    with served(foreign(**answers)) as address:
        report = check_url(address)
    assert report.passed
    assert check in of(report, Outcome.WARNING)


def test_a_full_server_is_waited_for_and_then_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(url_checks, "time", clock)
    full = {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "1 of 1"}}
    with served(foreign(frames={"reset": full})) as address:
        report = check_url(address)
    assert TIMEOUT_S < clock.now < 2 * TIMEOUT_S
    assert "1 of 1" in finding(report, "url.reset").saw
    assert "--max-sessions" in str(finding(report, "url.reset").mend)


@pytest.fixture
def _no_work_left() -> Iterator[None]:
    """Work with a schema that was given up goes on for years, beside all tests that come after this one."""
    yield
    stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for thread in threading.enumerate():
        if thread.name == "openenv-schema":
            stop(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(ValueError))
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.mark.usefixtures("_no_work_left")
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**12}}, "required": ["a"]},
        {"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}, "allOf": [{"$ref": "#/$defs/A"}]},
        {
            "$defs": {f"A{n}": {"anyOf": [{"$ref": f"#/$defs/A{n + 1}"}] * 2} for n in range(40)}
            | {"A40": {"type": "string"}},
            "type": "object",
            "properties": {"number": {"$ref": "#/$defs/A0"}},
            "required": ["number"],
        },
    ],
    ids=["a pattern that takes years", "long", "endless", "doubling"],
)
def test_a_schema_made_to_hold_us_up_does_not(schema: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    short = ServerUnderTest.seconds

    def seconds(site: ServerUnderTest) -> float:
        left = short(site)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # for work with a schema
            return left
        return PATIENCE_S  # the server has its time

    monkeypatch.setattr(ServerUnderTest, "seconds", seconds)
    state = {"type": "state", "data": {"step_count": 0, "a": "a" * 40 + "!", "number": 1}}
    reset = observing(observation={"a": "a" * 40 + "!", "number": 1})
    schemas = {"action": schema, "observation": schema, "state": schema}
    began = time.monotonic()
    with served(foreign(schema=schemas, frames={"state": state, "reset": reset})) as address:
        report = check_url(address, timeout_s=1)
    assert time.monotonic() - began < 20
    assert finding(report, "url.close").outcome is Outcome.PASS


def hang(connection: socket.socket, over: threading.Event) -> None:
    over.wait(20)


def leave(connection: socket.socket, over: threading.Event) -> None:
    connection.close()


def garbage(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"\x16\x03\x01 SSH-2.0-none\r\n" + bytes(range(256)))


def drip(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.wait(0.02):
        connection.sendall(b"X-More: yes\r\n")


def endless(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not over.is_set():
        connection.sendall(b" " * 65536)


def half(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def escape(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 12\r\nConnection: close\r\n\r\n\x1b[31mred\x07\x9b1m")


@pytest.mark.parametrize("behave", [hang, leave, garbage, drip, endless, half])
def test_what_is_no_server_of_http_is_told_in_bounded_time(
    behave: Callable[[socket.socket, threading.Event], None],
) -> None:
    began = time.monotonic()
    with raw(behave) as address:
        report = check_url(address, timeout_s=SHORT_S)
    assert time.monotonic() - began < 15
    assert of(report, Outcome.FAIL) == {"url.reach"}
    assert of(report, Outcome.SKIPPED) == {check.id for check in CHECKS} - {"url.reach"}


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    report = check_url(f"http://somebody:hidden@127.0.0.1:{port}")
    assert of(report, Outcome.FAIL) == {"url.reach"}
    told = finding(report, "url.reach")
    assert "Connection refused" in told.saw
    assert f"http://127.0.0.1:{port}" in str(told.mend)
    assert "hidden" not in report.model_dump_json()


def test_a_redirect_is_not_followed_and_says_where() -> None:
    with served(foreign(health=RedirectResponse("https://elsewhere.example/health"))) as address:
        report = check_url(address)
    assert of(report, Outcome.FAIL) == {"url.reach"}
    assert "https://elsewhere.example/health" in finding(report, "url.reach").saw


def test_a_server_that_fails_everywhere() -> None:
    names = ("health", "metadata", "schema", "openapi", "mcp", "reset", "step", "state")
    with served(foreign(frames={"reset": 1011}, **dict.fromkeys(names, 500))) as address:
        report = check_url(address)
    assert of(report, Outcome.FAIL) >= {
        "url.health",
        "url.openapi",
        "url.metadata",
        "url.schema",
        "url.mcp",
        "url.mode",
    }
    assert of(report, Outcome.PASS) == {"url.reach", "url.key"}


def test_what_a_server_says_cannot_write_on_the_terminal() -> None:
    with raw(escape) as address:
        report = check_url(address)
    told = finding(report, "url.health").saw
    assert "red" in told
    assert told.isprintable()


def silent(connection: socket.socket, over: threading.Event) -> None:
    """Healthy, and deaf to all else."""
    if b"GET /health" in connection.recv(65536):
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{"status":"healthy"}')
    elif not over.wait(20):
        raise AssertionError


def test_all_checks_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with raw(silent) as address:
        report = check_url(address, timeout_s=1, heard=patient_until(monkeypatch, "url.health"))
    assert time.monotonic() - began < 12 + 4
    assert finding(report, "url.health").outcome is Outcome.PASS
    assert finding(report, "url.key").outcome is Outcome.FAIL
    assert "--timeout" in str(finding(report, "url.key").mend)


@pytest.fixture
def hearing_nothing() -> Iterator[str]:
    names = ("state", "step", "json", "unknown", "invalid", "odd", "close")
    with served(foreign(frames=dict.fromkeys(names))) as address:
        yield address


@pytest.mark.slow
def test_a_conversation_that_stops_has_a_bound(hearing_nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    report = check_url(hearing_nothing, timeout_s=0.5, heard=patient_until(monkeypatch, "url.reset"))
    assert time.monotonic() - began < 12 * 0.5 + 8
    assert finding(report, "url.reset").outcome is Outcome.PASS
    assert finding(report, "url.state").outcome is Outcome.FAIL
    assert finding(report, "url.close").outcome is not Outcome.PASS
