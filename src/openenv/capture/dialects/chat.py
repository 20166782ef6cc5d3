"""OpenAI's chat completions, which the engine speaks too: messages pass through as the bytes that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .base import (
    Dialect,
    EngineAnswer,
    EventWriter,
    Json,
    KnownMessages,
    ModelCall,
    RequestRefused,
    encode,
    ends_of,
    event,
)

_MESSAGES = b'"messages":['
_MARK = b"0"  # stands for the messages that are known
_OURS = ("messages", "model", "stream", "stream_options", "tools", "n")
_TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "response_token_ids")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ChatDialect(Dialect):
    """Chat completions."""

    name = "chat"

    def read(self, body: bytes, target: str, known: KnownMessages, calls: Mapping[str, str]) -> ModelCall:
        try:
            latest, fields = _fields_behind(body, known)
            items = [bytes(each) for each in _list(fields["messages"])]
            tools = [bytes(each) for each in _list(fields["tools"])] if _given(fields, "tools") else []
            stream = _given(fields, "stream") and msgspec.json.decode(fields["stream"], type=bool)
            options = msgspec.json.decode(fields["stream_options"]) if _given(fields, "stream_options") else {}
            count = msgspec.json.decode(fields["n"]) if _given(fields, "n") else 1
            model = msgspec.json.decode(fields["model"], type=str) if _given(fields, "model") else ""
        except KeyError:
            raise RequestRefused(400, "the request has no `messages`: give a list of messages") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestRefused(400, f"the request is no chat completion: {error}") from None
        if latest:
            del items[0]
        if not all(each.startswith(b"{") for each in (*items, *tools)) or not (items or latest):
            raise RequestRefused(400, "`messages` and `tools` must be lists of objects, and `messages` not empty")
        if count != 1:
            raise RequestRefused(400, f"n is {count}: ask for one answer at a time, and repeat the request")
        wanted = {"usage"} if isinstance(options, dict) and options.get("include_usage") else set()
        if _given(fields, "logprobs") and bytes(fields["logprobs"]) == b"true":
            wanted.add("logprobs")
        text = b",".join([latest, *items] if latest else items)
        return ModelCall(
            text,
            ends_of(items, len(latest) + 1 if latest else 0),
            {name: value for name, value in fields.items() if name not in _OURS and bytes(value) != b"null"},
            b",".join(tools),
            len(tools),
            model,
            bool(stream),
            frozenset(wanted),
        )

    def answer(self, answer: EngineAnswer, call: ModelCall) -> bytes:
        return answer.head.replace(b'"message":null', b'"message":' + answer.message, 1)

    def events(self, call: ModelCall) -> ChatEvents:
        return ChatEvents(call)


class ChatEvents(EventWriter):
    """The chunks of the engine without what the proxy alone asked for."""

    def __init__(self, call: ModelCall):
        self._call = call

    def chunk(self, chunk: Json) -> bytes:
        if not chunk.get("choices") and "usage" not in self._call.wanted:
            return b""
        return event(visible(chunk, self._call))

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def failure(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error", "param": None, "code": 502}})


def visible(answer: dict[str, Any], call: ModelCall) -> dict[str, Any]:
    """An answer or chunk without token ids, with the model's name that the agent knows, and logprobs if it asked."""
    hidden: tuple[str, ...] = _TOKEN_FIELDS if "logprobs" in call.wanted else (*_TOKEN_FIELDS, "logprobs")
    if "return_token_ids" in call.params:
        hidden = () if "logprobs" in call.wanted else ("logprobs",)
    shown = {name: value for name, value in answer.items() if name not in hidden}
    if call.model and "model" in shown:
        shown["model"] = call.model
    if "usage" not in call.wanted and shown.get("usage") is None:
        shown.pop("usage", None)
    shown["choices"] = [
        {name: value for name, value in choice.items() if name not in hidden} for choice in answer["choices"]
    ]
    return shown


def _given(fields: dict[str, msgspec.Raw], name: str) -> bool:
    return name in fields and bytes(fields[name]) != b"null"


def _fields_behind(body: bytes, known: KnownMessages) -> tuple[bytes, dict[str, msgspec.Raw]]:
    """The messages of the latest request, if this one begins with them, and its fields with a mark in their place."""
    place = body.find(_MESSAGES) + len(_MESSAGES)
    end = known(body, place)
    if end >= 0 and body[end : end + 1] == b",":
        fields = _fields(body[:place] + _MARK + body[end:])
        # The list may be another one, deep in a tool: then the mark is not in the messages.
        if bytes(fields.get("messages", b"")).startswith(b"[" + _MARK + b","):
            return body[place:end], fields
    return b"", _fields(body)


def read_head(fields: dict[str, Any], call: ModelCall) -> bytes:
    """The head of an answer: the fields that the agent sees, with `null` for the message."""
    shown = visible(fields, call)
    for choice in shown["choices"]:
        choice["message"] = None
    return encode(shown)
