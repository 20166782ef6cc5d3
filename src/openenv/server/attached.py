"""Connections of protocol v1 that are attached to a shared session (`/ws?session_id=...`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..errors import OpenEnvError
from ..runtime.executor import Done, Operation
from ..runtime.profile import EnvironmentProfile
from ..runtime.session import LastSeen, OnLost, OnOpened, Session, SessionState
from .auth import Principal
from .shared_sessions import PendingCall, SharedSession, SharedSessions, StartCall


class AttachManager:
    """Stands where a connection has its `SessionManager`, for one that wants to be attached to a session.

    Args:
        shared_sessions: Where it is.
        principal: Who wants it, and what it is called.
    """

    __slots__ = ("_principal", "_sessions")

    def __init__(self, shared_sessions: SharedSessions, principal: Principal):
        self._sessions = shared_sessions
        self._principal = principal

    def create(self, opened: OnOpened, on_lost: OnLost) -> AttachedSession:
        """A session that is not attached yet."""
        return AttachedSession(self._principal.session or "", opened, on_lost)

    def open(self, attached: AttachedSession) -> None:
        """Attaches it, or says why it cannot be."""
        try:
            shared = self._sessions.find(attached.id, self._principal, self._principal.token)
            shared.session.bind()
            if shared.ended:
                raise shared.gone()
            attached.enter(shared)
        except OpenEnvError as error:
            attached.refuse(error)


class AttachedSession:
    """What a connection uses as if it were a `Session` of its own.

    Args:
        session_id: Its name.
        opened: Hears whether it is there.
        on_lost: Hears why, if it is ended by another client or the server.

    Attributes:
        life: The sign of life of the connection.
        holder, peer: Whose the connection is.
        gone: Is never needed: it is gone as soon as it leaves.
    """

    __slots__ = ("_on_lost", "_opened", "_pending", "_shared", "gone", "holder", "id", "life", "peer")

    life: LastSeen

    def __init__(self, session_id: str, opened: OnOpened, on_lost: OnLost):
        self.id = session_id
        self.holder = 0
        self.peer = ""
        self.gone: asyncio.Event | None = None
        self._opened = opened
        self._on_lost = on_lost
        self._shared: SharedSession | None = None
        self._pending: PendingCall | None = None

    @property
    def state(self) -> SessionState:
        return SessionState.GONE if self._shared is None else self._shared.session.state

    @property
    def episode(self) -> str | None:
        return None if self._shared is None else self._shared.session.episode

    @property
    def profile(self) -> EnvironmentProfile:
        assert self._shared is not None
        return self._shared.session.profile

    def enter(self, shared: SharedSession) -> None:
        """Attaches to a session."""
        self._shared = shared
        shared.lives.append(self.life)
        shared.renew()
        shared.on_lost.append(self._lost)
        self._opened(None)

    def refuse(self, error: OpenEnvError) -> None:
        """Says why it is not attached."""
        self._opened(error)

    # What a connection does with its session. One call at a time: the next one after `done`.

    def takes_seed_of(self, arguments: Mapping[str, Any]) -> bool:
        return self._shared is None or self._shared.session.takes_seed_of(arguments)

    def reset(self, arguments: dict[str, Any], done: Done) -> None:
        self._do(lambda session, answer: session.reset(arguments, answer), done)

    def step(self, action: Any, done: Done) -> None:
        self._do(lambda session, answer: session.step(action, answer), done)

    def step_with(self, action: Any, arguments: dict[str, Any], done: Done) -> None:
        self._do(lambda session, answer: session.step_with(action, arguments, answer), done)

    def read_state(self, done: Done) -> None:
        self._do(Session.read_state, done)

    def call(self, operation: Operation, argument: Any, done: Done) -> None:
        self._do(lambda session, answer: session.call(operation, argument, answer), done)

    def cancel(self) -> bool:
        """Stops its call in flight, as `Session.cancel` does; one that waits is not begun."""
        return self._shared is not None and self._pending is not None and self._shared.cancel(self._pending)

    def stop(self) -> bool:
        """Ends its call in flight, whose time is over, as `Session.stop` does; one that waits is not begun."""
        return self._shared is None or self._pending is None or self._shared.stop(self._pending)

    def close(self) -> None:
        """Leaves. A call of its own that runs goes on, and one that waits is not begun."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._pending is not None:
            shared.withdraw(self._pending, stop=False)
        shared.lives.remove(self.life)
        shared.renew()
        if self._lost in shared.on_lost:
            shared.on_lost.remove(self._lost)

    def _do(self, start: StartCall, done: Done) -> None:
        if self._shared is None:
            return  # it has left

        def answered(result: Any, error: BaseException | None) -> None:
            self._pending = None
            done(result, error)

        pending = self._shared.submit(start, answered)
        self._pending = None if pending.done is None else pending

    def _lost(self, error: OpenEnvError) -> None:
        self._on_lost(error)
