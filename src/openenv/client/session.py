"""Sessions that outlive their connection: reconnect, attach, and repeat the calls that have no reply."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from .. import errors
from .._backoff import FIRST_PAUSE_S, jittered_pause, retry_connect
from ..protocol.client import Request, error_of
from .connection import (
    LATE_S,
    Callbacks,
    CallKind,
    ClientConnectionV2,
    Dial,
    Payload,
    call_timeout,
    deadline_of,
    loss_reason,
    session_lost,
    session_not_resumed,
)
from .payloads import unwritable_error

AttachResult = Payload | errors.OpenEnvError
"""The server's answer to `attach`: the numbers of the session's last call, or an error if there is no session."""
# No server keeps a session longer.
LONGEST_WINDOW_S = 86_400.0


_GONE = (errors.SessionLost, errors.UnknownSession, errors.SequenceError)
"""Replies that end a session. (After a `SequenceError` it is unknown which calls were executed.)"""
_CONTENTS = {"reset": "kwargs", "step": "action"}
_TIMED = frozenset({"reset", "step", "mcp"})
# The part of a reply that callers get.
_PARTS = {"state": "state", "mcp": "reply"}
_UNCOUNTED = frozenset({"state", "fork", "tasks"})


def new_secret() -> str:
    """A name for a session, or a token: unique, and hard to guess."""
    return secrets.token_urlsafe(12)


class SessionRef(NamedTuple):
    """The name and the token of a session that exists already."""

    session: str
    token: str


@dataclass(slots=True, eq=False, repr=False)
class ClientSessionState:
    """A client's record of one session.

    Attributes:
        session: Its id; None if there is no session.
        token: Its token, for `attach`.
        opened: The server has opened it.
        seq: Number of its last call.
    """

    session: str | None = None
    token: str = ""
    opened: bool = False
    seq: int = 0


S = TypeVar("S", bound=ClientSessionState)


class SessionGroup(Generic[S]):
    """The sessions on one connection, one or many. When it is lost, they attach to another one.

    Each session has one call at a time without a reply, so that the call can be repeated under its number. The
    subclasses send calls: `ResumableSession` those of a lone client, one in a frame; `VectorSessions` batches.

    Args:
        link: The connection.
        dial: Opens another connection.
        patience_s: Seconds for connecting, for a hello and for the answers to `attach`, each.
        wait_s: Seconds that the server may let a session wait for a free slot; None leaves that to the server.

    Attributes:
        error: Why it has ended for good; None while it lasts.
        link: The present connection, or the last one.
        loop: The event loop of its connections.
    """

    def __init__(self, link: ClientConnectionV2, dial: Dial, patience_s: float, wait_s: float | None):
        self.error: errors.OpenEnvError | None = None
        self.loop = link.loop
        self._dial = dial
        self._patience_s = patience_s
        self._wait_s = wait_s
        self._sessions: dict[str, S] = {}
        # Sessions to close that could not be closed yet, with their tokens.
        self._unwanted: dict[str, str] = {}
        self._closing = False
        self._returning: asyncio.Task[None] | None = None
        self._take_link(link)

    @property
    def leaving(self) -> bool:
        """Whether its server ends the sessions here soon."""
        return self.error is None and self.link.error is None and self.link.draining

    async def aclose(self) -> None:
        """Ends the sessions and the connection, within a bounded time."""
        self._closing = True
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        await self.link.aclose([*self._sessions, *self._unwanted])
        self._finish(errors.ConnectionLost("this client was closed"))

    def _opening(self, state: S) -> Payload:
        """The fields of the call that opens a session."""
        fields: Payload = {"session": state.session, "token": state.token}
        if self._wait_s is not None:
            fields["wait_s"] = self._wait_s
        return fields

    def _is_end(self, state: S, error: errors.OpenEnvError, counted: bool = True) -> bool:
        """Takes the error of a call. True: the session has ended with it."""
        if isinstance(error, errors.TooManyCalls):
            state.seq -= counted  # the server did not count it
        elif isinstance(error, errors.SequenceError):
            self.link.post("close", {"session": state.session})
        return isinstance(error, _GONE)

    def _on_event(self, name: str, fields: Payload) -> None:
        state = self._sessions.get(str(fields.get("session"))) if name == "session_lost" else None
        if state is not None:
            self._lose(state, session_lost(loss_reason(fields)))

    # From one connection to the next.

    def _take_link(self, link: ClientConnectionV2) -> None:
        self.link = link
        link.on_event = self._on_event
        link.on_end = self._on_end

    def _on_end(self, error: errors.OpenEnvError) -> None:
        """The link has ended."""
        resumable = self.error is None and bool(self._sessions) and not self._closing
        if resumable and self._window_s():
            self._returning = self.loop.create_task(self._return())
        else:
            self._finish(error)

    def _window_s(self) -> float:
        """Seconds for which the sessions of the link, which has ended, may come back; 0 if they cannot."""
        error, hello = self.link.error, self.link.hello
        if not isinstance(error, errors.ConnectionFailed) or not error.retryable:
            return 0.0
        if hello is None:  # it ended before the server named its window; nothing was answered yet
            return self._patience_s
        window = hello.get("resume_window_s")
        return min(window, LONGEST_WINDOW_S) if isinstance(window, (int, float)) and window > 0 else 0.0

    async def _return(self) -> None:
        """Resumes the sessions on another connection; tries again until the window is over."""
        window, cause, hello = self._window_s(), self.link.error, self.link.hello
        reason: errors.OpenEnvError | None = None
        found: tuple[ClientConnectionV2, dict[str, AttachResult]] | None = None

        async def attempt() -> tuple[ClientConnectionV2, dict[str, AttachResult]]:
            nonlocal reason
            try:
                return await self._connect_again()
            except errors.OpenEnvError as error:
                reason = error
                raise

        # `reason` says more than the exception: that of the window, or that of the last attempt.
        with contextlib.suppress(errors.OpenEnvError, TimeoutError):
            async with asyncio.timeout(window):
                await asyncio.sleep(jittered_pause(FIRST_PAUSE_S))
                found = await retry_connect(attempt, window)
        self._returning = None
        if found is not None:
            self._take_link(found[0])
            self._resume(found[1])
            return
        assert cause is not None
        limit = "resume_window_s of the server" if hello is not None else "connect_timeout_s"
        last = "" if reason is None else f": {reason.message}"
        gone = errors.SessionLost(
            f"the session is gone, call reset() for a new one: its connection was lost ({cause.message}), and "
            f"no new connection could be made within {window:g} s ({limit}){last}"
        )
        gone.__cause__ = reason or cause
        self._finish(gone)

    async def _connect_again(self) -> tuple[ClientConnectionV2, dict[str, AttachResult]]:
        """Connects and attaches the sessions.

        Returns:
            The new link, and its server's answer for each session. Nothing was awaited since the link was known
            to be up. If the caller is cancelled, neither a connection nor those sessions remain.
        """
        end = await self._dial(self.link.affinity)
        if not isinstance(end, ClientConnectionV2):
            await end.aclose()
            raise errors.ProtocolViolation("the server that answers now does not speak protocol v2")
        tokens: dict[str, str] = {}
        try:
            try:
                await end.greeting(self._patience_s)
            except errors.ProtocolViolation as silence:  # a bad network may recover
                raise errors.ConnectTimeout(silence.message) from silence
            tokens = {session: state.token for session, state in self._sessions.items()} | self._unwanted
            end.on_event = self._on_event
            verdicts = await self._attach(end, tokens)
        except errors.OpenEnvError as error:
            end.end(error)
            raise
        except asyncio.CancelledError:
            await end.aclose(list(tokens))
            raise
        return end, verdicts

    async def _attach(self, link: ClientConnectionV2, tokens: Mapping[str, str]) -> dict[str, AttachResult]:
        verdicts: dict[str, AttachResult] = {}
        over = self.loop.create_future()

        def heard(session: str, verdict: AttachResult, _more: bool = False) -> None:
            verdicts[session] = verdict
            if len(verdicts) == len(tokens) and not over.done():
                over.set_result(None)

        try:
            async with asyncio.timeout(self._patience_s):
                for session, token in tokens.items():
                    hear = partial(heard, session)
                    link.ask("attach", {"session": session, "token": token}, Callbacks(hear, hear))
                if tokens:
                    await over
        except TimeoutError as error:
            raise errors.ConnectTimeout(
                f"no answer to attach within {self._patience_s:g} s (connect_timeout_s)"
            ) from error
        if link.error is not None:
            raise errors.ConnectionLost(f"the connection ended again: {link.error.message}") from link.error
        for verdict in verdicts.values():
            if isinstance(verdict, errors.CapacityError):  # no room now
                raise verdict
        return verdicts

    def _resume(self, verdicts: Mapping[str, AttachResult]) -> None:
        back: list[S] = []
        for session, verdict in verdicts.items():
            state = self._sessions.get(session)
            if state is not None:
                if self._is_back(state, verdict):
                    back.append(state)
            elif self._unwanted.pop(session, None) is not None and isinstance(verdict, dict):
                self.link.post("close", {"session": session})
        self._repeat(back)

    def _is_back(self, state: S, verdict: AttachResult) -> bool:
        """Takes the server's answer to `attach`. False: the session is gone."""
        session = str(state.session)
        if not isinstance(verdict, dict):
            if state.opened or not isinstance(verdict, errors.UnknownSession):
                self._lose(state, session_not_resumed(verdict))
                return False
            return True  # its `open` did not arrive
        state.opened = True
        last = verdict.get("last")
        if verdict.get("seq") == state.seq and isinstance(last, dict):
            self._take_last(state, {**last, "session": session})
        return self._sessions.get(session) is state

    def _finish(self, error: errors.OpenEnvError) -> None:
        """Ends for good."""
        if self.error is not None:
            return
        self.error = error
        if self._returning is not None:
            self._returning.cancel()
        sessions, self._sessions = self._sessions, {}
        self._end_calls(list(sessions.values()), error)

    # For the subclasses.

    def _take_last(self, state: S, reply: Payload) -> None:
        """Takes the reply to the last counted call of a session, which may have come before."""
        raise NotImplementedError

    def _repeat(self, states: Sequence[S]) -> None:
        """Continues sessions that are back: opens those that were not open, and repeats calls without a reply."""
        raise NotImplementedError

    def _lose(self, state: S, error: errors.OpenEnvError) -> None:
        """Takes the end of one session."""
        raise NotImplementedError

    def _end_calls(self, states: Sequence[S], error: errors.OpenEnvError) -> None:
        """Takes the end of the group, with the sessions that it had."""
        raise NotImplementedError


class _PendingCall(asyncio.Future[Payload]):
    """A call without a reply. It is done before the reply comes if its caller has left.

    Attributes:
        due: Its deadline by the loop's clock; None for none.
        seq: Its number, once it has one; 0 for calls that are not counted.
        request: The request that sent it last.
    """

    def __init__(self, session: ResumableSession, kind: CallKind, data: Any, due: float | None):
        super().__init__(loop=session.loop)
        self.kind = kind
        self.data = data
        self.due = due
        self.seq = 0
        self.request: Request | None = None
        self._session = session

    def answer(self, payload: Payload, _more: bool) -> None:
        self._session.answered(self, payload)

    def fail(self, error: errors.OpenEnvError) -> None:
        self._session.refused(self, error)


class ResumableSession(SessionGroup[ClientSessionState]):
    """The session of an `EnvClient` (a `ClientSession`): a group of one. Its link ends with it.

    Its `open` is sent without waiting for the reply, so the first call follows at once. After that, each call waits
    for the reply to the one before, also if the caller of that one has left.

    Args:
        link: The connection.
        dial: Opens another connection.
        patience_s: Seconds for connecting, for a hello and for the answers to `attach`, each.
        wait_s: Seconds that the server may let it wait for a free slot; None leaves that to the server.
        ref: A session to attach to the link; None opens one.
        options: The `options` with which it opens one; None for none.
    """

    def __init__(
        self,
        link: ClientConnectionV2,
        dial: Dial,
        patience_s: float,
        wait_s: float | None = None,
        ref: SessionRef | None = None,
        options: Payload | None = None,
    ):
        self._session_options = options
        self.ref = ref or SessionRef(new_secret(), new_secret())
        """Another connection needs this to attach to the session, or to restore its state."""
        self._state = ClientSessionState(*self.ref, opened=ref is not None)
        self._calls_waiting: deque[_PendingCall] = deque()
        self._underway = False  # the first of them was sent, and has no reply
        self._advancing = False
        self._refused = False
        super().__init__(link, dial, patience_s, wait_s)
        self._sessions[self.ref.session] = self._state
        if link.error is not None:
            self._on_end(link.error)
        elif ref is None:
            self._open()

    @property
    def resumable(self) -> ResumableSession:
        return self

    async def fork(self, wait_s: float | None, timeout_s: float | None) -> SessionRef:
        """Has the server open a session with a copy of this one's state, when it is the fork's turn.

        Args:
            wait_s: Seconds that it may wait for a free slot; None leaves that to the server.
            timeout_s: As for `call`, without `wait_s`.

        Returns:
            The new session; it belongs to this connection until another attaches to it.
        """
        ref = SessionRef(new_secret(), new_secret())
        fields: Payload = {"new": ref.session, "token": ref.token}
        if wait_s is not None:
            fields["wait_s"] = wait_s
            timeout_s = None if timeout_s is None else timeout_s + wait_s
        try:
            await self.call("fork", fields, timeout_s)
        except BaseException:
            self.dismiss(ref)
            raise
        return ref

    def dismiss(self, ref: SessionRef) -> None:
        """Ends a session of this connection that has no client."""
        self.link.post("close", {"session": ref.session})

    async def call(self, kind: CallKind, data: Any, timeout_s: float | None) -> Payload:
        if self.error is not None:
            # Without a traceback, which would grow with each call that raises this same error.
            raise self.error.with_traceback(None) if self._refused else session_lost(self.error)
        due = None
        if timeout_s is not None:
            due = self.loop.time() + timeout_s + (0.0 if self._state.opened else self._wait_s or 0.0)
        call = _PendingCall(self, kind, data, due)
        self._calls_waiting.append(call)
        if not self._underway:
            self._advance()
        timer = None
        if due is not None and not call.done():
            timer = self.loop.call_at(due + LATE_S, self._expire, call, timeout_s)
        try:
            payload = await call
        finally:
            if timer is not None:
                timer.cancel()
            if call.cancelled():
                self._withdraw(call)
        name = _PARTS.get(kind)
        part = payload if name is None else payload.get(name)
        if not isinstance(part, dict):
            raise errors.ProtocolViolation(f"a reply without {name!r}: {payload!r:.200}")
        return part

    async def aclose(self) -> None:
        # If another loop runs, the connection is gone with its own, and `error` has the reason.
        if self.loop is asyncio.get_running_loop():
            await super().aclose()

    # The replies to calls.

    def answered(self, call: _PendingCall, payload: Payload) -> None:
        self._over()
        if not call.done():
            call.set_result(payload)
        self._advance()

    def refused(self, call: _PendingCall, error: errors.OpenEnvError) -> None:
        if self.link.error is not None:
            return  # not an answer: `_on_end` decides about the call when all requests of the link have failed
        if self._is_end(self._state, error, counted=call.seq > 0):
            self._finish(session_lost(error) if isinstance(error, errors.UnknownSession) else error)
            return
        self._over()
        if not call.done():
            call.set_exception(error)
        self._advance()

    def _over(self) -> None:
        self._calls_waiting.popleft()
        self._underway = False

    def _advance(self) -> None:
        """Sends the next call, if there is a connection and no call is underway."""
        if self._advancing:  # re-entrancy guard: a call may complete synchronously
            return
        self._advancing = True
        try:
            while self._calls_waiting and not self._underway and self.link.error is None:
                call = self._calls_waiting[0]
                if call.done():  # its caller did not wait for its turn
                    self._calls_waiting.popleft()
                    continue
                if not call.seq and call.kind not in _UNCOUNTED:
                    self._state.seq += 1
                    call.seq = self._state.seq
                self._send(call)
        finally:
            self._advancing = False

    def _send(self, call: _PendingCall) -> None:
        self._underway = True
        fields: Payload = {"session": self.ref.session}
        if call.seq:
            fields["seq"] = call.seq
        contents = _CONTENTS.get(call.kind)
        if contents is not None:
            fields[contents] = call.data
        elif call.data:
            fields |= call.data
        if call.due is not None and call.kind in _TIMED:
            fields["deadline_s"] = deadline_of(call.due, self.loop.time())
        try:
            call.request = self.link.ask(call.kind, fields, call)
        except (errors.OpenEnvError, ValueError) as error:
            if self.link.error is not None:
                self._underway = False
                return  # the next link sends it, or it fails with the reason that there is none
            self._over()
            if call.seq:
                self._state.seq -= 1
            if not call.done():
                call.set_exception(
                    error if isinstance(error, errors.OpenEnvError) else unwritable_error(call.kind, error)
                )

    def _withdraw(self, call: _PendingCall) -> None:
        """Has the server stop the work of a call that was cancelled."""
        if self._underway and self._calls_waiting and self._calls_waiting[0] is call and call.request is not None:
            self.link.post("cancel", {"target": call.request.id})

    def _expire(self, call: _PendingCall, timeout_s: float | None) -> None:
        if not call.done():
            late = f"no reply to {call.kind} within {timeout_s:g} s (message_timeout_s)"
            call.set_exception(call_timeout(late, self.link))
            if not call.seq:  # the server has no deadline for it
                self._withdraw(call)

    # The life of the session.

    def _open(self) -> None:
        fields = self._opening(self._state)
        if self._session_options is not None:
            fields["options"] = self._session_options
        self.link.ask("open", fields, Callbacks(self._on_opened, self._on_refused))

    def _on_opened(self, *_: object) -> None:
        self._state.opened = True

    def _on_refused(self, error: errors.OpenEnvError) -> None:
        if self.link.error is None:  # else the link failed: not an answer
            self._refused = True
            self._finish(error)

    def _resume(self, verdicts: Mapping[str, AttachResult]) -> None:
        self._advancing = True  # the next call waits until the one that has no reply was sent again
        try:
            super()._resume(verdicts)
        finally:
            self._advancing = False
        self._advance()

    def _take_last(self, state: ClientSessionState, reply: Payload) -> None:
        call = self._calls_waiting[0] if self._underway else None
        if call is None or call.seq != state.seq:
            return
        facts = reply.get("error")
        if isinstance(facts, dict):
            self.refused(call, error_of(facts))
        else:
            self.answered(call, reply)

    def _repeat(self, states: Sequence[ClientSessionState]) -> None:
        if not states:
            return
        if not self._state.opened:
            self._open()
        if self._underway and self.link.error is None:
            call = self._calls_waiting[0]
            self._send(call)
            if call.cancelled() or (call.done() and not call.seq):
                self._withdraw(call)
                if call.kind == "fork":  # it may have been made before the connection was lost, or just now
                    self.dismiss(SessionRef(call.data["new"], call.data["token"]))

    def _lose(self, state: ClientSessionState, error: errors.OpenEnvError) -> None:
        self._finish(error)

    def _end_calls(self, states: Sequence[ClientSessionState], error: errors.OpenEnvError) -> None:
        calls, self._calls_waiting = self._calls_waiting, deque()
        for call in calls:
            if not call.done():
                call.set_exception(error)
        self.link.end(error)
