"""OpenAI's responses."""

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
    chat_call,
    encode,
    event,
    list_in,
    read_object,
)

_REASONING = "oe:"  # begins the content that an agent sends back with a reasoning item
_SETTINGS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "parallel_tool_calls", "seed", "user")
_CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesDialect(Dialect):
    """Responses, without state: each request has its whole input. Tools that OpenAI's servers run are left out."""

    name = "responses"

    def read(self, body: bytes, target: str, known: KnownMessages, calls: Mapping[str, str]) -> ModelCall:
        given = read_object(body)
        for name in ("previous_response_id", "conversation", "prompt"):
            if given.get(name):
                raise RequestRefused(
                    400, f"{name} refers to what is stored elsewhere: send the whole conversation as `input`"
                )
        messages: list[Json] = []
        if given.get("instructions"):
            messages.append({"role": "system", "content": str(given["instructions"])})
        if isinstance(given.get("input"), str):
            messages.append({"role": "user", "content": given["input"]})
        else:
            _add_items(messages, list_in(given, "input", required=True))
        tools = [
            {
                "type": "function",
                "function": {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name)},
            }
            for tool in list_in(given, "tools")
            if tool.get("type") == "function"
        ]
        params: Json = {name: given.get(name) for name in _SETTINGS}
        params["max_tokens"] = given.get("max_output_tokens")
        params["reasoning_effort"] = (given.get("reasoning") or {}).get("effort")
        shape = (given.get("text") or {}).get("format") or {}
        if shape.get("type") == "json_schema":
            schema = {name: shape[name] for name in ("name", "schema", "strict") if name in shape}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif shape.get("type") == "json_object":
            params["response_format"] = shape
        choice = given.get("tool_choice")
        if tools and choice is not None:
            named = isinstance(choice, dict) and choice.get("type") == "function"
            params["tool_choice"] = (
                {"type": "function", "function": {"name": choice.get("name")}} if named else choice
            )
        if not tools:
            params["parallel_tool_calls"] = None
        shown = ("instructions", "metadata", "temperature", "top_p", "tool_choice", "tools", "parallel_tool_calls")
        request = {name: given[name] for name in (*shown, "max_output_tokens", "text") if given.get(name) is not None}
        stream, model = bool(given.get("stream")), str(given.get("model") or "")
        return chat_call(messages, tools, params=params, stream=stream, model=model, request=request)

    def answer(self, answer: EngineAnswer, call: ModelCall) -> bytes:
        facts, message = answer.facts, msgspec.json.decode(answer.message)
        finish = facts["choices"][0].get("finish_reason") or "stop"
        return encode(_response(facts, call, _output(facts, message), finish, facts.get("usage")))

    def events(self, call: ModelCall) -> ResponseEvents:
        return ResponseEvents(call)


def _add_items(messages: list[Json], items: list[Json]) -> None:
    """Adds the messages of input items. What one answer had becomes one assistant message again."""
    thoughts = ""
    for item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            packed = item.get("encrypted_content") or ""
            shown = text_of(item.get("content") or item.get("summary") or [])
            thoughts += packed.removeprefix(_REASONING) if packed.startswith(_REASONING) else shown
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _assistant(messages, thoughts).setdefault("tool_calls", []).append(call)
            thoughts = ""
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else text_of(output or [])
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind == "message" and item.get("role") == "assistant":
            message = _assistant(messages, thoughts)
            thoughts = ""
            content = item.get("content")
            message["content"] = (message["content"] or "") + (
                content if isinstance(content, str) else text_of(content)
            )
        elif kind == "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": _content(item.get("content"))})
        else:
            raise RequestRefused(400, f"input items of type {kind!r:.40} are not supported: leave them out")


def _assistant(messages: list[Json], thoughts: str) -> Json:
    """The assistant message to which the next item belongs."""
    if thoughts or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
        if thoughts:
            messages[-1]["reasoning_content"] = thoughts
    return messages[-1]


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    if all(isinstance(part, dict) and part.get("type") in ("input_text", "output_text", "text") for part in content):
        return text_of(content)
    parts = []
    for part in content:
        if part.get("type") == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            parts.append({"type": "text", "text": part.get("text") or ""})
    return parts


def _response(facts: Json, call: ModelCall, output: list[Json], finish: str | None, usage: Json | None) -> Json:
    cut = _CUTS.get(finish or "")
    status = "in_progress" if finish is None else "incomplete" if cut else "completed"
    return {
        "id": f"resp_{facts.get('id') or 0}",
        "object": "response",
        "created_at": facts.get("created") or 0,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": None,
        "model": call.model or facts.get("model") or "",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        **call.request,
        "usage": None if finish is None else _usage_of(usage),
    }


def _usage_of(usage: Json | None) -> Json:
    usage = usage or {}
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    details, sampled = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": details.get("cached_tokens") or 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": sampled.get("reasoning_tokens") or 0},
        "total_tokens": prompt + completion,
    }


def _output(facts: Json, message: Json) -> list[Json]:
    """The output items of an assistant message."""
    output: list[Json] = []
    if message.get("reasoning_content"):
        output.append(_reasoning_item(facts, message["reasoning_content"]))
    content: list[Json] = []
    if message.get("content"):
        content.append({"type": "output_text", "text": message["content"], "annotations": []})
    if message.get("refusal"):
        content.append({"type": "refusal", "refusal": message["refusal"]})
    if content or not (output or message.get("tool_calls")):
        output.append(_message_item(facts, "completed", content))
    output += [
        _call_item(facts, number, each["id"], each["function"]["name"], each["function"]["arguments"], "completed")
        for number, each in enumerate(message.get("tool_calls") or ())
    ]
    return output


def _reasoning_item(facts: Json, text: str) -> Json:
    content = [{"type": "reasoning_text", "text": text}]
    packed = _REASONING + text
    return {
        "id": f"rs_{facts.get('id')}",
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": packed,
    }


def _message_item(facts: Json, status: str, content: list[Json]) -> Json:
    name = f"msg_{facts.get('id')}"
    return {"id": name, "type": "message", "role": "assistant", "status": status, "content": content}


def _call_item(facts: Json, number: int, call_id: str, name: str, arguments: str, status: str) -> Json:
    called = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": f"fc_{facts.get('id')}_{number}", "type": "function_call", "status": status, **called}


class ResponseEvents(EventWriter):
    """The events of a response: items one after another, each begun and ended."""

    def __init__(self, call: ModelCall):
        self._call = call
        self._facts: Json = {}
        self._number = 0
        self._output: list[Json] = []
        self._open = ""
        self._finish = "stop"
        self._usage: Json | None = None

    def chunk(self, chunk: Json) -> bytes:
        out = b""
        if not self._facts:
            self._facts = {"id": 0, **chunk}
            begun = _response(self._facts, self._call, [], None, None)
            out = self._event("response.created", response=begun) + self._event(
                "response.in_progress", response=begun
            )
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
                out += self._text("reasoning", thinking)
            for kind in ("content", "refusal"):
                if delta.get(kind):
                    out += self._text(kind, delta[kind])
            for part in delta.get("tool_calls") or ():
                out += self._call_part(part)
            self._finish = choice.get("finish_reason") or self._finish
        return out

    def end(self) -> bytes:
        out = self._close()
        if not self._output:
            self._output.append(_message_item(self._facts, "completed", []))
            out = self._added(self._output[-1]) + self._done(self._output[-1])
        response = _response(self._facts, self._call, self._output, self._finish, self._usage)
        return out + self._event(f"response.{response['status']}", response=response)

    def failure(self, message: str) -> bytes:
        return self._event("error", code="server_error", message=message, param=None)

    def _event(self, name: str, /, **data: Any) -> bytes:
        self._number += 1
        return event({"type": name, "sequence_number": self._number - 1, **data}, name)

    def _place(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _added(self, item: Json) -> bytes:
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _done(self, item: Json) -> bytes:
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _begin(self, kind: str, item: Json) -> bytes:
        out = self._close()
        self._open = kind
        self._output.append(item)
        return out + self._added(item)

    def _text(self, kind: str, text: str) -> bytes:
        out = b""
        if kind == "reasoning":
            if self._open != kind:
                out = self._begin(kind, {**_reasoning_item(self._facts, ""), "content": []})
                self._output[-1]["content"].append({"type": "reasoning_text", "text": ""})
            self._output[-1]["content"][0]["text"] += text
            return out + self._event("response.reasoning_text.delta", **self._place(), content_index=0, delta=text)
        if self._open not in ("content", "refusal"):
            out = self._begin(kind, _message_item(self._facts, "in_progress", []))
        content = self._output[-1]["content"]
        part = (
            {"type": "output_text", "text": "", "annotations": []} if kind == "content" else {"type": kind, kind: ""}
        )
        if not content or content[-1]["type"] != part["type"]:
            content.append(part)
            out += self._event(
                "response.content_part.added", **self._place(), content_index=len(content) - 1, part=dict(part)
            )
        self._open = kind
        content[-1]["text" if kind == "content" else kind] += text
        name = "response.output_text.delta" if kind == "content" else "response.refusal.delta"
        more: Json = {"logprobs": []} if kind == "content" else {}
        return out + self._event(name, **self._place(), content_index=len(content) - 1, delta=text, **more)

    def _call_part(self, part: Json) -> bytes:
        function, out = part.get("function") or {}, b""
        if self._open != str(part["index"]):
            named = part.get("id") or "", function.get("name") or ""
            out = self._begin(str(part["index"]), _call_item(self._facts, part["index"], *named, "", "in_progress"))
        if arguments := function.get("arguments"):
            self._output[-1]["arguments"] += arguments
            out += self._event("response.function_call_arguments.delta", **self._place(), delta=arguments)
        return out

    def _close(self) -> bytes:
        """The events that end the open item."""
        kind, self._open = self._open, ""
        if not kind:
            return b""
        item, out = self._output[-1], b""
        if kind == "reasoning":
            text = item["content"][0]["text"]
            item["encrypted_content"] = _REASONING + text
            out = self._event("response.reasoning_text.done", **self._place(), content_index=0, text=text)
        elif item["type"] == "message":
            item["status"] = "completed"
            for index, part in enumerate(item["content"]):
                place = {**self._place(), "content_index": index}
                if part["type"] == "output_text":
                    out += self._event("response.output_text.done", **place, text=part["text"], logprobs=[])
                else:
                    out += self._event("response.refusal.done", **place, refusal=part["refusal"])
                out += self._event("response.content_part.done", **place, part=part)
        else:
            item["status"] = "completed"
            named = {"name": item["name"], "arguments": item["arguments"]}
            out = self._event("response.function_call_arguments.done", **self._place(), **named)
        return out + self._done(item)
