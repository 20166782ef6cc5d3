"""Token ids of rollouts: what the model sampled is what the trainer gets, and no break of the prefix is silent."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openenv.errors import ModelFailed, UsageError
from openenv.rollouts.model import Completion
from openenv.rollouts.records import BreakKind, Rollout, RolloutOutcome, RolloutTask, Turn
from openenv.rollouts.tokens import PrefixBroken, TokenHistory, segments

from .chat_templates import CHATML, FAMILIES, BytePairTokenizer, Family
from .conversations import SYSTEM, Talk, talks, user

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


def render(tokenizer: Any, messages: list[Any], talk: Talk, add_generation_prompt: bool = True) -> str:
    """The whole conversation, rendered at once."""
    return str(
        tokenizer.apply_chat_template(
            [_plain(message, tokenizer.arguments_as_text) for message in messages],
            tools=list(talk.tools) or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    )


def _plain(message: Any, arguments_as_text: bool) -> Any:
    """A message as chat templates expect it: arguments as objects or text, images as parts of that type."""
    message = copy.deepcopy(message)
    for part in message["content"] if isinstance(message["content"], list) else []:
        part["type"] = part["type"].removesuffix("_url")
    for call in [] if arguments_as_text else message.get("tool_calls", []):
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


def play_text(
    family: Family,
    talk: Talk,
    history: TokenHistory,
    *,
    seed: int | None = None,
    change: Callable[[list[Any], int], list[Any]] = lambda messages, turn: messages,
) -> tuple[list[Turn], list[int]]:
    """Plays a conversation against an endpoint that takes messages, and says which ids it read and sampled.

    Args:
        seed: Seed of the tokenization that the model samples; None for the one that the tokenizer chooses.
        change: What the caller does to the conversation before a turn.

    Returns:
        The turns, and all sampled ids.
    """
    tokenizer = tokenizer_of(family)
    messages: list[Any] = []
    turns, everything = [], []
    for number, exchange in enumerate(talk.exchanges):
        messages = change([*messages, *exchange.messages], number)
        text = exchange.said + ("" if exchange.cut else family.end)
        ids = encode(tokenizer, text) if seed is None else tokenizer.sample(text, Random(seed + number))
        prompt_ids = encode(tokenizer, render(tokenizer, messages, talk))
        completion = Completion(message=exchange.answer, prompt_ids=prompt_ids, completion_ids=ids, tokens="sampled")
        turns.append(history.turn(messages, completion, talk.tools))
        messages = [*messages, exchange.answer]
        everything += ids
    return turns, everything


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def decode(family: Family, turn: Turn) -> str:
    return tokenizer_of(family).decode(turn.completion_ids or (), skip_special_tokens=False)


def talk_of(family: Family, name: str) -> Talk:
    (talk,) = [talk for talk in talks(family) if talk.name == name]
    return talk


def kinds(turns: list[Turn]) -> list[BreakKind | None]:
    return [turn.prefix_break and turn.prefix_break.kind for turn in turns]


# The breaks of conversations whose template writes the history anew, by turn. All others have none.
BREAKS: dict[str, list[BreakKind | None]] = {
    "llama-text": [None] * 5,
    "mistral-tools": [None, None, None, "template", None],
    "chatml-reasoning": [None, "reasoning_dropped", "reasoning_dropped"],
    "deepseek-reasoning": [None, "reasoning_dropped", "reasoning_dropped"],
    # This template also writes the start of reasoning before an answer, and drops that where the model had none.
    "deepseek-text": [None, "reasoning_dropped", "template", "reasoning_dropped", "reasoning_dropped"],
    "deepseek-tools": [None, *["reasoning_dropped"] * 4],
    "deepseek-images": [None, *["reasoning_dropped"] * 2],
}


@pytest.mark.parametrize(("family", "talk"), CORPUS)
def test_each_break_of_an_endpoint_that_renders_the_conversation_is_found(family: Family, talk: Talk) -> None:
    turns, everything = play_text(family, talk, TokenHistory(tokenizer_of(family)))
    assert kinds(turns) == BREAKS.get(f"{family.name}-{talk.name}", [None] * len(turns))
    assert trained(turns) == everything
    assert len(segments(rollout_of(turns))) == 1 + len([kind for kind in kinds(turns) if kind])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_text_that_the_endpoint_tokenizes_otherwise_than_the_model_sampled_it_is_found(name: str) -> None:
    family = FAMILIES[name]
    talk = talk_of(family, "images")
    turns, everything = play_text(family, talk, TokenHistory(tokenizer_of(family)), seed=2)
    same = [turn.completion_ids == encode(tokenizer_of(family), decode(family, turn)) for turn in turns]
    assert not same[0]
    if name != "deepseek":
        assert kinds(turns)[1:] == [None if unchanged else "retokenized" for unchanged in same[:-1]]
    assert trained(turns) == everything
    prefix_break = turns[1].prefix_break
    assert prefix_break is not None
    first = [*(turns[0].prompt_ids or ()), *(turns[0].completion_ids or ())]
    assert prefix_break.expected == len(first)
    assert prefix_break.found == len(turns[1].prompt_ids or ())
    assert (turns[1].prompt_ids or [])[: prefix_break.position] == first[: prefix_break.position]
    assert (turns[1].prompt_ids or [])[prefix_break.position] != first[prefix_break.position]


@dataclass(frozen=True)
class Planted:
    """A break of the prefix, and its kind."""

    kind: BreakKind
    talk: str
    tokenizer: bool = True
    template: str = CHATML
    seed: int | None = None
    change: Callable[[list[Any], int], list[Any]] = lambda messages, turn: messages

    def play(self, on_break: Literal["split", "fail"]) -> tuple[list[Turn], list[int]]:
        family = replace(FAMILIES["chatml"], template=self.template)
        history = TokenHistory(tokenizer_of(family) if self.tokenizer else None, on_break=on_break)
        return play_text(family, talk_of(family, self.talk), history, seed=self.seed, change=self.change)


def drop_reasoning(messages: list[Any], turn: int) -> list[Any]:
    return [{name: value for name, value in message.items() if name != "reasoning_content"} for message in messages]


def drop_first(messages: list[Any], turn: int) -> list[Any]:
    return messages[2:] if turn == 2 else messages


def summarize(messages: list[Any], turn: int) -> list[Any]:
    return [SYSTEM, user("So far: the kettle is in the kitchen."), messages[-1]] if turn == 2 else messages


COUNTING = "{{ messages | length }} messages\n" + CHATML
PLANTED = {
    "template counts messages": Planted("template", "images", template=COUNTING),
    "template counts messages, without a tokenizer": Planted("other", "images", False, template=COUNTING),
    "template drops reasoning": Planted("reasoning_dropped", "reasoning"),
    "template drops reasoning, without a tokenizer": Planted("reasoning_dropped", "reasoning", False),
    "caller drops reasoning": Planted("reasoning_dropped", "reasoning", False, change=drop_reasoning),
    "caller drops the first messages": Planted("compaction", "text", change=drop_first),
    "caller summarizes": Planted("compaction", "text", False, change=summarize),
    "endpoint tokenizes again": Planted("retokenized", "images", seed=2),
    "endpoint tokenizes again, without a tokenizer": Planted("other", "images", False, seed=2),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_break_splits_the_rollout_into_segments(planted: Planted) -> None:
    turns, everything = planted.play("split")
    found = [kind for kind in kinds(turns) if kind is not None]
    assert set(found) == {planted.kind}
    parts = segments(rollout_of(turns))
    assert len(parts) == len(found) + 1
    assert [number for part in parts for number in part.turns] == [*range(len(turns))]
    assert trained(turns) == everything
    assert all(turns[part.turns.start].prefix_break for part in parts[1:])


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_break_fails_the_rollout_if_the_caller_chose_that(planted: Planted) -> None:
    with pytest.raises(PrefixBroken, match="on_break='split'") as failure:
        planted.play("fail")
    assert failure.value.prefix_break.kind == planted.kind
    assert failure.value.blame == "client"


def test_messages_that_do_not_extend_the_history_fail_before_the_model_is_asked() -> None:
    history = TokenHistory(tokenizer_of(FAMILIES["chatml"]), on_break="fail")
    talk(history, "hello")
    with pytest.raises(PrefixBroken, match="append messages only"):
        history.prompt_for([user("another"), {"role": "assistant", "content": "hello"}, user("question")])


def talk(history: TokenHistory, said: str, **completion: Any) -> Turn:
    """One turn with an endpoint of text."""
    answer = {"role": "assistant", "content": said}
    return history.turn([user("Where?")], Completion(message=answer, **completion))


@pytest.mark.parametrize(("family", "talk"), SAME_TEXT)
def test_the_text_of_an_endpoint_without_ids_is_tokenized_and_marked(family: Family, talk: Talk) -> None:
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer, on_break="fail")
    messages: list[Any] = []
    turns: list[Turn] = []
    for exchange in talk.exchanges:
        messages += exchange.messages
        turns.append(history.turn(messages, Completion(message=exchange.answer), talk.tools))
        messages.append(exchange.answer)
    assert {turn.tokens for turn in turns} == {"retokenized"}
    (segment,) = segments(rollout_of(turns))
    assert segment.tokens == "retokenized"
    assert segment.logprobs is None
    played = tokenizer.decode(segment.prompt_ids + segment.completion_ids, skip_special_tokens=False)
    assert played == render(tokenizer, messages, talk, add_generation_prompt=False)


def test_sampled_ids_whose_prompt_is_unknown_are_marked_as_retokenized() -> None:
    turn = talk(TokenHistory(tokenizer_of(FAMILIES["llama"])), "hello", completion_ids=[104, 105], tokens="sampled")
    assert turn.tokens == "retokenized"
    assert turn.completion_ids == [104, 105]


def test_a_turn_without_ids_cannot_be_trained_on_and_the_error_names_it() -> None:
    turn = talk(TokenHistory(), "hello")
    assert turn.tokens == "none"
    assert turn.prompt_ids is None
    with pytest.raises(UsageError, match=r"turn 0 of rollout g-0 has no token ids: .* tokenizer"):
        segments(rollout_of([turn]))


def test_ids_after_a_turn_without_ids_stand_alone() -> None:
    history = TokenHistory()
    first = talk(history, "hello")
    messages = [*first.prompt, first.completion, user("And now?")]
    answer = {"role": "assistant", "content": "x"}
    second = history.turn(
        messages, Completion(message=answer, prompt_ids=[1, 2], completion_ids=[3], tokens="sampled")
    )
    assert kinds([first, second]) == [None, "other"]
    assert rollout_of([first, second]).context_ids() == [1, 2, 3]
    assert rollout_of([first, second]).conversation() == [*messages, answer]


def test_as_many_logprobs_as_tokens_or_the_model_failed() -> None:
    with pytest.raises(ModelFailed, match="2 logprobs for 1 tokens"):
        talk(TokenHistory(), "hello", prompt_ids=[1], completion_ids=[2], logprobs=[-1.0, -2.0])


def test_the_tokens_of_the_environment_have_no_logprob_and_the_oldest_version_counts() -> None:
    history = TokenHistory()
    answer = {"role": "assistant", "content": "a"}
    messages: list[Any] = [user("1")]
    turns = []
    for number, ids in enumerate(([1, 2], [1, 2, 3, 4, 5])):
        completion = Completion(
            message=answer,
            prompt_ids=ids,
            completion_ids=[3, 4],
            logprobs=[-1, -2],
            tokens="sampled",
            version=7 - number,
        )
        turns.append(history.turn(messages, completion))
        messages = [*messages, answer, user("2")]
    (segment,) = segments(rollout_of(turns))
    assert segment.prompt_ids == [1, 2]
    assert segment.completion_ids == [3, 4, 5, 3, 4]
    assert segment.mask == [1, 1, 0, 1, 1]
    assert segment.logprobs == [-1, -2, 0.0, -1, -2]
    assert segment.version == 6


def test_each_text_is_tokenized_once_and_each_id_kept_once() -> None:
    family = FAMILIES["chatml"]
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer)
    messages: list[Any] = []
    turns, characters = [], []
    for _ in range(30):
        messages.append(user("Where is the kettle?"))
        before = tokenizer.encoded_characters
        prompt = history.prompt_for(messages)
        assert history.prompt_for(messages) == prompt  # a call that is repeated
        characters.append(tokenizer.encoded_characters - before)
        answer = {"role": "assistant", "content": "hello"}
        ids = sampled(family, tokenizer, "hello")
        turns.append(history.turn(messages, Completion(message=answer, prompt_ids=prompt, completion_ids=ids)))
        messages.append(answer)
    assert len(set(characters[1:])) == 1
    assert len({len(turn.prompt_ids or ()) for turn in turns[1:]}) == 1
    assert {len(turn.prompt) for turn in turns} == {1}


def test_what_a_chat_template_refuses_is_said() -> None:
    history = TokenHistory(tokenizer_of(FAMILIES["mistral"]))
    with pytest.raises(UsageError, match="roles user, user: user and assistant must alternate"):
        history.prompt_for([user("a"), user("b")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for each in messages if each.role == 'user' %}{{ each.content }}{% endfor %}", "does not render"),
        (
            "{% for each in messages %}{{ loop.revindex }}{{ each.content }}{{ loop.revindex }}{% endfor %}",
            "differently",
        ),
    ],
)
def test_a_chat_template_that_cannot_be_continued_is_refused(template: str, message: str) -> None:
    history = TokenHistory(BytePairTokenizer(template, ["<end>"]))
    first = talk(history, "hello", prompt_ids=[1], completion_ids=[2], tokens="sampled")
    with pytest.raises(UsageError, match=message):
        history.prompt_for([*first.prompt, first.completion, user("Where?")])


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12), st.integers()), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_any_text_reads_as_sampled(exchanges: list[tuple[str, str, int]]) -> None:
    family = FAMILIES["chatml"]
    tokenizer = tokenizer_of(family)
    history = TokenHistory(tokenizer, on_break="fail")
    messages: list[Any] = []
    everything: list[int] = []
    turns = []
    for asked, said, seed in exchanges:
        messages.append(user(asked))
        prompt = history.prompt_for(messages)
        ids = sampled(family, tokenizer, said, seed=seed)
        answer = {"role": "assistant", "content": said}
        completion = Completion(message=answer, prompt_ids=prompt, completion_ids=ids, tokens="sampled")
        turns.append(history.turn(messages, completion))
        assert tokenizer.decode(prompt or (), skip_special_tokens=False) == render(tokenizer, messages, NO_TOOLS)
        messages.append(answer)
        everything += ids
    assert trained(turns) == everything


NO_TOOLS = Talk("any", ())


def answer(said: str, prompt_ids: list[int] | None, ids: list[int], repeats_context: bool = False) -> Completion:
    message = {"role": "assistant", "content": said}
    return Completion(
        message=message, prompt_ids=prompt_ids, completion_ids=ids, repeats_context=repeats_context, tokens="sampled"
    )


def test_an_answer_that_leaves_out_the_context_makes_the_same_turns() -> None:
    history = TokenHistory()
    messages = [user("a")]
    assert history.context == b""
    history.turn(messages, answer("b", [1, 2], [3]))
    assert history.context == b"[1,2,3,"
    messages += [{"role": "assistant", "content": "b"}, user("c")]
    turn = history.turn(messages, answer("d", [4, 5], [6], repeats_context=True))
    assert (turn.prompt_ids, turn.prefix_break, turn.prompt) == ([4, 5], None, [user("c")])
    assert history.context == b"[1,2,3,4,5,6,"


def test_messages_that_changed_are_found_though_the_ids_begin_with_the_context() -> None:
    history = TokenHistory()
    history.turn([user("a")], answer("b", [1, 2], [3]))
    turn = history.turn([user("other")], answer("d", [4], [5], repeats_context=True))
    assert turn.prefix_break is not None
    assert (turn.prefix_break.kind, turn.prompt_ids) == ("compaction", [1, 2, 3, 4])
    assert history.context == b"[1,2,3,4,5,"


def test_after_a_turn_without_ids_there_is_no_context() -> None:
    history = TokenHistory()
    history.turn([user("a")], Completion(message={"role": "assistant", "content": "b"}))
    assert history.context == b""
