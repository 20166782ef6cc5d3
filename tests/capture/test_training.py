from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from openenv.capture.training import TrainingTrace, TrainingTurn

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
