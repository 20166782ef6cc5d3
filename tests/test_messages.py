from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from openenv import messages, types
from openenv.errors import from_wire
from openenv.messages import (
    GetTaskRangeRequest,
    GetTaskRequest,
    ListTasksRequest,
    NumTasksRequest,
    WSCloseMessage,
    WSErrorCode,
    WSErrorResponse,
    WSIncomingMessage,
    WSObservationResponse,
    WSResetMessage,
    WSStateMessage,
    WSStateResponse,
    WSStepMessage,
)
from openenv.protocol.server import ServerProtocol
from openenv.types import Action, BaseMessage

INCOMING = TypeAdapter(WSIncomingMessage)


@pytest.mark.parametrize("name", messages.__all__)
def test_a_message_is_a_name_of_the_types_too(name):
    assert getattr(types, name) is getattr(messages, name)
    assert name in types.__all__


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"type": "reset"}, WSResetMessage()),
        ({"type": "reset", "data": {"seed": 1}}, WSResetMessage(data={"seed": 1})),
        ({"type": "step", "data": {"x": 1}}, WSStepMessage(data={"x": 1})),
        ({"type": "state"}, WSStateMessage()),
        ({"type": "close"}, WSCloseMessage()),
    ],
)
def test_a_frame_is_the_message_of_its_type(frame, message):
    assert INCOMING.validate_python(frame) == message
    assert isinstance(message, BaseMessage)


@pytest.mark.parametrize(
    "frame", [{"type": "nothing"}, {}, {"type": "step"}, {"type": "state", "more": 1}, {"type": "reset", "data": 5}]
)
def test_a_frame_that_is_none_is_refused(frame):
    with pytest.raises(ValidationError):
        INCOMING.validate_python(frame)


@pytest.mark.parametrize("message", [WSResetMessage(data={"seed": 3}), WSStateMessage(), WSStepMessage(data={})])
def test_a_server_reads_what_the_messages_write(message):
    read = ServerProtocol(Action).receive(message.model_dump_json().encode())
    assert read["type"] == message.type


def test_replies():
    assert WSObservationResponse(data={"a": 1}).model_dump() == {"type": "observation", "data": {"a": 1}}
    assert WSStateResponse(data={}).type == "state"
    assert WSErrorResponse(data={"message": "m"}).type == "error"
    with pytest.raises(ValidationError):
        WSStateResponse(data={}, more=1)


@pytest.mark.parametrize("code", WSErrorCode)
def test_every_code_is_one_that_a_client_knows(code):
    assert from_wire({"message": "m", "code": code.value}).code == code


def test_questions_about_tasks():
    assert ListTasksRequest(split="train").split == NumTasksRequest(split="train").split
    assert GetTaskRequest(split="train", index=-1).index == -1
    assert GetTaskRangeRequest(split="train").model_dump() == {"split": "train", "start": None, "stop": None}
    for wrong in ({"split": "s"}, {"split": "s", "index": "x"}, {"split": "s", "index": 1, "more": 1}):
        with pytest.raises(ValidationError):
            GetTaskRequest(**wrong)
