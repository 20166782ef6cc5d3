"""One session on a v2 connection of its own."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from ..errors import (
    OpenEnvError,
    ProtocolViolation,
    SequenceError,
    SessionLost,
    StepTimeout,
    TooManyCalls,
    UnknownSession,
)
from .link import Call, Link
from .loss import lost, told
from .session import Kind

__all__ = ["GONE", "LinkedSession", "new_session_id"]

# Calls of one session that are sent ahead. A step needs the observation before it: few send any.
MOST_IN_FLIGHT = 16
GONE = (SessionLost, UnknownSession, SequenceError)
"""Replies after which a session is of no further use. (After the last, nobody knows what was executed.)"""
_CONTENTS = {"reset": "kwargs", "step": "action"}


def new_session_id() -> str:
    """A name that nobody else has and nobody can guess."""
    return secrets.token_urlsafe(12)


class LinkedSession:
    """The session of a lone client (`session.Session`). When it ends, so does its link.

    Its `open` is sent at once and not waited for, so the first call follows on its heels.
    """

    def __init__(self, link: Link):
        self.error: OpenEnvError | None = link.error
        self._link = link
        self._id = new_session_id()
        self._seq = 0
        self._refused = False
        self._turns = asyncio.Semaphore(1)
        self._narrow = True
        link.on_event = self._heard
        link.on_end = self._ended
        if link.error is None:
            link.stream("open", {"session": self._id}, _admitted, self._refuse)

    async def call(self, kind: Kind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        if self._narrow:
            self._widen()
        deadline = None if timeout_s is None else self._link.loop.time() + timeout_s
        try:
            if self._turns.locked():
                async with asyncio.timeout_at(deadline):
                    await self._turns.acquire()
            else:
                await self._turns.acquire()
        except TimeoutError:
            raise _overdue(kind, timeout_s) from None
        try:
            return await self._ask(kind, data, timeout_s, deadline)
        finally:
            self._turns.release()

    async def aclose(self) -> None:
        # On another loop, its own is gone, and what can be said about that connection is in `error`.
        if self._link.loop is not asyncio.get_running_loop():
            return
        await self._link.aclose([self._id])

    async def _ask(self, kind: Kind, data: Any, timeout_s: float | None, deadline: float | None) -> dict[str, Any]:
        if self.error is not None:
            # Without a traceback: that of the one error would grow with every call it is raised for.
            raise self.error.with_traceback(None) if self._refused else lost(self.error)
        call = self._link.request(kind, self._fields(kind, data))
        if kind != "state":
            self._seq += 1
        timer = None
        if deadline is not None and not call.done():
            timer = self._link.loop.call_at(deadline, _give_up, call, kind, timeout_s)
        try:
            payload = await call
        except GONE as error:
            self._link.end(error)
            if isinstance(error, UnknownSession):
                raise lost(error) from error
            raise
        except TooManyCalls:
            if kind != "state":
                self._seq -= 1  # not counted; if another call followed it already, the server will say so
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return payload if kind != "state" else _state_of(payload)

    def _widen(self) -> None:
        """Lets as many calls go ahead as the server keeps for a session; before its hello, one."""
        if self._link.hello is not None:
            self._narrow = False
            for _ in range(1, min(self._link.limit("max_in_flight") or 1, MOST_IN_FLIGHT)):
                self._turns.release()

    def _fields(self, kind: Kind, data: Any) -> dict[str, Any]:
        if kind == "state":
            return {"session": self._id}
        return {"session": self._id, "seq": self._seq + 1, _CONTENTS[kind]: data}

    def _refuse(self, error: OpenEnvError) -> None:
        self._refused = self._link.error is None  # by the server, and not by the end of the link
        self._link.end(error)

    def _heard(self, name: str, fields: dict[str, Any]) -> None:
        if name == "session_lost" and fields.get("session") == self._id:
            error = told(fields)
            self._link.end(error if isinstance(error, SessionLost) else lost(error))

    def _ended(self, error: OpenEnvError) -> None:
        self.error = error


def _admitted(*_: object) -> None:
    """There is a session; the calls that follow will show what it does."""


def _state_of(payload: dict[str, Any]) -> dict[str, Any]:
    state = payload.get("state")
    if not isinstance(state, dict):
        raise ProtocolViolation(f"a reply without a state: {payload!r:.200}")
    return state


def _give_up(call: Call, kind: Kind, timeout_s: float | None) -> None:
    call.give_up(_overdue(kind, timeout_s))


def _overdue(kind: Kind, timeout_s: float | None) -> StepTimeout:
    return StepTimeout(
        f"no reply to {kind} within {timeout_s:g} s (message_timeout_s); the environment may still be at it"
    )
