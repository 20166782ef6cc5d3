"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...llm.messages import text_of
from .base import (
    Dialect,
    EngineAnswer,
    EventWriter,
    Json,
    KnownMessages,
    ModelCall,
    RequestRefused,
    arguments_of,
    chat_call,
    encode,
    event,
    list_in,
    read_object,
    written_arguments,
)

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_SIGNATURE = "sg_oe_"
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_KINDS |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error"}
_CHOICES: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
# Claude Code writes a line with a number that changes with each session, which would end every common prefix.
_BILLING = "x-anthropic-billing-header"


class AnthropicDialect(Dialect):
    """Messages, with tools, images and thinking. Tools that Anthropic's servers run are left out."""

    name = "anthropic"

    def read(self, body: bytes, target: str, known: KnownMessages, calls: Mapping[str, str]) -> ModelCall:
        given = read_object(body)
        messages: list[Json] = []
        if given.get("system"):
            blocks = given["system"] if isinstance(given["system"], list) else [{"text": given["system"]}]
            text = "\n\n".join(str(each.get("text") or "") for each in blocks if isinstance(each, dict))
            lines = [line for line in text.split("\n") if not line.startswith(_BILLING)]
            messages.append({"role": "system", "content": "\n".join(lines)})
        try:
            for message in list_in(given, "messages", required=True):
                messages += _messages_of(message, calls)
        except (KeyError, TypeError, AttributeError) as error:
            raise RequestRefused(400, f"a message has a content block of another form: {error!r:.200}") from None
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.get("name"),
                    "description": tool.get("description") or "",
                    "parameters": tool["input_schema"],
                },
            }
            for tool in list_in(given, "tools")
            if "input_schema" in tool
        ]
        params = {name: given.get(name) for name in ("max_tokens", "temperature", "top_p", "top_k")}
        params["stop"] = given.get("stop_sequences") or None
        choice = given.get("tool_choice")
        if isinstance(choice, dict) and tools:
            named = {"type": "function", "function": {"name": choice.get("name")}}
            params["tool_choice"] = named if choice.get("type") == "tool" else _CHOICES.get(choice.get("type", ""))
            if choice.get("disable_parallel_tool_use"):
                params["parallel_tool_calls"] = False
        stream, model = bool(given.get("stream")), str(given.get("model") or "")
        return chat_call(messages, tools, params=params, stream=stream, model=model)

    def answer(self, answer: EngineAnswer, call: ModelCall) -> bytes:
        facts, message = answer.facts, msgspec.json.decode(answer.message)
        blocks: list[Json] = []
        if message.get("reasoning_content"):
            signature = f"{_SIGNATURE}{facts.get('id')}"
            blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": signature})
        if text := (message.get("content") or message.get("refusal")):
            blocks.append({"type": "text", "text": text})
        blocks += [
            {"type": "tool_use", "id": each["id"], "name": each["function"]["name"], "input": arguments_of(each)}
            for each in message.get("tool_calls") or ()
        ]
        ended = _ended(facts["choices"][0])
        usage = usage_of(facts.get("usage"))
        return encode({**_message(facts, call), "content": blocks, **ended, "usage": usage})

    def events(self, call: ModelCall) -> AnthropicEvents:
        return AnthropicEvents(call)

    def error(self, status: int, message: str, kind: str) -> bytes:
        return encode({"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}})


def _message(facts: Json, call: ModelCall) -> Json:
    return {
        "id": f"msg_{facts.get('id') or 0}",
        "type": "message",
        "role": "assistant",
        "model": call.model or facts.get("model") or "",
    }


def _ended(choice: Json) -> Json:
    stop = choice.get("stop_reason")
    if choice.get("finish_reason") == "stop" and isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _STOP_REASONS.get(choice.get("finish_reason") or "", "end_turn"), "stop_sequence": None}


def usage_of(usage: Json | None) -> Json:
    """Usage of chat completions in Anthropic's words."""
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": (usage.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _messages_of(message: Json, calls: Mapping[str, str]) -> list[Json]:
    """The messages of chat completions that one of Anthropic's is."""
    content, role = message.get("content"), message.get("role")
    if role not in ("user", "assistant"):
        raise RequestRefused(400, f"a message has the role {role!r:.40}: it must be user or assistant")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if role == "assistant":
        return [_assistant(content or [], calls)]
    messages: list[Json] = []
    parts: list[Json] = []
    for block in content or ():
        match block["type"]:
            case "text":
                parts.append({"type": "text", "text": block["text"]})
            case "image":
                parts.append({"type": "image_url", "image_url": {"url": _image_url(block["source"])}})
            case "tool_result":
                said = block.get("content")
                text = said if isinstance(said, str) else text_of(said or [])
                shown = f"Error: {text}" if block.get("is_error") else text
                messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": shown})
                images = said if isinstance(said, list) else []
                parts += [
                    {"type": "image_url", "image_url": {"url": _image_url(each["source"])}}
                    for each in images
                    if each.get("type") == "image"
                ]
            case other:
                raise RequestRefused(400, f"content blocks of type {other!r:.40} are not supported: send text")
    if parts:
        plain = all(part["type"] == "text" for part in parts)
        messages.append({"role": "user", "content": text_of(parts) if plain else parts})
    return messages


def _assistant(blocks: list[Json], written: Mapping[str, str]) -> Json:
    message: Json = {"role": "assistant", "content": text_of([each for each in blocks if each["type"] == "text"])}
    if thinking := "".join(each.get("thinking") or "" for each in blocks if each["type"] == "thinking"):
        message["reasoning_content"] = thinking
    calls = [each for each in blocks if each["type"] == "tool_use"]
    if calls:
        message["tool_calls"] = [
            {
                "id": each["id"],
                "type": "function",
                "function": {
                    "name": each["name"],
                    "arguments": written_arguments(each["input"], each["id"], written),
                },
            }
            for each in calls
        ]
    return message


def _image_url(source: Json) -> str:
    return source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"


class AnthropicEvents(EventWriter):
    """The events of a message."""

    def __init__(self, call: ModelCall):
        self._call = call
        self._begun = False
        self._index = -1
        self._open = ""  # the kind of the open block, or the number of its tool call
        self._choice: Json = {}
        self._usage: Json | None = None
        self._facts: Json = {}

    def chunk(self, chunk: Json) -> bytes:
        out = b"" if self._begun else self._begin(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
                out += self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                out += self._delta({"type": "thinking_delta", "thinking": thinking})
            if text := delta.get("content") or delta.get("refusal"):
                out += self._block("text", {"type": "text", "text": ""})
                out += self._delta({"type": "text_delta", "text": text})
            for part in delta.get("tool_calls") or ():
                function = part.get("function") or {}
                head = {"type": "tool_use", "id": part.get("id"), "name": function.get("name"), "input": {}}
                out += self._block(str(part["index"]), head)
                if function.get("arguments"):
                    out += self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
            if choice.get("finish_reason"):
                self._choice = choice
        return out

    def end(self) -> bytes:
        usage = usage_of(self._usage)
        done = {"type": "message_delta", "delta": _ended(self._choice), "usage": usage}
        return self._close() + event(done, "message_delta") + event({"type": "message_stop"}, "message_stop")

    def failure(self, message: str) -> bytes:
        return event({"type": "error", "error": {"type": "api_error", "message": message}}, "error")

    def _begin(self, chunk: Json) -> bytes:
        self._begun, self._facts = True, chunk
        usage = usage_of({"prompt_tokens": len(chunk.get("prompt_token_ids") or ())})
        message = {**_message(chunk, self._call), "content": [], "stop_reason": None, "stop_sequence": None}
        return event({"type": "message_start", "message": {**message, "usage": usage}}, "message_start")

    def _block(self, kind: str, block: Json) -> bytes:
        if kind == self._open:
            return b""
        out = self._close()
        self._index += 1
        self._open = kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return out + event(start, "content_block_start")

    def _delta(self, delta: Json) -> bytes:
        done = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(done, "content_block_delta")

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": f"{_SIGNATURE}{self._facts.get('id')}"})
        self._open = ""
        return signed + event({"type": "content_block_stop", "index": self._index}, "content_block_stop")
