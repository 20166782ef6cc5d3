"""One rollout: the conversation between a model and an environment, from reset to outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from .._backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, Backoff, jittered_pause
from ..errors import (
    ContextOverflow,
    EnvironmentFailed,
    ModelFailed,
    ModelUnavailable,
    NotForkable,
    OpenEnvError,
    UsageError,
)
from .episode import check_invalid, reply_to, take_step
from .groups import RolloutOptions
from .model import Completion, Model, ModelRequest
from .records import ChatMessage, Rollout, RolloutOutcome, TokenUsage, Turn, context_of
from .sessions import ForkedSession, Result, SessionPool
from .tokens import PrefixBroken, TokenHistory

if TYPE_CHECKING:
    from .chat_view import ChatView
    from .groups import RolloutProgress
    from .journal import RolloutJournal


class Diverged(Exception):
    """The environment's results differ from those that were recorded, so the recorded answers do not fit."""


class Stale(Exception):
    """The policy is too many versions ahead of a turn of the rollout."""


@dataclass(frozen=True, slots=True)
class Player:
    """Plays rollouts.

    Attributes:
        sessions: The sessions of the run.
        model: The model.
        view: The chat view of the environment.
        options: The options of the run.
        journal: Takes each answer and each result before it is used; None to keep none.
        run_id: Id of the run.
        requests: Limits the calls of the model at the same time.
        progress: Counts its answers.
        fork: Adds a number of forks of a rollout, with copies of its session and conversation, to its group.
    """

    sessions: SessionPool
    model: Model
    view: ChatView
    options: RolloutOptions
    journal: RolloutJournal | None
    run_id: str
    requests: asyncio.Semaphore
    progress: RolloutProgress
    fork: Callable[[Rollout, int, ForkedSession], Awaitable[None]]

    async def play(
        self, rollout: Rollout, slot: int, restarts: int, fork: ForkedSession | None = None
    ) -> RolloutOutcome:
        """Plays a rollout to its end. Turns that it has already are repeated in the environment, not sampled again.

        Args:
            rollout: The rollout; gets the turns.
            slot: Its slot in `sessions`.
            restarts: How often the rollout began from scratch.
            fork: The session, if it has had the turns already.

        Raises:
            Diverged: The environment does not repeat the results of the turns that the rollout has; `NotForkable` if
                it is a fork.
            Stale: See `max_staleness` of `rollouts`.
            OpenEnvError: The attempt failed.
        """
        recorded, rollout.turns = rollout.turns, []
        rollout.started, rollout.invalid_actions, rollout.usage = time.time(), 0, TokenUsage()
        conversation = _Conversation(self, rollout, slot, recorded, restarts)
        try:
            async with asyncio.timeout(self.options.budget.seconds) as limit:
                return await conversation.outcome(fork)
        except Diverged:
            if rollout.forked_from is None:
                raise
            raise NotForkable(
                "the server could not copy the session, and the environment does not repeat its results: make it "
                "forkable (save_state), or deterministic by its seed"
            ) from None
        except TimeoutError as error:
            if limit.expired() and not isinstance(error, OpenEnvError):
                return RolloutOutcome.OUT_OF_TIME
            raise
        finally:
            # What was not repeated, or not to the end, is not lost.
            pairs = zip(rollout.turns, recorded, strict=False)
            done = [turn for turn, old in pairs if len(turn.steps) >= len(old.steps)]
            rollout.turns = done + (recorded[len(done) :] or rollout.turns[len(done) :])
            rollout.seconds = time.time() - rollout.started


class _Conversation:
    """The state of one attempt."""

    def __init__(self, player: Player, rollout: Rollout, slot: int, recorded: list[Turn], restarts: int):
        self._player = player
        self._rollout = rollout
        self._slot = slot
        self._recorded = recorded
        self._restarts = restarts
        self._history = TokenHistory(player.options.tokenizer, on_break=player.options.on_break)
        self._messages: list[ChatMessage] = []
        limit = player.options.budget.invalid
        self._most_invalid = player.view.chat.max_invalid if limit is None else limit

    async def outcome(self, fork: ForkedSession | None) -> RolloutOutcome:
        player, rollout = self._player, self._rollout
        if fork is not None:
            self._continue(fork)
        elif (first := await self._begin()).done:
            return _end(first.truncated)
        while True:
            try:
                turn = await self._next_turn()
            except ContextOverflow:
                if not rollout.turns:
                    raise
                return RolloutOutcome.OUT_OF_CONTEXT
            rollout.turns.append(turn)
            rollout.usage.add(turn.usage)
            if turn.finish_reason == "content_filter":
                return RolloutOutcome.REFUSED
            last = await self._act(turn)
            if last is not None and last.done:
                return _end(last.truncated)
            check_invalid(rollout.invalid_actions, self._most_invalid, turn.steps)
            if (spent := self._spent(turn)) is not None:
                return spent
            if player.options.fork is not None and len(rollout.turns) > len(self._recorded):
                start = ForkedSession(self._slot, rollout.episode_id, self._messages, self._history)
                await player.fork(rollout, player.options.fork(rollout), start)

    async def _begin(self) -> Result:
        """Begins the episode and the conversation."""
        first = await self._player.sessions.reset(self._slot, self._rollout.task.reset_arguments)
        if first.metadata:
            self._rollout.episode_id = first.metadata.get("episode_id")
        self._messages += self._player.view.begin(first.observation)
        return first

    def _continue(self, fork: ForkedSession) -> None:
        """Takes the turns of the rollout as they are, since the session has had them."""
        rollout = self._rollout
        self._messages, self._history, rollout.episode_id = [*fork.messages], fork.history, fork.episode_id
        rollout.turns = [msgspec.structs.replace(turn, steps=turn.steps[:]) for turn in self._recorded]
        for turn in rollout.turns:
            rollout.usage.add(turn.usage)
            rollout.invalid_actions += sum(step.error is not None for step in turn.steps)

    def _spent(self, turn: Turn) -> RolloutOutcome | None:
        """Which part of the budget is used up."""
        budget, rollout = self._player.options.budget, self._rollout
        usage = rollout.usage
        if budget.tokens is not None and usage.completion_tokens >= budget.tokens:
            return RolloutOutcome.OUT_OF_TOKENS
        if budget.cost is not None and (usage.cost or 0.0) >= budget.cost:
            return RolloutOutcome.OUT_OF_TOKENS
        if budget.context is not None and turn.usage.prompt_tokens + turn.usage.completion_tokens >= budget.context:
            return RolloutOutcome.OUT_OF_CONTEXT
        if budget.turns is not None and len(rollout.turns) >= budget.turns:
            return RolloutOutcome.OUT_OF_TURNS
        return None

    # The model.

    async def _next_turn(self) -> Turn:
        """The next answer: the recorded one, or else a new one, which is recorded before it is used."""
        player, number = self._player, len(self._rollout.turns)
        if number < len(self._recorded):
            turn = self._recorded[number]
            again = self._history.turn(self._messages, completion_of(turn, self._rollout.turns), player.view.tools)
            if again.prompt != turn.prompt:
                raise Diverged
            turn = msgspec.structs.replace(turn, steps=[])
        else:
            turn = await self._sampled(number)
            if player.journal is not None:
                player.journal.turn(self._rollout.rollout_id, number, turn)
        self._messages.append(turn.completion)
        return turn

    async def _sampled(self, number: int) -> Turn:
        player, rollout = self._player, self._rollout
        version = player.options.version()
        if player.options.is_stale(rollout, version):
            raise Stale
        tools, sampling, most = player.view.tools, player.options.sampling, player.options.budget.tokens
        if most is not None:  # the next completion may have what the budget has left
            left = most - rollout.usage.completion_tokens
            sampling = dataclasses.replace(sampling, max_tokens=min(left, sampling.max_tokens or left))
        request = ModelRequest(
            messages=self._messages,
            tools=tools,
            sampling=sampling,
            prompt_ids=self._history.prompt_for(self._messages, tools) if player.model.takes_ids else None,
            context=self._history.context,
            key=f"{player.run_id}/{rollout.rollout_id}/{self._restarts}/{number}",
            session=f"{player.run_id}/{rollout.rollout_id}",
        )
        budget = player.options.budget
        if budget.context is not None and len(request.prompt_ids or ()) >= budget.context:
            raise ContextOverflow(f"the prompt has {len(request.prompt_ids or ())} tokens")
        completion = await self._completion(request)
        player.progress.answers += 1
        try:
            turn = self._history.turn(self._messages, completion, tools)
        except PrefixBroken as broken:
            raise ModelFailed(broken.message) from broken
        if turn.version is None:
            turn.version = version
        if completion.refused:
            turn.finish_reason = "content_filter"
        return turn

    async def _completion(self, request: ModelRequest) -> Completion:
        """Calls the model; repeats the call under its key while the model is unavailable."""
        player, backoff = self._player, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        for attempt in range(player.options.retries + 1):
            try:
                async with player.requests:
                    return await player.model.complete(request)
            except ModelUnavailable as error:
                if attempt == player.options.retries:
                    raise
                await asyncio.sleep(max(jittered_pause(backoff.grow()), error.retry_after_s or 0.0))
        raise AssertionError("retries is at least 0")

    # The environment.

    async def _act(self, turn: Turn) -> Result | None:
        """Takes the steps of an answer, and adds their results to the conversation. Returns the last result."""
        player, rollout, result = self._player, self._rollout, None
        send = partial(player.sessions.step, self._slot)
        began = time.perf_counter()
        number = len(rollout.turns) - 1
        known = self._recorded[number].steps if number < len(self._recorded) else []
        for call in player.view.actions(turn.completion):
            step, result = await take_step(call, send, result)
            if len(turn.steps) < len(known):
                if step != known[len(turn.steps)]:
                    raise Diverged
            elif player.journal is not None:
                player.journal.step(rollout.rollout_id, number, step)
            turn.steps.append(step)
            if result is not None and result.done:
                continue
            rollout.invalid_actions += step.error is not None
            self._messages.append(reply_to(player.view, call, step, result))
        turn.environment_s = time.perf_counter() - began
        return result


def completion_of(turn: Turn, before: list[Turn]) -> Completion:
    """The completion that a recorded turn was made of, with the whole prompt.

    Args:
        turn: The turn.
        before: The turns before it.
    """
    prompt_ids = turn.prompt_ids
    if prompt_ids is not None and turn.prefix_break is None:
        prompt_ids = context_of(before) + prompt_ids
    return Completion(
        message=turn.completion,
        finish_reason=turn.finish_reason,
        usage=turn.usage,
        prompt_ids=prompt_ids,
        completion_ids=turn.completion_ids,
        logprobs=turn.logprobs,
        tokens=turn.tokens,
        model=turn.model,
        version=turn.version,
        seconds=turn.model_s,
    )


def outcome_of(error: OpenEnvError) -> RolloutOutcome | None:
    """The outcome of a rollout that failed; None for a mistake of the caller, which ends the run."""
    if isinstance(error, ModelFailed):
        return RolloutOutcome.OUT_OF_CONTEXT if isinstance(error, ContextOverflow) else RolloutOutcome.MODEL_FAILED
    if error.blame == "infrastructure":
        return RolloutOutcome.INFRASTRUCTURE
    if isinstance(error, EnvironmentFailed):
        return RolloutOutcome.ENVIRONMENT_FAILED
    return None if isinstance(error, UsageError) else RolloutOutcome.INFRASTRUCTURE


def _end(truncated: bool) -> RolloutOutcome:
    return RolloutOutcome.TRUNCATED if truncated else RolloutOutcome.TERMINATED
