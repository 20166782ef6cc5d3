"""What a trainer holds: one session of an environment, reused for one episode after another."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from typing import Any, ClassVar

from ...client import EnvClient
from ...client.portal import portal, submit_to
from ...errors import (
    CapacityError,
    ConnectionFailed,
    EnvironmentFailed,
    InvalidAction,
    InvalidArgument,
    OpenEnvError,
    ResetRequired,
    SessionLost,
    StepFailed,
    UsageError,
)
from ...types import StepResult
from .answer import answer_of, refusal_of
from .recipe import Recipe
from .tool import Tool

__all__ = ["Episode"]

_log = logging.getLogger(__name__)

# Resets of one instance that may fail in a row by the environment's own fault.
MOST_FAILURES = 3
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class Episode:
    """Base of the classes that `environment_factory` makes. Its subclasses have the tools as methods.

    One instance serves one rollout after another: `reset`, tool calls, `get_reward`. It may be called from any
    thread, by one at a time. It connects with its first call, anew when the connection or the session was lost in the
    meantime, and its session is closed when it is collected, or when the process ends.
    """

    _recipe: ClassVar[Recipe]

    def __init__(self) -> None:
        self._client = self._recipe.client().sync()
        self._results: list[StepResult[Any]] = []
        self._failure: Exception | None = None
        self._failures = 0
        self._playing = False
        self._farewell: weakref.finalize[..., Any] | None = None

    @property
    def results(self) -> tuple[StepResult[Any], ...]:
        """What the steps of this episode gave, for reward functions of one's own (`environments[i].results`)."""
        return tuple(self._results)

    @property
    def failure(self) -> Exception | None:
        """Why this episode cannot be scored; None if it can."""
        return self._failure

    def reset(self, /, **row: Any) -> str | list[dict[str, Any]] | None:
        """Starts an episode.

        Args:
            row: The columns of the dataset; the environment gets those that its own `reset` takes.

        Returns:
            The first observation, for the prompt. None if there is nothing to say, or if the environment failed: then
            the episode goes unscored.

        Raises:
            ConnectionFailed, CapacityError: There was no session to be had within `patience_s`.
            EnvironmentFailed: The environment has failed `MOST_FAILURES` times in a row.
        """
        if self._failure is not None and not isinstance(self._failure, StepFailed):
            self._client.close()  # what is left of that session is not worth a wait
        self._results, self._failure, self._playing = [], None, False
        columns = self._recipe.columns
        sent = row if columns is None else {name: row[name] for name in columns if name in row}
        try:
            result = self._begin(sent)
        except Exception as error:
            self._fail(error)
            self._failures += 1
            if not isinstance(error, EnvironmentFailed) or self._failures >= MOST_FAILURES:
                raise
            return None
        self._failures = 0
        self._playing = not result.done
        return self._rendered(result.observation) or None

    def _begin(self, arguments: dict[str, Any]) -> StepResult[Any]:
        """Resets, again and again where the road or a full server are in the way."""
        if self._farewell is None:
            self._farewell = weakref.finalize(self, _farewell, self._client.async_client, os.getpid())
            self._farewell.atexit = False  # at the end of the process the portal closes what is left, within a time
        end = time.monotonic() + self._recipe.patience_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return self._client.reset(**arguments)
            except (ConnectionFailed, CapacityError) as error:
                pause = max(pause, error.retry_after_s or 0.0)
                if not (error.retryable or isinstance(error, SessionLost)) or time.monotonic() + pause > end:
                    raise
                _log.warning("no session yet, trying again in %.1f s: %s", pause, error)
            except InvalidArgument as error:
                raise UsageError(
                    f"a column of the dataset cannot be sent to the environment ({error}): "
                    "name those that its reset needs with environment_factory(columns=[...])"
                ) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _use(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Steps. What it raises, trainers show to the model.

        Raises:
            InvalidAction, UsageError: The model's mistake; the episode goes on.
            Exception: Anything else: the episode is over and goes unscored.
        """
        if self._failure is not None:
            raise self._failure
        if not self._playing:
            raise ResetRequired("the episode is over: no tool can be called any more")
        action = tool.action(arguments)
        try:
            result = self._client.step(action)
            self._results.append(result)
            self._playing = not result.done
            refusal = refusal_of(result.observation)
            answer = None if refusal else self._rendered(result.observation)
        except InvalidAction:
            raise
        except Exception as error:
            self._fail(error)
            raise
        if refusal:
            raise UsageError(refusal)
        return answer or ""

    def _rendered(self, observation: Any) -> str | list[dict[str, Any]] | None:
        render = self._recipe.render
        return answer_of(observation) if render is None else render(observation)

    def _fail(self, error: Exception) -> None:
        _log.warning("an episode goes unscored: %s: %s", type(error).__name__, error)
        self._failure = error
        self._playing = False

    def _score(self) -> float | None:
        """The episode's reward; None where something else than the model made it what it is."""
        assert self._recipe.reward is not None
        return None if self._failure is not None else self._recipe.reward(list(self._results))


def _farewell(client: EnvClient[Any, Any, Any], pid: int) -> None:
    """Closes a session without waiting for it: garbage is collected on any thread."""
    if os.getpid() == pid:
        with contextlib.suppress(OpenEnvError):  # the process is ending: the portal has closed the client
            submit_to(portal().loop, client._close())
