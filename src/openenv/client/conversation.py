"""Calls over one connection: each waits for its own reply, for as long as it may."""

from __future__ import annotations

import asyncio
from typing import Any

from ..errors import CapacityError, MessageTooLarge, OpenEnvError, ProtocolViolation, StepTimeout
from ..protocol import ClientProtocol
from .loss import again, lost
from .models import unwritable
from .session import Kind
from .transport import Transport

__all__ = ["Conversation"]


class Conversation:
    """A v1 conversation: one connection, one session (`session.Session`). Belongs to the event loop that made it.

    Args:
        max_message_bytes: Largest message that is sent.

    Attributes:
        owner: The client, which stays for as long as its connection does: who else would say goodbye.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self.owner: object = None
        self._protocol = ClientProtocol()
        self._max_bytes = max_message_bytes
        self._served = False
        self._transport: Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.error: OpenEnvError | None = None
        """Why there is no session any more; None while there is one."""

    @property
    def leaving(self) -> bool:
        return False  # v1 has no words for it

    @property
    def linked(self) -> None:
        return None

    def begin(self, transport: Transport) -> None:
        """Takes the connection, whose frames it may have received already."""
        self._transport = transport
        if self.error is not None:  # it came together with the answer to the handshake
            self._drop()

    async def call(self, kind: Kind, data: Any, timeout_s: float | None) -> dict[str, Any]:
        """See `session.Session.call`; calls made meanwhile queue up on the server."""
        if self.error is not None:
            raise again(self.error, self._served)
        assert self._transport is not None
        waiter: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        if kind == "mcp":
            data = {"jsonrpc": "2.0", "id": 1, **data}
        try:
            frame, request = self._protocol.send(kind, data, waiter)
        except ValueError as error:
            raise unwritable(kind, error) from error
        if len(frame) > self._max_bytes:
            self._protocol.withdraw(request)
            raise MessageTooLarge(
                f"a message of {len(frame)} bytes is over the limit of {self._max_bytes} (max_message_size_mb)"
            )
        try:
            self._transport.send(frame)
            async with asyncio.timeout(timeout_s):
                return await waiter
        except TimeoutError as error:
            if isinstance(error, OpenEnvError):  # the server's own
                raise
            raise StepTimeout(
                f"no reply to {kind} within {timeout_s:g} s (message_timeout_s); the environment may still be at it"
            ) from None
        finally:
            request.abandoned = not waiter.done() or waiter.cancelled()

    async def aclose(self) -> None:
        """Ends the session and the connection."""
        transport = self._transport
        # On another loop, its own is gone, and what can be said about that connection is in `error`.
        if transport is None or self._loop is not asyncio.get_running_loop():
            return
        # Behind a call that is still running, a close message would have to wait for it.
        if self.error is None and not self._protocol.outstanding:
            transport.send(self._protocol.close())
        await transport.aclose()

    def received(self, frame: bytes) -> None:
        try:
            reply = self._protocol.receive(frame)
        except ProtocolViolation as violation:
            self._fail(violation)
            self._drop()
            return
        if reply.request is None:
            self.error = reply.error  # unasked: the server refuses the session
        elif not reply.request.waiter.done():  # done: its caller was cancelled, or gave up
            if reply.error is None:
                reply.request.waiter.set_result(reply.payload)
            else:
                reply.request.waiter.set_exception(self._lost_or(reply.error))
        if reply.error is None:
            self._served = True
        if reply.error is not None and reply.error.code in _FINAL:
            self.error = reply.error
            self._drop()

    def lost(self, error: OpenEnvError) -> None:
        self._fail(self.error or error)

    def _drop(self) -> None:
        if self._transport is not None:  # else it is still being made, by a server that closes it itself
            self._transport.drop()

    def _fail(self, error: OpenEnvError) -> None:
        self.error = error
        for request in self._protocol.abandon_all():
            if not request.waiter.done():
                request.waiter.set_exception(error)

    def _lost_or(self, error: OpenEnvError) -> OpenEnvError:
        """The error of a reply; `SessionLost` if it refuses a session that was there and had its episode."""
        return lost(error) if self._served and isinstance(error, CapacityError) else error


# After these the server closes, as protocol v1 says.
_FINAL = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})
