"""The APIs, each in its vendor's form: chat completions and completions (vLLM), responses, Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from .policies import ModelReply
from .tokens import BYTE, END, PairTokenizer, conversation_of, logprob_of, written

_encode = msgspec.json.Encoder().encode
_TOKENIZER = PairTokenizer()


class BadRequest(Exception):
    """A request that the endpoint refuses: an HTTP status, the vendor's kind, and a message."""

    def __init__(self, status: int, kind: str, message: str):
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass
class Sampled:
    """A request, and what was sampled for it."""

    body: dict[str, Any]
    reply: ModelReply
    calls: list[dict[str, Any]]
    prompt_ids: list[int]
    ids: list[int]
    number: int

    @property
    def finish(self) -> str:
        return self.reply.finish or ("tool_calls" if self.calls else "stop")

    @property
    def usage(self) -> dict[str, Any]:
        prompt, completion = len(self.prompt_ids), len(self.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        }


def sample(
    path: str, body: dict[str, Any], answer: Callable[[list[Any], list[Any]], ModelReply], number: int
) -> Sampled:
    """Reads the prompt of a request of any of the APIs, and samples.

    Raises:
        BadRequest: A tool's schema is no object.
    """
    messages, tools, prompt_ids = _READERS[path](body)
    for tool in tools:
        function = tool.get("function", tool)
        if not isinstance(function.get("parameters"), dict) or function["parameters"].get("type") != "object":
            name = function.get("name")
            raise BadRequest(400, "invalid_function_parameters", f"Invalid schema for function '{name}'")
    reply = answer(messages, tools)
    calls = [
        {"id": f"call_{number}_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(reply.calls)
    ]
    text = written(reply.content, calls)
    ids = [BYTE + byte for byte in text.encode()] if reply.byte_tokens else list(_TOKENIZER.encode_plain(text))
    ids.append(END)
    most = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
    if most is not None and len(ids) > most:
        ids = ids[:most]
        reply = ModelReply(_TOKENIZER.decode(ids), reasoning=reply.reasoning, finish="length")
        calls = []
    return Sampled(
        body, reply, calls, prompt_ids or _TOKENIZER.apply_chat_template(messages, tools, True), ids, number
    )


Prompt = tuple[list[dict[str, Any]], list[dict[str, Any]], list[int] | None]


def _chat_prompt(body: dict[str, Any]) -> Prompt:
    return body["messages"], body.get("tools") or [], None


def _ids_prompt(body: dict[str, Any]) -> Prompt:
    prompt = body["prompt"]
    ids = prompt if isinstance(prompt, list) else _TOKENIZER.encode(prompt)
    return *conversation_of(_TOKENIZER.decode(ids)), ids


def _responses_prompt(body: dict[str, Any]) -> Prompt:
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item["role"], "content": _joined(item["content"])})
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                messages.append({"role": "assistant", "tool_calls": [{"id": item["call_id"], "function": function}]})
            case "function_call_output":
                messages.append({"role": "tool", "content": _joined(item["output"])})
    return messages, body.get("tools") or [], None


def _anthropic_prompt(body: dict[str, Any]) -> Prompt:
    messages: list[dict[str, Any]] = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    for message in body["messages"]:
        blocks = message["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        messages.extend(
            {"role": "tool", "content": _joined(block["content"])}
            for block in blocks
            if block["type"] == "tool_result"
        )
        if text := "".join(block["text"] for block in blocks if block["type"] == "text"):
            messages.append({"role": message["role"], "content": text})
    tools = [{"name": tool["name"], "parameters": tool["input_schema"]} for tool in body.get("tools") or ()]
    return messages, tools, None


def _joined(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


_READERS: dict[str, Callable[[dict[str, Any]], Prompt]] = {
    "/v1/chat/completions": _chat_prompt,
    "/v1/completions": _ids_prompt,
    "/v1/responses": _responses_prompt,
    "/v1/messages": _anthropic_prompt,
}


@lru_cache(maxsize=1 << 16)
def _logprob(token: int) -> dict[str, Any]:
    return {"token": _TOKENIZER.decode((token,)), "logprob": logprob_of(token)}


def _logprobs(sampled: Sampled) -> dict[str, Any]:
    tokens = [_logprob(token) for token in sampled.ids]
    if most := sampled.body.get("top_logprobs"):
        gap = 1.0 / (sampled.body.get("temperature") or 1.0)
        tokens = [
            {
                **each,
                "top_logprobs": [{"token": "?", "logprob": each["logprob"] - rank * gap} for rank in range(most)],
            }
            for each in tokens
        ]
    return {"content": tokens}


def _head(sampled: Sampled, kind: str) -> dict[str, Any]:
    return {"id": f"c{sampled.number}", "object": kind, "created": 0, "model": sampled.body["model"]}


def _chat(sampled: Sampled) -> bytes:
    reply = sampled.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "refusal": reply.refusal}
    if sampled.calls:
        message["tool_calls"] = sampled.calls
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": sampled.finish}
    answer = {**_head(sampled, "chat.completion"), "choices": [choice], "usage": sampled.usage}
    if sampled.body.get("logprobs"):
        choice["logprobs"] = _logprobs(sampled)
    if sampled.body.get("return_token_ids"):
        choice["token_ids"] = sampled.ids
        answer["prompt_token_ids"] = sampled.prompt_ids
    return _encode(answer)


def _chat_stream(sampled: Sampled) -> bytes:
    body, reply, head = sampled.body, sampled.reply, _head(sampled, "chat.completion.chunk")
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if reply.reasoning:
        deltas.append({"reasoning_content": reply.reasoning})
    if reply.refusal:
        deltas.append({"refusal": reply.refusal})
    deltas += [{"content": part} for part in _halves(reply.content)]
    for index, call in enumerate(sampled.calls):
        first, second = _halves(call["function"]["arguments"])
        named = {"name": call["function"]["name"], "arguments": first}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": named}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": second}}]})
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    last = chunks[-1]["choices"][0]
    last["finish_reason"] = sampled.finish
    if body.get("return_token_ids"):
        chunks[0]["prompt_token_ids"] = sampled.prompt_ids
        middle = chunks[len(chunks) // 2]["choices"][0]
        cut = 0 if middle is last else len(sampled.ids) // 2
        middle["token_ids"] = sampled.ids[:cut]
        last["token_ids"] = sampled.ids[cut:]
    if body.get("logprobs"):
        last["logprobs"] = _logprobs(sampled)
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": sampled.usage})
    return _events(chunks) + b"data: [DONE]\n\n"


def _text_choice(sampled: Sampled) -> dict[str, Any]:
    ended = sampled.ids[-1] == END
    text = _TOKENIZER.decode(sampled.ids, skip_special_tokens=True)
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": "stop" if ended else "length"}
    if sampled.body.get("logprobs") is not None:
        choice["logprobs"] = {
            "tokens": [_TOKENIZER.decode((token,)) for token in sampled.ids],
            "token_logprobs": [logprob_of(token) for token in sampled.ids],
        }
    if sampled.body.get("return_token_ids"):
        choice["token_ids"], choice["prompt_token_ids"] = sampled.ids, sampled.prompt_ids
    return choice


def _text(sampled: Sampled) -> bytes:
    head = _head(sampled, "text_completion")
    return _encode({**head, "choices": [_text_choice(sampled)], "usage": sampled.usage})


def _text_stream(sampled: Sampled) -> bytes:
    head, choice = _head(sampled, "text_completion"), _text_choice(sampled)
    first, choice["text"] = _halves(choice["text"])
    chunks = [
        {**head, "choices": [{"index": 0, "text": first, "finish_reason": None}]},
        {**head, "choices": [choice]},
    ]
    return _events([*chunks, {**head, "choices": [], "usage": sampled.usage}]) + b"data: [DONE]\n\n"


def _response(sampled: Sampled) -> dict[str, Any]:
    reply, usage = sampled.reply, sampled.usage
    output: list[dict[str, Any]] = []
    if reply.reasoning:
        output.append(
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": reply.reasoning}]}
        )
    content = [{"type": "output_text", "text": reply.content, "annotations": []}] if reply.content else []
    content += [{"type": "refusal", "refusal": reply.refusal}] if reply.refusal else []
    if content:
        output.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content})
    output += [
        {"type": "function_call", "id": "f", "call_id": call["id"], **call["function"]} for call in sampled.calls
    ]
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(sampled.finish)
    return {
        **_head(sampled, "response"),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _response_stream(sampled: Sampled) -> bytes:
    answer = _response(sampled)
    begun = {"type": "response.created", "response": {**answer, "output": [], "status": "in_progress"}}
    return _events([begun, {"type": f"response.{answer['status']}", "response": answer}])


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def _message(sampled: Sampled) -> dict[str, Any]:
    reply, usage = sampled.reply, sampled.usage
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "signed"})
    if reply.content or reply.refusal:
        blocks.append({"type": "text", "text": reply.content or reply.refusal})
    blocks += [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _object(call)}
        for call in sampled.calls
    ]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "id": f"m{sampled.number}",
        "type": "message",
        "role": "assistant",
        "model": sampled.body["model"],
        "content": blocks,
        "stop_reason": "refusal" if reply.refusal else _STOP_REASONS[sampled.finish],
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        },
    }


def _message_stream(sampled: Sampled) -> bytes:
    answer = _message(sampled)
    begun = {**answer, "content": [], "stop_reason": None, "usage": {**answer["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(answer["content"]):
        empty = {"text": {"text": ""}, "tool_use": {"input": {}}, "thinking": {"thinking": "", "signature": ""}}
        events.append(
            {"type": "content_block_start", "index": index, "content_block": {**block, **empty[block["type"]]}}
        )
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in _deltas(block)]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    output = {"output_tokens": answer["usage"]["output_tokens"]}
    return _events([*events, {"type": "message_delta", "delta": ended, "usage": output}, {"type": "message_stop"}])


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    match block["type"]:
        case "text":
            return [{"type": "text_delta", "text": part} for part in _halves(block["text"])]
        case "tool_use":
            parts = _halves(json.dumps(block["input"]))
            return [{"type": "input_json_delta", "partial_json": part} for part in parts]
    return [
        {"type": "thinking_delta", "thinking": block["thinking"]},
        {"type": "signature_delta", "signature": block["signature"]},
    ]


def _object(call: dict[str, Any]) -> Any:
    try:
        return json.loads(call["function"]["arguments"])
    except ValueError:
        return call["function"]["arguments"]


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _events(events: Iterable[dict[str, Any]]) -> bytes:
    named = ((f"event: {event['type']}\n".encode() if "type" in event else b"", event) for event in events)
    return b"".join(name + b"data: " + _encode(event) + b"\n\n" for name, event in named)


def answer_bytes(path: str, sampled: Sampled) -> bytes:
    """The body of the answer: JSON, or server-sent events if the request asks to stream."""
    plain, stream = _WRITERS[path]
    return stream(sampled) if sampled.body.get("stream") else plain(sampled)


_WRITERS: dict[str, tuple[Callable[[Sampled], bytes], Callable[[Sampled], bytes]]] = {
    "/v1/chat/completions": (_chat, _chat_stream),
    "/v1/completions": (_text, _text_stream),
    "/v1/responses": (lambda sampled: _encode(_response(sampled)), _response_stream),
    "/v1/messages": (lambda sampled: _encode(_message(sampled)), _message_stream),
}
PATHS = frozenset(_WRITERS)
