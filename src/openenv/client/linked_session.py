"""One session on a v2 connection of its own, and on the next one when that is lost."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any, NamedTuple

from ..errors import (
    ConnectionLost,
    OpenEnvError,
    ProtocolViolation,
    SequenceError,
    SessionLost,
    TooManyCalls,
    UnknownSession,
)
from ..protocol.client_v2 import Request2, error_of
from .deadline import LATE_S, deadline_of
from .link import Link
from .loss import forgotten, lost, overdue, told
from .models import unwritable
from .resumption import Resumption, Verdict
from .session import Kind

__all__ = ["GONE", "Born", "LinkedSession", "new_secret"]

GONE = (SessionLost, UnknownSession, SequenceError)
"""Replies after which a session is of no further use. (After the last, nobody knows what was executed.)"""
_CONTENTS = {"reset": "kwargs", "step": "action"}
_TIMED = frozenset({"reset", "step", "mcp"})
# What callers want of a reply.
_PARTS = {"state": "state", "mcp": "reply"}
_UNCOUNTED = frozenset({"state", "fork", "tasks"})
Payload = dict[str, Any]


def new_secret() -> str:
    """A name for a session, or a token: nobody else has it and nobody can guess it."""
    return secrets.token_urlsafe(12)


class Born(NamedTuple):
    """A session that is there already: its name, and its token."""

    session: str
    token: str


class _Errand(asyncio.Future[Payload]):
    """A call on its way. Whoever made it may have left when its reply comes: then it is done before.

    Attributes:
        due: When its time is over, by the loop's clock; None for never.
        seq: Its number, once it has one; 0 for what is not counted.
        request: How it was sent last.
    """

    def __init__(self, session: LinkedSession, kind: Kind, data: Any, due: float | None):
        super().__init__(loop=session.loop)
        self.kind = kind
        self.data = data
        self.due = due
        self.seq = 0
        self.request: Request2 | None = None
        self._session = session

    def answer(self, payload: Payload, _more: bool) -> None:
        self._session.answered(self, payload)

    def fail(self, error: OpenEnvError) -> None:
        self._session.refused(self, error)


class LinkedSession:
    """The session of a lone client (`session.Session`). When it ends, so does its link.

    Its `open` is sent at once and not waited for, so the first call follows on its heels. After that there is one
    call at a time without a reply: so it can be repeated, under its number, when the connection is lost. A reply
    that nobody waits for any more is waited for all the same, before the next call is sent.

    Args:
        link: The connection.
        resumption: How it is made again.
        wait_s: Seconds that the server may let it wait for a free slot; None leaves that to the server.
        born: The session, which is attached to the link; None: one is opened.
    """

    def __init__(self, link: Link, resumption: Resumption, wait_s: float | None = None, born: Born | None = None):
        self.error: OpenEnvError | None = None
        self.loop = link.loop
        self._resumption = resumption
        self._wait_s = wait_s
        self._id, self._token = born or (new_secret(), new_secret())
        self._seq = 0
        self._errands: deque[_Errand] = deque()
        self._underway = False  # the first of them was sent, and has no reply
        self._advancing = False
        self._served = born is not None  # something of this session was answered
        self._refused = False
        self._closing = False
        self._returning: asyncio.Task[None] | None = None
        self._take_link(link)
        if born is None:
            self._open()
        elif link.error is not None:
            self._lost(link.error)

    @property
    def leaving(self) -> bool:
        return self.error is None and self._link.error is None and self._link.draining

    @property
    def linked(self) -> LinkedSession:
        return self

    @property
    def born(self) -> Born:
        """What another connection needs to take the session over, or to have one go on from it."""
        return Born(self._id, self._token)

    @property
    def link(self) -> Link:
        """The connection there is, or was last."""
        return self._link

    async def fork(self, wait_s: float | None, timeout_s: float | None) -> Born:
        """Has the server open a session that goes on from where this one is, when it is the fork's turn.

        Args:
            wait_s: Seconds that it may wait for a free slot; None leaves that to the server.
            timeout_s: As for `call`, without those.

        Returns:
            The new session, which is one of this connection until another one attaches to it.
        """
        born = Born(new_secret(), new_secret())
        fields: Payload = {"new": born.session, "token": born.token}
        if wait_s is not None:
            fields["wait_s"] = wait_s
            timeout_s = None if timeout_s is None else timeout_s + wait_s
        try:
            await self.call("fork", fields, timeout_s)
        except BaseException:
            self.dismiss(born)
            raise
        return born

    def dismiss(self, born: Born) -> None:
        """Ends a session of this connection that nobody wants."""
        self._link.post("close", {"session": born.session})

    async def call(self, kind: Kind, data: Any, timeout_s: float | None) -> Payload:
        if self.error is not None:
            # Without a traceback: that of the one error would grow with every call it is raised for.
            raise self.error.with_traceback(None) if self._refused else lost(self.error)
        due = None
        if timeout_s is not None:
            due = self.loop.time() + timeout_s + (0.0 if self._served else self._wait_s or 0.0)
        errand = _Errand(self, kind, data, due)
        self._errands.append(errand)
        if not self._underway:
            self._advance()
        timer = None
        if due is not None and not errand.done():
            timer = self.loop.call_at(due + LATE_S, self._expire, errand, timeout_s)
        try:
            payload = await errand
        finally:
            if timer is not None:
                timer.cancel()
            if errand.cancelled():
                self._withdraw(errand)
        part = _PARTS.get(kind)
        return payload if part is None else _part_of(payload, part)

    async def aclose(self) -> None:
        # On another loop, its own is gone, and what can be said about that connection is in `error`.
        if self.loop is not asyncio.get_running_loop():
            return
        self._closing = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        await self._link.aclose([self._id])
        self._end(ConnectionLost("this client was closed"))

    # What becomes of a call.

    def answered(self, errand: _Errand, payload: Payload) -> None:
        self._served = True
        self._over()
        if not errand.done():
            errand.set_result(payload)
        self._advance()

    def refused(self, errand: _Errand, error: OpenEnvError) -> None:
        if self._link.error is not None:
            return  # not an answer: what becomes of the call is decided when the link has told all of its requests
        if isinstance(error, GONE):
            if isinstance(error, SequenceError):
                self._link.post("close", {"session": self._id})
            self._end(lost(error) if isinstance(error, UnknownSession) else error)
            return
        if isinstance(error, TooManyCalls) and errand.seq:
            self._seq -= 1  # not counted
        self._over()
        if not errand.done():
            errand.set_exception(error)
        self._advance()

    def _over(self) -> None:
        self._errands.popleft()
        self._underway = False

    def _advance(self) -> None:
        """Sends the next call, if there is a way and none is underway."""
        if self._advancing:  # a reply that comes before its call is sent leads back here and not deeper
            return
        self._advancing = True
        try:
            while self._errands and not self._underway and self._link.error is None:
                errand = self._errands[0]
                if errand.done():  # its caller did not wait for its turn
                    self._errands.popleft()
                    continue
                if not errand.seq and errand.kind not in _UNCOUNTED:
                    self._seq += 1
                    errand.seq = self._seq
                self._send(errand)
        finally:
            self._advancing = False

    def _send(self, errand: _Errand) -> None:
        self._underway = True
        try:
            errand.request = self._link.ask(errand.kind, self._fields(errand), errand)
        except (OpenEnvError, ValueError) as error:
            if self._link.error is not None:
                self._underway = False
                return  # it goes when there is a link again, or hears why there is none
            self._over()
            if errand.seq:
                self._seq -= 1
            if not errand.done():
                errand.set_exception(error if isinstance(error, OpenEnvError) else unwritable(errand.kind, error))

    def _fields(self, errand: _Errand) -> Payload:
        contents = _CONTENTS.get(errand.kind)
        if contents is not None:
            fields = {"session": self._id, "seq": errand.seq, contents: errand.data}
        else:
            counted = {"seq": errand.seq} if errand.seq else {}
            fields = {"session": self._id, **counted, **(errand.data or {})}
        if errand.due is not None and errand.kind in _TIMED:
            fields["deadline_s"] = deadline_of(errand.due, self.loop.time())
        return fields

    def _withdraw(self, errand: _Errand) -> None:
        """Has the server stop the work of a call whose caller has left."""
        if self._underway and self._errands and self._errands[0] is errand and errand.request is not None:
            self._link.post("cancel", {"target": errand.request.id})

    def _expire(self, errand: _Errand, timeout_s: float | None) -> None:
        if not errand.done():
            late = f"no reply to {errand.kind} within {timeout_s:g} s (message_timeout_s)"
            errand.set_exception(overdue(late, self._link))
            if not errand.seq:  # no deadline of the server's stops it
                self._withdraw(errand)

    # What becomes of the session.

    def _take_link(self, link: Link) -> None:
        self._link = link
        link.on_event = self._heard
        link.on_end = self._lost

    def _open(self) -> None:
        if self._link.error is not None:
            self._lost(self._link.error)
            return
        fields: Payload = {"session": self._id, "token": self._token}
        if self._wait_s is not None:
            fields["wait_s"] = self._wait_s
        self._link.stream("open", fields, self._admitted, self._denied)

    def _admitted(self, *_: object) -> None:
        self._served = True

    def _denied(self, error: OpenEnvError) -> None:
        if self._link.error is None:  # else it is no answer
            self._refused = True
            self._end(error)

    def _heard(self, name: str, fields: Payload) -> None:
        if name == "session_lost" and fields.get("session") == self._id:
            error = told(fields)
            self._end(error if isinstance(error, SessionLost) else lost(error))

    def _lost(self, error: OpenEnvError) -> None:
        """The link has ended."""
        if self.error is None and not self._closing and self._resumption.window_s(self._link):
            self._returning = self.loop.create_task(self._return())
        else:
            self._end(error)

    async def _return(self) -> None:
        """Goes on with the session on another connection."""
        try:
            link, verdicts = await self._resumption.run(self._link, lambda: {self._id: self._token}, self._heard)
        except SessionLost as error:
            self._returning = None
            self._end(error)
        else:
            self._returning = None
            self._take_link(link)
            self._resume(verdicts[self._id])

    def _resume(self, verdict: Verdict) -> None:
        errand = self._errands[0] if self._underway else None
        if not isinstance(verdict, dict):
            if self._served or not isinstance(verdict, UnknownSession):
                self._end(forgotten(verdict))
                return
            self._open()  # its first `open` did not arrive
        else:
            self._served = True
            last = verdict.get("last")
            if errand is not None and errand.seq and errand.seq == verdict.get("seq") and isinstance(last, dict):
                self._recover(errand, last)
                return
        if errand is not None and self._link.error is None:
            self._send(errand)
            if errand.cancelled() or (errand.done() and not errand.seq):
                self._withdraw(errand)
                if errand.kind == "fork":  # it may have been made before the connection was lost, or just now
                    self.dismiss(Born(errand.data["new"], errand.data["token"]))
        self._advance()

    def _recover(self, errand: _Errand, last: Payload) -> None:
        """The reply that was lost has come with the session."""
        facts = last.get("error")
        if isinstance(facts, dict):
            self.refused(errand, error_of(facts))
        else:
            self.answered(errand, last)

    def _end(self, error: OpenEnvError) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._returning is not None:
            self._returning.cancel()
        errands, self._errands = self._errands, deque()
        for errand in errands:
            if not errand.done():
                errand.set_exception(error)
        self._link.end(error)


def _part_of(payload: Payload, name: str) -> Payload:
    part = payload.get(name)
    if not isinstance(part, dict):
        raise ProtocolViolation(f"a reply without {name!r}: {payload!r:.200}")
    return part
