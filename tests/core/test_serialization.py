from __future__ import annotations

import pytest
from pydantic import ValidationError

from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.serialization import (
    deserialize_action,
    deserialize_action_with_preprocessing,
    serialize_observation,
)
from openenv.types import Action, Observation

CALL = {"type": "call_tool", "tool_name": "add", "arguments": {"a": 1}}
READERS = [deserialize_action, deserialize_action_with_preprocessing]


class Typed(Action):
    type: str = "own"


@pytest.mark.parametrize("read", READERS)
def test_an_action_of_its_class(read):
    assert read({"type": "other", "metadata": {"a": 1}}, Typed) == Typed(type="other", metadata={"a": 1})
    assert read({}, Typed) == Typed()
    assert read(CALL, CallToolAction) == CallToolAction(tool_name="add", arguments={"a": 1})


@pytest.mark.parametrize("read", READERS)
def test_tool_actions_where_no_class_is_asked_for(read):
    call = read(CALL, Action)
    assert type(call) is CallToolAction
    assert (call.tool_name, call.arguments) == ("add", {"a": 1})
    assert type(read({"type": "list_tools"}, Action)) is ListToolsAction
    assert type(read({"type": "list_tools"}, Typed)) is Typed


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("values", [{"jump": 1}, {"type": "jump"}, {"type": "call_tool"}])
def test_what_is_no_action_is_refused(read, values):
    with pytest.raises(ValidationError):
        read(values, Action)


def test_forms_give_text():
    action = deserialize_action_with_preprocessing({**CALL, "arguments": '{"a": 1}'}, CallToolAction)
    assert action == CallToolAction(tool_name="add", arguments={"a": 1})


def test_an_observation_as_a_payload():
    payload = serialize_observation(Observation(reward=1, metadata={"a": 1}))
    assert payload == {"observation": {"metadata": {"a": 1}}, "reward": 1, "done": False, "metadata": {"a": 1}}
