"""Rollouts on disk, as a run leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from openenv.rollouts.records import (
    ChatMessage,
    PrefixBreak,
    Rollout,
    RolloutFailure,
    RolloutOutcome,
    RolloutTask,
    StepRecord,
    Turn,
)

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def call(number: int, **arguments: Any) -> ChatMessage:
    function = {"name": "look", "arguments": json.dumps(arguments)}
    calls = [{"id": f"call-{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def rollout_of(
    group: str = "g0",
    member: int = 0,
    reward: float | None = 1.0,
    *,
    broken: bool = False,
    ids: bool = True,
    outcome: RolloutOutcome = RolloutOutcome.TERMINATED,
) -> Rollout:
    """Two turns: a tool call, then an answer that ends the episode by a second call."""
    begin = [{"role": "system", "content": "Look."}, {"role": "user", "content": f"room {group}"}]
    result = {"role": "tool", "tool_call_id": "call-0", "content": "a door"}
    cut = PrefixBreak("reasoning_dropped", 2, 4, 6) if broken else None
    first = Turn(
        prompt=begin,
        completion={**call(0, at=member), "reasoning_content": "hm"},
        steps=[StepRecord(action={"at": member}, call_id="call-0", tool="look", observation="a door", reward=0.0)],
    )
    second = Turn(
        prompt=[*begin, call(0, at=member), result] if broken else [result],
        completion=call(1, at=9),
        prefix_break=cut,
        steps=[
            StepRecord(
                action={"at": 9}, call_id="call-1", tool="look", observation={"seen": 9}, done=True, reward=reward
            )
        ],
    )
    if ids:
        first = msgspec.structs.replace(
            first, prompt_ids=[1, 2], completion_ids=[3, 4], logprobs=[-0.5, -0.25], tokens="sampled", version=3
        )
        second = msgspec.structs.replace(
            second,
            prompt_ids=[1, 2, 4, 5] if broken else [5],
            completion_ids=[6],
            logprobs=[-1.0],
            tokens="sampled",
            version=4,
        )
    failed = not outcome.has_return
    return Rollout(
        rollout_id=f"{group}-{member}",
        task=RolloutTask(seed=7, split="train", index=int(group[1:])),
        group=group,
        member=member,
        outcome=outcome,
        reward=None if failed else reward,
        turns=[first, second],
        failure=RolloutFailure("StepFailed", "no", "environment") if failed else None,
        tools=TOOLS,
        rubric={"polite": 0.5},
        environment="rooms",
        model="m",
    )


def write_rollouts(folder: Path, *rollouts: Rollout, name: str = "20260101T000000000-abcdef-000001") -> Path:
    """A folder with a file of finished rollouts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rollouts-{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rollouts))
    return folder
