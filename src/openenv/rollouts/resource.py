"""Resource sessions: one episode of an environment as messages, tools and a verifier, for a program that plays it.

A `ResourceSessionFactory` makes a session for each task. `StepEnvSessionAdapter` makes one of a client with `reset`,
`step` and `state`. `white_box.py` has the loops that play sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from .._exceptions import add_cleanup_note
from ..llm import LLMResponse
from ..mcp.types import RESERVED_TOOL_NAMES, JsonRpcResponse, McpMethod, Tool, read_call
from ..protocol.jsonrpc import JsonRpcErrorCode, RpcError
from .tokens import TrainingSegment

if TYPE_CHECKING:
    from ..capture.training import TraceEntry, TrainingTrace

Message = dict[str, Any]
"""A message of OpenAI's chat completions."""


@dataclass
class ToolResult:
    """The result of a tool call of a session.

    Attributes:
        data: What the tool returned, as JSON.
        done: Whether the episode has ended.
        metadata: Further facts; `reward` is the reward of the step.
        error: Why there is no result; None if there is one.
    """

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class VerifyResult:
    """What a session says of a finished episode.

    Attributes:
        env_reward: Its reward; None: not scored.
        done: Whether the environment had ended it.
        metrics, artifacts: What was measured, and what was kept.
    """

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutEvent:
    """Something that happened in a rollout: its type, and its facts by name."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolTraceEntry:
    """One tool call of a rollout, with its result."""

    tool_name: str
    arguments: dict[str, Any]
    result: ToolResult


@dataclass
class ModelStepResult:
    """The answer of a model to one request.

    Attributes:
        response: Its text and tool calls.
        prompt_ids: Token ids of the whole prompt; empty without.
        completion_ids: Token ids that were sampled; empty without.
        logprobs: Log probability of each of `completion_ids`; empty without.
    """

    response: LLMResponse
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class HarnessRolloutResult:
    """A rollout that a harness played.

    Attributes:
        messages: The conversation.
        tool_trace: The tool calls.
        events: What happened, in order.
        done: Whether it ended by itself: the model called no tool, or a tool ended the episode.
        metrics: `turns`, `tool_calls`, and `truncated` if a limit ended it.
        prompt_ids, completion_ids, logprobs: Those of all turns in one list. Each prompt repeats its history, so with
            more than one turn only `segments` can be trained on.
        steps: The answers of the model, one for each turn.
    """

    messages: list[Message] = field(default_factory=list)
    tool_trace: list[ToolTraceEntry] = field(default_factory=list)
    events: list[RolloutEvent] = field(default_factory=list)
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    steps: list[ModelStepResult] = field(default_factory=list)

    def segments(self) -> list[TrainingSegment]:
        """The turns as sequences to train on: a turn continues the sequence if its prompt extends the turn before.

        Returns:
            The sequences; none if the model returned no token ids. Each sampled token has mask 1 in exactly one.
        """
        found: list[TrainingSegment] = []
        known: list[int] = []
        for number, step in enumerate(self.steps):
            if not step.prompt_ids:
                continue
            if found and step.prompt_ids[: len(known)] == known:
                between = step.prompt_ids[len(known) :]
                first = found.pop()
            else:
                between = []
                first = TrainingSegment(list(step.prompt_ids), turns=range(number, number), logprobs=[])
            scored = first.logprobs is not None and len(step.logprobs) == len(step.completion_ids)
            found.append(
                TrainingSegment(
                    first.prompt_ids,
                    [*first.completion_ids, *between, *step.completion_ids],
                    [*first.mask, *([0] * len(between)), *([1] * len(step.completion_ids))],
                    [*(first.logprobs or ()), *([0.0] * len(between)), *step.logprobs] if scored else None,
                    range(first.turns.start, number + 1),
                )
            )
            known = [*step.prompt_ids, *step.completion_ids]
        return found


@dataclass
class HarnessRunLimits:
    """Limits of one rollout.

    Attributes:
        max_turns: Most answers of the model.
        max_tool_calls_per_turn: Most tool calls of one answer that are made; None: no limit.
        max_total_tool_calls: Most tool calls of the rollout; None: no limit.
        sampling: Settings for the model, such as `temperature` and `max_tokens`.
    """

    max_turns: int = 10
    max_tool_calls_per_turn: int | None = None
    max_total_tool_calls: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)


class ModelStep(Protocol):
    """Samples one answer of a model. Synchronous."""

    def __call__(self, messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        """Answers a conversation; `sampling` are the settings of the limits."""


class ResourceSession(ABC):
    """One episode: its first messages, its tools, and its score. Synchronous, for one user at a time."""

    @abstractmethod
    def initial_messages(self) -> list[Message]:
        """The messages that the conversation begins with."""

    @abstractmethod
    def list_tools(self) -> list[Tool]:
        """The tools that the model may call."""

    @abstractmethod
    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Calls a tool. Raises `KeyError` for a tool that does not exist."""

    @abstractmethod
    def verify(self, transcript: list[Message], final_state: Any = None) -> VerifyResult:
        """Scores the episode.

        Args:
            transcript: The whole conversation.
            final_state: What the harness knows of the rollout; None if there is nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the episode and frees what it holds."""


SessionT = TypeVar("SessionT", bound=ResourceSession)


class ResourceSessionFactory(ABC, Generic[SessionT]):
    """Makes sessions. Subclass it as `ResourceSessionFactory[MySession]`, or without the type."""

    @abstractmethod
    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> SessionT:
        """Begins an episode.

        Args:
            task: What the episode is about.
            seed: Seed of the environment; None: the environment chooses.
            episode_id: Id for the environment's own records.
        """


class HarnessAdapter(ABC):
    """Plays sessions. White box: the caller samples the model, turn by turn. Black box: an opaque program plays."""

    @abstractmethod
    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Plays a session with a model that the caller samples."""

    @abstractmethod
    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Has a program play a session."""


@runtime_checkable
class LoopOwningSession(Protocol):
    """A session of an agent process that drives itself; its model calls are read afterwards."""

    def wait_for_completion(self, timeout_s: float = ...) -> int:
        """Waits for the agent; returns its exit code. Raises `TimeoutError`."""

    def fetch_proxy_trace(self) -> list[TraceEntry]:
        """The calls that the agent made of the model."""


@runtime_checkable
class TrainableSession(Protocol):
    """A session of an agent that drives itself; its model calls were recorded with their tokens."""

    def wait_for_completion(self, timeout_s: float = ...) -> int:
        """Waits for the agent; returns its exit code. Raises `TimeoutError`."""

    def fetch_training_trace(self) -> TrainingTrace:
        """The calls, fit to be trained on. Raises `ValueError` if they are not."""


class StepEnvSessionAdapter(ResourceSession):
    """A session of a client with `reset`, `step` and `state`. It resets at once.

    Args:
        client: The client; its synchronous form is used, if it has `sync()`. `close` closes it.
        task: What the episode is about, for `initial_messages_builder`.
        seed, episode_id: Arguments of `reset`, where given and not in `reset_kwargs`.
        tool_specs: The tools.
        action_builder: Makes an action of a tool's name and arguments.
        initial_messages_builder: Makes the first messages of the result of `reset` and the task.
        tool_result_builder: Makes the `ToolResult` of the name, the arguments, the result of the step and the state.
        verify_builder: Makes the `VerifyResult` of the transcript, the final state, the last result and the last
            state of the environment.
        reset_kwargs: Further arguments of `reset`.

    Raises:
        ValueError: A tool has a reserved name: reset, step, state or close.
        Exception: `reset` or `state` failed; the client is closed.
    """

    def __init__(
        self,
        client: Any,
        *,
        task: Any = None,
        seed: int | None = None,
        episode_id: str | None = None,
        tool_specs: Sequence[Tool],
        action_builder: Callable[[str, dict[str, Any]], Any],
        initial_messages_builder: Callable[[Any, Any], list[Message]],
        tool_result_builder: Callable[[str, dict[str, Any], Any, Any], ToolResult] | None = None,
        verify_builder: Callable[[list[Message], Any, Any, Any], VerifyResult] | None = None,
        reset_kwargs: Mapping[str, Any] | None = None,
    ):
        reserved = sorted(RESERVED_TOOL_NAMES.intersection(tool.name for tool in tool_specs))
        if reserved:
            raise ValueError(f"tool_specs cannot use reserved names: {reserved}, which drive the environment")
        self._tools = {tool.name: tool for tool in tool_specs}
        self._task = task
        self._action_builder = action_builder
        self._initial_messages_builder = initial_messages_builder
        self._tool_result_builder = tool_result_builder or _step_result
        self._verify_builder = verify_builder or _last_step_verified
        self._client = client.sync() if callable(getattr(client, "sync", None)) else client
        self._closed = False
        given = {"seed": seed, "episode_id": episode_id}
        arguments = {name: value for name, value in given.items() if value is not None} | dict(reset_kwargs or {})
        try:
            self._initial: Any = self._client.reset(**arguments)
            self._state = self._read_state()
        except BaseException as error:
            with add_cleanup_note(error):
                self.close()
            raise
        self._last: Any = None

    def initial_messages(self) -> list[Message]:
        return self._initial_messages_builder(self._initial, self._task)

    def list_tools(self) -> list[Tool]:
        return list(self._tools.values())

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name not in self._tools:
            what = "is reserved, and drives the environment" if name in RESERVED_TOOL_NAMES else "does not exist"
            raise KeyError(f"tool {name!r} {what}; there are: {', '.join(self._tools) or 'none'}")
        self._last = self._client.step(self._action_builder(name, arguments))
        self._state = self._read_state()
        return self._tool_result_builder(name, arguments, self._last, self._state)

    def verify(self, transcript: list[Message], final_state: Any = None) -> VerifyResult:
        return self._verify_builder(transcript, final_state, self._last, self._state)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.close()

    def _read_state(self) -> Any:
        state = getattr(self._client, "state", None)
        return state() if callable(state) else None


def as_data(value: Any) -> Any:
    """A model as its fields, in JSON's types; anything else unchanged."""
    dump = getattr(value, "model_dump", None)
    return value if dump is None else dump(mode="json")


def _step_result(name: str, arguments: dict[str, Any], result: Any, state: Any) -> ToolResult:
    facts = {"observation": as_data(result.observation), "reward": result.reward, "done": bool(result.done)}
    return ToolResult(
        data={"tool_name": name, "arguments": arguments, **facts},
        done=facts["done"],
        metadata={"reward": result.reward, "state": as_data(state)},
    )


def _last_step_verified(transcript: list[Message], final_state: Any, last: Any, state: Any) -> VerifyResult:
    facts = as_data(state)
    steps = facts.get("step_count") if isinstance(facts, Mapping) else getattr(state, "step_count", None)
    return VerifyResult(
        env_reward=None if last is None else last.reward,
        done=last is not None and bool(last.done),
        metrics={"step_count": steps},
        artifacts={"final_state": facts, "transcript_length": len(transcript)},
    )


class SessionMCPBridge:
    """Answers JSON-RPC requests for the tools of a session, in this process."""

    def __init__(self, session: ResourceSession):
        self.session = session

    def handle_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answers `tools/list` and `tools/call`. Every failure is an answer, too.

        Args:
            request: A request of JSON-RPC 2.0.

        Returns:
            Its response: `result` or `error`.
        """
        number = request.get("id")
        try:
            method, params = request.get("method"), request.get("params") or {}
            if request.get("jsonrpc") != "2.0":
                raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, "Invalid Request: jsonrpc must be '2.0'")
            if method not in tuple(McpMethod):
                known = ", ".join(McpMethod)
                raise RpcError(JsonRpcErrorCode.METHOD_NOT_FOUND, f"Method not found; there are: {known}")
            call = read_call(method, params if isinstance(params, dict) else {}, standard=True)
            if call.name in RESERVED_TOOL_NAMES:
                raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, f"Reserved orchestration tool: {call.name}")
            if call.name is None:
                tools = self.session.list_tools()
                result = {
                    "tools": [
                        {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
                        for tool in tools
                    ]
                }
            else:
                result = result_fields(self.session.call_tool(call.name, call.arguments))
            return JsonRpcResponse.success(result, number).model_dump()
        except RpcError as fault:
            code, message = fault.code, fault.message
        except KeyError as error:
            code, message = JsonRpcErrorCode.METHOD_NOT_FOUND, str(error.args[0] if error.args else error)
        except ValueError as error:
            code, message = JsonRpcErrorCode.INVALID_PARAMS, str(error)
        except Exception as error:  # noqa: BLE001 - the edge to foreign code
            code, message = JsonRpcErrorCode.INTERNAL_ERROR, str(error) or type(error).__name__
        return JsonRpcResponse.error_response(JsonRpcErrorCode(code), message, request_id=number).model_dump()


def result_fields(result: ToolResult) -> dict[str, Any]:
    """A result of a tool by its fields."""
    return {"data": result.data, "done": result.done, "metadata": result.metadata, "error": result.error}
