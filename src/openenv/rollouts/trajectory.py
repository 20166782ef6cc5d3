"""Rollouts as trajectories of ATIF, the Agent Trajectory Interchange Format of Harbor's tools."""

from __future__ import annotations

import json
import mimetypes
from typing import Any

import msgspec

from .. import __version__
from .records import ChatMessage, Rollout, Turn

SCHEMA_VERSION = "ATIF-v1.7"
_MEDIA = {"image/jpeg", "image/png", "image/gif", "image/webp"}

Step = dict[str, Any]


def trajectory_of(rollout: Rollout, agent: str = "openenv", version: str = __version__) -> dict[str, Any]:
    """A rollout as one ATIF document, as JSON.

    A message of the conversation is one step; the results of tools are the observation of the step that called them.
    The steps of the model have the ids and log probabilities of the completion. After a prefix break, the messages of
    the new prompt are steps again, as copied context.

    Args:
        rollout: A rollout with at least one turn; that of a captured session is `openenv.capture.rollout_of`.
        agent, version: Name and version of the agent program.
    """
    steps: list[Step] = []
    for turn in rollout.turns:
        broken = turn.prefix_break is not None
        for message in turn.prompt:
            _add_message(steps, message, copied=broken and bool(steps))
        steps.append(_sampled(turn, rollout.model))
    if rollout.turns:
        _add_results(steps[-1], rollout.turns[-1])
    usage = rollout.usage
    facts = {"reward": rollout.reward, "outcome": rollout.outcome.value, "task": rollout.task.name}
    tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in rollout.tools]
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": rollout.group,
        "trajectory_id": rollout.rollout_id,
        "agent": {"name": agent, "version": version, "model_name": rollout.model, "tool_definitions": tools},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _without_none(
            {
                "total_prompt_tokens": usage.prompt_tokens,
                "total_completion_tokens": usage.completion_tokens,
                "total_cached_tokens": usage.cached_tokens,
                "total_cost_usd": usage.cost,
                "total_steps": len(steps),
            }
        ),
        "extra": _without_none(facts),
    }


def _add_message(steps: list[Step], message: ChatMessage, copied: bool) -> None:
    role, content = message.get("role", "user"), _content(message.get("content"))
    mark: Step = {"is_copied_context": True} if copied else {}
    if role == "tool":
        call_id = message.get("tool_call_id")
        for step in reversed(steps):
            if any(call["tool_call_id"] == call_id for call in step.get("tool_calls", ())):
                _observe(step, content, call_id)
                return
        steps.append({"source": "system", "message": "", **mark})
        _observe(steps[-1], content, None)
    elif role == "assistant":
        steps.append({"source": "agent", **_answer(message), **mark})
    else:
        source = "system" if role in {"system", "developer"} else "user"
        steps.append({"source": source, "message": content, **mark})


def _observe(step: Step, content: Any, call_id: str | None) -> None:
    results = step.setdefault("observation", {"results": []})["results"]
    results.append(_without_none({"source_call_id": call_id, "content": content}))


def _sampled(turn: Turn, model: str) -> Step:
    usage = turn.usage
    sampled = usage.completion_tokens or len(turn.completion_ids or ())
    metrics: Step = {"prompt_tokens": usage.prompt_tokens or None, "completion_tokens": sampled}
    metrics |= {"cached_tokens": usage.cached_tokens or None, "cost_usd": usage.cost}
    metrics |= {"completion_token_ids": turn.completion_ids, "logprobs": turn.logprobs}
    step: Step = {"source": "agent", "llm_call_count": 1, **_answer(turn.completion)}
    if turn.model and turn.model != model:
        step["model_name"] = turn.model
    return {**step, "metrics": _without_none(metrics)}


def _answer(message: ChatMessage) -> Step:
    step: Step = {"message": _content(message.get("content"))}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call.get("id") or f"call_{number}",
                "function_name": call["function"]["name"],
                "arguments": _arguments(call["function"].get("arguments")),
            }
            for number, call in enumerate(message["tool_calls"])
        ]
    return step


def _arguments(given: Any) -> dict[str, Any]:
    """Arguments as an object; those that are none go under `text`."""
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        value = given
    return value if isinstance(value, dict) else {"text": value}


def _add_results(step: Step, turn: Turn) -> None:
    """What the environment answered to the last turn, which no prompt repeats."""
    known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    for record in turn.steps:
        if record.error is not None or record.observation is not None:
            text = record.error or msgspec.json.encode(record.observation).decode()
            _observe(step, text, record.call_id if record.call_id in known else None)


def _content(content: Any) -> Any:
    """The content of a message: a text, or its parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[dict[str, Any]] = []
    for part in content:
        url = part.get("image_url")
        address = url.get("url") if isinstance(url, dict) else url
        kind = mimetypes.guess_type(address)[0] if isinstance(address, str) else None
        if kind in _MEDIA:
            parts.append({"type": "image", "source": {"media_type": kind, "path": address}})
        else:
            parts.append({"type": "text", "text": part["text"] if "text" in part else json.dumps(part)})
    return parts


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
