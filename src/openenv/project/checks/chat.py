"""The check of how an environment speaks with a language model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from random import Random
from typing import Any

from ...chat import Chat, RegexAnswer, TagAnswer
from ...errors import StepFailed, UsageError
from ...rollouts.chat_view import ChatView
from ...rollouts.content import content_of
from ...rollouts.function_tools import constants_of, variants_of
from ...runtime.profile import class_of
from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning
from ...testing.harness import ConformanceHarness, Repertoire
from ...testing.schemas import text_of

# Texts that are made from a pattern.
_TEXTS = 20
_FIX_OBSERVATION = "correct `observation` or `images` of `chat`: they name fields that every observation has"


@Check.of(
    "runtime.chat",
    "Can a language model play it: does `chat` show each observation, and read actions from answers?",
    "runtime.step",
)
async def runtime_chat(harness: ConformanceHarness) -> str:
    cls = class_of(harness.server.env_factory)
    declared = getattr(cls, "chat", None)
    if declared is not None and not isinstance(declared, Chat) and not callable(declared):
        raise CheckFailure(f"chat is a {type(declared).__name__}.", "declare `chat = Chat(...)`, of `openenv`")
    async with harness.session() as player:
        try:
            view = await ChatView.from_server(player.client)
        except UsageError as error:
            if isinstance(declared, Chat):
                raise CheckFailure(f"chat has answer='tools', but there are no tools: {error}.", str(error)) from None
            raise CheckSkip(f"no language model can play it: {error}") from None
    seen = [each for each in await harness.sample() if each.error is None]
    for each in seen:
        try:
            content_of(each.observation, view.chat)
        except StepFailed as error:
            raise CheckFailure(f"{each.call}: {error.message}.", _FIX_OBSERVATION) from None
        await asyncio.sleep(0)  # large observations take some time: let other tasks run
    said = f"{len(seen)} observations read as {'`chat` declares' if view.chat.observation else 'text'}"
    if view.tools:
        return f"{said}; {len(view.tools)} tools: {', '.join(tool['function']['name'] for tool in view.tools)}"
    _check_fields(view.chat, harness.server.schemas["action"])
    count = _check_answers(view, await harness.repertoire())
    answer: Any = view.chat.answer
    if isinstance(answer, TagAnswer) and f"<{answer.tag}>" not in view.system:
        raise CheckWarning(
            f"the system prompt does not mention <{answer.tag}>, so a model cannot know how to answer.",
            f"write in `system` that each answer ends with {answer.form}",
        )
    return f"{said}; {count} answers in the form {answer.form} read as actions"


def _check_fields(chat: Chat, schema: dict[str, Any]) -> None:
    """Raises `CheckFailure` if a pattern has other groups than an action has fields."""
    variants = variants_of(schema)
    if not isinstance(chat.answer, RegexAnswer) or not variants:
        return
    groups = chat.answer.groups
    fields = {name for variant in variants for name in variant["properties"]}
    if unknown := groups - fields:
        raise CheckFailure(
            f"the pattern has the group {min(unknown)!r}, which is no field of an action.",
            f"name the groups as the fields: {', '.join(sorted(fields - {'metadata'}))}",
        )
    missing = [{*each.get("required", ())} - constants_of(each).keys() - groups for each in variants]
    if all(missing):
        raise CheckFailure(
            f"the pattern has no group {min(missing[0])!r}, which an action requires.",
            "add the group to the pattern, or give the field a default",
        )


def _check_answers(view: ChatView, repertoire: Repertoire) -> int:
    """Reads answers that are made from actions. Returns their number."""
    refused = ""
    count = 0
    for text in _answers(view, repertoire):
        (call,) = view.actions({"role": "assistant", "content": text})
        if call.error is None and repertoire.accepts(call.action):
            count += 1
        else:
            refused = f"{text!r:.200} gives {call.error or call.action}"
            if not isinstance(view.chat.answer, RegexAnswer):
                raise CheckFailure(
                    f"the answer {refused}.", "correct `answer` of `chat`, so that it reads this answer"
                )
    if not count:  # text that is made from a pattern need not be a valid action
        raise CheckWarning(
            f"no text that was made from the pattern is a valid action: {refused or 'none can be made'}.",
            "make the pattern as strict as the action's schema",
        )
    return count


def _answers(view: ChatView, repertoire: Repertoire) -> Iterator[str]:
    answer: Any = view.chat.answer
    if isinstance(answer, RegexAnswer):
        random = Random(1)  # noqa: S311 - not for secrets
        for _ in range(_TEXTS):
            try:
                yield text_of(answer.pattern, random)
            except ValueError:  # it has parts that no text is made for
                return
        return
    for action in repertoire.actions:
        own: Any = action
        if isinstance(answer, TagAnswer) and len(view.fields) == 1:
            own = action.get(view.fields[0], "")
        text = own if isinstance(own, str) else json.dumps(own)
        yield f"So: <{answer.tag}>{text}</{answer.tag}>" if isinstance(answer, TagAnswer) else f"So: {text}"
