from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openenv import errors
from openenv.errors import OpenEnvError, ProtocolViolation
from openenv.protocol.client import ClientProtocol
from openenv.protocol.server import ServerProtocol
from openenv.types import State

from .examples import Board, Move, finite_objects, json_objects, moves, observations

REPLIES = {"reset": "observation", "step": "observation", "state": "state", "mcp": "mcp"}
server = ServerProtocol(Move)


def frame(kind, data):
    return json.dumps({"type": kind, "data": data}).encode()


class TestRequests:
    @pytest.mark.parametrize(
        ("kind", "data", "sent"),
        [
            ("reset", None, b'{"type":"reset"}'),
            ("reset", {}, b'{"type":"reset","data":{}}'),
            ("reset", {"seed": 1}, b'{"type":"reset","data":{"seed":1}}'),
            ("step", {"column": 1}, b'{"type":"step","data":{"column":1}}'),
            ("state", None, b'{"type":"state"}'),
            ("mcp", {"id": 1}, b'{"type":"mcp","data":{"id":1}}'),
        ],
    )
    def test_bytes(self, kind, data, sent):
        written, request = ClientProtocol().send(kind, data)
        assert written == sent
        assert request.op == kind

    def test_close_expects_no_reply(self):
        client = ClientProtocol()
        assert client.close() == b'{"type":"close"}'
        assert client.outstanding == 0

    def test_the_waiter_is_kept(self):
        waiter = object()
        assert ClientProtocol().send("state", waiter=waiter)[1].waiter is waiter

    def test_numbers_that_are_none_travel_as_themselves(self):
        written, _ = ClientProtocol().send("step", {"x": math.inf})
        assert written == b'{"type":"step","data":{"x":Infinity}}'

    def test_what_cannot_be_written_leaves_no_request_behind(self):
        client = ClientProtocol()
        with pytest.raises(ValueError, match="Unable to serialize unknown type"):
            client.send("step", {"x": object()})
        assert client.outstanding == 0


class TestReplies:
    @pytest.mark.parametrize("kind", REPLIES)
    def test_the_payload_goes_to_the_request(self, kind):
        client = ClientProtocol()
        _, request = client.send(kind)
        reply = client.receive(frame(REPLIES[kind], {"x": 1}))
        assert reply.request is request
        assert (reply.payload, reply.error) == ({"x": 1}, None)
        assert client.outstanding == 0

    def test_text_and_bytes(self):
        client = ClientProtocol()
        for written in ('{"type":"state","data":{}}', b'{"type":"state","data":{}}'):
            client.send("state")
            assert client.receive(written).error is None

    def test_first_asked_first_answered(self):
        client = ClientProtocol()
        requests = [client.send("step", {"n": n})[1] for n in range(3)]
        replies = [client.receive(frame("observation", {"n": n})) for n in range(3)]
        assert [reply.request for reply in replies] == requests

    def test_an_error_answers_the_oldest_request(self):
        client = ClientProtocol()
        _, request = client.send("step")
        client.send("state")
        reply = client.receive(server.error(errors.StepFailed("it broke")))
        assert reply.request is request
        assert reply.payload == {}
        assert type(reply.error) is errors.StepFailed
        assert client.outstanding == 1

    def test_an_error_that_nobody_asked_for(self):
        reply = ClientProtocol().receive(server.error(errors.ServerFull(1, 1)))
        assert reply.request is None
        assert type(reply.error) is errors.ServerFull
        assert reply.error.max_sessions == 1

    def test_the_error_of_a_foreign_server(self):
        client = ClientProtocol()
        client.send("step")
        reply = client.receive(frame("error", {"message": "full", "code": "CAPACITY_REACHED"}))
        assert type(reply.error) is errors.ServerFull

    def test_keys_of_later_versions_are_passed_over(self):
        client = ClientProtocol()
        client.send("state")
        assert client.receive(b'{"type":"state","data":{},"v":3}').error is None


class TestAbandoned:
    def test_its_reply_is_known_by_its_mark(self):
        client = ClientProtocol()
        _, late = client.send("step", {"n": 1})
        late.abandoned = True
        _, wanted = client.send("step", {"n": 2})
        assert client.outstanding == 2
        first = client.receive(frame("observation", {"n": 1}))
        second = client.receive(frame("observation", {"n": 2}))
        assert (first.request, first.request.abandoned) == (late, True)
        assert (second.request, second.request.abandoned, second.payload) == (wanted, False, {"n": 2})

    def test_when_the_connection_ends_the_wanted_ones_are_told(self):
        client = ClientProtocol()
        requests = [client.send("step")[1] for _ in range(3)]
        requests[1].abandoned = True
        assert client.abandon_all() == [requests[0], requests[2]]
        assert client.outstanding == 0
        assert client.abandon_all() == []


BAD_REPLIES = {
    "not JSON": b"<html>",
    "not UTF-8": b'{"type":"observation","data":{"x":"\xff"}}',
    "nothing": b"",
    "no object": b"[1]",
    "a text": b'"observation"',
    "a number": b"3",
    "no type": b'{"data":{}}',
    "no data": b'{"type":"observation"}',
    "data is no object": b'{"type":"observation","data":[]}',
    "an error without facts": b'{"type":"error","data":"broken"}',
    "another kind": b'{"type":"state","data":{}}',
    "an unknown kind": b'{"type":"surprise","data":{}}',
    "a kind that is no text": b'{"type":{},"data":{}}',
}


class TestViolations:
    @pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES)
    def test_refused(self, reply):
        client = ClientProtocol()
        client.send("step")
        with pytest.raises(ProtocolViolation):
            client.receive(reply)

    @pytest.mark.parametrize("reply", BAD_REPLIES.values(), ids=BAD_REPLIES)
    def test_whoever_waits_can_still_be_told(self, reply):
        client = ClientProtocol()
        requests = [client.send("step")[1], client.send("step")[1]]
        with pytest.raises(ProtocolViolation):
            client.receive(reply)
        assert client.abandon_all() == requests

    def test_a_reply_to_nothing(self):
        with pytest.raises(ProtocolViolation, match="nothing"):
            ClientProtocol().receive(frame("observation", {}))

    def test_a_long_frame_is_not_repeated_whole(self):
        with pytest.raises(ProtocolViolation) as caught:
            ClientProtocol().receive(b"x" * 100_000)
        assert len(str(caught.value)) < 1000


class TestRoundTrips:
    @pytest.mark.slow
    @given(moves)
    def test_an_action(self, move):
        sent, _ = ClientProtocol().send("step", move.model_dump())
        assert server.receive(sent) == {"type": "step", "data": move}

    @pytest.mark.slow
    @given(moves)
    def test_an_action_in_the_form_for_json(self, move):
        """As clients do: in the form for JSON, where nothing may be lost either."""
        sent, _ = ClientProtocol().send("step", move.model_dump(mode="json"))
        assert server.receive(sent)["data"] == move

    @pytest.mark.slow
    @given(json_objects)
    def test_reset_arguments(self, arguments):
        sent, _ = ClientProtocol().send("reset", arguments)
        assert server.receive(sent) == {"type": "reset", "data": arguments}

    @pytest.mark.slow
    @given(st.sampled_from(["reset", "step"]), observations)
    def test_an_observation(self, kind, observation):
        client = ClientProtocol()
        _, request = client.send(kind)
        reply = client.receive(server.observation(observation))
        payload = reply.payload
        assert reply.request is request
        assert Board(**payload["observation"], reward=payload["reward"], done=payload["done"]) == observation

    @pytest.mark.slow
    @given(
        st.builds(State, episode_id=st.none() | st.text(), step_count=st.integers(min_value=0), extra=json_objects)
    )
    def test_a_state(self, state):
        client = ClientProtocol()
        client.send("state")
        assert State(**client.receive(server.state(state)).payload) == state

    @given(json_objects)
    def test_a_tool_call(self, request):
        client = ClientProtocol()
        sent, _ = client.send("mcp", request)
        received = server.receive(sent)["data"]
        assert received == request

    @given(finite_objects)
    def test_the_reply_to_a_tool_call(self, reply):
        client = ClientProtocol()
        client.send("mcp", {})
        assert client.receive(server.mcp(reply)).payload == reply

    @given(
        st.sampled_from([errors.StepFailed, errors.InvalidAction, errors.Draining, errors.SessionLost]),
        st.text(),
        finite_objects,
        st.none() | st.floats(0, 1e6),
    )
    def test_an_error(self, cls, message, data, retry_after_s):
        facts = {"message", "code", "error", "blame", "retryable", "retry_after_s"}
        data = {key: value for key, value in data.items() if key not in facts}
        error = cls(message, data=data, retry_after_s=retry_after_s)
        client = ClientProtocol()
        client.send("step")
        received = client.receive(server.error(error)).error
        assert type(received) is cls
        assert (received.message, received.data, received.retry_after_s) == (message, data, retry_after_s)


class ConversationMachine(RuleBasedStateMachine):
    """A client against an honest server: each reply finds its own request, whoever has given up before."""

    def __init__(self):
        super().__init__()
        self.client = ClientProtocol()
        self.due = []  # what the server still has to answer, oldest first
        self.count = 0

    @rule(kind=st.sampled_from(sorted(REPLIES)))
    def ask(self, kind):
        self.count += 1
        _, request = self.client.send(kind, {"n": self.count}, waiter=self.count)
        self.due.append(request)

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def give_up(self, data):
        data.draw(st.sampled_from(self.due)).abandoned = True

    @precondition(lambda self: self.due)
    @rule(failed=st.booleans())
    def answer(self, failed):
        request = self.due.pop(0)
        if failed:
            reply = self.client.receive(server.error(errors.StepFailed(str(request.waiter))))
            assert (reply.error.message, reply.payload) == (str(request.waiter), {})
        else:
            reply = self.client.receive(frame(REPLIES[request.op], {"n": request.waiter}))
            assert (reply.error, reply.payload) == (None, {"n": request.waiter})
        assert reply.request is request

    @precondition(lambda self: self.due)
    @rule()
    def lose_the_connection(self):
        assert self.client.abandon_all() == [request for request in self.due if not request.abandoned]
        self.due.clear()

    @precondition(lambda self: not self.due)
    @rule(kind=st.sampled_from(["observation", "state", "mcp"]))
    def answer_to_nothing(self, kind):
        with pytest.raises(ProtocolViolation):
            self.client.receive(frame(kind, {}))

    @precondition(lambda self: not self.due)
    @rule()
    def refuse_unasked(self):
        reply = self.client.receive(server.error(errors.Draining("stopping")))
        assert reply.request is None
        assert isinstance(reply.error, OpenEnvError)

    @invariant()
    def every_due_reply_is_counted(self):
        assert self.client.outstanding == len(self.due)


TestConversation = pytest.mark.slow(ConversationMachine.TestCase)
