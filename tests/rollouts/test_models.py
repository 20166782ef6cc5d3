"""The models behind an API, against an endpoint that speaks all of them: what they send, read and say."""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.errors import ContextOverflow, InvalidArgument, ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from openenv.llm.messages import parse_hermes
from openenv.rollouts import rollouts, segments
from openenv.rollouts.endpoint_model import EndpointModel, ModelPrice
from openenv.rollouts.model import Completion, ModelRequest, Sampling
from openenv.rollouts.offline_models import FunctionModel
from openenv.rollouts.records import TokenUsage
from openenv.rollouts.vendor_models import AnthropicModel, OpenAIModel, ResponsesModel, create_model

from ..model_server import ModelReply, ModelServer, PairTokenizer, logprob_of, model_server
from ..ports import held_port
from .environments import Sums

KEY = "sk-not-for-anybody"
MODELS = [OpenAIModel, ResponsesModel, AnthropicModel]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "Guesses.",
            "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        },
    }
]
HELLO = [{"role": "user", "content": "hello"}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": "http://h/i"}],
    },
    {
        "role": "assistant",
        "content": "I guess.",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "guess", "arguments": '{"n": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "t1", "content": "too low"},
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as served:
        yield served


async def complete(model: EndpointModel, **request: Any) -> Completion:
    """One call, after which the model's connections are closed."""
    try:
        return await model.complete(ModelRequest(**{"messages": HELLO, **request}))
    finally:
        await model.aclose()


def made(cls: type[EndpointModel], name: str, server: ModelServer, **settings: Any) -> EndpointModel:
    return cls(name, server.url, settings.pop("api_key", KEY), **{"backoff_s": 0.0, "timeout_s": 60.0, **settings})


# What they read

either_way = pytest.mark.parametrize("stall_s", [None, 30.0], ids=["whole", "streamed"])
each_model = pytest.mark.parametrize("cls", MODELS)


@either_way
@each_model
async def test_a_text_is_the_answers_message(server, cls, stall_s):
    completion = await complete(made(cls, "echo", server, stall_s=stall_s))
    assert completion.message == {"role": "assistant", "content": "hello"}
    assert (completion.finish_reason, completion.refused, completion.model) == ("stop", False, "echo")
    assert completion.usage.completion_tokens == 4
    assert completion.usage.prompt_tokens > completion.usage.cached_tokens > 0


@either_way
@each_model
async def test_a_tool_call_is_part_of_the_message(server, cls, stall_s):
    completion = await complete(made(cls, "thinking", server, stall_s=stall_s), tools=TOOLS)
    (call,) = completion.message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "guess")
    assert json.loads(call["function"]["arguments"]) == {"n": 0}
    assert completion.message["reasoning_content"] == "The first tool should do."
    assert completion.finish_reason == "tool_calls"


@either_way
@each_model
@pytest.mark.parametrize("policy", ["refuse", "filtered"])
async def test_a_refusal_is_known(server, cls, stall_s, policy):
    assert (await complete(made(cls, policy, server, stall_s=stall_s))).refused


@either_way
@each_model
async def test_a_cut_answer_says_so(server, cls, stall_s):
    completion = await complete(made(cls, "echo", server, stall_s=stall_s), sampling=Sampling(max_tokens=2))
    assert (completion.message["content"], completion.finish_reason) == ("hell", "length")


@each_model
async def test_signed_reasoning_goes_back_to_its_api(server, cls):
    """Anthropic and OpenAI refuse a conversation whose tool calls have lost the reasoning before them."""
    first = await complete(made(cls, "thinking", server), tools=TOOLS)
    call_id = first.message["tool_calls"][0]["id"]
    answer = {"role": "tool", "tool_call_id": call_id, "content": "too low"}
    await complete(made(cls, "thinking", server), tools=TOOLS, messages=[*HELLO, first.message, answer])
    assert "The first tool should do." in json.dumps(server.seen[-1].body)
    assert call_id in json.dumps(server.seen[-1].body)


async def test_the_cost_is_that_of_the_price_table(server):
    prices = {"echo": ModelPrice(prompt=1.0, completion=10.0, cached=0.5), "tool": ModelPrice(1.0, 1.0)}
    usage = (await complete(made(OpenAIModel, "echo", server, prices=prices))).usage
    fresh = usage.prompt_tokens - usage.cached_tokens
    assert usage.cost == pytest.approx((fresh + 0.5 * usage.cached_tokens + 10 * usage.completion_tokens) / 1e6)
    assert (await complete(made(OpenAIModel, "bytewise", server, prices=prices))).usage.cost is None


def test_cached_tokens_cost_as_others_unless_they_have_a_price():
    assert ModelPrice(2.0, 3.0).cost_of(TokenUsage(prompt_tokens=10, cached_tokens=5)) == pytest.approx(20e-6)


# What they send


async def test_chat_completions_get_the_conversation_as_it_is(server):
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=64, stop=["END"], extra={"top_k": 20})
    await complete(
        made(OpenAIModel, "echo", server, token_ids=False), messages=TALK, tools=TOOLS, sampling=sampling, key="k1"
    )
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions"
    assert (seen.headers["authorization"], seen.headers["idempotency-key"]) == (f"Bearer {KEY}", "k1")
    assert seen.body == {
        "model": "echo",
        "messages": TALK,
        "tools": TOOLS,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "stop": ["END"],
        "top_k": 20,
    }


async def test_anthropic_gets_blocks(server):
    await complete(made(AnthropicModel, "echo", server), messages=TALK, tools=TOOLS, sampling=Sampling(stop=["END"]))
    (seen,) = server.seen
    assert (seen.path, seen.headers["x-api-key"]) == ("/v1/messages", KEY)
    assert seen.body == {
        "model": "echo",
        "system": "Be brief.",
        "max_tokens": 4096,
        "stop_sequences": ["END"],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image", "source": {"type": "url", "url": "http://h/i"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I guess."},
                    {"type": "tool_use", "id": "t1", "name": "guess", "input": {"n": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "too low"}]},
        ],
        "tools": [
            {
                "name": "guess",
                "description": "Guesses.",
                "input_schema": TOOLS[0]["function"]["parameters"],
            }
        ],
    }


async def test_responses_get_items(server):
    await complete(made(ResponsesModel, "echo", server), messages=TALK, tools=TOOLS, sampling=Sampling(max_tokens=64))
    (seen,) = server.seen
    assert seen.path == "/v1/responses"
    assert seen.body == {
        "model": "echo",
        "store": False,
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look:"},
                    {"type": "input_image", "image_url": "http://h/i"},
                ],
            },
            {"role": "assistant", "content": "I guess."},
            {"type": "function_call", "call_id": "t1", "name": "guess", "arguments": '{"n": 1}'},
            {"type": "function_call_output", "call_id": "t1", "output": "too low"},
        ],
        "tools": [{"type": "function", "strict": False, **TOOLS[0]["function"]}],
    }


async def test_an_image_within_the_message_is_sent_as_its_bytes(server):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
    await complete(made(AnthropicModel, "echo", server), messages=[{"role": "user", "content": [image]}])
    source = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
    assert server.seen[0].body["messages"][0]["content"] == [{"type": "image", "source": source}]


async def test_a_malformed_tool_call_can_stay_in_a_conversation(server):
    """What the model wrote goes back to it: Anthropic takes objects only, so it gets the text in one."""
    completion = await complete(made(OpenAIModel, "garble", server), tools=TOOLS)
    assert completion.message["tool_calls"][0]["function"]["arguments"] == "{broken"
    await complete(made(AnthropicModel, "echo", server), messages=[*HELLO, completion.message])
    block = server.seen[-1].body["messages"][1]["content"][0]
    assert (block["type"], block["input"]) == ("tool_use", {"invalid": "{broken"})


async def test_reasoning_models_get_the_limit_under_its_name(server):
    server.policies = {"o3": lambda messages, tools: "yes"}
    await complete(made(OpenAIModel, "o3", server, token_ids=False), sampling=Sampling(max_tokens=9))
    assert server.seen[-1].body["max_completion_tokens"] == 9
    await complete(made(ResponsesModel, "o3", server))
    assert server.seen[-1].body["include"] == ["reasoning.encrypted_content"]


async def test_responses_know_no_stop_texts(server):
    with pytest.raises(InvalidArgument, match=r"Sampling\.stop.*OpenAIModel"):
        await complete(made(ResponsesModel, "echo", server), sampling=Sampling(stop=["END"]))


# Token ids


@either_way
@pytest.mark.parametrize("policy", ["echo", "bytewise"])
async def test_ids_and_logprobs_are_those_that_were_sampled(server, stall_s, policy):
    tokenizer = PairTokenizer()
    completion = await complete(made(OpenAIModel, policy, server, stall_s=stall_s))
    assert completion.tokens == "sampled"
    assert completion.prompt_ids == tokenizer.apply_chat_template(HELLO, None, True)
    assert completion.completion_ids is not None
    assert tokenizer.decode(completion.completion_ids, skip_special_tokens=True) == "hello"
    assert completion.logprobs == [logprob_of(token) for token in completion.completion_ids]
    sampled_in_pairs = completion.completion_ids[:-1] == tokenizer.encode("hello")
    assert sampled_in_pairs is (policy == "echo")


@either_way
async def test_ids_that_the_caller_has_are_left_out_of_the_answer(server, stall_s):
    prompt = PairTokenizer().apply_chat_template(HELLO, None, True)
    model = made(OpenAIModel, "echo", server, stall_s=stall_s)
    for known, rest in ((prompt[:3], prompt[3:]), ([*prompt[:2], 1], prompt), (prompt, prompt)):
        context = json.dumps(known, separators=(",", ":")).encode()[:-1] + b","
        completion = await complete(model, context=context)
        assert (completion.repeats_context, completion.prompt_ids) == (rest != prompt, rest)


@either_way
async def test_a_prompt_of_ids_is_continued(server, stall_s):
    prompt = PairTokenizer().apply_chat_template(HELLO, TOOLS, True)
    model = made(OpenAIModel, "tool", server, stall_s=stall_s, ids="completions")
    assert model.takes_ids
    completion = await complete(model, prompt_ids=prompt, tools=TOOLS, sampling=Sampling(max_tokens=99))
    assert server.seen[0].path == "/v1/completions"
    assert server.seen[0].body["prompt"] == prompt
    assert completion.prompt_ids == prompt
    assert completion.message["tool_calls"][0]["function"] == {"name": "guess", "arguments": '{"n": 0}'}
    assert completion.finish_reason == "tool_calls"
    assert completion.logprobs == [logprob_of(token) for token in completion.completion_ids or ()]


async def test_a_prompt_of_ids_needs_a_limit(server):
    """The endpoint's own is 16 tokens."""
    with pytest.raises(InvalidArgument, match=r"Sampling\.max_tokens"):
        await complete(made(OpenAIModel, "tool", server, ids="completions"), prompt_ids=[1, 2])


SGLANG = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "yes"},
            "finish_reason": "stop",
            "prompt_token_ids": [1, 2],
            "response_token_ids": [7, 8],
            "logprobs": {"content": [{"token": "yes", "logprob": -0.5}, {"token": "", "logprob": -0.25}]},
        }
    ]
}
LLAMA_CPP = {
    "choices": [
        {
            "message": {"role": "assistant", "content": "yes"},
            "finish_reason": "stop",
            "logprobs": {"content": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -0.25}]},
        }
    ]
}


@pytest.mark.parametrize(("answer", "prompt_ids"), [(SGLANG, [1, 2]), (LLAMA_CPP, None)], ids=["sglang", "llama.cpp"])
async def test_other_engines_send_ids_in_their_own_places(server, answer, prompt_ids):
    server.canned.append(answer)
    completion = await complete(made(OpenAIModel, "echo", server))
    assert (completion.prompt_ids, completion.completion_ids) == (prompt_ids, [7, 8])
    assert (completion.logprobs, completion.tokens) == ([-0.5, -0.25], "sampled")


async def test_sglang_continues_ids_by_a_field_of_chat_completions(server):
    server.canned.append(SGLANG)
    await complete(made(OpenAIModel, "echo", server, ids="input_ids"), prompt_ids=[1, 2])
    assert (server.seen[0].path, server.seen[0].body["input_ids"]) == ("/v1/chat/completions", [1, 2])


async def test_an_endpoint_that_refuses_to_send_ids_is_asked_without(server):
    server.refused_fields = {"return_token_ids"}
    model = made(OpenAIModel, "echo", server)
    for _ in range(2):
        completion = await model.complete(ModelRequest(messages=HELLO))
        assert (completion.completion_ids, completion.tokens) == (None, "none")
    assert len(server.samples) == 2
    assert len(server.seen) == 3
    await model.aclose()


@pytest.mark.parametrize("settings", [{"token_ids": True}, {"ids": "input_ids"}])
async def test_ids_that_are_required_and_missing_are_an_error(server, settings):
    server.canned.append({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]})
    with pytest.raises(ModelFailed, match="sent no token ids: use vLLM"):
        await complete(made(OpenAIModel, "echo", server, **settings))
    server.refused_fields = {"return_token_ids"}
    with pytest.raises(ModelFailed, match="return_token_ids"):
        await complete(made(OpenAIModel, "echo", server, **settings))


async def test_logprobs_that_do_not_fit_the_ids_are_an_error(server):
    server.canned.append({"choices": [{**SGLANG["choices"][0], "response_token_ids": [7]}]})
    with pytest.raises(ModelFailed, match="no chat completion"):
        await complete(made(OpenAIModel, "echo", server, retries=0))


WRONG_TYPES: list[dict[str, Any]] = [
    {"logprobs": {"content": [{"logprob": -0.5}, {"logprob": None}]}},
    {"response_token_ids": [7, "8"]},
    {"prompt_token_ids": [None, 2]},
    {"finish_reason": {"type": "stop"}},
]


@pytest.mark.parametrize("part", WRONG_TYPES, ids=lambda part: next(iter(part)))
async def test_facts_of_a_wrong_type_are_an_error(server, part):
    """In a record, they would make the file unreadable."""
    server.canned.append({"choices": [{**SGLANG["choices"][0], **part}]})
    with pytest.raises(ModelFailed, match="no chat completion"):
        await complete(made(OpenAIModel, "echo", server, retries=0))


@each_model
async def test_counts_of_a_wrong_type_are_an_error(server, cls):
    counts = {"prompt_tokens": "9", "input_tokens": "9"}
    message = {"role": "assistant", "content": "yes"}
    server.canned.append({"choices": [{"message": message}], "output": [], "content": [], "usage": counts})
    with pytest.raises(ModelFailed, match=r"no (chat completion|response|message): .*speak the API"):
        await complete(made(cls, "echo", server, retries=0))


SPACES = "\n" * 50_000
BROKEN_NAME = '<tool_call>{"name": "\\ud800"}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        ("plain", "plain", None, []),
        ("<think>hm</think>\n\nyes", "yes", "hm", []),
        ("hm</think>yes", "yes", "hm", []),
        ('ok\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "ok", None, [("f", '{"x": 1}')]),
        (
            '<tool_call>{"name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>',
            "",
            None,
            [("f", "{}"), ("g", "{}")],
        ),
        ("<tool_call>\n{broken\n</tool_call>", "<tool_call>\n{broken\n</tool_call>", None, []),
        ('<tool_call>{"name": "f"', '<tool_call>{"name": "f"', None, []),
        (f"<tool_call>{SPACES}", f"<tool_call>{SPACES}", None, []),
        (f"{SPACES}a{SPACES}b", f"{SPACES}a{SPACES}b", None, []),
        ("<tool_call>" * 10_000, "<tool_call>" * 10_000, None, []),
        (BROKEN_NAME, BROKEN_NAME, None, []),
    ],
    ids=itertools.count(),
)
def test_the_text_of_a_completion_becomes_a_message(text, content, reasoning, calls):
    message = parse_hermes(text)
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert found == calls


async def test_a_rollout_in_ids_extends_what_was_sampled(server):
    """Tokens that no tokenizer would choose for the text stay as they are, from turn to turn."""

    def guess(messages: list[Any], tools: list[Any]) -> ModelReply:
        return ModelReply(calls=[("add", '{"by": 2}')], byte_tokens=True)

    server.policies = {"mine": guess}
    model = made(OpenAIModel, "mine", server, ids="completions")
    run = rollouts(Sums, model, [7], tokenizer=PairTokenizer(), sampling=Sampling(max_tokens=200))
    ((rollout,),) = [group.rollouts async for group in run]
    await model.aclose()
    assert [turn.prefix_break for turn in rollout.turns] == [None] * 3
    assert [seen.body["prompt"] for seen in server.seen] == [
        rollout.context_ids(turns) + (rollout.turns[turns].prompt_ids or []) for turns in range(3)
    ]
    (segment,) = segments(rollout)
    sampled = [token for turn in rollout.turns for token in turn.completion_ids or ()]
    assert [token for token, learnt in zip(segment.completion_ids, segment.mask, strict=True) if learnt] == sampled


# Failures

FAULTS = ["429", "500", "503", "half", "reset"]


@either_way
@each_model
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_may_pass_is_tried_again_under_the_same_key(server, cls, stall_s, fault):
    server.plan(fault, fault)
    completion = await complete(made(cls, "echo", server, stall_s=stall_s), key="k1")
    assert completion.message["content"] == "hello"
    assert [sample.key for sample in server.samples if sample.fault is None] == ["k1"]


@each_model
@pytest.mark.parametrize("fault", ["never", "stall"])
async def test_silence_ends_an_attempt_of_a_stream(server, cls, fault):
    server.plan(fault)
    completion = await complete(made(cls, "echo", server, stall_s=0.2))
    assert completion.message["content"] == "hello"


@each_model
@pytest.mark.parametrize(("stall_s", "timeout_s"), [(0.05, None), (None, 0.05)])
async def test_an_endpoint_that_never_answers_is_an_error_in_time(server, cls, stall_s, timeout_s):
    server.faults = {"never": 1.0}
    with pytest.raises(ModelTimeout, match=r"0\.05 s.*(stall_s|timeout_s)"):
        await complete(made(cls, "echo", server, stall_s=stall_s, retries=0), timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "answered 500: busy"),
        ("429", "answered 429: busy"),
        ("half", "no answer from"),
        ("reset", "no answer"),
    ],
)
@each_model
async def test_what_does_not_pass_is_an_error_that_may_be_retried(server, cls, fault, said):
    server.faults = {fault: 1.0}
    with pytest.raises(ModelUnavailable, match=said) as failed:
        await complete(made(cls, "echo", server, retries=1))
    assert failed.value.retryable


@each_model
async def test_garbage_is_an_error_that_shows_it(server, cls):
    server.faults = {"garbage": 1.0}
    with pytest.raises(ModelUnavailable, match=r"no JSON object: '<html>garbage.*speak the API"):
        await complete(made(cls, "echo", server, retries=1))


@each_model
async def test_an_answer_after_garbage_is_taken_under_the_same_key(server, cls):
    server.plan("garbage")
    completion = await complete(made(cls, "echo", server, retries=1), key="k1")
    assert completion.message["content"] == "hello"
    assert {sample.key for sample in server.samples} == {"k1"}


@each_model
async def test_json_that_is_no_answer_is_an_error_that_shows_it(server, cls):
    server.canned.append({"choices": 3, "output": 3, "content": 3})
    with pytest.raises(ModelFailed, match=r"no (chat completion|response|message): .*speak the API"):
        await complete(made(cls, "echo", server, retries=0))


NO_STREAMS = [
    (OpenAIModel, {"choices": [{"delta": {"tool_calls": [{"function": 3}]}}]}),
    (ResponsesModel, {"type": "response.failed"}),
    (AnthropicModel, {"type": "content_block_delta", "index": 1, "delta": {"text": "a"}}),
]


@pytest.mark.parametrize(("cls", "event"), NO_STREAMS)
async def test_a_stream_that_is_no_answer_is_an_error_that_shows_it(server, cls, event):
    server.canned.append(f"data: {json.dumps(event)}\n\n")
    with pytest.raises(ModelFailed, match=r"no (chat completion|response|message): .*speak the API"):
        await complete(made(cls, "echo", server, stall_s=30.0, retries=0))


async def test_a_tool_call_that_is_cut_off_is_no_call_without_arguments(server):
    block = {"type": "tool_use", "id": "t1", "name": "guess", "input": {}}
    events = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"n": '}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
    ]
    server.canned.append("".join(f"data: {json.dumps(event)}\n\n" for event in events))
    completion = await complete(made(AnthropicModel, "echo", server, stall_s=30.0))
    assert completion.message["tool_calls"][0]["function"]["arguments"] == '{"n": '


STREAM_ERRORS = [
    (OpenAIModel, {"error": {"message": "out of memory", "code": 500}}),
    (ResponsesModel, {"type": "response.failed", "response": {"error": {"message": "out of memory"}}}),
    (AnthropicModel, {"type": "error", "error": {"type": "overloaded_error", "message": "out of memory"}}),
]


@pytest.mark.parametrize(("cls", "event"), STREAM_ERRORS)
async def test_an_error_within_a_stream_is_an_error(server, cls, event):
    server.canned.append(f"data: {json.dumps(event)}\n\n")
    with pytest.raises(ModelUnavailable, match="answered 500: out of memory"):
        await complete(made(cls, "echo", server, stall_s=30.0, retries=0))


@each_model
async def test_a_stream_that_ends_early_is_tried_again(server, cls):
    server.canned.append("data: {}\n\ndata: [DONE]\n\n")
    assert (await complete(made(cls, "echo", server, stall_s=30.0))).message["content"] == "hello"


@pytest.mark.parametrize("header", ["0", "0.01", "Wed, 21 Oct 2015 07:28:00 GMT", "soon"])
async def test_retry_after_may_be_seconds_or_a_date(server, header):
    server.retry_after = header
    server.plan("429")
    assert (await complete(made(OpenAIModel, "echo", server))).message["content"] == "hello"


@pytest.mark.parametrize(("header", "least_s"), [("3600", 3600.0), ("Fri, 01 Jan 2100 00:00:00 GMT", 1e8)])
async def test_a_pause_beyond_the_deadline_is_told_at_once(server, header, least_s):
    server.retry_after = header
    server.plan("429")
    with pytest.raises(ModelUnavailable, match="answered 429") as failed:
        await complete(made(OpenAIModel, "echo", server))
    assert failed.value.retry_after_s >= least_s
    assert len(server.seen) == 0


@each_model
async def test_a_conversation_that_is_too_long_has_an_error_of_its_own(server, cls):
    server.context = 8
    with pytest.raises(ContextOverflow, match=r"maximum context length is 8 tokens.*shorten the conversation"):
        await complete(made(cls, "echo", server))


@each_model
async def test_a_wrong_key_is_told_without_it(server, cls):
    server.key = "another"
    model = made(cls, "echo", server)
    with pytest.raises(ModelFailed, match=r"answered 401.*\[key\] \(check api_key\)") as failed:
        await complete(model)
    for shown in (str(failed.value), repr(model), str(vars(model)), repr(failed.value.data)):
        assert KEY not in shown


@each_model
async def test_an_unknown_model_is_told(server, cls):
    with pytest.raises(ModelFailed, match=r"unknown at .* answered 404: .*check the endpoint and the name"):
        await complete(made(cls, "unknown", server))


@each_model
async def test_a_tool_that_the_endpoint_refuses_is_told(server, cls):
    schema = {"type": "array"}
    with pytest.raises(ModelFailed, match=r"answered 400: Invalid schema for function 'f' \(.*simplify the schema"):
        await complete(made(cls, "tool", server), tools=[{"name": "f", "parameters": schema}])


@each_model
async def test_an_endpoint_that_is_not_there_is_told(cls):
    with held_port() as port:
        model = cls("echo", f"http://127.0.0.1:{port}", KEY, backoff_s=0.0, retries=1)
        with pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1:\d+: Connection refused; is its server running"):
            await complete(model)


@each_model
async def test_a_check_costs_no_tokens(server, cls):
    model = made(cls, "echo", server)
    await model.check()
    await model.aclose()
    assert server.samples == []


async def test_a_check_names_the_models_that_there_are(server):
    model = made(OpenAIModel, "ecco", server)
    with pytest.raises(ModelFailed, match=r"has no model 'ecco': it has echo, tool.*check the name"):
        await model.check()
    await model.aclose()


async def test_a_check_finds_that_no_endpoint_is_there():
    with held_port() as port:
        model = OpenAIModel("echo", f"http://127.0.0.1:{port}")
        with pytest.raises(ModelUnavailable, match="is its server running"):
            await model.check()
        await model.aclose()


# Making one


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h", "http://", []])
def test_a_wrong_endpoint_is_told_at_once(url):
    with pytest.raises(InvalidArgument, match="base_url"):
        OpenAIModel("echo", url)


def test_a_wrong_endpoint_is_shown_without_its_password():
    with pytest.raises(InvalidArgument) as failed:
        OpenAIModel("echo", "ftp://user:secret@h")
    assert "secret" not in str(failed.value)


def test_a_wrong_way_to_take_ids_is_told():
    with pytest.raises(InvalidArgument, match="'completions', 'input_ids' or None"):
        OpenAIModel("echo", "http://h", ids="chat")


@pytest.mark.parametrize(
    ("provider", "cls", "host"),
    [
        ("openai", OpenAIModel, "api.openai.com"),
        ("responses", ResponsesModel, "api.openai.com"),
        ("anthropic", AnthropicModel, "api.anthropic.com"),
    ],
)
def test_a_model_is_made_by_its_providers_name(provider, cls, host):
    model = create_model("m", provider=provider, api_key=KEY)
    assert type(model) is cls
    assert repr(model) == f"{cls.__name__}('m', '{host}')"
    assert repr(create_model("m", "http://h:1/v1", provider)) == f"{cls.__name__}('m', 'h:1')"


def test_an_unknown_provider_is_told_what_there_is():
    with pytest.raises(InvalidArgument, match="openai, responses, anthropic"):
        create_model("m", provider="elsewhere")


def test_a_model_serves_one_event_loop_after_the_other(server):
    model = made(OpenAIModel, "echo", server)
    for _ in range(2):
        assert asyncio.run(complete(model)).message["content"] == "hello"


async def test_a_vendor_is_reached_through_the_proxy_with_its_own_key(server, monkeypatch, tmp_path):
    """Not with a password from ~/.netrc."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine models.example login me password secret")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    completion = await complete(OpenAIModel("echo", "http://models.example/v1", KEY))
    assert completion.message["content"] == "hello"
    assert server.seen[0].headers["host"] == "models.example"
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"


async def test_a_url_may_have_a_password_or_a_key(server):
    url = server.url.replace("//", "//me:secret@")
    assert (await complete(OpenAIModel("echo", url))).message["content"] == "hello"
    assert server.seen[0].headers["authorization"].startswith("Basic ")
    with pytest.raises(UsageError, match="leave one out") as failed:
        await complete(OpenAIModel("echo", url, KEY))
    assert "secret" not in str(failed.value)


def test_an_error_of_a_model_crosses_processes():
    error = pickle.loads(pickle.dumps(ModelUnavailable("busy", status=503, retry_after_s=1.0)))
    assert (error.status, error.retry_after_s, str(error)) == (503, 1.0, "busy")


# Functions


class Parrot:
    async def __call__(self, messages: Any) -> str:
        return messages[-1]["content"]


async def answer_later(messages: Any) -> str:
    return messages[-1]["content"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda messages: messages[-1]["content"], "<lambda>"),
        (lambda messages: {"role": "assistant", "content": "hello"}, "<lambda>"),
        (lambda messages: Completion(message={"role": "assistant", "content": "hello"}), "<lambda>"),
        (answer_later, "answer_later"),
        (Parrot(), "Parrot"),
    ],
)
async def test_a_function_is_a_model(function, name):
    model = FunctionModel(function)
    completion = await model.complete(ModelRequest(messages=HELLO))
    assert (completion.message["content"], model.name, model.takes_ids) == ("hello", name, False)
    await model.aclose()


async def test_a_function_may_call_tools():
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    model = FunctionModel(lambda messages: {"role": "assistant", "content": "", "tool_calls": calls}, name="mine")
    assert (await model.complete(ModelRequest(messages=HELLO))).finish_reason == "tool_calls"
    assert model.name == "mine"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda messages: messages[9], "raised IndexError"),
        (lambda messages: None, "returned NoneType: return a text"),
        (lambda messages: {"content": "?"}, "role 'assistant'"),
        (lambda messages: "\ud800", "returned what cannot be recorded"),
        (lambda messages: {"role": "assistant", "content": object()}, "returned what cannot be recorded"),
        (
            lambda messages: Completion(
                message={"role": "assistant", "content": "a"}, completion_ids=[1], logprobs=[float("-inf")]
            ),
            "log probability is not a finite number",
        ),
    ],
)
async def test_a_function_that_fails_is_told(function, said):
    with pytest.raises(ModelFailed, match=said):
        await FunctionModel(function, name="mine").complete(ModelRequest(messages=HELLO))


async def test_a_function_has_a_deadline():
    async def wait(messages: Any) -> str:
        await asyncio.Event().wait()
        return ""

    with pytest.raises(ModelTimeout, match="wait did not answer"):
        await FunctionModel(wait).complete(ModelRequest(messages=HELLO, timeout_s=0.01))


async def test_an_error_of_this_package_passes_through_a_function():
    def busy(messages: Any) -> str:
        raise ModelUnavailable("busy")

    with pytest.raises(ModelUnavailable, match="busy"):
        await FunctionModel(busy).complete(ModelRequest(messages=HELLO))


async def test_a_policy_of_a_test_may_be_any_function(server):
    server.policies = {"mine": lambda messages, tools: ModelReply(calls=[("guess", '{"n": 7}')])}
    completion = await complete(made(OpenAIModel, "mine", server), tools=TOOLS)
    assert completion.message["tool_calls"][0]["function"]["arguments"] == '{"n": 7}'
