"""Token ids of rollouts: what the model sampled is what the trainer gets, and no break of the prefix is silent."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest

from openenv.rollouts.model import Completion
from openenv.rollouts.records import Rollout, RolloutOutcome, RolloutTask, Turn
from openenv.rollouts.tokens import TokenHistory, segments

from .chat_templates import FAMILIES, BytePairTokenizer, Family
from .conversations import Talk, talks

CORPUS = [
    pytest.param(family, talk, id=f"{family.name}-{talk.name}")
    for family in FAMILIES.values()
    for talk in talks(family)
]


def tokenizer_of(family: Family) -> BytePairTokenizer:
    return BytePairTokenizer(family.template, family.special)


def rollout_of(turns: list[Turn]) -> Rollout:
    return Rollout("g-0", RolloutTask(seed=1), "g", 0, RolloutOutcome.TERMINATED, turns=turns)


def sampled(family: Family, tokenizer: Any, text: str, cut: bool = False, seed: int = 0) -> list[int]:
    ids = tokenizer.sample(text, Random(seed))
    return ids if cut else ids + tokenizer.encode(family.end, add_special_tokens=False)


def trained(turns: list[Turn]) -> list[int]:
    """The ids that a trainer learns, in order."""
    return [
        number
        for segment in segments(rollout_of(turns))
        for number, by_model in zip(segment.completion_ids, segment.mask, strict=True)
        if by_model
    ]


def render(tokenizer: Any, messages: list[Any], talk: Talk) -> str:
    """The whole conversation, rendered at once."""
    return str(
        tokenizer.apply_chat_template(
            [_plain(message) for message in messages],
            tools=list(talk.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
        )
    )


def _plain(message: Any) -> Any:
    """A message as chat templates expect it: arguments as objects, images as parts of that type."""
    message = copy.deepcopy(message)
    for part in message["content"] if isinstance(message["content"], list) else []:
        part["type"] = part["type"].removesuffix("_url")
    for call in message.get("tool_calls", []):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message


@pytest.mark.parametrize(("family", "talk"), CORPUS)
def test_a_model_that_takes_ids_continues_what_it_sampled(family: Family, talk: Talk) -> None:
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer, on_break="fail")
    messages: list[Any] = []
    turns: list[Turn] = []
    everything: list[int] = []
    context: list[int] = []
    for number, exchange in enumerate(talk.exchanges):
        messages += exchange.messages
        prompt = history.prompt_for(messages, talk.tools)
        assert prompt is not None
        assert prompt[: len(context)] == context
        ids = sampled(family, tokenizer, exchange.said, exchange.cut, number)
        completion = Completion(
            message=exchange.answer,
            prompt_ids=prompt,
            completion_ids=ids,
            logprobs=[-float(number)] * len(ids),
            tokens="sampled",
            version=number,
        )
        turns.append(history.turn(messages, completion, talk.tools))
        messages.append(exchange.answer)
        everything += ids
        context = [*prompt, *ids]
    assert trained(turns) == everything
    (segment,) = segments(rollout_of(turns))
    assert segment.prompt_ids + segment.completion_ids == context == rollout_of(turns).context_ids()
    assert segment.tokens == "sampled"
    assert segment.version == 0
    assert rollout_of(turns).conversation() == messages


# These templates write the history again when it grows: Mistral's moves the tools, DeepSeek's drops the reasoning.
SAME_TEXT = [
    case
    for case in CORPUS
    if "reasoning" not in str(case.id) and "deepseek" not in str(case.id) and case.id != "mistral-tools"
]


@pytest.mark.parametrize(("family", "talk"), SAME_TEXT)
def test_new_messages_read_as_if_the_template_had_written_the_whole_conversation(family: Family, talk: Talk) -> None:
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer)
    messages: list[Any] = []
    for number, exchange in enumerate(talk.exchanges):
        messages += exchange.messages
        prompt = history.prompt_for(messages, talk.tools)
        whole = render(tokenizer, messages, talk)
        assert prompt is not None
        assert tokenizer.decode(prompt, skip_special_tokens=False) == whole
        ids = sampled(family, tokenizer, exchange.said, exchange.cut, number)
        history.turn(messages, Completion(message=exchange.answer, prompt_ids=prompt, completion_ids=ids), talk.tools)
        messages.append(exchange.answer)
