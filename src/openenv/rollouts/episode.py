"""One episode as a conversation: the steps that an answer leads to, and what the model reads of them.

The engine plays rollouts with it; `ChatEpisode` is for a trainer that samples itself and steps an environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ..client import GenericEnvClient
from ..errors import InvalidAction, InvalidArgument, MessageTooLarge, ModelFailed, ResetRequired, StepFailed
from ..evals.runner import reward_of, rubric_of, success_of
from ..types import StepResult
from .chat_view import ChatCall, ChatView
from .records import ChatMessage, RolloutTask, StepRecord, Turn

if TYPE_CHECKING:
    from ..chat import Chat

Result = StepResult[dict[str, Any]]
Step = Callable[[dict[str, Any]], Awaitable[Result]]


async def take_step(call: ChatCall, step: Step, before: Result | None) -> tuple[StepRecord, Result | None]:
    """Takes the step of a call, unless it is a mistake.

    Args:
        call: The call.
        step: Sends an action to the environment.
        before: The result of the last step that this answer led to; None without.

    Returns:
        The record, whose `error` names a mistake; and the result of the last step.

    Raises:
        OpenEnvError: The environment or its connection failed.
    """
    record = StepRecord(action=call.action, call_id=call.call_id, tool=call.tool, error=call.error)
    if before is not None and before.done:
        record.error = "the episode had ended before this call"
    if call.action is None or record.error is not None:
        return record, before
    try:
        result = await step(call.action)
    except (InvalidAction, InvalidArgument, MessageTooLarge) as error:
        record.error = str(error)
        return record, before
    except ResetRequired as error:
        raise StepFailed(f"the environment required a reset in the middle of the episode: {error.message}") from error
    # As it is read from a file: arrays as lists, so that records can be written and compared.
    record.observation = to_jsonable_python(
        result.observation, fallback=lambda value: value.tolist(), inf_nan_mode="null", bytes_mode="base64"
    )
    record.done, record.truncated = result.done, result.truncated
    record.success = success_of(result.observation, result.metadata or {})
    if result.reward is not None:
        record.reward = reward_of(result.reward)
    record.rubric = rubric_of(result.metadata or {})
    return record, result


def reply_to(view: ChatView, call: ChatCall, record: StepRecord, result: Result | None) -> ChatMessage:
    """What the model reads of a step with its result, or of a mistake in place of one."""
    if record.error is not None or result is None:
        return view.invalid(dataclasses.replace(call, error=record.error))
    return view.result(call, result.observation, record.done)


def check_invalid(count: int, limit: int | None, turn_steps: list[StepRecord]) -> None:
    """Raises `ModelFailed` if an episode has as many invalid actions as it may have."""
    if limit is not None and count >= max(1, limit):
        raise ModelFailed(
            f"{count} answers were no valid action, and the limit is {limit} "
            f"(max_invalid of the chat view, or budget.invalid); the last: {turn_steps[-1].error}"
        )


class ChatEpisode:
    """A session whose episodes are conversations, for a trainer that samples itself::

        async with ChatEpisode("http://localhost:8000") as episode:
            messages = await episode.begin(RolloutTask(seed=7))
            while not episode.done:
                message = ...  # sample it from episode.messages and episode.view.tools
                turn = await episode.answer(message)

    Args:
        env: URL of the server.
        chat: The chat view; None takes that of the environment.
        client_options: Arguments of `GenericEnvClient`.

    Attributes:
        view: The chat view, from the first `begin`.
        messages: The conversation.
        done, truncated: Whether the episode is over, and whether a limit ended it.
    """

    view: ChatView

    def __init__(self, env: str, *, chat: Chat | None = None, **client_options: Any) -> None:
        self._client = GenericEnvClient(env, **client_options)
        self._chat = chat
        self._invalid = 0
        self.messages: list[ChatMessage] = []
        self.done = self.truncated = False

    async def __aenter__(self) -> ChatEpisode:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def begin(self, task: RolloutTask) -> list[ChatMessage]:
        """Begins an episode. Returns the first messages.

        Raises:
            OpenEnvError: The environment or its connection failed, or it has no chat view.
        """
        if not hasattr(self, "view"):
            self.view = await ChatView.from_server(self._client, self._chat)
        first = await self._client.reset(**task.reset_arguments)
        self._invalid, self.done, self.truncated = 0, first.done, first.truncated
        self.messages = self.view.begin(first.observation)
        return self.messages[:]

    async def answer(self, message: ChatMessage) -> Turn:
        """Takes the steps of a model's answer.

        Args:
            message: The assistant message. `messages` gets it, repaired, and the replies to it.

        Returns:
            The turn: `steps`, and their `reward`.

        Raises:
            ModelFailed: It has too many invalid actions. The episode has no return.
            OpenEnvError: The environment or its connection failed. The episode has no return.
        """
        turn, result = Turn(prompt=[], completion=message), None
        calls = self.view.actions(message)
        self.messages.append(message)
        for call in calls:
            step, result = await take_step(call, self._client.step, result)
            turn.steps.append(step)
            if result is None or not result.done:
                self._invalid += step.error is not None
                self.messages.append(reply_to(self.view, call, step, result))
        if result is not None:
            self.done, self.truncated = result.done, result.truncated
        if not self.done:
            check_invalid(self._invalid, self.view.max_invalid, turn.steps)
        return turn

    async def aclose(self) -> None:
        """Ends the session."""
        await self._client.close()
