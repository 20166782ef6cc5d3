"""Google's generateContent and streamGenerateContent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ...rollouts.streams import chat_answer
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
    list_in,
    read_object,
    written_arguments,
)

_MODEL = re.compile(r"models/([^/:?]+(?:/[^/:?]+)*):")
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_STATUS |= {409: "ABORTED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}
_NAMES = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "seed": "seed",
}
_MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}


class GoogleDialect(Dialect):
    """generateContent. Tools that Google's servers run are left out."""

    name = "google"

    def read(self, body: bytes, target: str, known: KnownMessages, calls: Mapping[str, str]) -> ModelCall:
        given = read_object(body)
        try:
            messages = _messages_of(given, calls)
            tools = [
                {"type": "function", "function": _function_of(each)}
                for tool in list_in(given, "tools")
                for each in tool.get("functionDeclarations") or ()
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise RequestRefused(400, f"a content has a part of another form: {error!r:.200}") from None
        config = given.get("generationConfig") or {}
        if (config.get("candidateCount") or 1) != 1:
            raise RequestRefused(400, "candidateCount must be 1: ask for one answer at a time")
        params: Json = {name: config.get(theirs) for theirs, name in _NAMES.items()}
        if config.get("responseMimeType") == "application/json":
            schema = config.get("responseJsonSchema") or config.get("response_json_schema")
            schema = schema or _lower(config.get("responseSchema"))
            shaped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
            params["response_format"] = shaped if schema else {"type": "json_object"}
        calling = (given.get("toolConfig") or {}).get("functionCallingConfig") or {}
        if tools and calling.get("mode"):
            allowed = list(calling.get("allowedFunctionNames") or ())
            params["tool_choice"] = _MODES.get(calling["mode"])
            if len(allowed) == 1:
                params["tool_choice"] = {"type": "function", "function": {"name": allowed[0]}}
        path, _, query = target.partition("?")
        named = _MODEL.search(path)
        stream = path.endswith(":streamGenerateContent")
        request = {"sse": "alt=sse" in query}
        return chat_call(
            messages, tools, params=params, stream=stream, model=named[1] if named else "", request=request
        )

    def answer(self, answer: EngineAnswer, call: ModelCall) -> bytes:
        facts, message = answer.facts, msgspec.json.decode(answer.message)
        finish = facts["choices"][0].get("finish_reason") or "stop"
        return encode(_response(facts, call, _parts_of(message), _FINISH.get(finish, "STOP"), facts.get("usage")))

    def events(self, call: ModelCall) -> GoogleEvents:
        return GoogleEvents(call)

    def error(self, status: int, message: str, kind: str) -> bytes:
        named = _STATUS.get(status, "INTERNAL")
        return encode({"error": {"code": status, "message": message, "status": named}})

    def count(self, tokens: int) -> bytes:
        return encode({"totalTokens": tokens})


def _messages_of(given: Json, written: Mapping[str, str]) -> list[Json]:  # noqa: C901 - one case for each kind of part
    messages: list[Json] = []
    system = given.get("systemInstruction")
    if system:
        messages.append({"role": "system", "content": "".join(each.get("text") or "" for each in system["parts"])})
    calls: list[Json] = []  # those without a result yet
    number = 0
    for content in list_in(given, "contents", required=True):
        role = "assistant" if content.get("role") == "model" else "user"
        texts: list[Json] = []
        thoughts, made = "", []
        for part in content.get("parts") or ():
            if "functionCall" in part:
                asked = part["functionCall"]
                function = {
                    "name": asked["name"],
                    "arguments": written_arguments(asked.get("args") or {}, asked.get("id"), written),
                }
                made.append({"id": asked.get("id") or f"call_{number}", "type": "function", "function": function})
                number += 1
            elif "functionResponse" in part:
                messages.append(_result(part["functionResponse"], calls))
            elif "inlineData" in part:
                data = part["inlineData"]
                url = f"data:{data['mimeType']};base64,{data['data']}"
                texts.append({"type": "image_url", "image_url": {"url": url}})
            elif part.get("thought"):
                thoughts += part.get("text") or ""
            elif "text" in part:
                texts.append({"type": "text", "text": part["text"]})
            else:
                raise RequestRefused(400, f"parts with {', '.join(part)!r:.80} are not supported: send text")
        plain = all(each["type"] == "text" for each in texts)
        said: Any = "".join(each["text"] for each in texts) if plain else texts
        if role == "assistant":
            more = {"reasoning_content": thoughts, "tool_calls": made}
            messages.append({"role": role, "content": said, **{name: each for name, each in more.items() if each}})
            calls = [*made]
        elif texts:
            messages.append({"role": role, "content": said})
    return messages


def _result(given: Json, calls: list[Json]) -> Json:
    """The message with a function's result, for the call that it answers: by its id, or the first of its name."""
    named = [each for each in calls if each["id"] == given.get("id") or each["function"]["name"] == given["name"]]
    call = next((each for each in named if each["id"] == given.get("id")), named[0] if named else None)
    if call is not None:
        calls.remove(call)
    said = given.get("response")
    only = said.get("result", said.get("output")) if isinstance(said, dict) and len(said) == 1 else None
    text = only if isinstance(only, str) else encode(said).decode()
    return {"role": "tool", "tool_call_id": call["id"] if call else given.get("id") or given["name"], "content": text}


def _function_of(declared: Json) -> Json:
    schema = declared.get("parametersJsonSchema") or declared.get("parameters_json_schema")  # as their SDK has it
    schema = schema or _lower(declared.get("parameters"))
    described = {"name": declared["name"], "description": declared.get("description") or ""}
    return {**described, "parameters": schema or {"type": "object", "properties": {}}}


def _lower(schema: Any) -> Any:
    """A schema with types in lower case, as JSON Schema has them."""
    if isinstance(schema, list):
        return [_lower(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: each.lower() if name == "type" and isinstance(each, str) else _lower(each)
        for name, each in schema.items()
    }


def _parts_of(message: Json) -> list[Json]:
    parts: list[Json] = []
    if message.get("reasoning_content"):
        parts.append({"text": message["reasoning_content"], "thought": True})
    if text := (message.get("content") or message.get("refusal")):
        parts.append({"text": text})
    for call in message.get("tool_calls") or ():
        asked = {"id": call["id"], "name": call["function"]["name"], "args": arguments_of(call)}
        parts.append({"functionCall": asked})
    return parts


def _response(facts: Json, call: ModelCall, parts: list[Json], finish: str | None, usage: Json | None) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    answer: Json = {"candidates": [candidate]}
    if usage:
        details = usage.get("prompt_tokens_details") or {}
        answer["usageMetadata"] = {
            "promptTokenCount": usage.get("prompt_tokens") or 0,
            "candidatesTokenCount": usage.get("completion_tokens") or 0,
            "totalTokenCount": usage.get("total_tokens") or 0,
            "cachedContentTokenCount": details.get("cached_tokens") or 0,
        }
    return {**answer, "modelVersion": call.model or facts.get("model") or "", "responseId": str(facts.get("id") or 0)}


class GoogleEvents(EventWriter):
    """Partial answers; a function call comes whole, at the end."""

    def __init__(self, call: ModelCall):
        self._call = call
        self._facts: Json = {}
        self._usage: Json | None = None
        self._calls: list[Json] = []
        self._finish = "stop"
        self._count = 0

    def chunk(self, chunk: Json) -> bytes:
        self._facts = self._facts or chunk
        self._usage = chunk.get("usage") or self._usage
        parts: list[Json] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if delta.get("tool_calls"):
                self._calls.append({"choices": [{"delta": {"tool_calls": delta["tool_calls"]}}]})
            thinking = delta.get("reasoning_content") or delta.get("reasoning")
            parts += _parts_of(
                {"reasoning_content": thinking, "content": delta.get("content") or delta.get("refusal")}
            )
            self._finish = choice.get("finish_reason") or self._finish
        return self._part(_response(self._facts, self._call, parts, None, None)) if parts else b""

    def end(self) -> bytes:
        whole = chat_answer([*self._calls, {"choices": [{"finish_reason": self._finish}]}])
        assert whole is not None
        parts = _parts_of(whole["choices"][0]["message"])
        finish = _FINISH.get(self._finish, "STOP")
        out = self._part(_response(self._facts, self._call, parts, finish, self._usage))
        return out if self._call.request["sse"] else out + b"]"

    def failure(self, message: str) -> bytes:
        return self._part({"error": {"code": 502, "message": message, "status": "UNAVAILABLE"}})

    def _part(self, answer: Json) -> bytes:
        """An event; for a client that asked for no events, an item of a JSON list."""
        self._count += 1
        if self._call.request["sse"]:
            return b"data: " + encode(answer) + b"\r\n\r\n"
        return (b"[" if self._count == 1 else b",\r\n") + encode(answer)
