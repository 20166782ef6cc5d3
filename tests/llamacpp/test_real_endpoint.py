"""Rollouts with a real language model: the recorded token ids and log probabilities are those of the model.

`make test-models` installs the model and llama.cpp, and runs these.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.chat import Chat, RegexAnswer
from openenv.envs.echo.server.echo_environment import EchoEnvironment
from openenv.errors import ContextOverflow
from openenv.rollouts import ModelRequest, OpenAIModel, Rollout, RolloutBudget, RolloutTask, Sampling, rollouts

from .endpoint import CONTEXT, IS_INSTALLED, LlamaServer, llama_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_INSTALLED, reason="`make test-models` installs the model and runs these tests"),
]

CHAT = Chat(system="Answer in few words.", answer=RegexAnswer(pattern=r"(?s)\A(?P<message>.+)\Z"))
WITHIN = 1e-2
HELLO = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with llama_server() as served:
        yield served


async def played(server: LlamaServer, **extra: Any) -> Rollout:
    """A rollout of two turns, sampled in token ids."""
    model = OpenAIModel("smollm2", server.url, ids="completions")
    sampling = Sampling(temperature=1.0, max_tokens=12, extra={"seed": 7, "id_slot": 0, **extra})
    run = rollouts(
        EchoEnvironment,
        model,
        [RolloutTask(seed=7)],
        tokenizer=server,
        chat=CHAT,
        sampling=sampling,
        budget=RolloutBudget(turns=2),
    )
    ((rollout,),) = [group.rollouts async for group in run]
    await model.aclose()
    assert [turn.prefix_break for turn in rollout.turns] == [None, None]
    return rollout


async def test_logprobs_recomputed_from_the_ids_are_those_of_the_rollout(server):
    rollout = await played(server)
    for number, turn in enumerate(rollout.turns):
        assert turn.completion_ids
        prompt = rollout.context_ids(number) + (turn.prompt_ids or [])
        assert turn.logprobs == pytest.approx(server.logprobs_of(prompt, turn.completion_ids), abs=WITHIN)


async def test_logprobs_recomputed_from_the_text_are_not(server):
    """The model is made to sample single letters; a tokenizer makes longer tokens of their text."""
    letters = [[token, 100.0] for letter in string.ascii_lowercase for token in server.encode(letter)]
    turn = (await played(server, logit_bias=letters)).turns[0]
    ids, prompt, text = turn.completion_ids or [], turn.prompt_ids or [], turn.completion["content"]
    assert (len(text), len(ids)) == (12, 12)
    assert turn.logprobs == pytest.approx(server.logprobs_of(prompt, ids), abs=WITHIN)
    assert server.encode(text) != ids
    assert abs(server.logprob_of_text(prompt, text) - sum(turn.logprobs or ())) > WITHIN * len(ids)


@pytest.mark.parametrize("stall_s", [None, 60.0], ids=["whole", "streamed"])
async def test_chat_completions_have_the_ids_of_their_text(server, stall_s):
    model = OpenAIModel("smollm2", server.url, stall_s=stall_s)
    completion = await model.complete(
        ModelRequest(messages=HELLO, sampling=Sampling(temperature=0.0, max_tokens=8, extra={"id_slot": 0}))
    )
    await model.aclose()
    assert completion.tokens == "sampled"
    assert completion.usage.completion_tokens == len(completion.logprobs or ())
    text = server.decode(completion.completion_ids or ())
    assert text.removesuffix("<|im_end|>").strip() == completion.message["content"].strip()


async def test_a_conversation_that_is_too_long_is_told(server):
    model = OpenAIModel("smollm2", server.url, ids="completions")
    with pytest.raises(ContextOverflow, match="shorten the conversation"):
        await model.complete(
            ModelRequest(messages=HELLO, prompt_ids=[1] * (CONTEXT + 1), sampling=Sampling(max_tokens=8))
        )
    await model.aclose()
