from __future__ import annotations

import math
from typing import Any

import pytest
from openenv.core.harness.capture.upstream import training_sampling
from pydantic import ValidationError

from openenv.capture import (
    CaptureServer,
    export_session,
    measure_retokenization_skew,
    to_training_trace,
    to_turn_records,
)
from openenv.capture.training import TrainingTrace, TrainingTurn

from ..model_server import ModelServer, PairTokenizer
from .requests import Agent

SOUND: dict[str, Any] = {
    "node_id": "a",
    "prompt_token_ids": [1, 2],
    "completion_token_ids": [3],
    "per_token_logps": [-0.1],
    "loss_mask": [0, 0, 1],
}


def turn(**changes: Any) -> TrainingTurn:
    return TrainingTurn(**{**SOUND, **changes})


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"loss_mask": [0, 1]}, "length_mismatch"),
        ({"loss_mask": [0, 0, 2]}, "invalid_loss_mask"),
        ({"loss_mask": [1, 0, 1]}, "trainable_prompt"),
        ({"prompt_token_ids": [-1, 2]}, "invalid_token_id"),
        ({"completion_token_ids": [-3]}, "invalid_token_id"),
        ({"per_token_logps": [math.nan]}, "invalid_logprob"),
        ({"per_token_logps": [-math.inf]}, "invalid_logprob"),
        ({"per_token_logps": [0.5]}, "positive_logprob"),
        ({"prompt_token_ids": [], "loss_mask": [1]}, "no_prompt_ids"),
        ({"per_token_logps": []}, "logprob_misalign"),
        ({"per_token_logps": [-0.1, -0.2]}, "logprob_misalign"),
        ({"node_id": ""}, "at least 1 character"),
        ({"prompt_token_ids": [True, 2]}, "valid integer"),
        ({"prompt_token_ids": [1.0, 2]}, "valid integer"),
        ({"other": 1}, "not permitted"),
    ],
)
def test_a_turn_that_cannot_be_trained_on_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ValidationError, match=code):
        turn(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss_mask": [0, 0, 0]},
        {"per_token_logps": [-1]},
        {"completion_token_ids": [], "per_token_logps": [], "loss_mask": [0, 0]},
    ],
)
def test_a_sound_turn_is_taken(changes: dict[str, Any]) -> None:
    assert turn(**changes).node_id == "a"


def test_a_trace_becomes_entries_and_comes_back() -> None:
    trace = TrainingTrace(turns=[turn(metadata={"index": 0}), turn(node_id="b", request={"messages": []})])
    entries = trace.to_trace_entries()
    assert entries[0]["metadata"] == {"index": 0, "node_id": "a"}
    again = TrainingTrace.from_entries(entries)
    assert [each.node_id for each in again.turns] == ["a", "b"]
    assert again.to_trace_entries() == entries


def test_two_turns_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="duplicate node_ids: 'a'"):
        TrainingTrace(turns=[turn(), turn()])


@pytest.mark.parametrize("missing", ["loss_mask", "metadata", "per_token_logps"])
def test_an_entry_without_a_field_is_refused(missing: str) -> None:
    (entry,) = TrainingTrace(turns=[turn()]).to_trace_entries()
    with pytest.raises(KeyError, match=missing):
        TrainingTrace.from_entries([{name: value for name, value in entry.items() if name != missing}])


def test_a_session_becomes_a_trace_that_is_checked(proxy: CaptureServer) -> None:
    session = proxy.registry.create("one")
    agent = Agent(proxy.url, "one")
    for text in ("hello", "and on"):
        agent.say(text)
    document = export_session(session)
    trace = to_training_trace(session.graph, document)
    assert trace == proxy.training_trace("one")
    assert [each.node_id for each in trace.turns] == ["turn-0", "turn-1"]
    last = trace.turns[-1]
    expected = (last.prompt_token_ids, last.completion_token_ids, last.per_token_logps)
    assert to_turn_records(session.graph, document)[-1] == expected


def test_an_engine_without_ids_gives_no_trace(proxy: CaptureServer, engine: ModelServer) -> None:
    session = proxy.registry.create("none")
    message = {"role": "assistant", "content": "hello"}
    engine.canned.append({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    Agent(proxy.url, "none").say("hello")
    with pytest.raises(ValueError, match="session none cannot be trained on: FATAL: the engine gave no token ids"):
        to_training_trace(session.graph, export_session(session))
    proxy.open("judged", purpose="eval")
    with pytest.raises(ValueError, match="is for evaluation"):
        proxy.training_trace("judged")


def test_ids_of_the_engine_are_compared_with_those_of_a_tokenizer(proxy: CaptureServer, engine: ModelServer) -> None:
    session = proxy.registry.create("skewed")
    agent = Agent(proxy.url, "skewed")
    agent.say("hello")
    agent.say("and on")
    document = export_session(session)
    measured = measure_retokenization_skew(session.graph, document, PairTokenizer())
    assert measured["exact_match_frac"] == 1.0
    assert [turn["prefix_match"] for turn in measured["turns"]] == [turn["engine_len"] for turn in measured["turns"]]

    class Shorter(PairTokenizer):
        def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
            return super().apply_chat_template(*arguments, **options)[:-1]

    measured = measure_retokenization_skew(session.graph, document, Shorter())
    assert measured["exact_match_frac"] == 0.0
    assert {(turn["delta"], turn["exact"]) for turn in measured["turns"]} == {(-1, False)}


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ({"temperature": 0}, "above 0"),
        ({"temperature": 1.0, "top_p": 0.9}, "top_p is 0.9"),
        ({"temperature": 1.0, "top_k": 50}, "top_k is 50"),
        ({"temperature": 1.0, "seed": 3}, "all else is neutral"),
    ],
)
def test_a_sampling_that_changes_the_distribution_is_refused(sampling: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        training_sampling(sampling)


def test_the_sampling_of_a_trainer_may_name_what_is_neutral() -> None:
    given = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    assert training_sampling(given) == training_sampling({"temperature": 0.7})
