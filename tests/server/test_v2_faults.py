"""What a v2 connection does with bad input: an answer that says what is wrong, and all else goes on."""

from __future__ import annotations

import logging

import pytest

from .probe import InlineProbe, ProbeEnvironment
from .talk import error_of, few_lines
from .wires import Closed

STEP = {"op": "step", "session": "one", "seq": 1}

# Requests with an id, and the error each is answered with under that id.
BAD_REQUESTS = {
    "unknown op": ({"op": "dance"}, "UnknownMessage"),
    "no op": ({}, "UnknownMessage"),
    "op is no text": ({"op": 5}, "UnknownMessage"),
    "unknown session": ({"op": "step", "session": "nobody", "seq": 1, "action": {}}, "UnknownSession"),
    "no session": ({"op": "step", "seq": 1, "action": {}}, "InvalidAction"),
    "session is no text": ({"op": "state", "session": 5}, "InvalidAction"),
    "unknown field": ({"op": "state", "session": "one", "more": 1}, "InvalidAction"),
    "no action": (STEP, "InvalidAction"),
    "seq is missing": ({"op": "step", "session": "one", "action": {}}, "InvalidAction"),
    "seq is zero": ({**STEP, "seq": 0, "action": {}}, "InvalidAction"),
    "seq is text": ({**STEP, "seq": "1", "action": {}}, "InvalidAction"),
    "kwargs are no map": ({"op": "reset", "session": "one", "seq": 1, "kwargs": 5}, "InvalidAction"),
    "session id with a slash": ({"op": "open", "session": "a/b"}, "InvalidAction"),
    "session id too long": ({"op": "open", "session": "a" * 65}, "InvalidAction"),
    "empty session id": ({"op": "open", "session": ""}, "InvalidAction"),
    "waiting for ages": ({"op": "open", "wait_s": 1e300}, "InvalidAction"),
    "waiting backwards": ({"op": "open", "wait_s": -1}, "InvalidAction"),
    "options": ({"op": "open", "options": {"gpu": 1}}, "UsageError"),
    "wrong token": ({"op": "attach", "session": "one", "token": "wrong"}, "Unauthorized"),
    "no calls": ({"op": "batch", "calls": []}, "InvalidAction"),
    "calls are no list": ({"op": "batch", "calls": {}}, "InvalidAction"),
    "min_ready is zero": ({"op": "batch", "calls": [{"op": "open"}], "min_ready": 0}, "InvalidAction"),
    "cancel nothing": ({"op": "cancel"}, "InvalidAction"),
}


@few_lines
@pytest.mark.parametrize("fault", BAD_REQUESTS)
def test_a_bad_request_is_answered_under_its_id_and_nothing_else_happens(talk, fault, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    talk.open("one")
    fields, name = BAD_REQUESTS[fault]
    number = 100
    talk.wire.send(talk.write({"id": number, **fields}))
    reply = talk.receive()
    error = error_of(reply)
    assert (reply["id"], error["error"], error["blame"]) == (number, name, "client")
    assert error["message"]
    assert name in caplog.text
    talk._last_id = number
    assert talk.ask("open", session="one")["slot"]["active_sessions"] == 1
    talk.assert_lives("one")


ACTIONS = {
    "extra field": ({"jump": 1}, "InvalidAction"),
    "wrong type": ({"number": "many"}, "InvalidAction"),
    "no map": (5, "InvalidAction"),
    "null": (None, "InvalidAction"),
    "validator raises ValueError": ({"kind": "invalid"}, "InvalidAction"),
    "validator raises another": ({"kind": "validator-bug"}, "InvalidAction"),
    "environment raises": ({"kind": "raise"}, "StepFailed"),
    "environment exits": ({"kind": "exit"}, "StepFailed"),
    "NaN reward": ({"kind": "nan-reward"}, "StepFailed"),
    "unwritable observation": ({"kind": "object"}, "StepFailed"),
    "reward that raises": ({"kind": "snare-reward"}, "StepFailed"),
    "done that raises": ({"kind": "snare-done"}, "StepFailed"),
}


def test_a_step_that_cannot_be_done_fails_alone(anywhere):
    anywhere.open("one")
    anywhere.open("two")
    for fault, (action, name) in ACTIONS.items():
        error = error_of(anywhere.ask(**anywhere.call("step", "one", action=action)))
        assert (fault, error["error"]) == (fault, name)
        assert error["message"]
        anywhere.assert_lives("one")
        anywhere.assert_lives("two")


def test_faults_are_told_where_they_are(talk):
    talk.open("one")
    faults = error_of(talk.ask(**talk.call("step", "one", action={"jump": 1})))["data"]["errors"]
    assert [fault["loc"] for fault in faults] == [["jump"]]
    faults = error_of(talk.ask("reset", session="one", seq="x"))["data"]["errors"]
    assert [fault["loc"] for fault in faults] == [["seq"]]
    assert "'value'" in error_of(talk.step("one", "object"))["message"]


MSGPACK_BOMB = b"\x82\xa2id\x05\xa2op" + b"\x91" * 100_000 + b"\x01"
JSON_BOMB = '{"id": 5, "op": ' + "[" * 100_000 + "]" * 100_000 + "}"

# Frames that are no message, by whether the codec is binary.
BAD_FRAMES = {
    "empty": (b"", ""),
    "noise": (b"\xc1\xc1", "nope"),
    "cut off": (b"\x82\xa2id\x05\xa2op", '{"id": 5, "op": "sta'),
    "cut off within a text": (b"\x82\xa2id\x05\xa2op\xd9\x40abc", '{"id": 5, "op": "st'),
    "more than one": (b"\x81\xa2id\x05\x00", '{"id": 5} {}'),
    "too long a length": (b"\xdd\xff\xff\xff\xff", "[" * 10),
    "a list": (b"\x90", "[]"),
    "a number": (b"\x01", "1"),
    "nothing": (b"\xc0", "null"),
    "no id": (b"\x81\xa2op\xa5state", '{"op": "state"}'),
    "id is text": (b"\x81\xa2id\xa11", '{"id": "1"}'),
    "id is zero": (b"\x81\xa2id\x00", '{"id": 0}'),
    "id is negative": (b"\x81\xa2id\xff", '{"id": -1}'),
    "id is a fraction": (b"\x81\xa2id\xcb?\xf8\0\0\0\0\0\0", '{"id": 1.5}'),
    "id is true": (b"\x81\xa2id\xc3", '{"id": true}'),
    "id is huge": (b"\x81\xa2id\xcf\xff\xff\xff\xff\xff\xff\xff\xff", '{"id": 18446744073709551615}'),
    "deep": (MSGPACK_BOMB, JSON_BOMB),
    "the other kind": ('{"id": 5, "op": "heartbeat"}', b'{"id": 5, "op": "heartbeat"}'),
}


@few_lines
@pytest.mark.parametrize("fault", BAD_FRAMES)
def test_a_frame_that_is_no_message_is_answered_without_an_id(talk, fault):
    binary, text = BAD_FRAMES[fault]
    talk.open("one")
    talk.wire.send(binary if talk.binary else text)
    reply = talk.receive()
    assert reply["id"] is None
    assert (error_of(reply)["error"], error_of(reply)["blame"]) == ("InvalidMessage", "client")
    talk.assert_lives("one")


def test_an_id_that_was_used_is_not_answered_under_that_id(line):
    with line() as open_talk:
        talk = open_talk()
        talk.open("one")
        running = talk.tell_step("one", "wait")
        for reused in (running, 1):
            talk.wire.send(talk.write({"id": reused, "op": "heartbeat"}))
            reply = talk.receive()
            assert reply["id"] is None
            assert f"id {reused} " in error_of(reply)["message"]
        talk.wire.send(talk.write({"id": 1, "op": "dance"}))
        assert talk.receive()["id"] is None
        ProbeEnvironment.gate.set()
        assert talk.receive()["id"] == running


def test_an_action_too_deep_to_read_fails_alone(talk):
    talk.open("one")
    deep = b"\x91" * 3000 + b"\x01" if talk.binary else b"[" * 3000 + b"]" * 3000
    talk._last_id = 5
    if talk.binary:
        head = b"\x85\xa2id\x05\xa2op\xa4step\xa7session\xa3one\xa3seq\x01\xa6action\x81\xa8metadata"
        talk.wire.send(head + deep)
    else:
        head = '{"id":5,"op":"step","session":"one","seq":1,"action":{"metadata":'
        talk.wire.send(head + deep.decode() + "}}")
    reply = talk.receive()
    assert reply["id"] in {None, 5}
    assert error_of(reply)["blame"] == "client"
    talk.seq["one"] = talk.ask("open", session="one")["seq"]
    talk.assert_lives("one")


def test_a_message_over_the_limit_is_named_and_the_connection_ends(line):
    with line(InlineProbe, max_message_mb=0.25) as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.tell("step", session="one", seq=1, action={"metadata": {"pad": "z" * 400_000}})
        reply = talk.receive()
        assert reply["id"] is None
        assert error_of(reply)["error"] == "MessageTooLarge"
        assert "max_message_mb" in error_of(reply)["message"]
        assert "262144" in error_of(reply)["message"]
        with pytest.raises(Closed) as closed:
            talk.receive()
        assert closed.value.code == 1009
        again = open_talk()
        again.open("one", token=talk.tokens["one"])  # its session has not ended with it
        again.seq["one"] = 0
        again.assert_lives("one")


def test_a_reply_over_the_limit_is_an_error_and_the_session_goes_on(line):
    with line(InlineProbe, max_reply_mb=0.1) as open_talk:
        talk = open_talk()
        talk.open("one")
        error = error_of(talk.step("one", "large", 200_000))
        assert (error["error"], error["blame"]) == ("StepFailed", "environment")
        assert "104857 bytes (max_reply_mb, OPENENV_MAX_REPLY_MB)" in error["message"]
        (frame,) = talk.batch(talk.step_call("one", "large", 200_000), talk.step_call("one", number=3))
        large, small = frame["results"]
        assert error_of(large)["error"] == "StepFailed"
        assert small["observation"]["value"] == 3
        assert talk.step("one", "large", 50_000)["ok"] is True
