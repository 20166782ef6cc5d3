from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openenv import errors
from openenv.errors import ProtocolViolation
from openenv.protocol.client import Answer, ClientProtocolV2, Event
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.protocol.messages import RefusedOp, ResetOp, StepOp
from openenv.protocol.server import ServerProtocolV2
from openenv.types import State

from .examples import Board, Move, finite_objects, observations

CODECS = [*map(codec_of, SUBPROTOCOLS)]
codecs = pytest.mark.parametrize("codec", CODECS, ids=["msgpack", "json"])


def server_of(codec):
    return ServerProtocolV2(Move, codec, 8)


@codecs
class TestRequests:
    def test_ids_count_from_1(self, codec):
        client = ClientProtocolV2(codec)
        frames = [client.request("state", {"session": "a"}) for _ in range(3)]
        assert [codec.decode(frame)["id"] for frame, _ in frames] == [1, 2, 3]
        assert [request.id for _, request in frames] == [1, 2, 3]
        assert codec.decode(frames[0][0]) == {"id": 1, "op": "state", "session": "a"}
        assert client.outstanding == 3

    def test_op_and_waiter_are_kept(self, codec):
        waiter = object()
        _, request = ClientProtocolV2(codec).request("heartbeat", {}, waiter)
        assert (request.op, request.waiter, request.abandoned) == ("heartbeat", waiter, False)

    def test_models_arrays_and_bytes(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        action = Move(column=2, metadata={"a": np.arange(2), "raw": b"\xff", "nan": math.nan})
        step = server.receive(client.request("step", {"session": "a", "seq": 1, "action": action})[0])
        assert isinstance(step, StepOp)
        metadata = server.action(step.action).metadata
        assert (metadata["a"].tolist(), metadata["raw"]) == ([0, 1], b"\xff")
        assert math.isnan(metadata["nan"])
        reset = server.receive(client.request("reset", {"session": "a", "seq": 1, "kwargs": {"x": np.int64(3)}})[0])
        assert isinstance(reset, ResetOp)
        assert reset.kwargs == {"x": 3}

    def test_what_cannot_be_written_leaves_no_request_behind(self, codec):
        client = ClientProtocolV2(codec)
        with pytest.raises(ValueError, match="cannot be written"):
            client.request("reset", {"kwargs": {"x": object()}})
        assert client.outstanding == 0
        assert client.request("heartbeat", {})[1].id == 1

    def test_one_that_was_not_sent(self, codec):
        client = ClientProtocolV2(codec)
        _, first = client.request("heartbeat", {})
        _, second = client.request("heartbeat", {})
        client.withdraw(first)
        assert client.outstanding == 1
        assert client.abandon_all() == [second]


@codecs
class TestReplies:
    def test_in_any_order(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        requests = [client.request("state", {"session": "a"})[1] for _ in range(3)]
        for request in reversed(requests):
            answer = client.receive(server.reply(request.id, server.ok({"n": request.id})))
            assert answer == Answer(request, {"n": request.id}, None, False)
        assert client.outstanding == 0

    @given(observation=observations)
    def test_an_observation(self, codec, observation):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("reset", {"session": "a", "seq": 1})
        try:
            body = server.observation(observation)
        except errors.StepFailed:
            assert codec.binary  # numbers of more than 64 bits
            return
        payload = client.receive(server.reply(request.id, body)).payload
        assert Board(**payload["observation"], reward=payload["reward"], done=payload["done"]) == observation

    def test_numbers_that_are_none(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("state", {"session": "a"})
        state = client.receive(server.reply(request.id, server.state(State(x=math.nan, y=[math.inf])))).payload[
            "state"
        ]
        assert math.isnan(state["x"])
        assert state["y"] == [math.inf]

    def test_a_batch_is_answered_until_there_is_no_more(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("batch", {"calls": [{"op": "open"}] * 2})
        first = client.receive(server.results(request.id, [(1, "b", server.ok({}))], True))
        assert (first.request, first.more, client.outstanding) == (request, True, 1)
        assert first.payload == {"results": [{"call": 1, "session": "b", "ok": True}]}
        last = client.receive(server.results(request.id, [(0, "a", server.ok({}))], False))
        assert (last.request, last.more, client.outstanding) == (request, False, 0)

    def test_a_batch_that_was_refused(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("batch", {"calls": []})
        refusal = server.receive(codec.encode({"id": request.id, "op": "batch", "calls": []}))
        assert isinstance(refusal, RefusedOp)
        answer = client.receive(server.reply(refusal.id, server.error(refusal.error)))
        assert (answer.request, type(answer.error), answer.more) == (request, errors.InvalidAction, False)
        assert client.outstanding == 0

    def test_a_field_called_more_is_a_field(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("state", {"session": "a"})
        assert client.receive(server.reply(request.id, server.ok({"more": True}))) == Answer(
            request, {"more": True}, None, False
        )

    @pytest.mark.slow
    @given(
        cls=st.sampled_from([errors.StepFailed, errors.InvalidAction, errors.Draining, errors.SessionLost]),
        message=st.text(),
        data=finite_objects,
        retry_after_s=st.none() | st.floats(0, 1e6),
    )
    def test_an_error(self, codec, cls, message, data, retry_after_s):
        data = {
            key: value for key, value in data.items() if key not in {*errors.OpenEnvError().facts(), "retry_after_s"}
        }
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("state", {"session": "a"})
        error = cls(message, data=data, retry_after_s=retry_after_s)
        answer = client.receive(server.reply(request.id, server.error(error)))
        assert (answer.request, answer.payload, client.outstanding) == (request, {}, 0)
        assert (type(answer.error), answer.error.message) == (cls, message)
        assert answer.error.retry_after_s == retry_after_s
        assert set(answer.error.data) == set(data)

    def test_an_error_that_answers_nothing(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        client.request("heartbeat", {})
        answer = client.receive(server.reply(None, server.error(errors.InvalidMessage("what?"))))
        assert (answer.request, answer.more, type(answer.error)) == (None, False, errors.InvalidMessage)
        assert client.outstanding == 1

    def test_an_event(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        assert client.receive(server.event("draining", {"grace_s": 30})) == Event("draining", {"grace_s": 30})
        assert client.receive(server.event("of_a_later_version", {})) == Event("of_a_later_version", {})

    def test_an_abandoned_request_is_answered_all_the_same(self, codec):
        client, server = ClientProtocolV2(codec), server_of(codec)
        _, request = client.request("state", {"session": "a"})
        request.abandoned = True
        assert client.outstanding == 1
        assert client.receive(server.reply(request.id, server.ok({}))).request.abandoned
        assert client.outstanding == 0


BAD = {
    "no map": [1],
    "a text": "ok",
    "nothing inside": {},
    "no id": {"ok": True},
    "no result": {"id": 1},
    "ok is no truth": {"id": 1, "ok": 1},
    "not ok": {"id": 1, "ok": False},
    "an error that is a text": {"id": 1, "error": "broken"},
    "an id that was not asked": {"id": 2, "ok": True},
    "an id that is no number": {"id": "1", "ok": True},
    "an id that is a truth": {"id": True, "ok": True},
    "an id that is a list": {"id": [1], "ok": True},
    "a result of nothing": {"id": None, "ok": True},
    "an event without a name": {"event": 3},
    "bytes": b"\xff",
}


@codecs
class TestViolations:
    @pytest.mark.parametrize("message", BAD.values(), ids=BAD)
    def test_refused_and_whoever_waits_can_be_told(self, codec, message):
        client = ClientProtocolV2(codec)
        _, request = client.request("state", {"session": "a"})
        with pytest.raises(ProtocolViolation):
            client.receive(codec.encode(message))
        assert client.abandon_all() == [request]

    @given(data=st.binary())
    def test_noise(self, codec, data):
        client = ClientProtocolV2(codec)
        _, request = client.request("state", {"session": "a"})
        try:
            client.receive(data)
        except ProtocolViolation:
            assert client.abandon_all() == [request]

    def test_a_second_answer(self, codec):
        client = ClientProtocolV2(codec)
        client.request("heartbeat", {})
        frame = codec.encode({"id": 1, "ok": True})
        client.receive(frame)
        with pytest.raises(ProtocolViolation, match="unknown request"):
            client.receive(frame)

    def test_a_frame_of_the_other_kind(self, codec):
        other = CODECS[1 - CODECS.index(codec)]
        client = ClientProtocolV2(codec)
        client.request("heartbeat", {})
        with pytest.raises(ProtocolViolation):
            client.receive(other.encode({"id": 1, "ok": True}))

    def test_a_long_frame_is_not_repeated_whole(self, codec):
        client = ClientProtocolV2(codec)
        for message in ({"id": 1, "x": "x" * 100_000}, {"id": "x" * 100_000, "ok": True}, {"event": ["x" * 100_000]}):
            with pytest.raises(ProtocolViolation) as caught:
                client.receive(codec.encode(message))
            assert len(str(caught.value)) < 1000


class ConversationMachine(RuleBasedStateMachine):
    """A client against an honest server that answers in any order, to some requests in several frames."""

    def __init__(self):
        super().__init__()
        codec = CODECS[0]
        self.client, self.server = ClientProtocolV2(codec), server_of(codec)
        self.due = []

    @rule(op=st.sampled_from(["step", "batch", "heartbeat"]))
    def ask(self, op):
        self.due.append(self.client.request(op, {})[1])

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def give_up(self, data):
        data.draw(st.sampled_from(self.due)).abandoned = True

    @precondition(lambda self: self.due)
    @rule(data=st.data(), kind=st.sampled_from(["ok", "error", "more"]))
    def answer(self, data, kind):
        request = data.draw(st.sampled_from(self.due))
        more = kind == "more" and request.op == "batch"
        if kind == "error":
            frame = self.server.reply(request.id, self.server.error(errors.StepFailed(str(request.id))))
        elif request.op == "batch":
            frame = self.server.results(request.id, [], more)
        else:
            frame = self.server.reply(request.id, self.server.ok({}))
        answer = self.client.receive(frame)
        assert (answer.request, answer.more) == (request, more)
        assert (answer.error is None) is (kind != "error")
        if not more:
            self.due.remove(request)

    @precondition(lambda self: self.due)
    @rule()
    def lose_the_connection(self):
        assert self.client.abandon_all() == [request for request in self.due if not request.abandoned]
        self.due.clear()

    @invariant()
    def every_due_reply_is_counted(self):
        assert self.client.outstanding == len(self.due)


TestConversation = pytest.mark.slow(ConversationMachine.TestCase)
