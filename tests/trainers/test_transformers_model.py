"""A model of `transformers` in this process: exact ids and logprobs, batches, limits, and faults."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from openenv.errors import ContextOverflow, ModelFailed, ModelTimeout, UsageError
from openenv.rollouts.model import Completion, ModelRequest, Sampling
from openenv.rollouts.transformers_model import TransformersModel

from .tiny import tiny_model, tiny_tokenizer

PROMPTS = ["a", "What is in the kitchen?", "hello " * 20, "x" * 90]


@pytest.fixture
def network() -> Any:
    return tiny_model(tiny_tokenizer(["<call>"])).eval()


@pytest.fixture
def model(network: Any) -> TransformersModel:
    return TransformersModel(network, tiny_tokenizer(["<call>"]), name="tiny")


def request(text: str, session: str = "", **sampling: Any) -> ModelRequest:
    return ModelRequest(
        messages=[{"role": "user", "content": text}], sampling=Sampling(**{"max_tokens": 12, **sampling})
    )


def complete(model: TransformersModel, *requests: ModelRequest) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        try:
            return await asyncio.gather(*(model.complete(each) for each in requests))
        finally:
            await model.aclose()

    return asyncio.run(all_of_them())


def recomputed(network: Any, completion: Completion, temperature: float = 1.0, top_p: float = 1.0) -> list[float]:
    """The logprobs of the completion's ids, by one pass over the whole text without a batch."""
    prompt, ids = completion.prompt_ids or [], completion.completion_ids or []
    with torch.no_grad():
        logits = network(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
    logprobs = []
    for row, token in zip(logits, ids, strict=True):
        probabilities = row.softmax(-1)
        kept = torch.zeros_like(probabilities)
        for number in probabilities.argsort(descending=True).tolist():
            if kept.sum() >= top_p:
                break
            kept[number] = probabilities[number]
        logprobs.append(float((kept / kept.sum())[token].log()))
    return logprobs


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.5}, {"temperature": 2.0, "top_p": 0.7}])
def test_the_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    network: Any, model: TransformersModel, sampling: dict[str, float]
) -> None:
    for completion in complete(model, *(request(text, **sampling) for text in PROMPTS * 3)):
        assert completion.tokens == "sampled"
        assert completion.logprobs == pytest.approx(recomputed(network, completion, **sampling), abs=1e-4)


def test_each_request_of_a_batch_has_its_own_settings(network: Any, model: TransformersModel) -> None:
    settings = [{"temperature": 0.0}, {"temperature": 0.3}, {"top_p": 0.2}, {"max_tokens": 3}]
    done = complete(model, *(request(text, **each) for text, each in zip(PROMPTS, settings, strict=True)))
    assert done[0].logprobs == [0.0] * len(done[0].completion_ids or ())
    for completion, temperature, top_p in zip(done[1:], (0.3, 1.0, 1.0), (1.0, 0.2, 1.0), strict=True):
        assert completion.logprobs == pytest.approx(recomputed(network, completion, temperature, top_p), abs=1e-4)
    assert len(done[3].completion_ids or ()) <= 3


def test_a_greedy_completion_does_not_depend_on_its_batch(network: Any) -> None:
    tokenizer = tiny_tokenizer(["<call>"])
    alone = [
        complete(TransformersModel(network, tokenizer), request(text, temperature=0.0))[0].completion_ids
        for text in PROMPTS
    ]
    together = complete(TransformersModel(network, tokenizer), *(request(text, temperature=0.0) for text in PROMPTS))
    assert [completion.completion_ids for completion in together] == alone


def test_it_continues_from_the_ids_of_the_request(model: TransformersModel) -> None:
    (completion,) = complete(
        model, ModelRequest(messages=[], prompt_ids=[72, 101, 108], sampling=Sampling(max_tokens=2))
    )
    assert completion.prompt_ids == [72, 101, 108]
    assert completion.usage.prompt_tokens == 3
    assert completion.usage.completion_tokens == len(completion.completion_ids or ())


class Forced(torch.nn.Module):
    """Gives one id after another, whatever the prompt, and then the last one for ever."""

    def __init__(self, network: Any, ids: Sequence[int], failure: Exception | None = None) -> None:
        super().__init__()
        self.config, self.generation_config, self.device = network.config, network.generation_config, network.device
        self.network, self.ids, self.failure, self.passes = network, list(ids), failure, 0
        self.started = threading.Event()

    def forward(self, **inputs: Any) -> Any:
        self.passes += 1
        self.started.set()
        if self.failure is not None:
            raise self.failure
        output = self.network(**inputs)
        output.logits[:] = -1e9
        output.logits[..., self.ids[min(self.passes, len(self.ids)) - 1]] = 0.0
        return output


def forced(network: Any, text: str, end: bool = True, **sampling: Any) -> Completion:
    tokenizer = tiny_tokenizer(["<call>"])
    ids = tokenizer.encode(text, add_special_tokens=False) + [tokenizer.eos_token_id] * end
    model = TransformersModel(Forced(network, ids), tokenizer)
    return complete(model, request("hello", **{"max_tokens": len(ids), **sampling}))[0]


def test_the_end_of_the_turn_is_sampled_and_not_in_the_text(network: Any) -> None:
    completion = forced(network, "tea")
    assert completion.message == {"role": "assistant", "content": "tea"}
    assert completion.finish_reason == "stop"
    assert (completion.completion_ids or [])[-1] == network.config.eos_token_id
    assert completion.logprobs == [0.0] * 4


def test_the_limit_of_tokens_ends_a_completion(network: Any) -> None:
    completion = forced(network, "tea", end=False)
    assert (completion.message["content"], completion.finish_reason) == ("tea", "length")
    assert len(completion.completion_ids or ()) == 3


def test_a_stop_ends_a_completion_and_its_ids_stay(network: Any) -> None:
    completion = forced(network, "tea</é>xyz", stop=["</é>", "zzz"])
    assert (completion.message["content"], completion.finish_reason) == ("tea", "stop")
    tokenizer = tiny_tokenizer(["<call>"])
    assert tokenizer.decode(completion.completion_ids or ()) == "tea</é>"


def test_a_tool_call_is_one_in_the_message(network: Any) -> None:
    completion = forced(
        network, '<think>hm</think>\n\nyes\n<tool_call>\n{"name": "add", "arguments": {"by": 1}}\n</tool_call>'
    )
    assert completion.finish_reason == "tool_calls"
    assert completion.message["reasoning_content"] == "hm"
    assert completion.message["content"] == "yes"
    (call,) = completion.message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"by": 1})


def test_the_version_of_the_weights_is_that_of_the_first_token(model: TransformersModel) -> None:
    model.version = 7
    assert complete(model, request("a"))[0].version == 7


def test_training_goes_on_after_a_completion(network: Any, model: TransformersModel) -> None:
    network.train()
    complete(model, request("a"))
    assert network.training


def test_a_prompt_that_fills_the_context_is_refused(network: Any, model: TransformersModel) -> None:
    context = network.config.max_position_embeddings
    with pytest.raises(ContextOverflow, match=f"the context of tiny {context}"):
        complete(model, ModelRequest(messages=[], prompt_ids=[1] * context))


def test_a_completion_ends_where_the_context_does(network: Any, model: TransformersModel) -> None:
    prompt = [1] * (network.config.max_position_embeddings - 1)
    (completion,) = complete(model, ModelRequest(messages=[], prompt_ids=prompt))
    assert len(completion.completion_ids or ()) == 1


def test_a_setting_that_it_does_not_have_is_refused(model: TransformersModel) -> None:
    with pytest.raises(UsageError, match="has no setting min_p"):
        complete(model, request("a", extra={"min_p": 0.1}))


def test_a_model_that_raises_fails_the_request_and_not_the_next(network: Any) -> None:
    broken = Forced(network, [65, network.config.eos_token_id], RuntimeError("out of memory"))
    model = TransformersModel(broken, tiny_tokenizer(["<call>"]), name="tiny")

    async def twice() -> Completion:
        with pytest.raises(ModelFailed, match="tiny failed: RuntimeError: out of memory"):
            await model.complete(request("a"))
        broken.failure = None
        return await model.complete(request("a"))

    assert asyncio.run(twice()).tokens == "sampled"


def test_a_call_out_of_time_or_cancelled_is_sampled_no_further(network: Any) -> None:
    never = Forced(network, [65])
    model = TransformersModel(never, tiny_tokenizer(["<call>"]), name="tiny")

    async def scenario() -> Completion:
        with pytest.raises(ModelTimeout, match=r"tiny did not answer within 0\.05 s"):
            await model.complete(ModelRequest(messages=[], prompt_ids=[1], timeout_s=0.05))
        task = asyncio.ensure_future(model.complete(ModelRequest(messages=[], prompt_ids=[1])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        never.ids = [network.config.eos_token_id]  # the next one would wait for ever behind them
        return await model.complete(request("a"))

    assert asyncio.run(scenario()).finish_reason == "stop"


def test_what_waits_when_the_model_is_closed_is_cancelled(network: Any) -> None:
    forced = Forced(network, [65])
    model = TransformersModel(forced, tiny_tokenizer(["<call>"]), batch_size=1)

    async def scenario() -> None:
        first, second = (asyncio.ensure_future(model.complete(request("a", max_tokens=200))) for _ in range(2))
        await asyncio.to_thread(forced.started.wait)
        await model.aclose()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert len((await first).completion_ids or ()) == 200
        with pytest.raises(UsageError, match="closed: make another"):
            await model.complete(request("a"))

    asyncio.run(scenario())
