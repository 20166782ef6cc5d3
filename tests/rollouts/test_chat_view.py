"""A served environment as a conversation, and a model's answers as actions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from openenv import (
    Chat,
    ConnectionLost,
    GenericEnvClient,
    InvalidAction,
    JsonAnswer,
    ProtocolViolation,
    RegexAnswer,
    RenderedImage,
    StepFailed,
    TagAnswer,
    Unauthorized,
    UsageError,
    VectorEnvClient,
    create_app,
)
from openenv.rollouts.chat_view import ChatCall, ChatView

from ..server.wires import served
from . import chats

PIXELS = np.zeros((10, 12, 3), np.uint8)
URL = RenderedImage.of(PIXELS).data_url()
MARK = {
    "type": "object",
    "title": "MarkAction",
    "properties": {"row": {"type": "integer"}, "column": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["row", "column"],
}
GUESS = {"title": "Guess", "type": "object", "properties": {"guess": {"type": "string"}}}
TOOL = ChatView.of(None, MARK)


async def view_of(environment: type[Any], chat: Chat | None = None) -> ChatView:
    async with GenericEnvClient(env=environment) as client:
        return await ChatView.from_server(client, chat)


def said(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(name: Any, arguments: Any, call_id: Any = "call_a") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


async def test_the_conversation_is_the_one_that_the_author_declares() -> None:
    async with GenericEnvClient(env=chats.Tag) as client:
        view = await ChatView.from_server(client)
        assert (view.chat, view.tools) == (chats.Tag.chat, [])
        system, first = view.begin((await client.reset()).observation)
        assert system == {"role": "system", "content": "Mark the board. End with <mark>{...}</mark>."}
        assert first == {"role": "user", "content": "Board ...\n{turn} 0"}

        (call,) = view.actions(said("I think <mark>so</mark> ... <mark>\n<row>1</row><column> 2</column></mark>"))
        assert call == ChatCall({"row": 1, "column": 2})
        result = await client.step(call.action)
        message = view.result(call, result.observation, result.done)
        assert message == {"role": "user", "content": "Board 12\n{turn} 1"}


@pytest.mark.real
async def test_each_client_of_a_server_reads_it() -> None:
    with served(create_app(chats.Tag)) as address:
        async with GenericEnvClient(base_url=f"http://{address}") as client:
            assert (await ChatView.from_server(client)).chat == chats.Tag.chat
            assert (await ChatView.from_server(client.sync())).chat == chats.Tag.chat
            assert (await ChatView.from_server(client, Chat(max_invalid=9))).max_invalid == 9
        async with VectorEnvClient(GenericEnvClient, f"http://{address}", num_envs=2) as envs:
            assert (await ChatView.from_server(envs)).chat == chats.Tag.chat
    with pytest.raises(ConnectionLost, match="is the server up"):
        await ChatView.from_server(GenericEnvClient(base_url=f"http://{address}"))


@pytest.mark.real
async def test_a_key_is_sent_and_a_wrong_one_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_API_KEYS", "right-key-of-this-server")
    with served(create_app(chats.Undeclared)) as address:
        view = await ChatView.from_server(
            GenericEnvClient(base_url=f"http://{address}", api_key="right-key-of-this-server")
        )
        assert [tool["function"]["name"] for tool in view.tools] == ["mark"]
        with pytest.raises(Unauthorized):
            await ChatView.from_server(GenericEnvClient(base_url=f"http://{address}", api_key="wrong"))


@pytest.mark.real
async def test_a_server_that_knows_nothing_of_chats_gets_the_defaults() -> None:
    app = FastAPI()
    metadata: dict[str, Any] = {"name": "old", "description": "An old game."}
    app.get("/metadata")(lambda: metadata)
    app.get("/schema")(lambda: {"action": GUESS})
    with served(app) as address:
        client = GenericEnvClient(base_url=f"http://{address}")
        view = await ChatView.from_server(client)
        assert view.system == "An old game."
        assert [tool["function"]["name"] for tool in view.tools] == ["guess"]
        metadata["chat"] = {"answer": {"kind": "telepathy"}}  # from a newer server
        with pytest.raises(ProtocolViolation, match="telepathy"):
            await ChatView.from_server(client)


async def test_actions_are_function_tools_if_nothing_is_declared() -> None:
    view = await view_of(chats.Undeclared)
    assert view.system == "A board to mark."
    (tool,) = view.tools
    assert tool["function"]["name"] == "mark"
    assert tool["function"]["description"] == "Marks a field of the board."
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "row": {"description": "From the top", "maximum": 2, "minimum": 0, "type": "integer"},
            "column": {"maximum": 2, "minimum": 0, "type": "integer"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["row", "column"],
        "additionalProperties": False,
    }
    (call,) = view.actions(called("mark", '{"row": 0, "column": 1}'))
    assert call == ChatCall({"row": 0, "column": 1}, "call_a", "mark")


async def test_each_variant_of_a_union_is_a_tool_and_its_constant_is_filled_in() -> None:
    async with GenericEnvClient(app=create_app(chats.Talk, action=chats.Words)) as client:
        view = await ChatView.from_server(client)
        say, go = (tool["function"] for tool in view.tools)
        assert (say["name"], list(say["parameters"]["properties"])) == ("say", ["words"])
        # `step` drives the environment, and is the name of no tool.
        assert (go["name"], list(go["parameters"]["properties"])) == ("step_action", ["way"])
        way = go["parameters"]["properties"]["way"]
        assert way["items"] == {"items": {"type": "integer"}, "maxItems": 2, "minItems": 2, "type": "array"}
        await client.reset()
        (call,) = view.actions(called("step_action", '{"way": [[1, 2]]}'))
        assert call.action == {"way": [[1, 2]], "kind": "go"}
        result = await client.step(call.action)
        assert "way=[(1, 2)]" in result.observation["board"]


async def test_the_tools_of_an_mcp_environment_and_their_results() -> None:
    pytest.importorskip("fastmcp")
    from .mcp_chats import Desk

    async with GenericEnvClient(env=Desk) as client:
        view = await ChatView.from_server(client)
        assert [tool["function"]["name"] for tool in view.tools] == ["add", "look", "fail"]
        result = await client.reset()
        assert view.begin(result.observation)[1] == {"role": "user", "content": "Begin."}
        contents = []
        for name, arguments in (("add", '{"a": 1}'), ("look", ""), ("fail", "{}"), ("add", '{"b": 1}')):
            (call,) = view.actions(called(name, arguments))
            result = await client.step(call.action)
            message = view.result(call, result.observation, result.done)
            assert (message["role"], message["tool_call_id"]) == ("tool", "call_a")
            contents.append(message["content"])
        assert contents[0] == "3"
        assert contents[1] == [{"type": "image_url", "image_url": {"url": URL}}]
        assert contents[2] == "Error: execution_error: Error calling tool 'fail': no luck"
        assert contents[3].startswith("Error: invalid_args: wrong arguments for tool 'add'")


@pytest.mark.parametrize(
    ("answer", "text", "action"),
    [
        (JsonAnswer(), '{"row": 1, "column": 2}', {"row": 1, "column": 2}),
        (JsonAnswer(), 'So:\n```json\n{"row": 1, "note": "{"}\n```\nDone {today}.', {"row": 1, "note": "{"}),
        (JsonAnswer(), '{"row": 0} no, {"row": {"of": 1}}', {"row": {"of": 1}}),
        (JsonAnswer(), '<think>{"row": 0}</think>{"row": 1}', {"row": 1}),
        (
            TagAnswer(tag="mark"),
            "<mark>1</mark><mark> <row>2</row><column>0</column></mark> .",
            {"row": 2, "column": 0},
        ),
        (TagAnswer(tag="mark"), '<mark>{"row": 1, "note": "7"}</mark>', {"row": 1, "note": "7"}),
        (TagAnswer(tag="mark"), "<mark><note>7</note></mark>", {"note": "7"}),
        (RegexAnswer(pattern=r"(?P<row>\d),(?P<column>\d)(?P<note>!)?"), "0,0 or 1,2", {"row": 1, "column": 2}),
        (RegexAnswer(pattern=r"(?P<row>\d)(?P<note>.*)"), "3 7", {"row": 3, "note": " 7"}),
    ],
)
def test_a_text_becomes_an_action_of_the_schemas_types(answer: Any, text: str, action: dict[str, Any]) -> None:
    view = ChatView.of(Chat(answer=answer), MARK)
    assert view.actions(said(text)) == [ChatCall(action)]
    assert view.actions(said([{"type": "text", "text": text}])) == [ChatCall(action)]


def test_an_action_of_one_field_is_the_text_in_the_tag() -> None:
    view = ChatView.of(Chat(answer=TagAnswer(tag="guess")), GUESS, description="A game.")
    assert view.actions(said("<guess> 42 </guess>")) == [ChatCall({"guess": "42"})]
    assert view.system == "A game.\n\nEnd each answer with <guess>...</guess>."


def test_an_empty_system_prompt_is_none() -> None:
    view = ChatView.of(Chat(answer=TagAnswer(tag="guess"), system=""), GUESS, description="A game.")
    assert view.begin({"text": "Go."}) == [{"role": "user", "content": "Go."}]


LARGE = '{"row": 1' + "0" * 25 + "}"
DEEP = "[" * 100_000
NESTED = "[" * 500 + "]" * 500
TEXTS: list[tuple[Any, Any, str]] = [
    (JsonAnswer(), "", "end your answer with one complete JSON object"),
    (JsonAnswer(), None, "end your answer with one complete JSON object"),
    (JsonAnswer(), '{"row": 1', "end your answer with one complete JSON object"),
    (JsonAnswer(), "[1, 2]", "end your answer with one complete JSON object"),
    (JsonAnswer(), '{"a":' * 50_000, "end your answer with one complete JSON object"),
    (JsonAnswer(), LARGE, "cannot be sent"),
    (JsonAnswer(), '{"note": "\\ud800"}', "cannot be sent"),
    (TagAnswer(tag="mark"), "<mark>1", "end your answer with <mark>...</mark>"),
    (TagAnswer(tag="mark"), "</mark><mark>", "end your answer with <mark>...</mark>"),
    (TagAnswer(tag="mark"), "<mark>left</mark>", "end your answer with one complete JSON object"),
    (TagAnswer(tag="mark"), "<mark><row>one</row></mark>", "row must be integer, not 'one'"),
    (TagAnswer(tag="mark"), f"<mark><row>{DEEP}</row></mark>", "row must be integer"),
    (RegexAnswer(pattern="(?P<row>[0-9])"), "none", "end your answer with text that matches (?P<row>[0-9])"),
]


@pytest.mark.parametrize(("answer", "text", "error"), TEXTS)
def test_a_text_without_an_action_is_answered_in_the_conversation(answer: Any, text: Any, error: str) -> None:
    view = ChatView.of(Chat(answer=answer), MARK)
    (call,) = view.actions(said(text))
    assert call.action is None
    message = view.invalid(call)
    assert message["role"] == "user"
    assert message["content"].startswith("That was no valid action, and nothing happened: ")
    assert error in message["content"]


CALLS: list[tuple[Any, str]] = [
    (called("mark", '{"row": 1'), "the arguments are not valid JSON"),
    (called("mark", DEEP), "the arguments are not valid JSON: nested too deeply"),
    (called("mark", "[1]"), "the arguments must be a JSON object, not [1]"),
    (called("mark", "7"), "the arguments must be a JSON object, not 7"),
    (called("mark", LARGE), "the action cannot be sent"),
    (called("mark", f'{{"row": {NESTED}}}'), "the action cannot be sent: it is nested more than"),
    (called("mark", '{"note": "\\ud800"}'), "the action cannot be sent"),
    (called("jump", "{}"), "there is no tool 'jump': there are mark"),
    (called("reset", "{}"), "there is no tool 'reset'"),
    (called("", "{}"), "there is no tool ''"),
    (called(None, None), "there is no tool ''"),
    ({"role": "assistant", "tool_calls": [{"id": "call_a", "type": "custom", "custom": {}}]}, "there is no tool ''"),
]


@pytest.mark.parametrize(("message", "error"), CALLS)
def test_a_malformed_call_is_answered_by_a_tool_message(message: dict[str, Any], error: str) -> None:
    (call,) = TOOL.actions(message)
    assert call.action is None
    reply = TOOL.invalid(call)
    assert (reply["role"], reply["tool_call_id"]) == ("tool", "call_a")
    assert error in reply["content"]
    check_protocol(message, [reply])


def test_an_answer_without_a_call_names_the_tools() -> None:
    for message in (said("I am done."), said(None), {"role": "assistant", "tool_calls": []}):
        (call,) = TOOL.actions(message)
        assert TOOL.invalid(call)["role"] == "user"
        assert call.error == "call one of the tools: mark"
        assert "tool_calls" not in message
        assert isinstance(message["content"], str)


def test_calls_where_an_answer_is_text_are_answered_too() -> None:
    view = ChatView.of(Chat(answer=TagAnswer(tag="guess")), GUESS)
    (call,) = view.actions(called("guess", "{}"))
    assert call.error == "there is no tool 'guess': answer with <guess>...</guess>"
    assert view.invalid(call)["tool_call_id"] == "call_a"


def test_where_an_mcp_environment_reads_text_the_model_may_call_its_tools_too() -> None:
    schema = {"anyOf": [GUESS, {"type": "object", "properties": {"type": {"const": "call_tool"}, "tool_name": {}}}]}
    view = ChatView.of(Chat(answer=TagAnswer(tag="guess")), schema, [{"name": "look_up", "input_schema": {}}])
    assert [tool["function"]["name"] for tool in view.tools] == ["look_up"]
    (call,) = view.actions(called("look_up", "{}"))
    assert call.action == {"type": "call_tool", "tool_name": "look_up", "arguments": {}}
    (call,) = view.actions(said("<guess>crane</guess>"))
    assert call.action == {"guess": "crane"}


def test_arguments_may_be_an_object_or_missing() -> None:
    message = called("mark", {"row": 1})
    assert TOOL.actions(message) == [ChatCall({"row": 1}, "call_a", "mark")]
    assert message["tool_calls"][0]["function"]["arguments"] == '{"row": 1}'
    for nothing in (None, "", " ", {}):
        assert TOOL.actions(called("mark", nothing)) == [ChatCall({}, "call_a", "mark")]


def test_two_calls_of_one_id_get_ids_of_their_own() -> None:
    message = called("mark", "{}")
    message["tool_calls"] += [called("mark", "{}")["tool_calls"][0], called("mark", "{}", None)["tool_calls"][0]]
    calls = TOOL.actions(message)
    assert len({call.call_id for call in calls}) == 3
    check_protocol(message, [TOOL.invalid(call, "no") for call in calls])


async def test_an_action_that_the_server_refuses_is_answered_in_the_same_way() -> None:
    async with GenericEnvClient(env=chats.Json) as client:
        view = await ChatView.from_server(client)
        assert view.max_invalid == 1
        await client.reset()
        (call,) = view.actions(said('{"row": 7, "column": 0}'))
        with pytest.raises(InvalidAction) as refusal:
            await client.step(call.action)
        message = view.invalid(call, refusal.value)
        assert message["role"] == "user"
        assert message["content"].startswith("No: ")
        assert "row" in message["content"]
        assert message["content"].endswith("{}")


def test_a_long_reason_is_cut() -> None:
    assert len(TOOL.invalid(ChatCall(None), "x" * 10_000)["content"]) < 3000


def test_an_environment_without_a_chat_view_says_what_to_declare() -> None:
    for schema in ({}, {"type": "array"}, {"anyOf": [{"type": "string"}]}, {"$ref": "#/$defs/missing"}):
        with pytest.raises(UsageError, match=r"declare `chat = Chat\(answer=JsonAnswer"):
            ChatView.of(None, schema)
        assert ChatView.of(Chat(answer=JsonAnswer()), schema).actions(said('{"a": 1}')) == [ChatCall({"a": 1})]


def test_images_are_content_parts() -> None:
    part = {"type": "image_url", "image_url": {"url": URL}}
    view = ChatView.of(Chat(observation="Look, {text}", images=("views.0.screen", "none")), GUESS)
    observation = {"text": "there", "views": [{"screen": URL}], "map": URL, "none": None}
    (message,) = view.begin(observation)
    assert message["content"] == [part, {"type": "text", "text": "Look, there"}]
    for chat in (None, Chat(observation="{text}")):
        (message,) = ChatView.of(chat, GUESS).begin({"text": "there", "screen": PIXELS, "map": URL})
        assert message["content"] == [part, part, {"type": "text", "text": "there"}]


@pytest.mark.parametrize(
    ("chat", "error"),
    [
        (Chat(observation="{board.row}"), r"no 'board.row'.*it has text, board"),
        (Chat(observation="{board.7}"), r"no 'board.7'"),
        (Chat(images=("text",)), "'text' is no image"),
        (Chat(images=("gone",)), "no 'gone'"),
    ],
)
def test_an_observation_that_does_not_fit_names_the_field(chat: Chat, error: str) -> None:
    with pytest.raises(StepFailed, match=error):
        ChatView.of(chat, GUESS).begin({"text": "hi", "board": ["x"], "reward": 1})


def test_a_result_without_content_still_says_something() -> None:
    call = ChatCall({}, "call_a", "mark")
    assert TOOL.result(call, {"reward": 1.0}, False)["content"] == "(empty)"
    assert TOOL.result(call, {}, True)["content"] == "The episode is over."


def test_recursive_and_huge_schemas_end() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}, "name": {"type": "string"}}}
    (tool,) = ChatView.of(None, {**tree, "$defs": {"Tree": tree}}).tools
    left = tool["function"]["parameters"]["properties"]["left"]
    assert left["properties"] == {"left": {}, "name": {"type": "string"}}
    links = {
        f"L{n}": {"type": "object", "properties": {side: {"$ref": f"#/$defs/L{n + 1}"} for side in "ab"}}
        for n in range(40)
    }
    with pytest.raises(UsageError, match="more than 5000 parts"):
        ChatView.of(None, {"$ref": "#/$defs/L0", "$defs": links})
    assert "$" not in json.dumps(tool)
    loop = {"type": "object", "properties": {"left": {"$ref": "#/$defs/A"}}}
    (tool,) = ChatView.of(None, {**loop, "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}}).tools
    assert tool["function"]["parameters"]["properties"] == {"left": {}}


def test_all_parts_of_a_schema_have_their_fields() -> None:
    parts = [{"type": "object", "properties": {name: {"type": "string"}}, "required": [name]} for name in "ab"]
    schema = {"allOf": parts, "properties": {"c": {"type": "string"}}, "required": ["c"]}
    (tool,) = ChatView.of(None, {}, [{"name": "move", "input_schema": schema}]).tools
    parameters = tool["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == (["a", "b", "c"], ["a", "b", "c"])


def test_names_that_endpoints_refuse_are_changed_and_still_call_the_tool() -> None:
    listed = [{"name": name, "input_schema": {}} for name in ("math.add", "math-add", "math_add", "close", "x" * 80)]
    view = ChatView.of(None, {}, listed)
    names = [tool["function"]["name"] for tool in view.tools]
    assert names == ["math_add", "math-add", "math_add_2", "x" * 64]
    (call,) = view.actions(called("math_add", '{"a": 1}'))
    assert call.action == {"type": "call_tool", "tool_name": "math.add", "arguments": {"a": 1}}
    (call,) = view.actions(called("math_add_2", "{}"))
    assert call.action is not None
    assert call.action["tool_name"] == "math_add"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["mark", "call_1", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "type", "function", "name", "arguments", "text"]), inner, max_size=4)
    ),
    max_leaves=8,
)
FUNCTIONS = st.fixed_dictionaries({}, optional={"name": st.just("mark") | VALUES, "arguments": VALUES}) | VALUES
ENTRIES = st.fixed_dictionaries({}, optional={"id": VALUES, "type": VALUES, "function": FUNCTIONS}) | VALUES
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant")}, optional={"content": VALUES, "tool_calls": st.lists(ENTRIES, max_size=4) | VALUES}
)
VIEWS = [
    TOOL,
    *(
        ChatView.of(Chat(answer=answer), MARK)
        for answer in (JsonAnswer(), TagAnswer(tag="a"), RegexAnswer(pattern="(?P<row>.)"))
    ),
]


@given(MESSAGES, st.sampled_from(VIEWS))
def test_any_message_gives_calls_that_an_endpoint_accepts_the_answers_of(
    message: dict[str, Any], view: ChatView
) -> None:
    calls = view.actions(message)
    assert calls
    assert all((call.action is None) is (call.error is not None) for call in calls)
    replies = [
        view.result(call, {"text": "ok"}, False) if call.error is None else view.invalid(call) for call in calls
    ]
    check_protocol(message, replies)
    again = view.actions(message)
    assert [call.call_id for call in again] == [call.call_id for call in calls]


def check_protocol(message: dict[str, Any], replies: list[dict[str, Any]]) -> None:
    """What endpoints require of an assistant message and the messages after it."""
    entries = message.get("tool_calls", ())
    if not entries:
        assert "tool_calls" not in message
        assert [reply["role"] for reply in replies] == ["user"]
        assert message["content"] is not None
        return
    assert [reply["tool_call_id"] for reply in replies] == [entry["id"] for entry in entries]
    assert len({entry["id"] for entry in entries}) == len(entries)
    for entry, reply in zip(entries, replies, strict=True):
        assert (entry["type"], reply["role"]) == ("function", "tool")
        assert 0 < len(entry["function"]["name"]) <= 64
        assert isinstance(json.loads(entry["function"]["arguments"]), dict)
