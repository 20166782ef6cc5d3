"""Folders of rollouts for the tests of what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from openenv.rollouts.records import (
    Rollout,
    RolloutFailure,
    RolloutOutcome,
    RolloutTask,
    StepRecord,
    TokenUsage,
    Turn,
)

__all__ = ["make_rollout", "make_turn", "write_rollouts"]


def make_turn(number: int = 0, text: str = "I buy tea", reward: float | None = 0.5, **changes: Any) -> Turn:
    """A turn that calls a tool."""
    call = {"id": f"call-{number}", "type": "function", "function": {"name": "buy", "arguments": '{"item": "tea"}'}}
    asked = [{"role": "system", "content": "You buy things."}, {"role": "user", "content": "Buy tea."}]
    answered = [{"role": "tool", "tool_call_id": f"call-{number - 1}", "content": f"bought {number} so far"}]
    step = StepRecord({"item": "tea"}, f"call-{number}", "buy", {"text": "bought"}, reward, {"speed": 0.25})
    facts: dict[str, Any] = {
        "prompt": answered if number else asked,
        "completion": {
            "role": "assistant",
            "content": text,
            "reasoning_content": "It is cheap.",
            "tool_calls": [call],
        },
        "finish_reason": "tool_calls",
        "steps": [step],
        "usage": TokenUsage(prompt_tokens=40, completion_tokens=3),
    }
    return Turn(**{**facts, **changes})


def make_rollout(number: int = 0, turns: int | list[Turn] = 2, **changes: Any) -> Rollout:
    """A rollout in a group of four; its return is its number, and it has none if its outcome has none."""
    outcome = changes.get("outcome", RolloutOutcome.TERMINATED)
    played = [make_turn(each) for each in range(turns)] if isinstance(turns, int) else turns
    facts: dict[str, Any] = {
        "rollout_id": f"{number // 4}-{number % 4}",
        "task": RolloutTask(split="train", index=number // 4),
        "group": str(number // 4),
        "member": number % 4,
        "outcome": outcome,
        "reward": float(number) if outcome.has_return else None,
        "failure": None if outcome.has_return else RolloutFailure("ModelFailed", "the endpoint answered 500"),
        "turns": played,
        "usage": TokenUsage(completion_tokens=3 * len(played), cost=0.01),
        "environment": "shop",
        "model": "small",
        "started": 1000.0 + number,
        "seconds": 2.0,
    }
    return Rollout(**{**facts, **changes})


def write_rollouts(file: Path, *rollouts: Rollout) -> Path:
    """Appends rollouts to a file, a line each."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as opened:
        opened.write(b"".join(msgspec.json.encode(each) + b"\n" for each in rollouts))
    return file
