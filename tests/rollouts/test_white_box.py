"""The loop of a white-box rollout, its reward, and the function for trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openenv.core.harness import (
    CLIHarnessAdapter,
    HarnessRolloutResult,
    HarnessRunLimits,
    MCPHarnessAdapter,
    Message,
    ModelStep,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    ToolResult,
    ToolTraceEntry,
    VerifyResult,
    _resolve_env_reward,
    build_harness_rollout_func,
)
from openenv.core.llm_client import LLMResponse, ToolCall
from openenv.mcp.types import Tool

Calls = list[tuple[str, dict[str, Any]]]
PLAIN = ToolResult(data="fine")


class Scripted(ResourceSession):
    """A session whose one tool returns given results."""

    def __init__(self, *results: ToolResult | Exception, reward: float | None = 1.0):
        self.results = list(results)
        self.reward = reward
        self.final: Any = None
        self.closed = False

    def initial_messages(self) -> list[Message]:
        return [{"role": "user", "content": "play"}]

    def list_tools(self) -> list[Tool]:
        return [Tool(name="move", description="Moves.", input_schema={})]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name != "move":
            raise KeyError(name)
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result

    def verify(self, transcript: list[Message], final_state: Any = None) -> VerifyResult:
        self.final = final_state
        return VerifyResult(env_reward=self.reward, metrics={"length": len(transcript)})

    def close(self) -> None:
        self.closed = True


class Factory(ResourceSessionFactory[Scripted]):
    def __init__(self, make: Callable[[], Scripted]):
        self.make = make
        self.made: list[Scripted] = []

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Scripted:
        self.made.append(self.make())
        return self.made[-1]


def model(*turns: Calls, ids: bool = True) -> ModelStep:
    """A model that makes these tool calls, and whose prompts extend one another."""
    script, history = list(turns), [1]

    def step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        calls = [
            ToolCall(f"call_{number}", name, arguments) for number, (name, arguments) in enumerate(script.pop(0))
        ]
        prompt, sampled = list(history), [len(history) + 100]
        history.extend([*sampled, 7])
        tokens: tuple[list[int], list[int], list[float]] = (prompt, sampled, [-0.5]) if ids else ([], [], [])
        return ModelStepResult(LLMResponse("", calls), *tokens)

    return step


def play(session: Scripted, *turns: Calls, **limits: Any) -> HarnessRolloutResult:
    return MCPHarnessAdapter().run_white_box(model(*turns), session, HarnessRunLimits(**limits))


def unanswered(messages: list[Message]) -> set[str]:
    """Ids of tool calls without a reply before the next answer of the model."""
    waiting: set[str] = set()
    for message in messages:
        waiting |= {call["id"] for call in message.get("tool_calls", ())}
        waiting -= {message.get("tool_call_id", "")}
    return waiting


MOVE: Calls = [("move", {})]


def test_a_rollout_ends_when_the_model_calls_no_tool() -> None:
    result = play(Scripted(PLAIN), MOVE, [])
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.done
    assert result.metrics == {"turns": 2, "tool_calls": 1}
    assert [event.type for event in result.events] == ["model_response", "tool_call", "model_response"]
    assert result.events[0].payload["tool_calls"] == [{"id": "call_0", "name": "move", "arguments": {}}]


def test_a_result_that_is_done_ends_it_and_later_calls_are_answered() -> None:
    result = play(Scripted(ToolResult(data=1, done=True)), MOVE * 3)
    assert result.done
    assert result.metrics == {"turns": 1, "tool_calls": 1}
    assert unanswered(result.messages) == set()
    assert result.messages[-1]["content"] == "not called: the episode had ended"


@pytest.mark.parametrize(
    ("limits", "metrics"),
    [
        ({"max_turns": 2}, {"turns": 2, "tool_calls": 6, "truncated": True}),
        ({"max_tool_calls_per_turn": 1}, {"turns": 3, "tool_calls": 2}),
        ({"max_total_tool_calls": 4}, {"turns": 2, "tool_calls": 4, "truncated": True}),
        ({"max_turns": 0}, {"turns": 0, "tool_calls": 0, "truncated": True}),
    ],
)
def test_limits_end_it_with_all_metrics_and_no_call_without_a_reply(
    limits: dict[str, int], metrics: dict[str, Any]
) -> None:
    result = play(Scripted(PLAIN), MOVE * 3, MOVE * 3, [], **limits)
    assert result.metrics == metrics
    assert unanswered(result.messages) == set()


def test_a_tool_that_does_not_exist_is_answered_in_the_conversation() -> None:
    result = play(Scripted(PLAIN), [("fly", {"far": 1})], [])
    assert result.messages[2]["content"] == "Unknown tool: 'fly'; there are: move"
    assert result.tool_trace[0].result.error is not None
    assert result.done


@pytest.mark.parametrize("error", [KeyError("inside the tool"), RuntimeError("broken")])
def test_an_exception_of_a_tool_passes_through(error: Exception) -> None:
    with pytest.raises(type(error)):
        play(Scripted(error), MOVE)


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (ToolResult(), ""),
        (ToolResult(data="text"), "text"),
        (ToolResult(data={"b": 1, "a": {2}}), '{"a": "{2}", "b": 1}'),
        (ToolResult(error="no such place"), "no such place"),
    ],
)
def test_what_the_model_reads_of_a_result(result: ToolResult, content: str) -> None:
    assert play(Scripted(result), MOVE, []).messages[2]["content"] == content


def test_turns_whose_prompts_extend_one_another_are_one_segment() -> None:
    result = play(Scripted(PLAIN), MOVE, [])
    assert (result.prompt_ids, result.completion_ids) == ([1, 1, 101, 7], [101, 103])
    (segment,) = result.segments()
    assert (segment.prompt_ids, segment.completion_ids) == ([1], [101, 7, 103])
    assert (segment.mask, segment.logprobs) == ([1, 0, 1], [-0.5, 0.0, -0.5])


def test_a_rewritten_history_begins_another_segment() -> None:
    steps = [
        ModelStepResult(LLMResponse(""), [1, 2], [3], [-0.1]),
        ModelStepResult(LLMResponse(""), [1, 9], [4], []),
    ]
    first, second = HarnessRolloutResult(steps=steps).segments()
    assert (first.completion_ids, first.turns) == ([3], range(1))
    assert (second.prompt_ids, second.completion_ids, second.logprobs) == ([1, 9], [4], None)


@pytest.mark.parametrize(
    ("traced", "verified", "reward"), [(0.5, None, 0.5), (None, 0.25, 0.25), (0.5, 0.5 + 1e-9, 0.5)]
)
def test_the_reward_is_the_environments(traced: float | None, verified: float | None, reward: float) -> None:
    entry = ToolTraceEntry("move", {}, ToolResult(data={"reward": traced}))
    rollout = HarnessRolloutResult(tool_trace=[entry, ToolTraceEntry("move", {}, PLAIN)])
    assert _resolve_env_reward(rollout, VerifyResult(env_reward=verified)) == reward


def test_rewards_that_differ_or_are_missing_are_errors() -> None:
    rollout = HarnessRolloutResult(tool_trace=[ToolTraceEntry("move", {}, ToolResult(metadata={"reward": 1.0}))])
    with pytest.raises(ValueError, match=r"1\.0, and verify\(\) 0\.5"):
        _resolve_env_reward(rollout, VerifyResult(env_reward=0.5))
    with pytest.raises(ValueError, match="did not produce an environment reward"):
        _resolve_env_reward(HarnessRolloutResult(), VerifyResult())


def test_the_function_for_trainers_returns_an_entry_for_each_prompt() -> None:
    factory = Factory(lambda: Scripted(PLAIN))
    func = build_harness_rollout_func(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda trainer, session: model(MOVE, []),
        reward_key="score",
    )
    rows = func(["one", "two"], None)
    assert rows["prompt_ids"] == [[1, 1, 101, 7]] * 2
    assert rows["score"] == [1.0, 1.0]
    assert rows["verify_metrics"] == [{"length": 4}] * 2
    assert rows["segments"][0][0]["mask"] == [1, 0, 1]
    assert all(session.closed for session in factory.made)
    final = factory.made[0].final
    assert set(final) == {"done", "metrics", "events", "tool_trace"}
    assert final["tool_trace"][0]["result"] == {"data": "fine", "done": False, "metadata": {}, "error": None}


def test_an_exception_ends_the_call_and_the_session() -> None:
    factory = Factory(lambda: Scripted(RuntimeError("broken")))
    func = build_harness_rollout_func(
        session_factory=factory,
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=lambda trainer, session: model(MOVE),
    )
    with pytest.raises(RuntimeError, match="broken"):
        func(["one"], None)
    assert factory.made[0].closed


def test_a_program_plays_over_the_bridge() -> None:
    def runner(bridge: Any, session: ResourceSession, limits: HarnessRunLimits | None) -> HarnessRolloutResult:
        answer = bridge.handle_request(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "move"}}
        )
        return HarnessRolloutResult(done=answer["result"]["data"] == "fine")

    adapter = CLIHarnessAdapter(runner)
    assert adapter.run_black_box(Scripted(PLAIN)).done
    with pytest.raises(NotImplementedError, match="run_black_box"):
        adapter.run_white_box(model(), Scripted(PLAIN))
    with pytest.raises(NotImplementedError, match="run_white_box"):
        MCPHarnessAdapter().run_black_box(Scripted(PLAIN))
