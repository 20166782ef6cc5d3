"""What a rollout of a Harbor task returns: rewards, and the calls of the agent with their tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from ..types import State

Json = dict[str, Any]


class HarborTaskRef(BaseModel):
    """A task of a dataset, without its files.

    Attributes:
        index: Its number in the order of names.
        task_id, task_name: The name of its folder, and the name that `task.toml` gives it.
        dataset: Where it comes from, as the caller wrote it.
        instruction: What the agent is asked to do, or the beginning of that.
    """

    index: int
    task_id: str
    task_name: str
    dataset: str = ""
    instruction: str = ""


class HarborTurn(BaseModel):
    """One call that the agent made of the model.

    Attributes:
        turn: Its number in the session.
        role: `agent`, `auxiliary` (calls without tools, beside an agent that has them) or `discarded`.
        prompt_token_ids, completion_token_ids: Ids of the whole prompt, and of the completion; empty without ids.
        per_token_logps: Log probability of each token of the completion.
        loss_mask: A 0 or 1 for each token of prompt and completion; None if the turn cannot be trained on.
        trainable: Whether a trainer may learn from it.
        text, tool_calls: The answer; each call has `name` and `arguments`.
        request_messages, request_tools: The call, in the form of OpenAI's chat completions.
    """

    turn: int
    role: str = "agent"
    finish_reason: str | None = None
    prompt_token_ids: list[int] = Field(default_factory=list)
    completion_token_ids: list[int] = Field(default_factory=list)
    per_token_logps: list[float] = Field(default_factory=list)
    loss_mask: list[int] | None = None
    node_id: str = ""
    n_tools: int = 0
    discarded: bool = False
    trainable: bool = True
    sampling_params: Json = Field(default_factory=dict)
    requested_sampling_params: Json = Field(default_factory=dict)
    text: str = ""
    tool_calls: list[Json] = Field(default_factory=list)
    request_messages: list[Json] = Field(default_factory=list)
    request_tools: list[Json] | None = None


class HarborConversation(BaseModel):
    """The messages of turns that extend one another, the last answer included.

    Attributes:
        root_id: The turn that they begin with.
        role: As in `HarborTurn`.
        n_turns: Number of turns.
        messages: The messages.
    """

    root_id: str = ""
    role: str = "agent"
    n_turns: int = 0
    messages: list[Json] = Field(default_factory=list)


class HarborStepResult(BaseModel):
    """The rewards of one step of a task that has several.

    Attributes:
        name: The step.
        rewards: Its rewards by name.
        passed: Whether they reached its threshold.
    """

    name: str = ""
    rewards: dict[str, float] = Field(default_factory=dict)
    passed: bool = True


class HarborRolloutResult(BaseModel):
    """What an agent did in a task. `reward` is None unless the verifier of the task gave one.

    Attributes:
        task_id, task_name, dataset, harness, sandbox, trial_name, session_id: What ran, where, and under which names.
        reward, rewards, reward_key: The reward, all that the verifier wrote, and the name of the one that was taken.
        step_results: The rewards of each step of a task that has several.
        rollout_type, capture_level, param_fixes: As in the capture proxy.
        turns, conversations, n_turns, n_roots, budget_stop_count: The calls of the model.
        n_trainable_tokens, multi_turn: Tokens to learn from, and whether a conversation has more than one turn.
        atif: `match` or `MISMATCH` of the agent's own trajectory with the recorded calls; `none` without one.
        trace_source: Where that trajectory comes from.
        findings: What the checks said, each with its severity first.
        wall_s, phase_timings: Seconds of the whole, and of `setup`, `agent` and `verifier`.
        agent_log_tail: The end of what the agent printed.
        ok, error, exception_type: Whether it was played and scored; else one sentence, and the class of the error.
    """

    task_id: str = ""
    task_name: str = ""
    dataset: str = ""
    harness: str = ""
    sandbox: str = ""
    trial_name: str = ""
    session_id: str = ""
    reward: float | None = None
    rewards: dict[str, float] = Field(default_factory=dict)
    reward_key: str = ""
    step_results: list[HarborStepResult] = Field(default_factory=list)
    rollout_type: str = "train"
    capture_level: str = "tokens"
    param_fixes: list[str] = Field(default_factory=list)
    turns: list[HarborTurn] = Field(default_factory=list)
    conversations: list[HarborConversation] = Field(default_factory=list)
    n_turns: int = 0
    n_roots: int = 0
    budget_stop_count: int = 0
    n_trainable_tokens: int = 0
    multi_turn: bool = False
    atif: str = "none"
    trace_source: str = ""
    findings: list[str] = Field(default_factory=list)
    wall_s: float = 0.0
    phase_timings: dict[str, float] = Field(default_factory=dict)
    agent_log_tail: str = ""
    ok: bool = True
    error: str | None = None
    exception_type: str | None = None

    @property
    def trainable(self) -> bool:
        """Whether it was scored, and has tokens to learn from."""
        return self.ok and self.rollout_type == "train" and self.reward is not None and self.n_trainable_tokens > 0

    @property
    def solved(self) -> bool:
        """Whether the reward is at least 1."""
        return self.reward is not None and self.reward >= 1.0


class HarborState(State):
    """The state of an environment that plays Harbor tasks.

    Attributes:
        rollouts_completed: Rollouts so far.
        last_reward, last_task_id, last_trial_name: Of the last rollout.
        llm_url, intercept_url: Addresses of the model, and of the proxy before it.
    """

    rollouts_completed: int = 0
    last_reward: float | None = None
    last_task_id: str | None = None
    last_trial_name: str | None = None
    llm_url: str = ""
    intercept_url: str = ""


def turns_from_document(document: Mapping[str, Any]) -> list[HarborTurn]:
    """The turns of a session of the capture proxy.

    Args:
        document: What `openenv.capture.export_session(session, include_messages=True)` returns.

    Returns:
        One for each call. A turn that several sequences share has its tokens once, and its mask of the first of them.
    """
    tokens: dict[str, Json] = {}
    for sequence in document["sequences"]:
        for node_id, fields in _sampled(document, sequence):
            tokens.setdefault(node_id, fields)
    turns = []
    for turn in document["turns"]:
        answer = turn.get("response_message") or {}
        calls = [
            {"name": call["function"]["name"], "arguments": arguments_of(call)}
            for call in answer.get("tool_calls") or ()
        ]
        same = ("finish_reason", "node_id", "n_tools", "discarded", "request_tools")
        facts: Json = {name: turn.get(name) for name in same}
        facts |= {name: turn.get(name) or {} for name in ("sampling_params", "requested_sampling_params")}
        facts |= {"turn": turn["index"], "request_messages": turn.get("request_messages") or []}
        facts |= {"text": answer.get("content") or "", "tool_calls": calls}
        facts |= tokens.get(turn["node_id"], {"role": "discarded", "trainable": False})
        turns.append(HarborTurn.model_validate(facts))
    return turns


def arguments_of(call: Mapping[str, Any]) -> Any:
    """The arguments of a tool call in OpenAI's form: an object, or the text if it is no JSON."""
    text = call["function"].get("arguments") or "{}"
    try:
        return json.loads(text)
    except ValueError:
        return text


def _sampled(document: Mapping[str, Any], sequence: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """For each turn of a sequence its role, and its tokens if it has any."""
    by_id = {turn["node_id"]: turn for turn in document["turns"]}
    ids, mask, logprobs = sequence["input_ids"], sequence["loss_mask"], sequence["logprobs"]
    for node_id, length in zip(sequence["node_ids"], sequence["turn_lengths"], strict=True):
        start = by_id[node_id]["n_prompt"]
        end = start + length
        learned = any(mask[start:end])
        fields: Json = {"role": sequence["role"], "trainable": sequence["trainable"] and learned}
        if length:
            fields |= {
                "prompt_token_ids": ids[:start],
                "completion_token_ids": ids[start:end],
                "per_token_logps": logprobs[start:end] if learned else [],
                "loss_mask": [0] * start + mask[start:end],
            }
        yield node_id, fields


def conversations_from_document(document: Mapping[str, Any]) -> list[HarborConversation]:
    """The conversations of a session, from the same document as `turns_from_document`."""
    last = {turn["node_id"]: turn for turn in document["turns"]}
    return [
        HarborConversation(
            root_id=sequence["root_id"],
            role=sequence["role"],
            n_turns=sequence["n_turns"],
            messages=[*(end.get("request_messages") or ()), *filter(None, [end.get("response_message")])],
        )
        for sequence in document["sequences"]
        for end in [last[sequence["node_ids"][-1]]]
    ]
