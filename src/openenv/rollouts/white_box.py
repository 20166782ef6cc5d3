"""Plays resource sessions: a loop that samples the caller's model, or a program that plays by itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..llm import ToolCall
from .resource import (
    HarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStep,
    ResourceSession,
    ResourceSessionFactory,
    RolloutEvent,
    SessionMCPBridge,
    ToolResult,
    ToolTraceEntry,
    VerifyResult,
    result_fields,
)

# How far two rewards of one episode may be apart.
_SAME_REWARD = {"rel_tol": 1e-9, "abs_tol": 1e-6}


class MCPHarnessAdapter(HarnessAdapter):
    """Plays a session turn by turn: the model answers, its tool calls are made, their results are the next prompt.

    Every tool call of the conversation has a reply. That of a tool that does not exist says so, and the rollout goes
    on; one that is not made, since a limit is reached or the episode has ended, says that.
    """

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Plays a session. It is neither verified nor closed.

        Args:
            model_step: Samples the model.
            session: The session.
            limits: Limits; by default those of `HarnessRunLimits()`.

        Raises:
            Exception: From the model or from a tool that exists.
        """
        limits = limits or HarnessRunLimits()
        result = HarnessRolloutResult(messages=list(session.initial_messages()))
        tools = session.list_tools()
        names = [tool.name for tool in tools]
        turns = 0
        while turns < limits.max_turns and not result.done and "truncated" not in result.metrics:
            step = model_step(result.messages, tools, dict(limits.sampling))
            calls = step.response.tool_calls
            result.messages.append(step.response.to_message_dict())
            result.steps.append(step)
            result.prompt_ids += step.prompt_ids
            result.completion_ids += step.completion_ids
            result.logprobs += step.logprobs
            asked = [{"id": call.id, "name": call.name, "arguments": call.args} for call in calls]
            facts = {"turn": turns, "content": step.response.content, "tool_calls": asked}
            result.events.append(RolloutEvent("model_response", facts))
            turns += 1
            result.done = not calls
            for position, call in enumerate(calls):
                reason = _reason_to_skip(result, position, limits)
                if reason is None:
                    outcome = _called(session, call, names)
                    result.tool_trace.append(ToolTraceEntry(call.name, call.args, outcome))
                    made = {"tool_name": call.name, "arguments": call.args, "done": outcome.done}
                    result.events.append(RolloutEvent("tool_call", made))
                    result.done = outcome.done
                    result.messages.append(_reply(call, outcome.error if outcome.data is None else outcome.data))
                else:
                    result.messages.append(_reply(call, f"not called: {reason}"))
        if not result.done:
            result.metrics["truncated"] = True
        result.metrics |= {"turns": turns, "tool_calls": len(result.tool_trace)}
        return result

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Raises `NotImplementedError`: this adapter needs a model that the caller samples."""
        raise NotImplementedError("MCPHarnessAdapter samples the caller's model: call run_white_box(model_step, ...)")


def _reason_to_skip(result: HarnessRolloutResult, position: int, limits: HarnessRunLimits) -> str | None:
    """Why a call is not made; None if it is. A rollout without tool calls left is marked as truncated."""
    most, total = limits.max_tool_calls_per_turn, limits.max_total_tool_calls
    if result.done:
        return "the episode had ended"
    if most is not None and position >= most:
        return f"the limit of {most} tool calls in a turn (max_tool_calls_per_turn) was reached"
    if total is not None and len(result.tool_trace) >= total:
        result.metrics["truncated"] = True
        return f"the limit of {total} tool calls (max_total_tool_calls) was reached"
    return None


def _called(session: ResourceSession, call: ToolCall, names: Sequence[str]) -> ToolResult:
    """The result of a tool call; for a tool that does not exist, an error that names those that do."""
    try:
        return session.call_tool(call.name, call.args)
    except KeyError:
        if call.name in names:
            raise
        return ToolResult(error=f"Unknown tool: {call.name!r}; there are: {', '.join(names) or 'none'}")


def _reply(call: ToolCall, data: Any) -> Message:
    if not isinstance(data, str):
        data = "" if data is None else json.dumps(data, sort_keys=True, default=str)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": data}


Runner = Callable[[SessionMCPBridge, ResourceSession, HarnessRunLimits | None], HarnessRolloutResult]
"""Has a program play a session; it reaches the tools over the bridge."""


class CLIHarnessAdapter(HarnessAdapter):
    """Has a program of its own, such as a coding agent, play sessions.

    Args:
        runner: Runs the program.
    """

    def __init__(self, runner: Runner):
        self._runner = runner

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Raises `NotImplementedError`: the program calls its model itself."""
        raise NotImplementedError("CLIHarnessAdapter runs a program that calls its own model: call run_black_box")

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """What the runner returns."""
        return self._runner(SessionMCPBridge(session), session, limits)


def environment_reward(rollout: HarnessRolloutResult, verify: VerifyResult) -> float:
    """The reward of an episode, which comes from the environment: of its last tool result with one, or its verifier.

    Raises:
        ValueError: Neither has a reward, or the two differ.
    """
    given = [reward for entry in rollout.tool_trace if (reward := _reward_of(entry.result)) is not None]
    verified = verify.env_reward
    if not given:
        if verified is None:
            raise ValueError(
                "rollout did not produce an environment reward: return one from verify() (env_reward), or in the "
                "metadata of a tool's result (reward)"
            )
        return float(verified)
    if verified is not None and not math.isclose(given[-1], verified, **_SAME_REWARD):
        raise ValueError(f"the last tool result has the reward {given[-1]!r}, and verify() {verified!r}: return one")
    return given[-1]


# The name that existing code imports.
_resolve_env_reward = environment_reward


def _reward_of(result: ToolResult) -> float | None:
    reward = result.metadata.get("reward")
    if reward is None and isinstance(result.data, Mapping):
        reward = result.data.get("reward")
    return None if reward is None else float(reward)


def final_state_of(rollout: HarnessRolloutResult) -> dict[str, Any]:
    """What `verify` gets of a rollout beside its messages."""
    return {
        "done": rollout.done,
        "metrics": rollout.metrics,
        "events": [{"type": event.type, "payload": event.payload} for event in rollout.events],
        "tool_trace": tool_trace_of(rollout),
    }


def tool_trace_of(rollout: HarnessRolloutResult) -> list[dict[str, Any]]:
    """The tool calls of a rollout as plain data."""
    return [
        {"tool_name": entry.tool_name, "arguments": entry.arguments, "result": result_fields(entry.result)}
        for entry in rollout.tool_trace
    ]


def build_harness_rollout_func(
    *,
    session_factory: ResourceSessionFactory[Any],
    harness_adapter: HarnessAdapter,
    model_step_builder: Callable[[Any, ResourceSession], ModelStep],
    limits: HarnessRunLimits | None = None,
    reward_key: str = "env_reward",
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Makes a `rollout_func` for a trainer, which plays one session for each prompt, in order.

    Args:
        session_factory: Makes the sessions; the prompt is the task.
        harness_adapter: Plays them.
        model_step_builder: Makes the model of the trainer and the session.
        limits: Limits of each rollout.
        reward_key: Name of the rewards.

    Returns:
        `rollout_func(prompts, trainer)`. It returns lists with an entry for each prompt: `prompt_ids`,
        `completion_ids` and `logprobs` of all turns, the rewards, `verify_metrics`, and `segments`, the sequences to
        train on, also of more than one turn: each has `prompt_ids`, `completion_ids`, `mask` and `logprobs`.
        An exception of a session or of the model ends the call, and so does an episode without a reward.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {
            name: []
            for name in ("prompt_ids", "completion_ids", "logprobs", reward_key, "verify_metrics", "segments")
        }
        for prompt in prompts:
            session = session_factory.create(task=prompt)
            try:
                rollout = harness_adapter.run_white_box(model_step_builder(trainer, session), session, limits)
                verify = session.verify(transcript=rollout.messages, final_state=final_state_of(rollout))
            finally:
                session.close()
            row = {
                "prompt_ids": rollout.prompt_ids,
                "completion_ids": rollout.completion_ids,
                "logprobs": rollout.logprobs,
                reward_key: environment_reward(rollout, verify),
                "verify_metrics": verify.metrics,
                "segments": segment_rows(rollout),
            }
            for name, value in row.items():
                columns[name].append(value)
        return columns

    return rollout_func


def segment_rows(rollout: HarnessRolloutResult) -> list[dict[str, Any]]:
    """The training segments of a rollout as plain data."""
    names = ("prompt_ids", "completion_ids", "mask", "logprobs")
    return [{name: getattr(segment, name) for name in names} for segment in rollout.segments()]
