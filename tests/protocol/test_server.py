from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from openenv import errors
from openenv.errors import InvalidAction, InvalidMessage, OpenEnvError, StepFailed, UnknownMessage
from openenv.protocol.client import ClientProtocol
from openenv.protocol.errors import MOST_FAULTS
from openenv.protocol.server import ServerProtocol
from openenv.types import Action, Observation, State

from .examples import Move, json_objects

protocol = ServerProtocol(Move)


def refused(frame, by=protocol):
    """The error that a frame meets, after checking that it can be sent."""
    with pytest.raises(OpenEnvError) as caught:
        by.receive(frame)
    json.loads(ServerProtocol.error(caught.value))
    return caught.value


def places(error):
    return [fault["loc"] for fault in error.data["errors"]]


class TestMessages:
    def test_reset(self):
        assert protocol.receive(b'{"type":"reset"}') == {"type": "reset"}
        assert protocol.receive(b'{"type":"reset","data":{}}') == {"type": "reset", "data": {}}
        message = protocol.receive(b'{"type":"reset","data":{"seed":3,"level":"hard"}}')
        assert message == {"type": "reset", "data": {"seed": 3, "level": "hard"}}

    def test_step_carries_the_action(self):
        message = protocol.receive(b'{"type":"step","data":{"column":3}}')
        assert message == {"type": "step", "data": Move(column=3)}
        assert type(message["data"]) is Move

    def test_state_and_close(self):
        assert protocol.receive(b'{"type":"state"}') == {"type": "state"}
        assert protocol.receive(b'{"type":"close"}') == {"type": "close"}

    def test_mcp(self):
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert protocol.receive(json.dumps({"type": "mcp", "data": request})) == {"type": "mcp", "data": request}

    @pytest.mark.parametrize("frame", ['{"type":"state"}', b'{"type":"state"}', b' { "type" : "state" }\n'])
    def test_text_and_bytes_with_and_without_spaces(self, frame):
        assert protocol.receive(frame)["type"] == "state"

    @pytest.mark.parametrize("beginning", [b'{"type":"step","data":', b'{"type": "step", "data": '])
    @pytest.mark.parametrize("end", [b"}", b" }", b"}\n"])
    def test_a_step_however_it_is_written(self, beginning, end):
        assert protocol.receive(beginning + b'{"column":3}' + end)["data"] == Move(column=3)
        assert protocol.receive((beginning + b'{"column":3}' + end).decode())["data"] == Move(column=3)

    @pytest.mark.parametrize(
        "rest",
        [
            b'{"column":3}]',  # ends with what is no brace
            b'{"column":3}}}',
            b'{"column":3},"extra":1}',
            b'{"column":3}',
            b"}",
            b"",
        ],
    )
    def test_what_only_begins_as_a_step_is_refused(self, rest):
        refused(b'{"type":"step","data":' + rest)

    def test_of_two_actions_the_last_counts_as_in_any_json(self):
        frame = b'{"type":"step","data":{"column":1},"data":{"column":2}}'
        assert protocol.receive(frame)["data"] == Move(column=2)

    def test_the_order_of_keys_does_not_matter(self):
        assert protocol.receive(b'{"data":{"column":1},"type":"step"}')["data"] == Move(column=1)

    @given(json_objects)
    def test_reset_arguments_arrive_as_they_are(self, arguments):
        frame = json.dumps({"type": "reset", "data": arguments})
        assert protocol.receive(frame)["data"] == arguments


class TestActionTypes:
    def test_a_union_with_a_tag(self):
        class Say(Action):
            kind: Literal["say"] = "say"
            text: str

        class Go(Action):
            kind: Literal["go"] = "go"
            where: str

        server = ServerProtocol(Annotated[Say | Go, Field(discriminator="kind")])
        assert server.receive(b'{"type":"step","data":{"kind":"go","where":"north"}}')["data"] == Go(where="north")
        refused(b'{"type":"step","data":{"kind":"fly"}}', server)

    def test_a_union_without(self):
        class Say(Action):
            text: str

        class Go(Action):
            where: str

        server = ServerProtocol(Say | Go)
        assert server.receive(b'{"type":"step","data":{"where":"north"}}')["data"] == Go(where="north")
        assert isinstance(refused(b'{"type":"step","data":{"x":1}}', server), InvalidAction)

    def test_a_dict(self):
        server = ServerProtocol(dict[str, Any])
        assert server.receive(b'{"type":"step","data":{"x":1}}')["data"] == {"x": 1}
        assert places(refused(b'{"type":"step","data":[]}', server)) == [["data"]]

    def test_a_number(self):
        assert ServerProtocol(int).receive(b'{"type":"step","data":3}')["data"] == 3

    def test_two_protocols_do_not_share_their_action(self):
        numbers, texts = ServerProtocol(int), ServerProtocol(str)
        assert numbers.receive(b'{"type":"step","data":3}')["data"] == 3
        assert texts.receive(b'{"type":"step","data":"3"}')["data"] == "3"
        refused(b'{"type":"step","data":"x"}', numbers)


class TestNotJson:
    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"hello",
            b'{"type":"state"',
            b'{"type":"state"}}',
            b"{'type':'state'}",
            b"\xff\xfe",
            b'{"type":"\xff"}',
            b'{"type":"\\ud800"}',
            b'{"type":"reset","data":' + b"[" * 5000,
            b'{"type":"reset","data":{"x":' + b"9" * 6000 + b"}}",
            "",
            "{",
        ],
        ids=lambda frame: repr(frame[:30]),
    )
    def test_refused(self, frame):
        error = refused(frame)
        assert type(error) is InvalidMessage
        assert error.code == "INVALID_JSON"
        assert error.message.startswith("Invalid JSON: ")

    @pytest.mark.parametrize("frame", [b"[]", b"3", b'"reset"', b"null", b"true", b'["type"]'])
    def test_json_that_is_no_object(self, frame):
        assert refused(frame).code in {"INVALID_JSON", "VALIDATION_ERROR"}


class TestUnknownType:
    @pytest.mark.parametrize(
        "message",
        [
            {},
            {"data": {}},
            {"type": "fly"},
            {"type": ""},
            {"type": None},
            {"type": 3},
            {"type": ["step"]},
            {"type": {"step": 1}},
            {"type": "Step", "data": {"column": 1}},
        ],
        ids=str,
    )
    def test_refused(self, message):
        error = refused(json.dumps(message))
        assert type(error) is UnknownMessage
        assert error.code == "UNKNOWN_TYPE"

    def test_the_type_is_named(self):
        assert refused(b'{"type":"fly"}').message == "Unknown message type: fly"


class TestInvalid:
    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"type": "step"}, [["data"]]),
            ({"type": "step", "data": None}, [["data"]]),
            ({"type": "step", "data": 5}, [["data"]]),
            ({"type": "step", "data": [1]}, [["data"]]),
            ({"type": "step", "data": {}}, [["column"]]),
            ({"type": "step", "data": {"column": "x"}}, [["column"]]),
            ({"type": "step", "data": {"column": 1, "bad": 1}}, [["bad"]]),
            ({"type": "step", "data": {"column": 1, "data": 1}}, [["data"]]),
            ({"type": "step", "data": {"column": 1, "path": [0, "x"]}}, [["path", 1]]),
            ({"type": "step", "data": {"column": "x", "note": 1}}, [["column"], ["note"]]),
            ({"type": "step", "data": {"column": 1}, "x": 1}, [["x"]]),
            ({"type": "reset", "data": 1}, [["data"]]),
            ({"type": "reset", "data": None}, [["data"]]),
            ({"type": "reset", "x": 1}, [["x"]]),
            ({"type": "state", "x": 1}, [["x"]]),
            ({"type": "state", "data": {}}, [["data"]]),
            ({"type": "mcp"}, [["data"]]),
            ({"type": "mcp", "data": "tools/list"}, [["data"]]),
            ({"type": "close", "now": True}, [["now"]]),
        ],
        ids=str,
    )
    def test_the_places_are_those_of_the_action_or_the_frame(self, message, expected):
        error = refused(json.dumps(message))
        assert type(error) is InvalidAction
        assert (error.code, error.message) == ("VALIDATION_ERROR", "Invalid message")
        assert places(error) == expected

    def test_each_fault_says_what_is_wrong(self):
        (fault,) = refused(b'{"type":"step","data":{"column":"x"}}').data["errors"]
        assert fault["type"] == "int_parsing"
        assert fault["input"] == "x"
        assert "integer" in fault["msg"]

    def test_a_validator_that_raises_value_error(self):
        (fault,) = refused(b'{"type":"step","data":{"column":-1}}').data["errors"]
        assert fault["loc"] == ["column"]
        assert "columns count from 0" in fault["msg"]

    def test_a_number_that_is_none(self):
        error = refused(b'{"type":"step","data":{"column":NaN}}')
        assert places(error) == [["column"]]

    def test_the_error_frame_is_strict_json_whatever_was_sent(self):
        error = refused(b'{"type":"step","data":{"column":1e999}}')

        def refuse(constant):
            raise AssertionError(f"{constant} is no JSON")

        json.loads(ServerProtocol.error(error), parse_constant=refuse)


class TestValidatorsOfTheUser:
    """Whatever a validator does with a value, the fault can be sent."""

    @staticmethod
    def protocol_with(check, mode):
        class Checked(Action):
            x: int

            check_x = field_validator("x", mode=mode)(check)

        return ServerProtocol(Checked)

    def test_one_that_asserts(self):
        def check(value):
            assert value > 5, "too small"
            return value

        error = refused(b'{"type":"step","data":{"x":1}}', self.protocol_with(check, "after"))
        assert "too small" in error.data["errors"][0]["msg"]

    def test_one_that_makes_what_json_cannot_say(self):
        error = refused(b'{"type":"step","data":{"x":1}}', self.protocol_with(lambda value: object(), "before"))
        assert places(error) == [["x"]]

    def test_one_with_an_error_of_its_own_kind(self):
        def check(value):
            raise PydanticCustomError("taken", "{what} is taken", {"what": "the seat", "who": object()})

        error = refused(b'{"type":"step","data":{"x":1}}', self.protocol_with(check, "after"))
        assert error.data["errors"][0]["msg"] == "the seat is taken"


class TestReplies:
    def test_an_observation(self):
        assert ServerProtocol.observation(Observation(reward=1.5, done=True)) == (
            b'{"type":"observation","data":{"observation":{"metadata":{}},"reward":1.5,"done":true}}'
        )

    def test_an_observation_that_cannot_be_sent(self):
        with pytest.raises(StepFailed, match="reward"):
            ServerProtocol.observation(Observation(reward=math.nan))

    def test_a_state(self):
        assert ServerProtocol.state(State(episode_id="e", step_count=1)) == (
            b'{"type":"state","data":{"episode_id":"e","step_count":1}}'
        )

    def test_a_state_that_cannot_be_sent(self):
        with pytest.raises(StepFailed, match="engine"):
            ServerProtocol.state(State(engine=object()))

    def test_a_value_that_raises_when_it_is_read_fails_alone(self):
        class Raw:
            @property
            def __dict__(self):
                raise SystemExit("the simulator is gone")

        for write in (ServerProtocol.observation, ServerProtocol.state):
            with pytest.raises(StepFailed, match="Raw cannot be sent.*simulator is gone"):
                write(Raw())

    def test_the_reply_to_a_json_rpc_request(self):
        told = {"jsonrpc": "2.0", "id": "a", "result": {"tools": []}}
        assert json.loads(ServerProtocol.mcp(told)) == {"type": "mcp", "data": told}


class TestErrorFrames:
    def test_message_and_code_and_the_rest(self):
        frame = ServerProtocol.error(StepFailed("it broke"))
        assert frame.startswith(b'{"type":"error","data":{')
        assert json.loads(frame)["data"] == {
            "message": "it broke",
            "code": "EXECUTION_ERROR",
            "error": "StepFailed",
            "blame": "environment",
            "retryable": False,
        }

    def test_faults_beyond_a_limit_are_counted_and_not_listed(self):
        def faults(count):
            action = {"column": 3} | {f"x{number}": number for number in range(count)}
            return refused(json.dumps({"type": "step", "data": action})).data["errors"]

        assert len(faults(MOST_FAULTS)) == MOST_FAULTS
        (fault,) = faults(MOST_FAULTS + 1)
        assert str(MOST_FAULTS + 1) in fault["msg"]
        assert fault["loc"] == []

    def test_the_extra_keys_of_v1(self):
        full = json.loads(ServerProtocol.error(errors.ServerFull(4, 4)))["data"]
        assert (full["code"], full["active_sessions"], full["max_sessions"]) == ("CAPACITY_REACHED", 4, 4)
        failed = json.loads(ServerProtocol.error(errors.FactoryFailed("Chess")))["data"]
        assert (failed["code"], failed["factory_name"]) == ("FACTORY_ERROR", "Chess")
        invalid = json.loads(ServerProtocol.error(refused(b'{"type":"step"}')))["data"]
        assert (invalid["code"], invalid["message"]) == ("VALIDATION_ERROR", "Invalid message")
        assert invalid["errors"][0]["loc"] == ["data"]

    def test_data_cannot_take_the_place_of_facts(self):
        frame = ServerProtocol.error(StepFailed("it broke", data={"code": "FINE", "message": "all well"}))
        assert json.loads(frame)["data"]["code"] == "EXECUTION_ERROR"

    @given(st.text() | st.text(alphabet=st.characters(categories=["Cs", "Ll"])))
    def test_every_message_can_be_sent_and_read(self, message):
        """An environment's exception may hold anything: a file name that is no Unicode, for one."""
        received = ClientProtocol().receive(ServerProtocol.error(StepFailed(message))).error
        assert type(received) is StepFailed
        readable = message.encode(errors="replace").decode()
        if readable == message:
            assert received.message == message

    @pytest.mark.parametrize("value", [object(), {1, 2}, b"\xff", math.nan, 3 + 4j, "\udc80", {1: "\udc80"}])
    def test_every_data_can_be_sent_and_read(self, value):
        received = ClientProtocol().receive(ServerProtocol.error(StepFailed("it broke", data={"value": value}))).error
        assert received.message == "it broke"
        assert "value" in received.data
