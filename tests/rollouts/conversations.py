"""Conversations of a model with an environment, as a corpus: what the environment says, and what the model says."""

# ruff: noqa: RUF001 - tokens of a family

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from openenv.rollouts.records import ChatMessage

from .chat_templates import Family

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_for",
            "description": "Looks for a thing.",
            "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}},
        },
    }
]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


@dataclass(frozen=True)
class Exchange:
    """New messages, and the model's answer.

    Attributes:
        said: The text that the model sampled, without the end of its turn.
        cut: The model reached its limit of tokens, so that it did not end its turn.
    """

    messages: tuple[ChatMessage, ...]
    answer: ChatMessage
    said: str
    cut: bool = False


@dataclass(frozen=True)
class Talk:
    name: str
    exchanges: tuple[Exchange, ...]
    tools: tuple[dict[str, Any], ...] = ()
    reasoning: bool = False


def user(*parts: Any) -> ChatMessage:
    content = parts[0] if parts == (str(parts[0]),) else [_part(part) for part in parts]
    return {"role": "user", "content": content}


def _part(part: Any) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else part


def result(call: str, content: str) -> ChatMessage:
    return {"role": "tool", "tool_call_id": call, "name": "look_for", "content": content}


SYSTEM: ChatMessage = {"role": "system", "content": "You are the assistant."}


def talks(family: Family) -> list[Talk]:
    """The corpus for a family: each kind of conversation that its models can have."""
    return [
        Talk(
            "text",
            (
                _say(family, (SYSTEM, user("Where is the kettle? 你好 🫖")), "It is in the kitchen. 🫖"),
                _say(family, (user("And the tea?"),), "I look for the te", cut=True),
                _say(family, (user(" go on  "),), "the tea is black"),
                _say(family, (user("{json}"),), ""),
                _say(family, (user("Thank you."),), "\n hello \n\n"),
            ),
        ),
        _tools(family),
        Talk(
            "images",
            (
                _say(family, (user("What do you see?", PICTURE),), "I see a kettle."),
                _say(family, (user(PICTURE, "And here?", PICTURE),), "I see a cup of tea."),
                _say(family, (user("Sure?"),), "The answer is: tea"),
            ),
        ),
        _reasoning(family),
    ]


def _tools(family: Family) -> Talk:
    many = [("call00002", "tea"), ("call00003", "cup")] if family.parallel_calls else [("call00002", "tea")]
    return Talk(
        "tools",
        (
            _call(family, (SYSTEM, user("Where is the kettle?")), [("call00001", "kettle")]),
            _call(family, (result("call00001", '{"found": true}'),), many),
            _say(family, tuple(result(call, f"found {thing}") for call, thing in many), "The answer is: kitchen"),
            _call(family, (user("And the cup?"),), [("call00004", 'c"u\\p é')]),
            _say(family, (result("call00004", "error: no such thing"),), "I do not know."),
        ),
        tools=tuple(TOOLS),
    )


def _reasoning(family: Family) -> Talk:
    return Talk(
        "reasoning",
        (
            _think(family, (SYSTEM, user("Where is the kettle?")), "I look for the kettle first", "In the kitchen."),
            _think(family, (user("And the tea?"),), "then the tea is easy to find", "There, too."),
            _think(family, (user("And the cup?"),), "the cup", "No."),
        ),
        reasoning=True,
    )


def _say(family: Family, messages: tuple[ChatMessage, ...], said: str, cut: bool = False) -> Exchange:
    opened = "so </think>\n\n" if family.name == "deepseek" and not cut else ""
    return Exchange(messages, {"role": "assistant", "content": said}, opened + said, cut)


def _think(family: Family, messages: tuple[ChatMessage, ...], reasoning: str, said: str) -> Exchange:
    opening = "" if family.name == "deepseek" else "<think>\n"
    text = f"{opening}{reasoning}\n</think>\n\n{said}"
    if family.name == "chatml":
        return Exchange(messages, {"role": "assistant", "content": said, "reasoning_content": reasoning}, text)
    return Exchange(messages, {"role": "assistant", "content": text}, text)


def _call(family: Family, messages: tuple[ChatMessage, ...], calls: list[tuple[str, str]]) -> Exchange:
    arguments = [json.dumps({"thing": thing}, ensure_ascii=False) for _, thing in calls]
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call, "type": "function", "function": {"name": "look_for", "arguments": text}}
            for (call, _), text in zip(calls, arguments, strict=True)
        ],
    }
    ids = [call for call, _ in calls]
    said = {
        "chatml": "\n".join(
            f'<tool_call>\n{{"name": "look_for", "arguments": {text}}}\n</tool_call>' for text in arguments
        ),
        "llama": f'{{"name": "look_for", "parameters": {arguments[0]}}}',
        "mistral": "[TOOL_CALLS]["
        + ", ".join(
            f'{{"name": "look_for", "arguments": {text}, "id": "{call}"}}'
            for text, call in zip(arguments, ids, strict=True)
        )
        + "]",
        "gemma": "".join(f"\n```tool_code\nlook_for({text})\n```" for text in arguments),
        "deepseek": "so </think>\n\n<｜tool▁calls▁begin｜>"
        + "".join(f"<｜tool▁call▁begin｜>look_for<｜tool▁sep｜>{text}<｜tool▁call▁end｜>" for text in arguments)
        + "<｜tool▁calls▁end｜>",
    }[family.name]
    return Exchange(messages, answer, said)
