"""A connection's part in a session that it did not open: it may call, and its end is not the session's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..errors import OpenEnvError
from ..execution import Done, EnvironmentProfile, Operation
from ..sessions import Lost, Opened, Session, SessionState
from ..sessions.life import Life
from .stays import Ask, Start, Stay, Stays
from .visitor import Visitor

__all__ = ["Guest", "Guestbook"]


class Guestbook:
    """Stands where a connection has its `SessionManager`, for one that wants to be attached to a session.

    Args:
        stays: Where it is.
        visitor: Who wants it, and what it is called.
    """

    __slots__ = ("_stays", "_visitor")

    def __init__(self, stays: Stays, visitor: Visitor):
        self._stays = stays
        self._visitor = visitor

    def create(self, opened: Opened, on_lost: Lost) -> Guest:
        """A guest who has not come in yet."""
        return Guest(self._visitor.session or "", opened, on_lost)

    def open(self, guest: Guest) -> None:
        """Lets it in, or tells it why not."""
        try:
            stay = self._stays.find(guest.id, self._visitor, self._visitor.token)
            stay.session.bind()
            if stay.ended:
                raise stay.gone()
            guest.enter(stay)
        except OpenEnvError as error:
            guest.turn_away(error)


class Guest:
    """What a connection uses as if it were a `Session` of its own.

    Args:
        session_id: Its name.
        opened: Hears whether it is there.
        on_lost: Hears why, if it is ended by somebody else.

    Attributes:
        life: The sign of life of the connection.
        holder, peer: Whose the connection is.
        gone: Is never needed: a guest is gone as soon as it leaves.
    """

    __slots__ = ("_ask", "_on_lost", "_opened", "_stay", "gone", "holder", "id", "life", "peer")

    life: Life

    def __init__(self, session_id: str, opened: Opened, on_lost: Lost):
        self.id = session_id
        self.holder = 0
        self.peer = ""
        self.gone: asyncio.Event | None = None
        self._opened = opened
        self._on_lost = on_lost
        self._stay: Stay | None = None
        self._ask: Ask | None = None

    @property
    def state(self) -> SessionState:
        return SessionState.GONE if self._stay is None else self._stay.session.state

    @property
    def episode(self) -> str | None:
        return None if self._stay is None else self._stay.session.episode

    @property
    def profile(self) -> EnvironmentProfile:
        assert self._stay is not None
        return self._stay.session.profile

    def enter(self, stay: Stay) -> None:
        """It is let in."""
        self._stay = stay
        stay.lives.append(self.life)
        stay.renew()
        stay.on_lost.append(self._lost)
        self._opened(None)

    def turn_away(self, error: OpenEnvError) -> None:
        """It is not."""
        self._opened(error)

    # What a connection does with its session. One call at a time: the next one after `done`.

    def takes_seed_of(self, arguments: Mapping[str, Any]) -> bool:
        return self._stay is None or self._stay.session.takes_seed_of(arguments)

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
        return self._stay is not None and self._ask is not None and self._stay.cancel(self._ask)

    def stop(self) -> bool:
        """Ends its call in flight, whose time is over, as `Session.stop` does; one that waits is not begun."""
        return self._stay is None or self._ask is None or self._stay.stop(self._ask)

    def close(self) -> None:
        """Leaves. A call of its own that runs goes on, and one that waits is not begun."""
        stay, self._stay = self._stay, None
        if stay is None:
            return
        if self._ask is not None:
            stay.withdraw(self._ask, stop=False)
        stay.lives.remove(self.life)
        stay.renew()
        if self._lost in stay.on_lost:
            stay.on_lost.remove(self._lost)

    def _do(self, start: Start, done: Done) -> None:
        if self._stay is None:
            return  # it has left, and nobody hears
        ask = self._stay.ask(start, partial(self._answered, done))
        self._ask = None if ask.done is None else ask

    def _answered(self, done: Done, result: Any, error: BaseException | None) -> None:
        self._ask = None
        done(result, error)

    def _lost(self, error: OpenEnvError) -> None:
        self._on_lost(error)
