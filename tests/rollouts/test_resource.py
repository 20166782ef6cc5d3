"""Sessions of clients, and the bridge to their tools."""

from __future__ import annotations

from typing import Any

import pytest

from openenv import GenericEnvClient
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    HarnessRunLimits,
    LoopOwningSession,
    MCPHarnessAdapter,
    Message,
    ModelStepResult,
    ResourceSession,
    ResourceSessionFactory,
    SessionMCPBridge,
    StepEnvSessionAdapter,
    ToolResult,
    TrainableSession,
    VerifyResult,
)
from openenv.core.llm_client import LLMResponse, ToolCall
from openenv.envs.echo.server.app import app

ECHO = Tool(name="echo", description="Echoes.", input_schema={"type": "object", "properties": {}})


class EchoSession(StepEnvSessionAdapter):
    """As environments of others write theirs."""

    def __init__(self, task: Any, seed: int | None, episode_id: str | None, **more: Any):
        super().__init__(
            client=more.pop("client", None) or GenericEnvClient(app=app),
            task=task,
            seed=seed,
            episode_id=episode_id,
            tool_specs=more.pop("tool_specs", [ECHO]),
            action_builder=lambda name, arguments: {"message": arguments["text"]},
            initial_messages_builder=lambda result, task: [{"role": "user", "content": f"say {task}"}],
            **more,
        )


class EchoFactory(ResourceSessionFactory[EchoSession]):
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> EchoSession:
        return EchoSession(task, seed, episode_id)


def test_an_environment_that_needs_the_harness_plays_with_a_scripted_model() -> None:
    def model_step(messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        assert [tool.name for tool in tools] == ["echo"]
        calls = [ToolCall("c", "echo", {"text": messages[0]["content"]})] if len(messages) == 1 else []
        return ModelStepResult(LLMResponse("", calls))

    session = EchoFactory().create(task="hello", seed=3, episode_id="episode-7")
    try:
        result = MCPHarnessAdapter().run_white_box(model_step, session, HarnessRunLimits(max_turns=3))
        verified = session.verify(result.messages)
    finally:
        session.close()
    assert "say hello" in result.messages[2]["content"]
    assert verified.metrics == {"step_count": 1}
    assert verified.artifacts["final_state"]["episode_id"] == "episode-7"
    assert verified.artifacts["transcript_length"] == 4
    assert result.tool_trace[0].result.metadata["state"]["step_count"] == 1
    assert set(result.tool_trace[0].result.data) == {"tool_name", "arguments", "observation", "reward", "done"}


class Client:
    """A client without `sync()`, which records its calls."""

    def __init__(self, fails: str = ""):
        self.calls: list[Any] = []
        self.fails = fails

    def reset(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        if self.fails == "reset":
            raise RuntimeError("no environment")
        return "initial"

    def close(self) -> None:
        self.calls.append("close")


def test_arguments_of_reset_are_only_those_that_are_given() -> None:
    client = Client()
    EchoSession("t", None, "e", client=client, reset_kwargs={"episode_id": "mine", "level": 2})
    assert client.calls == [{"episode_id": "mine", "level": 2}]


def test_a_session_that_cannot_reset_closes_its_client() -> None:
    client = Client("reset")
    with pytest.raises(RuntimeError, match="no environment"):
        EchoSession("t", 1, None, client=client)
    assert client.calls == [{"seed": 1}, "close"]


def test_a_reserved_tool_is_refused_before_the_reset() -> None:
    client = Client()
    reset = Tool(name="reset", description="", input_schema={})
    with pytest.raises(ValueError, match="reserved"):
        EchoSession("t", 1, None, client=client, tool_specs=[reset])
    assert client.calls == []


def test_a_session_without_a_step_has_no_reward_and_closes_once() -> None:
    client = Client()
    session = EchoSession("t", None, None, client=client)
    assert session.verify([]) == VerifyResult(
        metrics={"step_count": None}, artifacts={"final_state": None, "transcript_length": 0}
    )
    for name in ("reset", "fly"):
        with pytest.raises(KeyError, match=name):
            session.call_tool(name, {})
    session.close()
    session.close()
    assert client.calls == [{}, "close"]


class Agent(ResourceSession):
    """A session with one tool that raises what it is told."""

    def __init__(self, outcome: Any = None):
        self.outcome = outcome

    def initial_messages(self) -> list[Message]:
        return []

    def list_tools(self) -> list[Tool]:
        return [ECHO]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return ToolResult(data=arguments)

    def verify(self, transcript: list[Message], final_state: Any = None) -> VerifyResult:
        return VerifyResult()

    def close(self) -> None: ...

    def wait_for_completion(self, timeout_s: float = 1.0) -> int:
        return 0


def test_what_a_session_can_do_is_seen_by_its_methods() -> None:
    assert not isinstance(Agent(), LoopOwningSession | TrainableSession)

    class Traced(Agent):
        def fetch_training_trace(self) -> Any: ...

    assert isinstance(Traced(), TrainableSession)


def asked(session: ResourceSession, method: str, params: Any = None, version: str = "2.0") -> dict[str, Any]:
    request = {"jsonrpc": version, "id": 5, "method": method, **({} if params is None else {"params": params})}
    answer = SessionMCPBridge(session).handle_request(request)
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 5)
    return answer


def test_the_bridge_lists_and_calls_tools() -> None:
    schema = {"type": "object", "properties": {}}
    listed = {"tools": [{"name": "echo", "description": "Echoes.", "inputSchema": schema}]}
    assert asked(Agent(), "tools/list")["result"] == listed
    called = asked(Agent(), "tools/call", {"name": "echo", "arguments": {"a": 1}})["result"]
    assert called == {"data": {"a": 1}, "done": False, "metadata": {}, "error": None}


@pytest.mark.parametrize(
    ("session", "method", "params", "code"),
    [
        (Agent(), "initialize", {}, -32601),
        (Agent(), "tools/call", {}, -32602),
        (Agent(), "tools/call", [], -32602),
        (Agent(), "tools/call", {"name": "close"}, -32602),
        (Agent(), "tools/call", {"name": "echo", "arguments": [1]}, -32602),
        (Agent(KeyError("gone")), "tools/call", {"name": "gone"}, -32601),
        (Agent(ValueError("no number")), "tools/call", {"name": "echo"}, -32602),
        (Agent(RuntimeError("broken")), "tools/call", {"name": "echo"}, -32603),
    ],
)
def test_the_bridge_answers_failures(session: Agent, method: str, params: Any, code: int) -> None:
    assert asked(session, method, params)["error"]["code"] == code


def test_the_bridge_speaks_one_version() -> None:
    assert asked(Agent(), "tools/list", version="1.0")["error"]["code"] == -32600
