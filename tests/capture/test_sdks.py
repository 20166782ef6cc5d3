"""The vendors' SDKs through the proxy: every API, streaming and not, with tools and reasoning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openenv.capture import CaptureServer

from ..model_server import ModelServer
from .requests import check_sequence

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ASKED = "Say something that is not short."


# The tests import the SDKs: that takes seconds, which processes that only collect them need not spend.
@pytest.fixture(scope="module")
def openai() -> Any:
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def anthropic() -> Any:
    return pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def genai() -> Any:
    return pytest.importorskip("google.genai")


@pytest.fixture
def key(proxy: CaptureServer) -> str:
    return proxy.open("sdk")


@pytest.mark.parametrize("model", ["echo", "thinking", "refuse", "filtered", "tool"])
def test_chat_completions_are_those_of_the_engine(
    proxy: CaptureServer, engine: ModelServer, key: str, model: str, openai: Any
) -> None:
    function = {"name": "guess", "description": "Guesses.", "parameters": SCHEMA}
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": ASKED}],
        "tools": [{"type": "function", "function": function}],
    }
    answers, streams = [], []
    for url in (engine.url, proxy.url):
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
            answers.append(client.chat.completions.create(**asked).to_dict())
            options = {"stream": True, "stream_options": {"include_usage": True}}
            streams.append([chunk.to_dict() for chunk in client.chat.completions.create(**asked, **options)])
    for answer in [*answers, *streams[0], *streams[1]]:
        without_numbers(answer)
    assert answers[0] == answers[1]
    assert streams[0] == streams[1]
    for sequence in proxy.export(key)["sequences"]:
        check_sequence(sequence)


def without_numbers(answer: dict[str, Any]) -> None:
    """Removes the numbers that the engine gives to its answers."""
    answer.pop("id")
    for choice in answer["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)


@pytest.mark.parametrize("stream", [False, True])
def test_responses(proxy: CaptureServer, key: str, stream: bool, openai: Any) -> None:
    tools = [{"type": "function", "name": "guess", "parameters": SCHEMA, "strict": False}]
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key) as client:

        def respond(**asked: Any) -> Any:
            if not stream:
                return client.responses.create(**asked)
            with client.responses.stream(**asked) as events:
                for _ in events:
                    pass
                return events.get_final_response()

        assert respond(model="echo", input=ASKED).output_text == ASKED
        first = respond(model="thinking", input=ASKED, tools=tools)
        thought, call = first.output
        assert thought.encrypted_content == "oe:The first tool should do."
        assert json.loads(call.arguments) == {"n": 0}
        said = [{"role": "user", "content": ASKED}, *(item.to_dict() for item in first.output)]
        said.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
        assert respond(model="echo", input=said, tools=tools).output_text == "7"
    assert [turn["dialect"] for turn in proxy.export(key)["turns"]] == ["responses"] * 3
    assert proxy.export(key)["turns"][2]["parent_id"] == "turn-1"


@pytest.mark.parametrize("stream", [False, True])
def test_messages(proxy: CaptureServer, key: str, stream: bool, anthropic: Any) -> None:
    tools = [{"name": "guess", "description": "Guesses.", "input_schema": SCHEMA}]
    with anthropic.Anthropic(base_url=proxy.url, api_key=key) as client:

        def create(**asked: Any) -> Any:
            if not stream:
                return client.messages.create(max_tokens=500, **asked)
            with client.messages.stream(max_tokens=500, **asked) as events:
                return events.get_final_message()

        said: list[Any] = [{"role": "user", "content": ASKED}]
        answer = create(model="echo", system="Be kind.", messages=said)
        assert (answer.content[0].text, answer.stop_reason) == (ASKED, "end_turn")
        first = create(model="thinking", system="Be kind.", messages=said, tools=tools)
        thought, call = first.content
        assert (thought.thinking, call.input, first.stop_reason) == (
            "The first tool should do.",
            {"n": 0},
            "tool_use",
        )
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
        said += [{"role": "assistant", "content": [block.to_dict() for block in first.content]}]
        said += [{"role": "user", "content": [result]}]
        last = create(model="echo", system="Be kind.", messages=said, tools=tools)
        assert last.content[0].text == "7"
        assert (
            last.usage.input_tokens + last.usage.cache_read_input_tokens == proxy.export(key)["turns"][2]["n_prompt"]
        )
    assert proxy.export(key)["turns"][2]["parent_id"] == "turn-1"


@pytest.mark.parametrize("stream", [False, True])
def test_generate_content(proxy: CaptureServer, key: str, stream: bool, genai: Any) -> None:
    types = genai.types
    declared = types.FunctionDeclaration(name="guess", description="Guesses.", parameters_json_schema=SCHEMA)
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with genai.Client(api_key=key, http_options=types.HttpOptions(base_url=proxy.url)) as client:

        def parts(model: str, contents: Any, config: Any = None) -> list[Any]:
            if not stream:
                whole = [client.models.generate_content(model=model, contents=contents, config=config)]
            else:
                whole = list(client.models.generate_content_stream(model=model, contents=contents, config=config))
            assert str(whole[-1].candidates[0].finish_reason).endswith("STOP")
            return [part for each in whole for part in each.candidates[0].content.parts or ()]

        assert "".join(part.text for part in parts("echo", ASKED)) == ASKED
        said = [types.Content(role="user", parts=[types.Part(text=ASKED)])]
        made = parts("thinking", said, config)
        assert made[0].thought
        call = next(part.function_call for part in made if part.function_call)
        assert (call.name, call.args) == ("guess", {"n": 0})
        said.append(types.Content(role="model", parts=made))
        result = types.FunctionResponse(id=call.id, name="guess", response={"result": "7"})
        said.append(types.Content(role="user", parts=[types.Part(function_response=result)]))
        assert "".join(part.text for part in parts("echo", said, config)) == "7"
    assert proxy.export(key)["turns"][2]["parent_id"] == "turn-1"


def test_errors_have_the_form_of_each_api(
    proxy: CaptureServer, engine: ModelServer, openai: Any, anthropic: Any, genai: Any
) -> None:
    for client, call in (
        (openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="nobody"), lambda each: each.models.list()),
        (
            anthropic.Anthropic(base_url=proxy.url, api_key="nobody"),
            lambda each: each.messages.create(
                model="echo", max_tokens=5, messages=[{"role": "user", "content": "hello"}]
            ),
        ),
    ):
        with client, pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError), match="no session"):
            call(client)
    with genai.Client(api_key="nobody", http_options=genai.types.HttpOptions(base_url=proxy.url)) as client:
        with pytest.raises(genai.errors.ClientError, match="no session"):
            client.models.generate_content(model="echo", contents="hello")
    assert engine.requests == 0


def test_the_retries_of_an_sdk_sample_nothing(
    proxy: CaptureServer, engine: ModelServer, key: str, openai: Any
) -> None:
    engine.latency_s = 0.5
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key, timeout=0.2, max_retries=5) as client:
        answer = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": ASKED}])
    assert answer.choices[0].message.content == ASKED
    assert len(engine.samples) == 1
    assert len(proxy.export(key)["turns"]) == 1
