"""The v1 connections of a vector's environments: one for each, since v1 has one session on a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidAction, InvalidArgument, OpenEnvError, ProtocolViolation, SessionLost
from .conversation import Conversation
from .dial import Dial
from .loss import again
from .redial import redial
from .seat import Seat
from .session import Kind
from .wave import Owner, Wave

__all__ = ["Solos"]


class Solos:
    """Carries calls one by one (`wave.Carrier`), for servers that do not speak v2.

    Args:
        dial: Opens a connection.
        first: The first connection, which is there already.
        num_envs: How many there will be.
        owner: Hears of the replies.
        patience_s: Seconds for connecting.
    """

    def __init__(
        self,
        dial: Dial,
        first: Conversation,
        num_envs: int,
        owner: Owner,
        patience_s: float,
    ):
        self._solos = [_Solo(dial, patience_s) for _ in range(num_envs)]
        self._solos[0].conversation = first
        self._owner = owner
        self._calls: set[asyncio.Task[None]] = set()

    def carry(self, seats: Sequence[Seat], wave: Wave) -> None:
        loop = asyncio.get_running_loop()
        for seat in seats:
            # A copy, since the caller may go on before it is sent.
            call = loop.create_task(self._call(seat, seat.kind, dict(seat.contents), wave))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def aclose(self) -> None:
        for call in self._calls:  # first: one that waits for a connection would have it and nobody to close it
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(solo.aclose() for solo in self._solos))

    async def _call(self, seat: Seat, kind: Kind, data: dict[str, Any], wave: Wave) -> None:
        reply: dict[str, Any] | OpenEnvError
        try:
            reply = await self._solos[seat.index].call(kind, data)
        except SessionLost as error:
            seat.vacate()
            reply = error
        except InvalidArgument as error:
            reply = InvalidAction(error.message)
        except OpenEnvError as error:
            reply = error
        self._owner.settle(seat, wave, reply)
        self._owner.flush()


class _Solo:
    """The connection of one environment, and after its end the next one."""

    def __init__(self, dial: Dial, patience_s: float):
        self._dial = dial
        self._patience_s = patience_s
        self._connecting = asyncio.Lock()
        self._served = False
        self.conversation: Conversation | None = None

    async def call(self, kind: Kind, data: Any) -> dict[str, Any]:
        """Waits for the reply. After the connection was lost, only a reset connects anew."""
        async with self._connecting:
            conversation = self.conversation
            if conversation is None or (conversation.error is not None and kind == "reset"):
                conversation = self.conversation = await redial(self._connect, self._patience_s)
                self._served = False
        try:
            reply = await conversation.call(kind, data, None)
        except OpenEnvError as error:
            if conversation.error is None or isinstance(error, SessionLost):
                raise
            raise again(error, self._served) from error
        self._served = True
        return reply

    async def aclose(self) -> None:
        if self.conversation is not None:
            await self.conversation.aclose()

    async def _connect(self) -> Conversation:
        end = await self._dial()
        if isinstance(end, Conversation):
            return end
        await end.aclose()
        raise ProtocolViolation("the server spoke only protocol v1 before: close() and begin anew to use v2")
