from __future__ import annotations

import enum
import json
import math
import sys
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, field_validator

from openenv import errors
from openenv.errors import InvalidAction, InvalidMessage, OpenEnvError, UnknownMessage, UsageError
from openenv.protocol.client import error_of
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.protocol.messages import (
    MAX_ID,
    OPS,
    AttachOp,
    BatchOp,
    CallToolOp,
    CancelOp,
    CloseOp,
    ForkOp,
    HeartbeatOp,
    McpOp,
    OpenOp,
    RefusedOp,
    ResetOp,
    RestoreOp,
    SchemaOp,
    SharedMemoryOp,
    StateOp,
    StepOp,
    TasksOp,
)
from openenv.protocol.server import ServerProtocolV2
from openenv.types import Action

from .examples import Move, json_objects, moves

MAX_BATCH = 8
DEEP = 100_000


def server_of(action_type):
    return [ServerProtocolV2(action_type, codec_of(name), MAX_BATCH) for name in SUBPROTOCOLS]


servers = pytest.mark.parametrize("server", server_of(Move), ids=["msgpack", "json"])


def sent(server, message):
    """What the server makes of a message: of the frame that a client writes, as bytes."""
    return server.receive(server.codec.encode(message))


def refused(server, message, error=InvalidAction):
    answer = sent(server, message)
    assert isinstance(answer, RefusedOp)
    assert type(answer.error) is error
    server.reply(answer.id, server.error(answer.error))
    return answer


def places(refusal):
    return [fault["loc"] for fault in refusal.error.data["errors"]]


GOOD = [
    ({"id": 1, "op": "open"}, OpenOp(id=1)),
    (
        {"id": 2, "op": "open", "session": "A-z_0.9", "wait_s": 1, "options": {}},
        OpenOp(id=2, session="A-z_0.9", wait_s=1.0),
    ),
    ({"id": 3, "op": "attach", "session": "a", "token": "t"}, AttachOp(id=3, session="a", token="t")),
    ({"id": 4, "op": "reset", "session": "a", "seq": 1}, ResetOp(id=4, session="a", seq=1)),
    (
        {"id": 5, "op": "reset", "session": "a", "seq": 2, "kwargs": {"seed": 3}, "deadline_s": 0.5},
        ResetOp(id=5, session="a", seq=2, kwargs={"seed": 3}, deadline_s=0.5),
    ),
    ({"id": 6, "op": "state", "session": "a"}, StateOp(id=6, session="a")),
    ({"id": 6, "op": "fork", "session": "a"}, ForkOp(id=6, session="a")),
    (
        {"id": 6, "op": "fork", "session": "a", "new": "b", "token": "t" * 16, "wait_s": 2},
        ForkOp(id=6, session="a", new="b", token="t" * 16, wait_s=2.0),
    ),
    (
        {"id": 6, "op": "restore", "session": "a", "seq": 3, "source": "b"},
        RestoreOp(id=6, session="a", seq=3, source="b"),
    ),
    (
        {"id": 6, "op": "tasks", "session": "a", "method": "get_task", "split": "train", "index": 0},
        TasksOp(id=6, session="a", method="get_task", split="train", index=0),
    ),
    (
        {"id": 6, "op": "call", "session": "a", "seq": 4, "tool": "add", "arguments": {"a": 1}},
        CallToolOp(id=6, session="a", seq=4, tool="add", arguments={"a": 1}),
    ),
    (
        {"id": 6, "op": "mcp", "session": "a", "seq": 5, "method": "tools/call", "params": {"name": "add"}},
        McpOp(id=6, session="a", seq=5, method="tools/call", params={"name": "add"}),
    ),
    ({"id": 7, "op": "cancel", "target": 6}, CancelOp(id=7, target=6)),
    ({"id": 8, "op": "close", "session": "a"}, CloseOp(id=8, session="a")),
    ({"id": MAX_ID, "op": "heartbeat"}, HeartbeatOp(id=MAX_ID)),
    ({"id": 10, "op": "schema"}, SchemaOp(id=10)),
    ({"id": 10, "op": "shared_memory", "token": "t"}, SharedMemoryOp(id=10, token="t")),
    ({"id": 10, "op": "state", "session": "a", "copied": 3}, StateOp(id=10, session="a", copied=3)),
    (
        {"id": 9, "op": "batch", "calls": [{"op": "close", "session": "a"}], "min_ready": 1, "wait_s": 0},
        BatchOp(id=9, calls=[CloseOp(session="a")], min_ready=1, wait_s=0.0),
    ),
]


@servers
class TestRequests:
    @pytest.mark.parametrize(("message", "read"), GOOD, ids=lambda value: getattr(value, "op", None))
    def test_read(self, server, message, read):
        assert sent(server, message) == read
        assert sent(server, dict(reversed(message.items()))) == read

    def test_every_op_has_its_example(self, server):
        assert {message["op"] for message, _ in GOOD} | {"step"} == set(OPS)

    def test_a_step_keeps_its_action_until_it_is_asked_for(self, server):
        step = sent(server, {"id": 1, "op": "step", "session": "a", "seq": 2, "action": {"column": 3}})
        assert (step.id, step.session, step.seq, step.deadline_s) == (1, "a", 2, None)
        assert server.action(step.action) == Move(column=3)

    @pytest.mark.parametrize("absent", ["deadline_s", "kwargs"])
    def test_null_is_absent_where_a_value_may_be(self, server, absent):
        message = {"id": 1, "op": "reset", "session": "a", "seq": 1, absent: None}
        if absent == "deadline_s":
            assert sent(server, message).deadline_s is None
        else:
            assert places(refused(server, message)) == [["kwargs"]]

    @given(arguments=json_objects)
    def test_reset_arguments_arrive_as_they_are(self, server, arguments):
        try:
            reset = sent(server, {"id": 1, "op": "reset", "session": "a", "seq": 1, "kwargs": arguments})
        except ValueError:
            assert server.codec.binary  # numbers of more than 64 bits
        else:
            assert reset.kwargs == arguments

    def test_reset_arguments_that_json_has_not(self, server):
        message = {"x": math.nan, "raw": b"\xff", "a": np.zeros(2), "odd": {"$bytes": "AA=="}}
        kwargs = sent(server, {"id": 1, "op": "reset", "session": "a", "seq": 1, "kwargs": message}).kwargs
        assert math.isnan(kwargs["x"])
        assert (kwargs["raw"], kwargs["a"].tolist(), kwargs["odd"]) == (b"\xff", [0, 0], {"$bytes": "AA=="})


BAD = [
    ({"op": "fly"}, UnknownMessage, None),
    ({}, UnknownMessage, None),
    ({"op": 3}, UnknownMessage, None),
    ({"op": "call", "session": "a"}, InvalidAction, []),
    ({"op": "tasks", "session": "a", "method": "all"}, InvalidAction, ["method"]),
    ({"op": "fork", "session": "a", "new": "no name"}, InvalidAction, ["new"]),
    ({"op": "fork", "session": "a", "seq": 1}, InvalidAction, []),
    ({"op": "restore", "session": "a", "seq": 0, "source": "b"}, InvalidAction, ["seq"]),
    ({"op": "open", "session": ""}, InvalidAction, ["session"]),
    ({"op": "open", "session": "a" * 65}, InvalidAction, ["session"]),
    ({"op": "open", "session": "a/b"}, InvalidAction, ["session"]),
    ({"op": "open", "session": "a\n"}, InvalidAction, ["session"]),
    ({"op": "open", "wait_s": -1}, InvalidAction, ["wait_s"]),
    ({"op": "open", "wait_s": math.inf}, InvalidAction, ["wait_s"]),
    ({"op": "open", "wait_s": math.nan}, InvalidAction, ["wait_s"]),
    ({"op": "open", "options": []}, InvalidAction, ["options"]),
    ({"op": "attach", "session": "a"}, InvalidAction, []),
    ({"op": "step", "session": "a", "seq": 1}, InvalidAction, []),
    ({"op": "step", "session": "a", "seq": 0, "action": {}}, InvalidAction, ["seq"]),
    ({"op": "step", "session": "a", "seq": 1.5, "action": {}}, InvalidAction, ["seq"]),
    ({"op": "step", "session": "a", "seq": "1", "action": {}}, InvalidAction, ["seq"]),
    ({"op": "step", "session": "a", "seq": True, "action": {}}, InvalidAction, ["seq"]),
    ({"op": "step", "session": "a", "seq": 2**63, "action": {}}, InvalidAction, ["seq"]),
    ({"op": "step", "session": 3, "seq": 1, "action": {}}, InvalidAction, ["session"]),
    ({"op": "step", "session": "a", "seq": 1, "action": {}, "deadline_s": 0}, InvalidAction, ["deadline_s"]),
    ({"op": "step", "session": "a", "seq": 1, "action": {}, "x": 1}, InvalidAction, []),
    ({"op": "state", "session": "a", "action": 1}, InvalidAction, []),
    ({"op": "cancel", "target": "x"}, InvalidAction, ["target"]),
    ({"op": "batch"}, InvalidAction, []),
    ({"op": "batch", "calls": []}, InvalidAction, ["calls"]),
    ({"op": "batch", "calls": {}}, InvalidAction, ["calls"]),
    ({"op": "batch", "calls": [{"op": "open"}], "min_ready": 0}, InvalidAction, ["min_ready"]),
]


@servers
class TestBadRequests:
    @pytest.mark.parametrize(("message", "error", "place"), BAD, ids=lambda value: repr(value)[:60])
    def test_refused_with_its_id(self, server, message, error, place):
        refusal = refused(server, {"id": 7} | message, error)
        assert refusal.id == 7
        if place is not None:
            assert places(refusal) == [place]
            assert refusal.error.data["errors"][0]["msg"]

    def test_an_unknown_op_is_told_the_known_ones(self, server):
        said = refused(server, {"id": 1, "op": "jump"}, UnknownMessage).error.message
        assert "'jump'" in said
        for op in OPS:
            assert op in said

    @pytest.mark.parametrize("number", [None, 0, -1, 1.0, True, "1", [], {}, 2**63, math.nan])
    def test_without_a_usable_id(self, server, number):
        for op in ("state", "fly", "batch"):
            assert refused(server, {"id": number, "op": op, "session": "a"}, InvalidMessage).id is None

    @pytest.mark.parametrize("frame", [[], 3, "reset", None, True, b"\xff", {"op": "heartbeat"}, {}, np.zeros(1)])
    def test_what_is_no_message(self, server, frame):
        assert refused(server, frame, InvalidMessage).id is None

    def test_a_frame_of_the_other_kind(self, server):
        refusal = server.receive_other(b"x" * 12)
        assert refusal.id is None
        assert "12 bytes" in refusal.error.message
        assert server.codec.subprotocol in refusal.error.message

    def test_a_long_value_is_not_repeated_whole(self, server):
        for message in ({"id": "x" * 100_000, "op": "open"}, {"id": 1, "op": "x" * 100_000}):
            assert len(sent(server, message).error.message) < 500

    @given(cut=st.integers(1, 40))
    def test_a_frame_that_was_cut_off(self, server, cut):
        frame = server.codec.encode({"id": 1, "op": "step", "session": "a", "seq": 2, "action": {"column": 3}})
        refusal = server.receive(frame[:-cut])
        assert (type(refusal.error), refusal.id) == (InvalidMessage, None)

    def test_bytes_after_the_end(self, server):
        frame = server.codec.encode({"id": 1, "op": "heartbeat"})
        assert type(server.receive(frame + frame).error) is InvalidMessage

    @given(data=st.binary())
    def test_noise(self, server, data):
        answer = server.receive(data)
        if isinstance(answer, RefusedOp):
            server.reply(answer.id, server.error(answer.error))


def bomb(server, before, after=b""):
    """A frame with very many levels inside."""
    if server.codec.binary:
        return [before + opening * DEEP + b"\x01" for opening in (b"\x91", b"\x81\xa1a")]
    return [before + b"[" * DEEP + b"]" * DEEP + after, before + b'{"a":' * DEEP + b"1" + b"}" * DEEP + after]


@servers
class TestDepthBombs:
    def test_in_the_frame(self, server):
        for frame in bomb(server, b""):
            refusal = server.receive(frame)
            assert (type(refusal.error), refusal.id) == (InvalidMessage, None)

    @pytest.mark.parametrize("op", ["reset", "step", "batch"])
    def test_in_a_request(self, server, op):
        field = {"reset": "kwargs", "step": "action", "batch": "calls"}[op]
        whole = server.codec.encode({"id": 1, "op": op, "session": "a", "seq": 1, field: 0})
        for frame in bomb(server, whole[:-1] if server.codec.binary else whole[:-2], b"}"):
            received = server.receive(frame)
            if op == "step" and sys.version_info >= (
                3,
                14,
            ):  # an encoded value is passed over, as far as the stack reaches
                with pytest.raises(InvalidAction):
                    server.action(received.action)
            else:
                assert type(received.error) is InvalidMessage

    def test_in_an_action(self, server):
        for action in bomb(server, b""):
            with pytest.raises(InvalidAction):
                server.action(action)

    @pytest.mark.parametrize("depth", [150, 300, 600, 900, 1200])
    def test_near_the_limit_there_is_an_answer(self, server, depth):
        tree = b"\x91" * depth + b"\x01" if server.codec.binary else b"[" * depth + b"1" + b"]" * depth
        whole = server.codec.encode({"id": 1, "op": "step", "session": "a", "seq": 1, "action": 0})
        frame = whole[:-1] + tree if server.codec.binary else whole[:-2] + tree + b"}"
        for written in (frame, frame.replace(b"step", b"flap"), frame.replace(b"session", b"passion")):
            answer = server.receive(written)
            if isinstance(answer, RefusedOp):
                server.reply(answer.id, server.error(answer.error))
            else:
                with pytest.raises(InvalidAction):
                    server.action(answer.action)


GOOD_CALL = {"op": "step", "session": "a", "seq": 1, "action": {"column": 1}}


@servers
class TestBatches:
    def test_calls_without_ids(self, server):
        batch = sent(server, {"id": 1, "op": "batch", "calls": [GOOD_CALL, {"op": "open"}]})
        step, opening = batch.calls
        assert (type(step), step.id, server.action(step.action)) == (StepOp, 0, Move(column=1))
        assert opening == OpenOp()

    @pytest.mark.parametrize(
        ("call", "error", "session"),
        [
            ({"op": "step", "session": "b", "seq": 0, "action": {}}, InvalidAction, "b"),
            ({"op": "reset", "session": "b", "seq": 1, "kwargs": []}, InvalidAction, "b"),
            ({"op": "state"}, InvalidAction, None),
            ({"op": "state", "session": 3}, InvalidAction, None),
            ({"op": "state", "session": "b", "id": 1}, InvalidAction, "b"),
            ({"op": "state", "session": "b", "id": 0}, InvalidAction, "b"),
            ({"op": "heartbeat"}, UnknownMessage, None),
            ({"op": "batch", "calls": [GOOD_CALL]}, UnknownMessage, None),
            ({"op": "attach", "session": "b", "token": "t"}, UnknownMessage, "b"),
            ({}, UnknownMessage, None),
            ([], InvalidAction, None),
            (None, InvalidAction, None),
        ],
        ids=lambda value: repr(value)[:50],
    )
    def test_a_bad_call_fails_alone(self, server, call, error, session):
        batch = sent(server, {"id": 7, "op": "batch", "calls": [GOOD_CALL, call, GOOD_CALL], "min_ready": 2})
        first, bad, last = batch.calls
        assert (batch.id, batch.min_ready) == (7, 2)
        assert isinstance(bad, RefusedOp)
        assert (type(bad.error), bad.session) == (error, session)
        assert [server.action(step.action) for step in (first, last)] == [Move(column=1)] * 2

    def test_all_calls_may_be_bad(self, server):
        batch = sent(server, {"id": 7, "op": "batch", "calls": [1, 2]})
        assert all(isinstance(call, RefusedOp) for call in batch.calls)

    def test_the_limit(self, server):
        assert len(sent(server, {"id": 7, "op": "batch", "calls": [GOOD_CALL] * MAX_BATCH}).calls) == MAX_BATCH
        for calls in ([GOOD_CALL] * 9, [1] * 9):
            refusal = refused(server, {"id": 7, "op": "batch", "calls": calls}, UsageError)
            assert refusal.id == 7
            for named in ("9", "8", "OPENENV_MAX_BATCH"):
                assert named in refusal.error.message

    def test_actions_that_json_has_not(self, server):
        call = GOOD_CALL | {"action": {"column": 1, "metadata": {"x": math.nan, "raw": b"\xff"}}}
        batch = sent(server, {"id": 7, "op": "batch", "calls": [call, GOOD_CALL]})
        metadata = server.action(batch.calls[0].action).metadata
        assert math.isnan(metadata["x"])
        assert metadata["raw"] == b"\xff"

    def test_a_bad_envelope_is_refused_whole(self, server):
        assert places(refused(server, {"id": 7, "op": "batch", "calls": [GOOD_CALL, 1], "wait_s": "x"})) == [
            ["wait_s"]
        ]


def acted(server, action):
    return server.action(server.codec.encode(action))


def fault(server, action):
    with pytest.raises(InvalidAction) as caught:
        acted(server, action)
    server.error(caught.value)
    return caught.value


class Suit(enum.Enum):
    CLUBS = "clubs"


class Strict(Action):
    model_config = ConfigDict(strict=True)
    suit: Suit
    pair: tuple[int, int]
    raw: bytes = b""


class Aim(Action):
    target: np.ndarray
    weights: list[float] = []


class Say(Action):
    kind: Literal["say"] = "say"
    text: str


class Go(Action):
    kind: Literal["go"] = "go"
    where: str


class Fussy(Action):
    x: int

    @field_validator("x")
    @classmethod
    def check(cls, x):
        raise {1: ValueError("too small"), 2: KeyError("what"), 3: RecursionError("deep")}[x]


both = lambda action_type: pytest.mark.parametrize("server", server_of(action_type), ids=["msgpack", "json"])  # noqa: E731


class TestActions:
    @servers
    @given(move=moves)
    def test_every_action_arrives(self, server, move):
        try:
            assert acted(server, move) == move
        except ValueError:
            assert server.codec.binary  # numbers of more than 64 bits

    @servers
    @pytest.mark.parametrize(
        ("action", "place"),
        [
            ({"column": "x"}, ["column"]),
            ({"column": -1}, ["column"]),
            ({}, ["column"]),
            ({"column": 1, "path": [1, "x"]}, ["path", 1]),
            ({"column": 1, "more": 2}, ["more"]),
            ([], ["action"]),
            (None, ["action"]),
        ],
    )
    def test_faults_have_places(self, server, action, place):
        error = fault(server, action)
        assert error.message == "Invalid message"
        assert [found["loc"] for found in error.data["errors"]] == [place]
        assert error.data["errors"][0]["msg"]

    @servers
    def test_values_are_read_leniently(self, server):
        assert acted(server, {"column": "3", "weight": 1}) == Move(column=3, weight=1.0)

    @both(Strict)
    def test_strict_classes_take_what_json_would_give_them(self, server):
        assert acted(server, {"suit": "clubs", "pair": [1, 2]}) == Strict(suit=Suit.CLUBS, pair=(1, 2))
        assert acted(server, {"suit": "clubs", "pair": np.array([1, 2])}) == Strict(suit=Suit.CLUBS, pair=(1, 2))
        assert fault(server, {"suit": "clubs", "pair": [1, "x"]}).data["errors"][0]["loc"] == ["pair", 1]
        assert fault(server, {"suit": "clubs", "pair": [1, 2], "raw": b"\xff"})

    @both(Aim)
    def test_arrays_arrive_as_arrays_and_where_a_list_is_declared_as_a_list(self, server):
        aim = acted(server, {"target": np.arange(3)})
        np.testing.assert_array_equal(aim.target, np.arange(3))
        aim.target[0] = 7
        assert acted_list(server, np.array([0.5, 1.0])) == [0.5, 1.0]

    @both(Annotated[Say | Go, Field(discriminator="kind")])
    def test_a_union_with_a_tag(self, server):
        assert acted(server, {"kind": "go", "where": "north"}) == Go(where="north")
        fault(server, {"kind": "fly"})

    @both(int)
    def test_a_number(self, server):
        assert acted(server, 3) == 3
        assert fault(server, "x").data["errors"][0]["loc"] == ["action"]

    @both(dict[str, Any])
    def test_a_dict_of_anything(self, server):
        action = {"x": b"\xff", "nan": math.inf, "odd": {"$array": 1}}
        assert acted(server, action) == action

    @both(Fussy)
    @pytest.mark.parametrize(("x", "said"), [(1, "too small"), (2, "KeyError"), (3, "RecursionError")])
    def test_a_validator_that_raises(self, server, x, said):
        assert said in str(fault(server, {"x": x}))

    @servers
    @given(data=st.binary())
    def test_noise(self, server, data):
        try:
            server.action(data)
        except InvalidAction as error:
            server.error(error)

    def test_text_that_is_no_unicode_in_json(self):
        json_server = server_of(Move)[1]
        for raw in (b'{"column":1,"note":"\xff"}', b'{"column":1,"note":"\\ud800"}'):
            with pytest.raises(InvalidAction):
                json_server.action(raw)


def acted_list(server, weights):
    # The target is no list, so that the values cannot be said in JSON as they are: only `weights` is in question.
    only = ServerProtocolV2(list[float], server.codec, MAX_BATCH)
    return only.action(server.codec.encode(weights))


@servers
class TestReplies:
    def decoded(self, server, frame):
        return server.codec.decode(frame)

    def test_ok(self, server):
        frame = server.reply(3, server.ok({"session": "a", "token": "t"}))
        assert self.decoded(server, frame) == {"id": 3, "ok": True, "session": "a", "token": "t"}
        assert list(self.decoded(server, frame)) == ["id", "ok", "session", "token"]
        assert self.decoded(server, server.reply(MAX_ID, server.ok({}))) == {"id": MAX_ID, "ok": True}

    @pytest.mark.parametrize("width", [14, 15, 16, 17, 70_000])
    def test_of_any_width(self, server, width):
        fields = {str(number): number for number in range(width)}
        body = server.ok(fields)
        assert body.count == width + 1
        assert self.decoded(server, server.reply(1, body)) == {"id": 1, "ok": True} | fields
        (result,) = self.decoded(server, server.results(1, [(0, "a", body)], False))["results"]
        assert result == {"call": 0, "session": "a", "ok": True} | fields

    def test_an_error_for_no_request(self, server):
        reply = self.decoded(server, server.reply(None, server.error(InvalidMessage("what?"))))
        assert reply["id"] is None
        assert reply["error"]["error"] == "InvalidMessage"

    def test_results(self, server):
        items = [
            (2, "b", server.ok({"x": 1})),
            (0, 'a"é', server.error(UnknownMessage("what?"))),
            (1, None, server.ok({})),
        ]
        frame = self.decoded(server, server.results(9, items, True))
        results = frame.pop("results")
        assert frame == {"id": 9, "ok": True, "more": True}
        assert results[0] == {"call": 2, "session": "b", "ok": True, "x": 1}
        assert (results[1]["call"], results[1]["session"], results[1]["error"]["message"]) == (0, 'a"é', "what?")
        assert results[2] == {"call": 1, "ok": True}
        assert self.decoded(server, server.results(9, [], False)) == {
            "id": 9,
            "ok": True,
            "results": [],
            "more": False,
        }

    def test_an_event(self, server):
        frame = self.decoded(server, server.event("draining", {"grace_s": 30}))
        assert frame == {"event": "draining", "grace_s": 30}


@servers
class TestErrors:
    def error(self, server, error):
        return server.codec.decode(server.reply(1, server.error(error)))["error"]

    def test_facts(self, server):
        assert self.error(server, errors.StepFailed("it broke")) == {
            "message": "it broke",
            "code": "EXECUTION_ERROR",
            "error": "StepFailed",
            "blame": "environment",
            "retryable": False,
        }
        full = self.error(server, errors.ServerFull(4, 4, retry_after_s=1.5))
        assert (full["retry_after_s"], full["data"]) == (1.5, {"active_sessions": 4, "max_sessions": 4})

    @given(message=st.text() | st.text(alphabet=st.characters(categories=["Cs", "Ll"])))
    def test_every_message_can_be_sent(self, server, message):
        received = error_of(self.error(server, errors.StepFailed(message)))
        assert type(received) is errors.StepFailed
        readable = message.encode(errors="replace").decode()
        assert received.message == readable

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            {1, 2},
            b"\xff",
            math.nan,
            3 + 4j,
            "\udc80",
            {1: "\udc80"},
            10**30,
            [b"\xff"],
            np.zeros(2),
            10**5000,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_every_data_can_be_sent(self, server, value):
        received = error_of(self.error(server, errors.StepFailed("it broke", data={"value": value})))
        assert isinstance(received, OpenEnvError)
        assert received.message == "it broke"
        assert "value" in received.data
        json.dumps(received.data)

    def test_data_that_holds_itself(self, server):
        circle: dict = {}
        circle["again"] = circle
        assert self.error(server, errors.StepFailed("it broke", data=circle))["message"] == "it broke"

    def test_data_that_cannot_be_read_is_left_out(self, server):
        class Mute:
            def __repr__(self):
                raise LookupError("no words")

        told = self.error(server, errors.StepFailed("it broke", data={Mute(): Mute()}))
        assert (told["message"], told["data"]) == ("it broke", {})
