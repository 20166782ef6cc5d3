"""The corpus of conversations with real tokenizers: what a trainer gets equals what was sampled."""

from __future__ import annotations

import re
from itertools import chain, pairwise
from random import Random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from openenv.rollouts.model import Completion
from openenv.rollouts.records import Rollout, RolloutOutcome, RolloutTask
from openenv.rollouts.tokens import TokenHistory, segments

from ..rollouts.chat_templates import FAMILIES, TEXT, Family
from ..rollouts.conversations import Talk, talks

CORPUS = [
    pytest.param(family, talk, id=f"{family.name}-{talk.name}")
    for family in FAMILIES.values()
    for talk in talks(family)
]


def tokenizer_of(family: Family) -> Any:
    """A byte-level BPE that is trained here, with the special tokens and the template of a family."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=alphabet, special_tokens=[*family.special], show_progress=False
    )
    inner.train_from_iterator([TEXT], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=family.end)
    tokenizer.chat_template = family.template.strip("\n")
    return tokenizer


def sampled(tokenizer: Any, family: Family, text: str, seed: int) -> list[int]:
    """A tokenization that the tokenizer would not choose: pieces of random lengths, each on its own."""
    random = Random(seed)
    pieces = re.split("(" + "|".join(map(re.escape, family.special)) + ")", text)
    apart = [[piece] if piece in family.special else _torn(piece, random) for piece in pieces]
    return [number for piece in chain(*apart) for number in tokenizer.encode(piece, add_special_tokens=False)]


def _torn(text: str, random: Random) -> list[str]:
    ends = [0, *sorted(random.choices(range(len(text) + 1), k=len(text) // 2)), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(("family", "talk"), CORPUS)
def test_what_a_trainer_gets_equals_what_was_sampled(family: Family, talk: Talk) -> None:
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer, on_break="fail")
    messages: list[Any] = []
    turns, everything, context = [], [], []
    for number, exchange in enumerate(talk.exchanges):
        messages += exchange.messages
        prompt = history.prompt_for(messages, talk.tools)
        assert prompt is not None
        assert prompt[: len(context)] == context
        ids = sampled(tokenizer, family, exchange.said + ("" if exchange.cut else family.end), number)
        completion = Completion(message=exchange.answer, prompt_ids=prompt, completion_ids=ids, tokens="sampled")
        turns.append(history.turn(messages, completion, talk.tools))
        messages.append(exchange.answer)
        everything += ids
        context = prompt + ids
    (segment,) = segments(Rollout("g-0", RolloutTask(), "g", 0, RolloutOutcome.TERMINATED, turns=turns))
    assert [
        number for number, by_model in zip(segment.completion_ids, segment.mask, strict=True) if by_model
    ] == everything
    assert segment.prompt_ids + segment.completion_ids == context
    said = "".join(exchange.said + ("" if exchange.cut else family.end) for exchange in talk.exchanges)
    assert tokenizer.decode(everything) == said
