"""The calls of an agent with their tokens, in the form that trainers take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypedDict

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .checks import validate_training_turn

# The fields of a turn that an entry has under the same names.
_FIELDS = (
    "prompt_token_ids",
    "completion_token_ids",
    "per_token_logps",
    "loss_mask",
    "request",
    "response",
    "metadata",
)


class TraceEntry(TypedDict, total=False):
    """One call that an agent made of a model. Tokens are present only if the engine returned them.

    Attributes:
        request: `messages` and `tools` of the call, in the form of OpenAI's chat completions.
        response: `choices`, each with `message` and `finish_reason`.
        prompt_token_ids: Ids of the whole prompt.
        completion_token_ids: Ids of the completion.
        completion_tokens: Its tokens as text, of an engine that returns no ids.
        per_token_logps: Log probability of each token of the completion.
        loss_mask: For each token of prompt and completion, whether it is trained: 1 or 0.
        reward: The reward of the whole rollout; None: not scored.
        metadata: Further facts of the call.
    """

    request: dict[str, Any]
    response: dict[str, Any]
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    completion_tokens: list[str]
    per_token_logps: list[float]
    loss_mask: list[int]
    reward: float | None
    metadata: dict[str, Any]


class TrainingTurn(BaseModel):
    """One call of a model that a trainer may learn from.

    Attributes:
        node_id: Names the call within its trace.
        prompt_token_ids: Ids of the whole prompt, from 0.
        completion_token_ids: Ids that the model sampled.
        per_token_logps: Log probability of each of them, at most 0.
        loss_mask: A 0 or 1 for each token of prompt and completion; those of the prompt are 0.
        request, response, metadata: As in `TraceEntry`.

    Raises:
        ValidationError: A field is missing or unknown, or has another type, or the tokens fail
            `validate_training_turn`.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    node_id: str = Field(min_length=1)
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    request: dict[str, Any] = Field(default_factory=dict)
    response: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def validate_capture(self) -> Self:
        """Raises ValueError if a trainer may not learn from the turn."""
        validate_training_turn(self.prompt_token_ids, self.completion_token_ids, self.per_token_logps, self.loss_mask)
        return self


class TrainingTrace(BaseModel):
    """All calls of a rollout that a trainer may learn from.

    Attributes:
        schema_version: Version of this form.
        turns: The calls in their order. No two have the same `node_id`.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[1] = 1
    turns: list[TrainingTurn]

    @model_validator(mode="after")
    def unique_calls(self) -> Self:
        """Raises ValueError if two turns have the same `node_id`; returns the trace itself."""
        repeated = [name for name, times in Counter(turn.node_id for turn in self.turns).items() if times > 1]
        if repeated:
            raise ValueError(f"training trace contains duplicate node_ids: {', '.join(map(repr, repeated[:5]))}")
        return self

    @classmethod
    def from_entries(cls, entries: Iterable[Mapping[str, Any]]) -> Self:
        """Makes a trace of entries; the id of each turn is `metadata["node_id"]`.

        Raises:
            KeyError: An entry lacks a field.
            ValidationError: Its fields are invalid.
        """
        return cls(
            turns=[
                TrainingTurn(node_id=entry["metadata"]["node_id"], **{name: entry[name] for name in _FIELDS})
                for entry in entries
            ]
        )

    def to_trace_entries(self) -> list[TraceEntry]:
        """The turns as entries; the id of each is in its `metadata`."""
        entries: list[Any] = []
        for turn in self.turns:
            entry = {name: getattr(turn, name) for name in _FIELDS}
            entries.append({**entry, "metadata": {**turn.metadata, "node_id": turn.node_id}})
        return entries
