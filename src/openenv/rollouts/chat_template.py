"""A chat template as a function on tokens: what a new message adds to a conversation that the model has in tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import UsageError
from .records import ChatMessage

# Stands for what the assistant said, so that the text after it can be found in a rendered conversation.
_ANSWER = "a9f3Xq7Answer0Zk"
_TEXT_ANSWER: ChatMessage = {"role": "assistant", "content": _ANSWER}
_QUESTION: ChatMessage = {"role": "user", "content": "hello"}


class Tokenizer(Protocol):
    """What a tokenizer or a processor of `transformers` can do."""

    def apply_chat_template(
        self,
        conversation: list[ChatMessage],
        *,
        tools: list[dict[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> Any:
        """The conversation as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> Any:
        """The text of token ids."""
        ...


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: A tokenizer with a chat template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end: str | None = None  # what the template writes after an answer in text

    def prompt(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids of a whole conversation, up to where the assistant answers."""
        return self._encode(self._render(messages, tools))

    def extension(
        self,
        answer: ChatMessage,
        answer_ids: Sequence[int],
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """The token ids that follow an answer: the end of its turn unless the model sampled that, and new messages.

        The template renders the new messages after a stand-in for the conversation, and the text before them is cut
        off. So the history is neither rendered nor tokenized again.

        Args:
            answer: The assistant message before the new messages.
            answer_ids: Its token ids, as sampled.
            messages: The new messages.
            tools: Function tools, as in the prompt.
        """
        stand_in = _stand_in(answer)
        after = self._after_answer([_QUESTION, stand_in, *messages], tools, add_generation_prompt=True)
        if self._end is None:
            self._end = self._after_answer([_QUESTION, _TEXT_ANSWER], tools)
        alone = self._end if stand_in is _TEXT_ANSWER else self._after_answer([_QUESTION, stand_in], tools)
        start = alone.rfind(self._end) if self._end else len(alone)
        if start < 0 or not after.startswith(alone):
            raise UsageError(
                "the chat template writes an answer differently once messages follow it, so token ids cannot be "
                "continued: use a model that takes messages, or another chat template"
            )
        ids, sampled = self._encode(after[start:]), list(answer_ids[-_LONGEST_END:])
        for length in range(len(sampled), 0, -1):
            if sampled[-length:] == ids[:length]:
                return ids[length:]
        return ids

    def answer(self, message: ChatMessage, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The token ids of an assistant message, with the end of its turn, for a model that gives only text."""
        before = self._render([_QUESTION], tools)
        with_answer = self._render([_QUESTION, message], tools, add_generation_prompt=False)
        shared = next((n for n, (a, b) in enumerate(zip(before, with_answer, strict=False)) if a != b), len(before))
        return self._encode(with_answer[shared:])

    def text(self, ids: Sequence[int]) -> str:
        """The text of token ids, with special tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _after_answer(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False
    ) -> str:
        text = self._render(messages, tools, add_generation_prompt=add_generation_prompt)
        _, answer, after = text.rpartition(_ANSWER)
        if not answer:
            raise UsageError(
                "the chat template does not render the assistant's message: give the tokenizer another chat template"
            )
        return after

    def _render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        try:
            return self._apply(messages, tools, add_generation_prompt, _parsed)
        except UsageError:
            if not any(message.get("tool_calls") for message in messages):
                raise
            # Most templates expect the arguments of a tool call as an object, some as the text that OpenAI sends.
            return self._apply(
                messages,
                tools,
                add_generation_prompt,
                lambda given: given if isinstance(given, str) else json.dumps(given),
            )

    def _apply(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        arguments: Callable[[Any], Any],
    ) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [_for_template(message, arguments) for message in messages],
                    tools=[dict(tool) for tool in tools] or None,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                )
            )
        except Exception as error:  # a template is a program, which raises what it likes
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UsageError(f"the chat template refuses messages of the roles {roles}: {error}") from error

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


_LONGEST_END = 4  # tokens that a template writes at the end of a turn, and that the model may have sampled


def _stand_in(answer: ChatMessage) -> ChatMessage:
    """An answer with the same tool calls, since templates check the ids of their results."""
    calls = [dict(call) for call in answer.get("tool_calls") or ()]
    if not calls:
        return _TEXT_ANSWER
    calls[-1]["function"] = {**calls[-1]["function"], "arguments": {"answer": _ANSWER}}
    return {"role": "assistant", "content": _ANSWER if answer.get("content") else None, "tool_calls": calls}


def _for_template(message: ChatMessage, arguments: Callable[[Any], Any]) -> ChatMessage:
    """A message in the form that chat templates expect: text as text, and an image as a part of that type."""
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and not calls:
        content = ""
    elif isinstance(content, list):
        parts = [{"type": "image"} if part["type"] == "image_url" else part for part in content]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        content = "".join(texts) if len(texts) == len(parts) else parts
    if not calls:
        return {**message, "content": content}
    functions = [{**call["function"], "arguments": arguments(call["function"].get("arguments"))} for call in calls]
    calls = [{**call, "function": function} for call, function in zip(calls, functions, strict=True)]
    return {**message, "content": content, "tool_calls": calls}


def _parsed(arguments: Any) -> Any:
    if isinstance(arguments, str):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(arguments)
    return arguments
