"""Both clients against a real server: what they send, what they read, and what they say when it goes wrong."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from openenv.errors import ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from openenv.llm import AnthropicClient, LLMClient, LLMResponse, OpenAIClient, ToolCall, create_llm_client

from .server import PATIENCE_S, Answer, chat, message

KEY = "sk-not-for-anybody"
CLIENTS = [OpenAIClient, AnthropicClient]
HELLO = {OpenAIClient: chat("hello"), AnthropicClient: message({"type": "text", "text": "hello"})}


@pytest.fixture
def client(server, sdk):
    def make(cls: type[Any] = OpenAIClient, *args: Any, **settings: Any) -> Any:
        settings = {"api_key": KEY, "backoff_s": 0.0, "sdk": sdk, **settings}
        made.append(cls(settings.pop("endpoint", server.url), settings.pop("port", None), "small", *args, **settings))
        return made[-1]

    made: list[Any] = []
    yield make
    for one in made:
        asyncio.run(one.aclose())


# What they send


async def test_a_prompt_is_a_chat_of_one_message(server, client):
    server.will_answer(chat("hello"))
    assert await client(OpenAIClient).complete("hi") == "hello"
    assert server.path == "/v1/chat/completions"
    assert server.headers["authorization"] == f"Bearer {KEY}"
    assert server.body == {
        "model": "small",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.0,
        "max_tokens": 256,
    }


async def test_a_prompt_is_a_message_to_anthropic(server, client, sdk):
    server.will_answer(message({"type": "text", "text": "hel"}, {"type": "thinking"}, {"type": "text", "text": "lo"}))
    assert await client(AnthropicClient, system_prompt="Be brief.").complete("hi") == "hello"
    assert server.path == "/v1/messages"
    # The SDK shows the key in a way of its own.
    assert KEY in (server.headers["authorization"] if sdk else server.headers["x-api-key"])
    assert server.headers["anthropic-version"] == "2023-06-01"
    assert server.body == {
        "model": "small",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "system": "Be brief.",
        "temperature": 0.0,
        "max_tokens": 256,
    }


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_call_may_have_settings_of_its_own(server, client, cls):
    server.will_answer(HELLO[cls])
    await client(cls, temperature=0.5, max_tokens=10).complete("hi", temperature=1.0, max_tokens=5, top_p=0.25)
    assert {key: server.body[key] for key in ("temperature", "max_tokens", "top_p")} == {
        "temperature": 1.0,
        "max_tokens": 5,
        "top_p": 0.25,
    }


@pytest.mark.parametrize("own", [{}, {"max_tokens": 5, "temperature": 1.0}, {"max_completion_tokens": 5}])
async def test_a_reasoning_model_gets_the_limit_under_its_name_and_no_temperature(server, client, own):
    server.will_answer(chat())
    await client(OpenAIClient, use_max_completion_tokens=True).complete("hi", **own)
    assert server.body == {
        "model": "small",
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 5 if own else 256,
    }


async def test_the_system_prompt_comes_first_unless_there_is_one(server, client):
    server.will_answer(chat())
    told = client(OpenAIClient, system_prompt="Be brief.")
    await told.complete("hi")
    assert server.body["messages"][0] == {"role": "system", "content": "Be brief."}
    own = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "hi"}]
    await told.complete_with_tools(own, [])
    assert server.body["messages"] == own
    assert "tools" not in server.body


@pytest.mark.parametrize(
    ("cls", "endpoint", "path"),
    [
        (OpenAIClient, "", "/v1/chat/completions"),
        (OpenAIClient, "/", "/v1/chat/completions"),
        (OpenAIClient, "/v1/", "/v1/chat/completions"),
        (OpenAIClient, "/api/openai", "/api/openai/chat/completions"),
        (AnthropicClient, "", "/v1/messages"),
        (AnthropicClient, "/v1", "/v1/messages"),
        (AnthropicClient, "/anthropic", "/anthropic/v1/messages"),
    ],
)
async def test_the_path_of_an_endpoint_is_kept(server, client, cls, endpoint, path):
    server.will_answer(HELLO[cls])
    await client(cls, endpoint="http://127.0.0.1" + endpoint, port=server.port).complete("hi")
    assert server.path == path


async def test_without_a_key_none_is_sent(server, client, monkeypatch):
    """Not even one that lies about in the environment: the endpoint may be anybody's."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, KEY)
    for cls in CLIENTS:
        server.will_answer(HELLO[cls])
        await client(cls, api_key=None).complete("hi")
        assert KEY not in str(server.headers)


async def test_a_local_server_is_not_looked_for_behind_a_proxy(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    server.will_answer(chat("hello"))
    async with OpenAIClient(server.url, None, "small", sdk=False, retries=0) as client:
        assert await client.complete("hi") == "hello"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.3", True), ("[::1]", True), ("10.0.0.1", False), ("models.example", False)],
)
def test_which_servers_are_local(host, loopback):
    assert OpenAIClient(f"http://{host}", 8000, "small")._address().is_loopback is loopback


# Tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "weather", "description": "How it is.", "inputSchema": SCHEMA},
    {"name": "weather", "description": "How it is.", "input_schema": SCHEMA},
    {"type": "function", "function": {"name": "weather", "description": "How it is.", "parameters": SCHEMA}},
    SimpleNamespace(name="weather", description="How it is.", input_schema=SCHEMA),
]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is it in Rome and Oslo?"},
    LLMResponse(
        "Let me see.",
        [ToolCall("t1", "weather", {"city": "Rome"}), ToolCall("t2", "weather", {"city": "Oslo"})],
    ).to_message_dict(),
    {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "t2", "content": "snow"},
    {"role": "user", "content": "And tomorrow?"},
]


@pytest.mark.parametrize("tool", TOOLS, ids=["mcp", "snake", "openai", "object"])
async def test_tools_are_offered_and_called(server, client, tool):
    called = {"id": "t3", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    server.will_answer(chat(None, tool_calls=[called]))
    response = await client(OpenAIClient).complete_with_tools(TALK, [tool])
    assert response == LLMResponse("", [ToolCall("t3", "weather", {"city": "Rome"})])
    assert server.body["messages"] == TALK
    assert server.body["tools"] == [
        {"type": "function", "function": {"name": "weather", "description": "How it is.", "parameters": SCHEMA}}
    ]


@pytest.mark.parametrize("tool", TOOLS, ids=["mcp", "snake", "openai", "object"])
async def test_anthropic_gets_tools_and_talk_in_its_own_form(server, client, tool):
    call = {"type": "tool_use", "id": "t3", "name": "weather", "input": {"city": "Rome"}}
    server.will_answer(message({"type": "text", "text": "Once more."}, call))
    response = await client(AnthropicClient).complete_with_tools(TALK, [tool])
    assert response == LLMResponse("Once more.", [ToolCall("t3", "weather", {"city": "Rome"})])
    assert server.body["tools"] == [{"name": "weather", "description": "How it is.", "input_schema": SCHEMA}]
    assert server.body["system"] == "Be brief."
    assert server.body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "How is it in Rome and Oslo?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "t2", "content": "snow"},
                {"type": "text", "text": "And tomorrow?"},
            ],
        },
    ]


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_tool_without_a_name_is_refused(client, cls):
    with pytest.raises(ValueError, match="name"):
        await client(cls).complete_with_tools([], [{"description": "?"}])


@pytest.mark.parametrize("arguments", ["{bad", "[1]", "3", 5])
async def test_arguments_that_are_no_object_are_an_error(server, client, arguments):
    server.will_answer(chat(None, tool_calls=[{"id": "t", "function": {"name": "f", "arguments": arguments}}]))
    with pytest.raises(ModelFailed, match="arguments are not a JSON object"):
        await client(OpenAIClient).complete_with_tools([{"role": "user", "content": "hi"}], TOOLS)


async def test_a_call_of_a_tool_that_was_not_offered_leaves_the_text(server, client):
    server.will_answer(chat("fine", tool_calls=[{"id": "t", "function": {"name": "f", "arguments": "{cut"}}]))
    assert await client(OpenAIClient).complete("hi") == "fine"


async def test_a_tool_may_take_no_arguments(server, client):
    server.will_answer(chat(None, tool_calls=[{"id": "t", "function": {"name": "f", "arguments": ""}}]))
    response = await client(OpenAIClient).complete_with_tools([{"role": "user", "content": "hi"}], TOOLS)
    assert response.tool_calls == [ToolCall("t", "f", {})]


def test_an_answer_can_be_put_into_a_conversation():
    assert LLMResponse("yes").to_message_dict() == {"role": "assistant", "content": "yes"}
    assert TALK[2]["tool_calls"][0] == {
        "id": "t1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }


# What they read


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("", ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
async def test_content_of_any_form_is_text(server, client, content, text):
    server.will_answer(chat(content))
    assert await client(OpenAIClient).complete("hi") == text


@pytest.mark.parametrize("cls", CLIENTS)
@pytest.mark.parametrize(
    "garbage", ["{garbage", "", "[]", "null", "<html>", "{}", '{"choices": []}', '{"content": 3}']
)
async def test_garbage_is_an_error_that_shows_it(server, client, cls, garbage):
    server.will_answer(garbage)
    with pytest.raises(
        ModelFailed, match=r"small at 127\.0\.0\.1:\d+ answered with no .*API of this client"
    ) as failed:
        await client(cls).complete("hi")
    assert (failed.value.retryable, len(server.requests)) == (False, 1)


# When it goes wrong


@pytest.mark.parametrize("cls", CLIENTS)
@pytest.mark.parametrize("status", [500, 502, 529, 429, 408])
async def test_what_may_pass_is_tried_again(server, client, cls, status):
    server.will_answer(Answer({"error": {"message": "busy"}}, status), Answer("down", status), HELLO[cls])
    assert await client(cls).complete("hi") == "hello"
    assert len(server.requests) == 3


@pytest.mark.parametrize("cls", CLIENTS)
async def test_three_times_500_is_the_end(server, client, cls):
    server.will_answer(Answer({"type": "error", "error": {"type": "api_error", "message": "no GPU left"}}, 500))
    with pytest.raises(ModelUnavailable, match=r"small at 127\.0\.0\.1:\d+ answered 500: no GPU left") as failed:
        await client(cls).complete("hi")
    assert (failed.value.status, failed.value.retryable, len(server.requests)) == (500, True, 3)


@pytest.mark.parametrize("cls", CLIENTS)
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {"error": {"message": f"wrong key {KEY}"}}, r"answered 401: wrong key \[key\] \(check api_key\)"),
        (404, {"detail": "no such model"}, r"answered 404: no such model \(check the endpoint and the name"),
        (400, {"error": "max_tokens is too large"}, "answered 400: max_tokens is too large"),
        (422, "not JSON", "answered 422: not JSON"),
        (400, "", "answered 400: nothing"),
    ],
)
async def test_a_refusal_is_told_and_not_tried_again(server, client, cls, status, body, told):
    server.will_answer(Answer(body, status))
    with pytest.raises(ModelFailed, match=told) as failed:
        await client(cls).complete("hi")
    assert (failed.value.status, failed.value.retryable, len(server.requests)) == (status, False, 1)
    assert KEY not in str(failed.value)


@pytest.mark.parametrize("cls", CLIENTS)
async def test_retry_after_is_told_if_it_is_too_long_to_wait(server, client, cls):
    server.will_answer(Answer({"error": "slow down"}, 429, {"retry-after": "3600"}))
    with pytest.raises(ModelUnavailable, match="slow down") as failed:
        await client(cls).complete("hi")
    assert (failed.value.retry_after_s, len(server.requests)) == (3600.0, 1)


@pytest.mark.parametrize("header", ["0", "0.01", "Wed, 21 Oct 2015 07:28:00 GMT", "-1", "inf", "soon"])
async def test_retry_after_is_honoured_or_passed_over(server, client, header):
    server.will_answer(Answer("slow down", 429, {"retry-after": header}), chat("hello"))
    assert await client(OpenAIClient).complete("hi") == "hello"


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_connection_that_breaks_is_tried_again(server, client, cls):
    server.will_answer(Answer(hang_up=True), HELLO[cls])
    assert await client(cls).complete("hi") == "hello"


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_server_that_is_not_there_is_told(client, cls):
    nobody = client(cls, endpoint="http://127.0.0.1:9", retries=1)
    with pytest.raises(ModelUnavailable, match=r"no answer from 127\.0\.0\.1:9: .*is its server running") as failed:
        await nobody.complete("hi")
    assert failed.value.status is None


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_late_answer_is_an_error_in_time(server, client, cls):
    answer = threading.Event()
    server.will_answer(Answer(HELLO[cls], before=answer.wait))
    with pytest.raises(ModelTimeout, match=r"did not answer within 0\.05 s.*timeout_s") as failed:
        await client(cls, timeout_s=0.05).complete("hi")
    answer.set()
    assert isinstance(failed.value, TimeoutError)
    assert failed.value.retryable


async def test_an_answer_without_an_end_is_refused(server, monkeypatch):
    monkeypatch.setattr("openenv.llm.sender._MAX_ANSWER_BYTES", 1000)
    server.will_answer(chat("x" * 2000))
    async with OpenAIClient(server.url, None, "small", sdk=False) as client:
        with pytest.raises(ModelFailed, match="more than 1000 bytes"):
            await client.complete("hi")


async def test_a_cancelled_call_ends_at_once(server, client):
    asked, answer = threading.Event(), threading.Event()
    server.will_answer(Answer(chat(), before=lambda: (asked.set(), answer.wait())))
    call = asyncio.ensure_future(client().complete("hi"))
    assert await asyncio.to_thread(asked.wait, PATIENCE_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    answer.set()


# Keys


@pytest.mark.parametrize("cls", CLIENTS)
def test_the_key_is_in_no_repr(client, cls):
    made = client(cls, endpoint="http://user:secret@127.0.0.1:8000")
    assert repr(made) == f"{cls.__name__}('127.0.0.1:8000', model='small')"
    for shown in (repr(made), str(vars(made)), repr(made._address())):
        assert KEY not in shown


# Where they are used


def test_one_client_serves_several_loops_over_one_connection(server, client):
    server.will_answer(chat("hello"))
    one = client(OpenAIClient)
    for _ in range(3):
        assert asyncio.run(one.complete("hi")) == "hello"
    threads = [threading.Thread(target=lambda: asyncio.run(one.complete("hi"))) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert (len(server.requests), server.connections) == (5, 1)


async def test_calls_run_at_the_same_time(server, client):
    together = threading.Barrier(8)
    server.will_answer(Answer(chat("hello"), before=lambda: together.wait(PATIENCE_S)))
    one = client(OpenAIClient)
    assert await asyncio.gather(*(one.complete("hi") for _ in range(8))) == ["hello"] * 8


@pytest.mark.parametrize("cls", CLIENTS)
async def test_a_closed_client_holds_nothing_and_can_be_used_again(server, client, cls):
    server.will_answer(HELLO[cls])
    async with client(cls) as one:
        await one.complete("hi")
    await one.aclose()
    assert await one.complete("hi") == "hello"
    assert server.connections == 2


@pytest.mark.parametrize("cls", CLIENTS)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda client: pickle.loads(pickle.dumps(client))])
async def test_a_copy_has_connections_of_its_own(server, client, cls, copied):
    server.will_answer(HELLO[cls])
    one = client(cls)
    await one.complete("hi")
    async with copied(one) as other:
        assert await other.complete("hi") == "hello"
    assert server.connections == 2


def _ask(client: LLMClient, answers: Any) -> None:
    answers.put(asyncio.run(client.complete("hi")))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_client_works_in_a_forked_child(server, client):
    server.will_answer(chat("hello"))
    one = client(OpenAIClient)
    asyncio.run(one.complete("hi"))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_ask, args=(one, answers))
    child.start()
    child.join(10)
    assert child.exitcode == 0
    assert answers.get() == "hello"
    assert asyncio.run(one.complete("hi")) == "hello"


# Making one


@pytest.mark.parametrize(
    ("endpoint", "port", "base"),
    [
        ("http://h", 80, "http://h:80"),
        ("http://h/v1/", 9, "http://h:9/v1"),
        ("https://h:7", None, "https://h:7"),
        ("https://h:7", 7, "https://h:7"),
        ("http://[::1]", 5, "http://[::1]:5"),
    ],
)
@pytest.mark.parametrize("cls", CLIENTS)
def test_endpoint_and_port_make_an_address(cls, endpoint, port, base):
    client = cls(endpoint, port, "small")
    assert (client.base_url, client.endpoint, client.port, client.model) == (base, endpoint, port, "small")


@pytest.mark.parametrize(
    ("endpoint", "port"), [("h", 8), ("h:8", None), ("ftp://h", 8), ("http://", 8), ("http://h:7", 9)]
)
@pytest.mark.parametrize("cls", CLIENTS)
def test_a_wrong_endpoint_is_told_at_once(cls, endpoint, port):
    with pytest.raises(ValueError, match="endpoint"):
        cls(endpoint, port, "small")


@pytest.mark.parametrize(
    ("provider", "cls"), [("openai", OpenAIClient), ("OpenAI", OpenAIClient), ("anthropic", AnthropicClient)]
)
def test_a_client_is_made_by_its_providers_name(provider, cls):
    client = create_llm_client(provider, "small", KEY, system_prompt="Be brief.", temperature=0.5, max_tokens=9)
    assert type(client) is cls
    assert client.base_url == f"https://api.{provider.lower()}.com:443"
    assert (client.system_prompt, client.temperature, client.max_tokens) == ("Be brief.", 0.5, 9)
    assert create_llm_client(provider, "small").max_tokens == 4096


@pytest.mark.parametrize(
    ("model", "reasons"), [("o1", True), ("o3-mini", True), ("gpt-5-mini", True), ("gpt-4o", False)]
)
def test_reasoning_models_are_known_by_their_names(model, reasons):
    assert create_llm_client("openai", model, KEY).use_max_completion_tokens is reasons


def test_an_unknown_provider_is_told_what_there_is():
    with pytest.raises(ValueError, match=r"anthropic.*openai.*OpenAIClient"):
        create_llm_client("elsewhere", "small", KEY)


async def test_a_client_of_ones_own_needs_one_method():
    class Parrot(LLMClient):
        async def complete(self, prompt, **kwargs):
            return prompt

    async with Parrot("http://nowhere", 0) as parrot:
        assert await parrot.complete("hi") == "hi"
        with pytest.raises(NotImplementedError, match="Parrot"):
            await parrot.complete_with_tools([], [])
    with pytest.raises(TypeError, match="complete"):
        LLMClient("http://nowhere", 0)


# What is installed


@pytest.mark.parametrize("cls", CLIENTS)
async def test_an_sdk_that_was_asked_for_must_be_there(cls, monkeypatch):
    monkeypatch.setitem(sys.modules, cls.__name__.removesuffix("Client").lower(), None)
    with pytest.raises(UsageError, match="pip install (openai|anthropic)"):
        await cls("http://127.0.0.1", 9, "small", sdk=True).complete("hi")


@pytest.mark.slow
def test_making_a_client_loads_no_library_for_it():
    code = (
        "import sys, openenv.llm, openenv.rubrics\n"
        "openenv.llm.create_llm_client('openai', 'small', 'k')\n"
        "print(sorted({'openai', 'anthropic', 'fastapi'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
