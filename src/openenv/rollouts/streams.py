"""Streamed answers: server-sent events, put together to the answer that the same request gets without streaming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..llm.sender import as_json

Event = dict[str, Any]


def events_of(content: bytes) -> list[Event]:
    """The JSON objects of server-sent events; lines that are no JSON object (comments, `[DONE]`) are left out."""
    texts = (line[5:] for line in content.splitlines() if line.startswith(b"data:"))
    return [event for event in map(as_json, texts) if isinstance(event, dict)]


def error_in(events: Sequence[Event]) -> Event | None:
    """The error that a server sent after it had begun to answer."""
    for event in events:
        if event.get("error"):
            return event
        if event.get("type") == "response.failed":
            return {"error": event["response"].get("error")}
    return None


def chat_answer(chunks: Sequence[Event]) -> Event | None:
    """The answer of a chat completion, or of a completion; None if the stream ended early."""
    message: dict[str, Any] = {"role": "assistant"}
    choice: dict[str, Any] = {"message": message, "text": ""}
    answer: dict[str, Any] = {"choices": [choice]}
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        answer.update({key: chunk[key] for key in ("usage", "model", "prompt_token_ids") if chunk.get(key)})
        for part in chunk.get("choices") or ():
            choice["text"] += part.get("text") or ""
            choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
            choice["prompt_token_ids"] = part.get("prompt_token_ids") or choice.get("prompt_token_ids")
            _extend(choice, part, "token_ids")
            for name, values in (part.get("logprobs") or {}).items():
                _extend(choice.setdefault("logprobs", {}), {name: values}, name)
            delta = part.get("delta") or {}
            for name in ("content", "reasoning_content", "reasoning", "refusal"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for each in delta.get("tool_calls") or ():
                call = calls.setdefault(
                    each["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
                )
                function = each.get("function") or {}
                call["id"] = each.get("id") or call.get("id", "")
                call["function"]["name"] += function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return answer if choice.get("finish_reason") else None


def _extend(target: dict[str, Any], source: Event, name: str) -> None:
    if isinstance(source.get(name), list):
        target.setdefault(name, []).extend(source[name])


def response_answer(events: Sequence[Event]) -> Event | None:
    """The answer of OpenAI's responses; None if the stream ended early."""
    ends = ("response.completed", "response.incomplete")
    return next((event["response"] for event in events if event.get("type") in ends), None)


def message_answer(events: Sequence[Event]) -> Event | None:
    """The answer of Anthropic's messages; None if the stream ended early."""
    answer: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                answer = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                if delta.get("type") == "input_json_delta":
                    arguments[event["index"]] = arguments.get(event["index"], "") + delta["partial_json"]
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
            case "message_delta":
                answer.update(event["delta"])
                answer["usage"] = {**(answer.get("usage") or {}), **(event.get("usage") or {})}
    for index, text in arguments.items():
        read = as_json(text) if text else {}
        blocks[index]["input"] = text if read is None else read  # cut off at the limit of tokens
    answer["content"] = [blocks[index] for index in sorted(blocks)]
    return answer if answer.get("stop_reason") else None
