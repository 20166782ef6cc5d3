"""One session: the single record of one environment that somebody uses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from ..errors import EnvironmentFailed, InvalidAction, OpenEnvError, ResetRequired, SessionLost, StepFailed
from ..execution import Done, EnvironmentProfile, Executor, Operation, describe

__all__ = ["Lost", "Opened", "Owner", "Session", "SessionState"]

logger = logging.getLogger("openenv.sessions")


class SessionState(Enum):
    """The life of a session, in this order; DETACHED lies between LIVE and LIVE."""

    STARTING = "starting"
    LIVE = "live"
    EXECUTING = "executing"
    DETACHED = "detached"
    CLOSING = "closing"
    GONE = "gone"


# Looking a member up on its Enum class costs more than the rest of a transition.
_STARTING, _LIVE, _EXECUTING = SessionState.STARTING, SessionState.LIVE, SessionState.EXECUTING
_CLOSING, _GONE = SessionState.CLOSING, SessionState.GONE

Opened = Callable[[OpenEnvError | None], None]
"""Hears that a session is LIVE, or why there is none."""

Lost = Callable[[OpenEnvError], None]
"""Hears why a session was ended by somebody other than its user."""


class Owner(Protocol):
    """Who keeps the books about sessions."""

    def made(self, session: Session, environment: Any, error: BaseException | None) -> None:
        """The session's environment was made, or could not be."""

    def closing(self, session: Session) -> None:
        """The session has begun to end."""

    def gone(self, session: Session) -> None:
        """Nothing of the session is left."""


class Session:
    """A session, from the moment somebody asked for it to the end of its environment's `close`.

    Args:
        session_id: Its name.
        owner: Who is told of its transitions.
        opened: Hears whether there will be a session; called once, unless it is closed before.
        on_lost: Hears why, if the session is ended by somebody other than its user.

    Attributes:
        state: Where in its life it is.
        profile: How to call its environment; set when it is LIVE.
        executor: Where its environment runs; None while it waits for a slot and when it is GONE.
        created_at, used_at: Monotonic seconds.
        steps: Steps begun.
        gone: Set when nothing of the session is left; None until somebody waits for that.
        user: What whoever opened it keeps with it; nobody here looks at it.
    """

    __slots__ = (
        "_done",
        "_on_lost",
        "_opened",
        "_owner",
        "created_at",
        "executor",
        "gone",
        "id",
        "profile",
        "state",
        "steps",
        "used_at",
        "user",
    )

    profile: EnvironmentProfile
    executor: Executor | None

    def __init__(self, session_id: str, owner: Owner, opened: Opened, on_lost: Lost | None = None):
        self.id = session_id
        self.state = _STARTING
        self.created_at = self.used_at = time.monotonic()
        self.steps = 0
        self.executor = None
        self.gone: asyncio.Event | None = None
        self.user: Any = None
        self._owner = owner
        self._opened = opened
        self._on_lost = on_lost
        self._done: Done | None = None

    @property
    def idle_since(self) -> float | None:
        """Monotonic time of the last call's end, None unless the session waits for a call."""
        return self.used_at if self.state is _LIVE else None

    # What a user of the session does. One call at a time: the next one after `done`.

    def reset(self, arguments: dict[str, Any], done: Done) -> None:
        """Starts an episode; `done` gets the observation."""
        if self._takes_calls(done):
            self._submit(self.profile.reset, arguments, done)

    def step(self, action: Any, done: Done) -> None:
        """Does one action; `done` gets the observation."""
        if self.state is _LIVE and self.executor is not None:
            # `_submit`, written out: this is the path of every step.
            self.steps += 1
            self.state = _EXECUTING
            self._done = done
            self.executor.submit(self.profile.step, action, self._finished)
        else:
            self._takes_calls(done)

    def step_with(self, action: Any, arguments: dict[str, Any], done: Done) -> None:
        """The same with further arguments for the environment's `step`, of which it gets those it takes."""
        if self._takes_calls(done):
            self.steps += 1
            self._submit(self.profile.step_with, (action, arguments), done)

    def read_state(self, done: Done) -> None:
        """Reads the environment's state."""
        if self._takes_calls(done):
            self._submit(self.profile.state, None, done)

    def call(self, operation: Operation, argument: Any, done: Done) -> None:
        """Does anything else with the environment, where and when it may be touched."""
        if self._takes_calls(done):
            self._submit(operation, argument, done)

    def cancel(self) -> None:
        """Stops the call in flight where its executor can do that; its `done` comes in any case."""
        if self.state is _EXECUTING and self.executor is not None:
            self.executor.cancel()

    def close(self) -> None:
        """Ends the session, after the call in flight if there is one. May be called at any time, repeatedly."""
        state = self.state
        if state is _CLOSING or state is _GONE:
            return
        self.state = _CLOSING
        self._owner.closing(self)
        if self.executor is None:  # it still waits for a slot
            self._closed(None, None)
        elif state is _EXECUTING:
            self.executor.cancel()
        elif state is _LIVE:
            self.executor.close(self._closed)
        # One that is STARTING is closed as soon as its environment is there.

    def end(self, error: OpenEnvError) -> None:
        """Ends the session and tells its user why."""
        if self.state is _STARTING and self.executor is None:
            self.fail(error)
        elif self.state is _STARTING:
            self.close()
            self._opened(error)
        else:
            if self._on_lost is not None and self.state is not _CLOSING and self.state is not _GONE:
                self._on_lost(error)
            self.close()

    # What the owner does.

    def start(self, executor: Executor, factory: Callable[[], Any]) -> None:
        """Has the environment made."""
        self.executor = executor
        executor.start(factory, lambda environment, error: self._owner.made(self, environment, error))

    def live(self, executor: Executor, profile: EnvironmentProfile) -> None:
        """The environment is there."""
        self.executor, self.profile = executor, profile
        if self.state is _CLOSING:
            executor.close(self._closed)
            return
        self.state = _LIVE
        self.used_at = time.monotonic()
        self._opened(None)

    def fail(self, error: OpenEnvError) -> None:
        """There will be no environment: its constructor raised, or no slot came free."""
        wanted = self.state is _STARTING
        if wanted:
            self.state = _CLOSING
            self._owner.closing(self)
        if self.executor is not None:
            self.executor.close(self._closed)
        elif wanted:
            self._closed(None, None)
        if wanted:
            self._opened(error)

    def _takes_calls(self, done: Done) -> bool:
        if self.state is _LIVE:
            return True
        done(None, SessionLost(f"session {self.id} takes no call: it is {self.state.value}"))
        return False

    def _submit(self, operation: Operation, argument: Any, done: Done) -> None:
        self.state = _EXECUTING
        self._done = done
        assert self.executor is not None
        self.executor.submit(operation, argument, self._finished)

    def _finished(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        assert done is not None
        self.used_at = time.monotonic()
        if self.state is _EXECUTING:
            self.state = _LIVE
        elif self.executor is not None:  # closed during the call
            self.executor.close(self._closed)
        # Errors of other kinds that an environment raises are about its own affairs: a lost connection of its own
        # is not the loss of this session.
        if error is not None and not isinstance(error, (EnvironmentFailed, InvalidAction, ResetRequired)):
            failed = StepFailed(describe(error))
            failed.__cause__ = error
            error = failed
        done(result, error)

    def _closed(self, _: Any, error: BaseException | None) -> None:
        self.state = _GONE
        self.executor = None
        if error is not None:
            logger.warning("session %s: close() of its environment failed", self.id, exc_info=error)
        self._owner.gone(self)
        if self.gone is not None:
            self.gone.set()
