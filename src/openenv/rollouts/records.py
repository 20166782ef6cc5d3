"""What a rollout is: a task, the turns of a conversation with a model, rewards, tokens, and how it ended.

The records of turns are not tracked by the garbage collector (`gc=False`): they are many, and in no cycle.
Records keep what each turn added, not the whole history: memory and files grow with the conversation, not with its
square. `Rollout.conversation` and `Rollout.context_ids` put the whole together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

import msgspec

ChatMessage = dict[str, Any]
"""A message in the form of OpenAI's chat completions: `role`, `content` (text, or parts), `tool_calls`,
`tool_call_id`, and `reasoning_content` where a model shows its reasoning."""


class RolloutOutcome(StrEnum):
    """How a rollout ended. Only the first five have a return: `has_return`."""

    TERMINATED = "terminated"
    """The environment ended the episode."""
    TRUNCATED = "truncated"
    """The environment cut the episode short, at a time limit of its own."""
    OUT_OF_TURNS = "out_of_turns"
    OUT_OF_TOKENS = "out_of_tokens"
    """The completions of the rollout used up their budget."""
    OUT_OF_CONTEXT = "out_of_context"
    """The next prompt would exceed the budget for a context, or the model's own."""
    OUT_OF_TIME = "out_of_time"
    """No return: how far a rollout comes in a time depends on the machine, not on the model."""
    REFUSED = "refused"
    """The model refused to answer, or its endpoint filtered the answer."""
    MODEL_FAILED = "model_failed"
    """The endpoint gave no usable answer, retries included; or the answers broke the limit of invalid actions."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The environment raised, crashed, or did not answer in time."""
    INFRASTRUCTURE = "infrastructure"
    """A server, machine or connection failed, retries included."""

    @property
    def has_return(self) -> bool:
        """Whether a rollout with this outcome may have a return."""
        return self in _WITH_RETURN


_WITH_RETURN = frozenset(
    {
        RolloutOutcome.TERMINATED,
        RolloutOutcome.TRUNCATED,
        RolloutOutcome.OUT_OF_TURNS,
        RolloutOutcome.OUT_OF_TOKENS,
        RolloutOutcome.OUT_OF_CONTEXT,
    }
)

TokenSource = Literal["sampled", "retokenized", "none"]
"""Where token ids come from: the model sampled them; a tokenizer made them from the text; there are none."""

BreakKind = Literal["template", "reasoning_dropped", "compaction", "retokenized", "other"]
"""Why a prompt does not extend the tokens before it: the chat template rewrites the history; it drops the reasoning
of earlier turns; the caller shortened the history; text was tokenized again, to other ids; none of these."""


class PrefixBreak(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prompt of a turn does not begin with the tokens of the turns before it.

    Attributes:
        kind: Why.
        position: Index of the first token that differs.
        expected, found: Number of tokens that the prompt should have begun with, and the length of the prompt.
    """

    kind: BreakKind
    position: int
    expected: int
    found: int


class RolloutTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rollout begins with: the arguments of the environment's reset.

    Attributes:
        seed: Seed of the reset; None leaves it to the environment.
        split, index: The task, if the environment has tasks.
        arguments: Other arguments of the reset.
    """

    seed: int | None = None
    split: str | None = None
    index: int | None = None
    arguments: dict[str, Any] = {}

    @property
    def reset_arguments(self) -> dict[str, Any]:
        """The arguments of the reset, without those that are None."""
        named = {"seed": self.seed, "split": self.split, "index": self.index}
        return {**self.arguments, **{name: value for name, value in named.items() if value is not None}}

    @property
    def name(self) -> str:
        """The identity of the task across runs, as text: `train/3`, or `seed 7`."""
        if self.index is not None:
            return f"{self.split}/{self.index}"
        return f"seed {self.seed}" if self.seed is not None else (str(self.arguments) if self.arguments else "-")


class TokenUsage(msgspec.Struct, omit_defaults=True, gc=False):
    """Tokens and money that a model call, or a whole rollout, used.

    Attributes:
        prompt_tokens, cached_tokens: Tokens of the prompts, and how many of them came from the endpoint's cache.
        completion_tokens, reasoning_tokens: Tokens of the completions, and how many of them are reasoning.
        cost: By the price table, in its currency; None if the model has no price.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None

    def add(self, other: TokenUsage) -> None:
        """Adds the usage of another call to this one."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.reasoning_tokens += other.reasoning_tokens
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost


class StepRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """One step of the environment that a completion led to: a tool call, or an action in its text.

    Attributes:
        action: The action, as JSON; None if the answer was no valid action.
        call_id, tool: Id and name of the tool call; None for an action in text.
        observation: The environment's observation, as JSON.
        reward: The step's reward; None if there was none.
        rubric: Scores of the parts of the rubric, if the environment reports them.
        done, truncated: As in `StepResult`.
        success: Whether the episode succeeded, if the environment reports it (`success`, `is_success`).
        error: Why the call was invalid, as the conversation says it; the environment made no step then.
    """

    action: Any = None
    call_id: str | None = None
    tool: str | None = None
    observation: Any = None
    reward: float | None = None
    rubric: dict[str, float] = {}
    done: bool = False
    truncated: bool = False
    success: bool | None = None
    error: str | None = None


class Turn(msgspec.Struct, omit_defaults=True, gc=False):
    """One call of the model, and the steps that its completion led to.

    Attributes:
        prompt: The messages that the prompt has beyond the conversation before it: the system prompt and the first
            observation; later the results of tools. The whole prompt after a `prefix_break`.
        completion: The model's message.
        prompt_ids: Token ids that the prompt has beyond `context_ids` before it. All of them after a `prefix_break`.
            None without token ids.
        completion_ids: Token ids of the completion; None without token ids.
        logprobs: Log probability of each token of the completion under the distribution that it was sampled from;
            None where the endpoint sends none.
        tokens: Where the ids come from.
        prefix_break: Why the prompt does not extend the tokens before it; None if it does.
        finish_reason: The endpoint's: `stop`, `length`, `tool_calls`, `content_filter`.
        usage: Tokens and money.
        steps: The steps of the environment, in order.
        version: Version of the policy that sampled the completion; None if the caller gave none.
        model: Name of the model that answered.
        model_s, environment_s: Seconds of the model call, retries included, and of the steps.
    """

    prompt: list[ChatMessage]
    completion: ChatMessage
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    tokens: TokenSource = "none"
    prefix_break: PrefixBreak | None = None
    finish_reason: str | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    steps: list[StepRecord] = msgspec.field(default_factory=list)
    version: int | None = None
    model: str = ""
    model_s: float = 0.0
    environment_s: float = 0.0

    @property
    def reward(self) -> float | None:
        """The sum of the steps' rewards; None if no step gave one."""
        given = [step.reward for step in self.steps if step.reward is not None]
        return math.fsum(given) if given else None


class RolloutFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a rollout has no return.

    Attributes:
        error: Class of the error.
        message: Its message, without keys.
        blame: Who must act, as in `OpenEnvError`.
    """

    error: str
    message: str
    blame: str = "infrastructure"


class Rollout(msgspec.Struct, omit_defaults=True):
    """One episode with a model in it.

    Attributes:
        rollout_id: Unique id: `{group}-{member}`, as text.
        task: The task, with its seed.
        group, member: Id of the group of rollouts of the same task and seed, and the number in that group.
        outcome: How it ended.
        reward: The return: the sum of the steps' rewards. None unless `outcome.has_return` and a step gave one.
        rubric: Sums over the steps of the scores of the rubric's parts.
        turns: The turns.
        failure: Why it failed; None unless the outcome has no return.
        usage: Tokens and money of all turns.
        environment, contract: Name of the environment, and hash of its contract.
        model: Name of the model.
        tools: Function tools that the model was offered, as in `ModelRequest`: the chat template puts them into the
            prompt.
        invalid_actions: Answers that were no valid action.
        attempts: Attempts, with those that failed because of the infrastructure.
        started: Unix time of the last attempt's start in seconds.
        seconds: Duration of the last attempt.
        episode_id: Id of the episode in the environment's own record.
        forked_from, forked_at: The rollout that this one is a fork of, and the number of turns that they share.
        metadata: Facts of the caller.
    """

    rollout_id: str
    task: RolloutTask
    group: str
    member: int
    outcome: RolloutOutcome
    reward: float | None = None
    rubric: dict[str, float] = {}
    turns: list[Turn] = msgspec.field(default_factory=list)
    failure: RolloutFailure | None = None
    usage: TokenUsage = msgspec.field(default_factory=TokenUsage)
    environment: str = ""
    contract: str | None = None
    model: str = ""
    tools: list[dict[str, Any]] = []
    invalid_actions: int = 0
    attempts: int = 1
    started: float = 0.0
    seconds: float = 0.0
    episode_id: str | None = None
    forked_from: str | None = None
    forked_at: int = 0
    metadata: dict[str, Any] = {}

    def conversation(self, turns: int | None = None) -> list[ChatMessage]:
        """The messages after `turns` turns; None for all of them."""
        messages: list[ChatMessage] = []
        for turn in self.turns[:turns]:
            messages = turn.prompt[:] if turn.prefix_break is not None else [*messages, *turn.prompt]
            messages.append(turn.completion)
        return messages

    def context_ids(self, turns: int | None = None) -> list[int]:
        """The token ids of prompt and completions after `turns` turns, since the last prefix break; empty without."""
        return context_of(self.turns[:turns])


def context_of(turns: Sequence[Turn]) -> list[int]:
    """The token ids that the next prompt after these turns should begin with."""
    ids: list[int] = []
    for turn in turns:
        if turn.prefix_break is not None:
            ids = []
        ids.extend(turn.prompt_ids or ())
        ids.extend(turn.completion_ids or ())
    return ids


class RolloutGroup(msgspec.Struct, omit_defaults=True):
    """The rollouts of one task and seed.

    Attributes:
        group: Id of the group.
        task: The task.
        rollouts: Rollouts that have a return, so a baseline never contains a failure.
        failed: Rollouts without a return. Those that the infrastructure failed were repeated as often as the caller
            allows.
    """

    group: str
    task: RolloutTask
    rollouts: list[Rollout]
    failed: list[Rollout] = msgspec.field(default_factory=list)

    @property
    def rewards(self) -> list[float | None]:
        """The returns, in the order of `rollouts`."""
        return [rollout.reward for rollout in self.rollouts]
