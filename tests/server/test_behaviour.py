"""What every transport must do alike: in memory, ASGI, uvicorn's own WebSockets, and the fast path."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest

from openenv.server import create_app
from openenv.settings import ServerSettings

from .probe import AsyncProbe, BrokenProbe, InlineProbe, ProbeAction, ProbeEnvironment, ProbeObservation
from .wires import WIRES, Closed, Wire

Open = Callable[[], Wire]


def app_of(environment=ProbeEnvironment, max_sessions=4, **settings):
    return create_app(
        environment,
        ProbeAction,
        ProbeObservation,
        max_concurrent_envs=max_sessions,
        settings=ServerSettings.read({}, **settings),
    )


@pytest.fixture(params=WIRES)
def transport(request):
    return WIRES[request.param]


@pytest.fixture(params=[ProbeEnvironment, InlineProbe, AsyncProbe], ids=["thread", "inline", "loop"])
def wire(request, transport) -> Iterator[Wire]:
    with transport(app_of(request.param)) as open_wire:
        wire = open_wire()
        yield wire
        wire.close()


@pytest.fixture
def open_wire(transport) -> Iterator[Open]:
    with transport(app_of()) as open_wire:
        yield open_wire


def error_of(reply) -> dict:
    assert reply["type"] == "error", reply
    return reply["data"]


def assert_lives(wire: Wire) -> None:
    assert wire.step(number=7)["data"]["observation"]["value"] == 7


def test_an_episode(wire):
    reply = wire.ask({"type": "reset", "data": {"seed": 5}})
    assert reply["type"] == "observation"
    assert reply["data"]["observation"]["value"] == 5
    assert reply["data"]["reward"] is None
    assert reply["data"]["done"] is False
    assert "metadata" not in reply["data"]
    step = wire.step(number=3)["data"]
    assert (step["observation"]["value"], step["observation"]["step_count"], step["reward"]) == (3, 1, 1.5)
    assert set(step["observation"]) == {"metadata", "value", "step_count", "thread"}
    state = wire.ask({"type": "state"})
    assert state == {"type": "state", "data": {"episode_id": "probe", "step_count": 1}}


def test_reset_without_data_and_with_arguments_that_it_does_not_take(wire):
    assert wire.ask({"type": "reset"})["type"] == "observation"
    assert wire.ask({"type": "reset", "data": {"difficulty": 9}})["type"] == "observation"


def test_metadata_stands_inside_and_beside_and_done_is_told(wire):
    data = wire.step("metadata")["data"]
    assert data["metadata"] == {"lives": 3} == data["observation"]["metadata"]
    assert data["done"] is True


def test_nan_in_a_field_stays_nan(wire):
    value = wire.step("nan-value")["data"]["observation"]["value"]
    assert value != value


def test_close_ends_the_session_with_code_1000(wire):
    wire.send('{"type":"close"}')
    with pytest.raises(Closed) as closed:
        wire.receive()
    assert closed.value.code == 1000


def test_mcp_without_tools_is_a_json_rpc_error(wire):
    reply = wire.ask({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 4, "method": "tools/list"}})
    assert reply["type"] == "mcp"
    assert (reply["data"]["id"], reply["data"]["error"]["code"]) == (4, -32603)


BAD_FRAMES = {
    "not json": ("nope", "INVALID_JSON"),
    "cut off": ('{"type":"step","data":{', "INVALID_JSON"),
    "a list": ("[]", "INVALID_JSON"),
    "a number": ("1", "INVALID_JSON"),
    "null": ("null", "INVALID_JSON"),
    "binary": (b'{"type":"state"}', "INVALID_JSON"),
    "unknown type": ('{"type":"dance"}', "UNKNOWN_TYPE"),
    "type is no text": ('{"type":5}', "UNKNOWN_TYPE"),
    "no type": ("{}", "UNKNOWN_TYPE"),
    "missing data": ('{"type":"step"}', "VALIDATION_ERROR"),
    "data is null": ('{"type":"step","data":null}', "VALIDATION_ERROR"),
    "reset data is no object": ('{"type":"reset","data":5}', "VALIDATION_ERROR"),
    "extra key of the frame": ('{"type":"state","data":{}}', "VALIDATION_ERROR"),
    "extra key of the action": ('{"type":"step","data":{"jump":1}}', "VALIDATION_ERROR"),
    "wrong type in the action": ('{"type":"step","data":{"number":"many"}}', "VALIDATION_ERROR"),
    "validator raises ValueError": ('{"type":"step","data":{"kind":"invalid"}}', "VALIDATION_ERROR"),
    "validator raises another": ('{"type":"step","data":{"kind":"validator-bug"}}', "EXECUTION_ERROR"),
    "environment raises": ('{"type":"step","data":{"kind":"raise"}}', "EXECUTION_ERROR"),
    "environment exits": ('{"type":"step","data":{"kind":"exit"}}', "EXECUTION_ERROR"),
    "NaN reward": ('{"type":"step","data":{"kind":"nan-reward"}}', "EXECUTION_ERROR"),
    "unwritable observation": ('{"type":"step","data":{"kind":"object"}}', "EXECUTION_ERROR"),
    "reward that raises": ('{"type":"step","data":{"kind":"snare-reward"}}', "EXECUTION_ERROR"),
    "done that raises": ('{"type":"step","data":{"kind":"snare-done"}}', "EXECUTION_ERROR"),
}


@pytest.mark.parametrize("fault", BAD_FRAMES)
def test_a_fault_gets_its_code_and_the_session_lives_on(wire, fault, caplog):
    frame, code = BAD_FRAMES[fault]
    caplog.set_level(logging.WARNING, "openenv.server")
    error = error_of(wire.ask(frame))
    assert error["code"] == code
    assert error["message"]
    assert error["blame"] in {"client", "environment"}
    assert_lives(wire)
    assert any("session " in record.getMessage() for record in caplog.records)


def test_faults_are_told_where_they_are(wire):
    assert "16 bytes: protocol v1 speaks JSON in text frames" in error_of(wire.ask(b'{"type":"state"}'))["message"]
    error = error_of(wire.ask('{"type":"step","data":{"jump":1}}'))
    assert error["message"] == "Invalid message"
    assert [fault["loc"] for fault in error["errors"]] == [["jump"]]
    assert "nan" in error_of(wire.step("nan-reward"))["message"]
    assert "'value'" in error_of(wire.step("object"))["message"]
    assert re.fullmatch(
        r"\w+: the environment broke \(tests/(\w+/)*\w+\.py:\d+\)", error_of(wire.step("raise"))["message"]
    )


def test_frames_sent_ahead_are_answered_in_order(wire):
    for number in range(200):
        wire.send(json.dumps({"type": "step", "data": {"number": number}}))
        wire.send("nope")
    for number in range(200):
        assert wire.receive()["data"]["observation"]["value"] == number
        assert error_of(wire.receive())["code"] == "INVALID_JSON"


def test_messages_larger_than_any_buffer(wire):
    reply = wire.ask(
        {"type": "step", "data": {"kind": "large", "number": 300_000, "metadata": {"pad": "y" * 500_000}}}
    )
    assert len(reply["data"]["observation"]["value"]) == 300_000


def test_a_waiting_step_delays_nobody_else(open_wire):
    ProbeEnvironment.gate.clear()
    ProbeEnvironment.waiting.clear()
    slow, quick = open_wire(), open_wire()
    slow.send('{"type":"step","data":{"kind":"wait","number":1}}')
    assert ProbeEnvironment.waiting.wait(20)
    for _ in range(20):
        assert_lives(quick)
    ProbeEnvironment.gate.set()
    assert slow.receive()["data"]["observation"]["value"] == 1
    slow.close()
    quick.close()


def test_sessions_have_environments_and_threads_of_their_own(open_wire):
    first, second = open_wire(), open_wire()
    for _ in range(3):
        one = first.step()["data"]["observation"]
    two = second.step()["data"]["observation"]
    assert (one["step_count"], two["step_count"]) == (3, 1)
    assert one["thread"] != two["thread"]
    assert first.step()["data"]["observation"]["thread"] == one["thread"]


def test_a_full_server_refuses_and_a_closed_session_makes_room(transport):
    with transport(app_of(max_sessions=2)) as open_wire:
        first, second = open_wire(), open_wire()
        assert_lives(first)
        assert_lives(second)
        refused = open_wire()
        error = error_of(refused.receive())
        assert error["code"] == "CAPACITY_REACHED"
        assert (error["active_sessions"], error["max_sessions"]) == (2, 2)
        assert (error["error"], error["retryable"]) == ("ServerFull", True)
        with pytest.raises(Closed) as closed:
            refused.receive()
        assert closed.value.code == 1000
        first.send('{"type":"close"}')
        with pytest.raises(Closed):
            first.receive()
        assert_lives(open_wire())
        assert_lives(second)


def test_a_limit_of_one_serves_one_client_after_another_without_a_pause(transport):
    with transport(app_of(max_sessions=1)) as open_wire:
        for _ in range(5):
            wire = open_wire()
            assert_lives(wire)
            wire.close()


def test_a_newcomer_waits_for_a_slot_where_a_queue_is_set(transport):
    with transport(app_of(max_sessions=1, queue_timeout_s=20)) as open_wire:
        first, second = open_wire(), open_wire()
        second.send('{"type":"reset"}')
        assert_lives(first)
        first.close()
        assert second.receive()["type"] == "observation"


def test_a_newcomer_is_refused_when_its_time_is_up(transport):
    with transport(app_of(max_sessions=1, queue_timeout_s=0.05)) as open_wire:
        first, second = open_wire(), open_wire()
        error = error_of(second.receive())
        assert (error["code"], error["error"]) == ("CAPACITY_REACHED", "QueueTimeout")
        assert_lives(first)


def test_a_constructor_that_raises(transport, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    with transport(app_of(BrokenProbe)) as open_wire:
        for _ in range(6):  # more often than there are slots
            wire = open_wire()
            error = error_of(wire.receive())
            assert (error["code"], error["factory_name"]) == ("FACTORY_ERROR", "BrokenProbe")
            assert "no such device" in error["message"]
            with pytest.raises(Closed) as closed:
                wire.receive()
            assert closed.value.code == 1000
    assert any("session " in record.getMessage() for record in caplog.records)


def test_a_frame_over_the_limit_is_named_and_the_next_session_works(transport, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    with transport(app_of(max_message_mb=0.25)) as open_wire:
        wire = open_wire()
        assert_lives(wire)
        wire.send(json.dumps({"type": "step", "data": {"metadata": {"pad": "z" * 400_000}}}))
        try:
            error = error_of(wire.receive())
        except Closed as closed:
            pytest.fail(f"closed with {closed.code} and without a word")
        assert (error["code"], error["error"]) == ("SESSION_ERROR", "MessageTooLarge")
        assert "max_message_mb" in error["message"]
        assert "262144" in error["message"]
        with pytest.raises(Closed) as closed:
            wire.receive()
        assert closed.value.code == 1009
        assert_lives(open_wire())


def test_an_idle_session_is_ended_and_told(transport):
    with transport(app_of(idle_timeout_s=0.05)) as open_wire:
        wire = open_wire()
        error = error_of(wire.receive())
        assert (error["code"], error["error"]) == ("SESSION_ERROR", "SessionLost")
        assert "idle_timeout_s" in error["message"]
        with pytest.raises(Closed):
            wire.receive()


def test_a_client_that_leaves_during_a_step_leaves_nothing(transport):
    ProbeEnvironment.gate.clear()
    ProbeEnvironment.waiting.clear()
    ProbeEnvironment.closed.clear()
    app = app_of(max_sessions=1, queue_timeout_s=20)
    with transport(app) as open_wire:
        wire = open_wire()
        wire.send('{"type":"step","data":{"kind":"wait"}}')
        assert ProbeEnvironment.waiting.wait(20)
        wire.send("x")
        if hasattr(wire, "socket"):
            wire.socket.close()
        ProbeEnvironment.gate.set()
        wire.close()
        assert ProbeEnvironment.closed.wait(20)
        assert_lives(open_wire())
    assert app.state.openenv.active_sessions == 0
