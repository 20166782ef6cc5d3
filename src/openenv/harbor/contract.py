"""The training data of a rollout of a Harbor task, in the forms that trainers take."""

from __future__ import annotations

import json
from typing import Any

from ..capture.training import TraceEntry, TrainingTrace
from ..errors import UsageError
from .models import HarborRolloutResult, HarborTurn


def to_trace_entries(result: HarborRolloutResult) -> list[TraceEntry]:
    """One entry for each turn that a trainer may learn from, with the reward of the rollout.

    Raises:
        UsageError: The rollout was for evaluation.
    """
    if result.rollout_type != "train":
        raise UsageError(
            f"rollout {result.session_id} is for evaluation: open its capture session with purpose=train"
        )
    return [_entry(turn, result.reward) for turn in result.turns if turn.trainable and not turn.discarded]


def _entry(turn: HarborTurn, reward: float | None) -> TraceEntry:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{turn.node_id}_{number}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": call["arguments"]
                    if isinstance(call["arguments"], str)
                    else json.dumps(call["arguments"]),
                },
            }
            for number, call in enumerate(turn.tool_calls)
        ]
    return {
        "request": {"messages": turn.request_messages, "tools": turn.request_tools or []},
        "response": {"choices": [{"message": message, "finish_reason": turn.finish_reason}]},
        "prompt_token_ids": turn.prompt_token_ids,
        "completion_token_ids": turn.completion_token_ids,
        "per_token_logps": turn.per_token_logps,
        "loss_mask": turn.loss_mask or [],
        "reward": reward,
        "metadata": {
            "node_id": turn.node_id,
            "index": turn.turn,
            "n_tools": turn.n_tools,
            "sampling_params": turn.sampling_params,
            "requested_sampling_params": turn.requested_sampling_params,
        },
    }


def to_training_trace(result: HarborRolloutResult) -> TrainingTrace:
    """The same turns, validated.

    Raises:
        UsageError: The rollout failed, has no reward, or was for evaluation.
        ValidationError: A turn has tokens that a trainer may not learn from.
    """
    if not result.ok or result.reward is None:
        why = result.error or "the verifier gave no reward"
        raise UsageError(f"rollout {result.session_id} of task {result.task_id} has no training data: {why}")
    return TrainingTrace.from_entries(to_trace_entries(result))


def export_training_contract(result: HarborRolloutResult) -> dict[str, Any]:
    """The trace of `to_training_trace` as JSON, with task, reward and findings of the rollout."""
    return {
        **to_training_trace(result).model_dump(mode="json"),
        "task_id": result.task_id,
        "session_id": result.session_id,
        "reward": result.reward,
        "rewards": result.rewards,
        "findings": result.findings,
    }
