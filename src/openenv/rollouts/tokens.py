"""The token ids of a rollout: what the model sampled is what a trainer gets.

`TokenHistory` follows one rollout while it is played: it makes the next prompt from the sampled ids, and finds where
a prompt does not extend the ids before it. `segments` makes of a recorded rollout what a trainer learns from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ..errors import ModelFailed, UsageError
from .chat_template import ChatTemplate, Tokenizer
from .model import Completion
from .records import BreakKind, ChatMessage, PrefixBreak, Rollout, TokenSource, Turn

__all__ = ["PrefixBroken", "TokenHistory", "Tokenizer", "TrainingSegment", "segments"]


class PrefixBroken(UsageError):
    """The prompt of a turn does not begin with the tokens of the turns before it.

    Attributes:
        prefix_break: Where, and why.
    """

    def __init__(self, prefix_break: PrefixBreak) -> None:
        super().__init__(
            f"the prompt differs at token {prefix_break.position} from the {prefix_break.expected} tokens of the "
            f"turns before: {_ADVICE[prefix_break.kind]}, or choose on_break='split'",
            data={"kind": prefix_break.kind},
        )
        self.prefix_break = prefix_break


_ADVICE: dict[BreakKind, str] = {
    "template": "the chat template rewrites the history; use a model that takes token ids, or another chat template",
    "reasoning_dropped": "the reasoning of an earlier turn is no longer in the prompt; keep `reasoning_content` in "
    "the messages and have the chat template keep it",
    "compaction": "the messages do not extend those of the turn before; append messages only",
    "retokenized": "the endpoint tokenized the text of an earlier turn again, to other ids; use a model that takes "
    "token ids",
    "other": "the endpoint changed the history; give the tokenizer to find out how",
}


class TokenHistory:
    """The messages and token ids of one rollout: each turn, call `prompt_for`, then the model, then `turn`.

    Each message is rendered and tokenized once, when it is new.

    Args:
        tokenizer: Tokenizes prompts for a model that takes ids, and the text of a model that gives no ids. None:
            token ids come from the model alone.
        on_break: `split` records a prompt that does not extend the tokens before it as the turn's `prefix_break`;
            `fail` raises `PrefixBroken`.
    """

    def __init__(self, tokenizer: Tokenizer | None = None, *, on_break: Literal["split", "fail"] = "split") -> None:
        self._template = None if tokenizer is None else ChatTemplate(tokenizer)
        self._on_break = on_break
        self._messages: list[ChatMessage] = []
        self._ids: list[int] | None = []  # None: those of an earlier turn are unknown
        self._context = b""  # `_ids` as JSON
        self._answers: list[tuple[int, int, ChatMessage]] = []  # where the ids of each begin and end
        self._answer_ids: list[int] = []
        self._prompt: tuple[list[ChatMessage], list[int]] | None = None

    @property
    def context(self) -> bytes:
        """The ids so far for `ModelRequest.context`; empty if those of a turn are unknown."""
        return b"" if self._ids is None else self._context

    def prompt_for(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int] | None:
        """The ids of the next prompt: all ids so far, and those of the new messages.

        Args:
            messages: The whole conversation.
            tools: Function tools of the request.

        Returns:
            The ids for `ModelRequest.prompt_ids`; None without a tokenizer.

        Raises:
            PrefixBroken: The messages do not extend those of the last turn, and `on_break` is `fail`.
            UsageError: The chat template refuses the messages.
        """
        if self._template is None:
            return None
        if self._prompt is not None and self._prompt[0] == list(messages):
            return self._prompt[1]
        kind = self._changed_messages(messages)
        if kind is not None and self._on_break == "fail":
            raise PrefixBroken(PrefixBreak(kind, 0, len(self._ids or ()), 0))
        if kind is not None or not self._messages or self._ids is None:
            ids = self._template.prompt(messages, tools)
        else:
            new = messages[len(self._messages) :]
            ids = self._ids + self._template.extension(self._messages[-1], self._answer_ids, new, tools)
        self._prompt = (list(messages), ids)
        return ids

    def copy(self) -> TokenHistory:
        """A history with the same turns, which goes on by itself."""
        other = copy(self)
        other._messages, other._answers = self._messages[:], self._answers[:]
        other._ids = None if self._ids is None else self._ids[:]
        return other

    def turn(
        self, messages: Sequence[ChatMessage], completion: Completion, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Turn:
        """Adds a completion to the history.

        Args:
            messages: The whole conversation that the model answered.
            completion: Its answer.
            tools: Function tools of the request.

        Returns:
            The turn, without steps: `prompt` and `prompt_ids` have what the conversation adds to the turns before.

        Raises:
            PrefixBroken: The prompt does not extend the tokens before it, and `on_break` is `fail`.
            ModelFailed: The completion has another number of logprobs than of tokens.
            UsageError: The chat template refuses the messages.
        """
        source: TokenSource = completion.tokens
        prompt_ids, completion_ids, logprobs = completion.prompt_ids, completion.completion_ids, completion.logprobs
        if self._template is not None and (prompt_ids is None or completion_ids is None):
            source = "retokenized"
            prompt_ids = prompt_ids if prompt_ids is not None else self.prompt_for(messages, tools)
            if completion_ids is None:
                completion_ids, logprobs = self._template.answer(completion.message, tools), None
        if completion_ids is None:
            source, prompt_ids = "none", None
        elif logprobs is not None and len(logprobs) != len(completion_ids):
            raise ModelFailed(f"the endpoint sent {len(logprobs)} logprobs for {len(completion_ids)} tokens")
        extends = completion.repeats_context and prompt_ids is not None
        if extends and self._changed_messages(messages) is not None:
            extends, prompt_ids = False, (self._ids or []) + (prompt_ids or [])
        prefix_break = None if extends else self._find_break(messages, prompt_ids)
        if prefix_break is not None and self._on_break == "fail":
            raise PrefixBroken(prefix_break)
        turn = Turn(
            prompt=list(messages if prefix_break is not None else messages[len(self._messages) :]),
            completion=completion.message,
            prompt_ids=prompt_ids,
            completion_ids=completion_ids,
            logprobs=logprobs,
            tokens=source,
            prefix_break=prefix_break,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            version=completion.version,
            model=completion.model,
            model_s=completion.seconds,
        )
        self._add(turn, extends)
        return turn

    def _add(self, turn: Turn, extends: bool) -> None:
        """Appends a turn, and leaves of its prompt's ids those that are new, unless they are all that it has."""
        if turn.prefix_break is not None:
            self._messages, self._ids, self._answers, self._context = [], [], [], b""
        self._messages += [*turn.prompt, turn.completion]
        self._prompt, self._answer_ids = None, turn.completion_ids or []
        if turn.prompt_ids is None or turn.completion_ids is None or self._ids is None:
            self._ids = None
        else:
            if not extends:
                turn.prompt_ids = turn.prompt_ids[len(self._ids) :]
            new = turn.prompt_ids + turn.completion_ids
            self._ids += new
            if new:
                self._context = (self._context or b"[") + msgspec.json.encode(new)[1:-1] + b","
            self._answers.append((len(self._ids) - len(turn.completion_ids), len(self._ids), turn.completion))

    def _changed_messages(self, messages: Sequence[ChatMessage]) -> BreakKind | None:
        """Why the messages do not extend those before."""
        before = self._messages
        start = messages[: len(before)]
        if list(start) == before:
            return None
        if [*map(_without_reasoning, start)] == [*map(_without_reasoning, before)]:
            return "reasoning_dropped"
        return "compaction"

    def _find_break(self, messages: Sequence[ChatMessage], prompt_ids: list[int] | None) -> PrefixBreak | None:
        expected, found = self._ids or [], prompt_ids or []
        kind = self._changed_messages(messages)
        if kind is None and prompt_ids is not None:
            if self._ids is None:
                kind = "other"  # the ids of an earlier turn are unknown
            elif found[: len(expected)] != expected:
                kind = self._kind(expected, found, _difference(expected, found))
        return kind and PrefixBreak(kind, _difference(expected, found), len(expected), len(found))

    def _kind(self, expected: list[int], found: list[int], position: int) -> BreakKind:
        """Why the ids differ though the messages do not."""
        # A character may have several tokens, so the texts are compared from some tokens before the difference.
        start = max(0, position - _TOKENS_OF_A_CHARACTER)
        text = "" if self._template is None else self._template.text(found[start:])
        if self._template is not None and text.startswith(self._template.text(expected[start:])):
            return "retokenized"
        begin, end, answer = next((each for each in self._answers if position < each[1]), (0, 0, {}))
        if self._template is None:
            # Whether the found ids continue with a later place of the expected ones: something is left out.
            later = (expected[place : place + _TOKENS_TO_RECOGNIZE] for place in range(position + 1, len(expected)))
            skips = any(found[position : position + len(same)] == same for same in later)
            return "reasoning_dropped" if _reasoning(answer) and skips else "other"
        reasoning = _reasoning({"content": self._template.text(expected[begin:end])}) or _reasoning(answer)
        return "reasoning_dropped" if reasoning and reasoning not in text else "template"


_TOKENS_OF_A_CHARACTER = 8
_TOKENS_TO_RECOGNIZE = 6


def _difference(expected: list[int], found: list[int]) -> int:
    """Index of the first token that differs."""
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return position
    return min(len(expected), len(found))


def _reasoning(message: ChatMessage) -> str:
    """The reasoning that a message shows, with the tag after it if it is in the text; empty without."""
    content = message.get("content")
    if isinstance(content, str) and "</think>" in content:
        return content.partition("</think>")[0].rpartition("<think>")[2].lstrip() + "</think>"
    return str(message.get("reasoning_content") or "").strip()


def _without_reasoning(message: ChatMessage) -> ChatMessage:
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    if message.get("role") == "assistant" and isinstance(rest.get("content"), str):
        rest["content"] = rest["content"].rpartition("</think>")[2].lstrip()
    return rest


@dataclass(frozen=True, slots=True)
class TrainingSegment:
    """Turns of a rollout with token ids in one sequence: what a model with a causal mask can learn in one pass.

    Attributes:
        prompt_ids: The prompt of the first turn.
        completion_ids: All ids after it: those of the model, and between them those of the environment.
        mask: 1 for each of `completion_ids` that the model sampled, and 0 for those of the environment.
        logprobs: Log probability of each of `completion_ids` under the policy that sampled it, 0.0 where the mask is
            0; None if a turn has none.
        turns: Numbers of the turns in the rollout.
        version: The oldest version of the policy that sampled a turn; None if no turn has one.
        tokens: `sampled`, or `retokenized` if the ids of a turn are not those that the model sampled.
    """

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    turns: range = range(0)
    version: int | None = None
    tokens: TokenSource = "sampled"


def segments(rollout: Rollout) -> list[TrainingSegment]:
    """The training segments of a rollout: one between two prefix breaks.

    Each token that the model sampled has mask 1 in exactly one segment.

    Raises:
        UsageError: A turn has no token ids.
    """
    count = len(rollout.turns)
    starts = [number for number in range(count) if number == 0 or rollout.turns[number].prefix_break is not None]
    return [_segment(rollout, range(start, end)) for start, end in zip(starts, [*starts[1:], count], strict=True)]


def _segment(rollout: Rollout, numbers: range) -> TrainingSegment:
    completion_ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] | None = []
    source: TokenSource = "sampled"
    for number in numbers:
        turn = rollout.turns[number]
        if turn.prompt_ids is None or turn.completion_ids is None:
            raise UsageError(
                f"turn {number} of rollout {rollout.rollout_id} has no token ids: use a model that returns them, or "
                "give the tokenizer"
            )
        between = turn.prompt_ids if number > numbers.start else []
        completion_ids += [*between, *turn.completion_ids]
        mask += [0] * len(between) + [1] * len(turn.completion_ids)
        if logprobs is not None and turn.logprobs is not None:
            logprobs += [*([0.0] * len(between)), *turn.logprobs]
        else:
            logprobs = None
        source = turn.tokens if turn.tokens != "sampled" else source
    versions = [turn.version for turn in rollout.turns[numbers.start : numbers.stop] if turn.version is not None]
    return TrainingSegment(
        prompt_ids=list(rollout.turns[numbers.start].prompt_ids or ()),
        completion_ids=completion_ids,
        mask=mask,
        logprobs=logprobs,
        turns=numbers,
        version=min(versions, default=None),
        tokens=source,
    )
