"""One request and its answer over a socket that is there: HTTP/1.1 as h11 reads it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import NamedTuple, Self

import h11

from ..errors import InvalidMessage

__all__ = ["Exchange", "Reply"]

PIECE_BYTES = 64 * 1024


class Reply(NamedTuple):
    """The head of an answer.

    Attributes:
        status: Its HTTP status.
        headers: Its fields.
        length: Bytes of its body; None if they are only known at its end.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    length: int | None


class Exchange:
    """The client's side of one request.

    Args:
        reader, writer: The connection, which belongs to it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)

    @classmethod
    async def over(cls, connection: socket.socket) -> Self:
        """One over a connected socket, which belongs to it from here on."""
        connection.setblocking(False)
        return cls(*await asyncio.open_connection(sock=connection, limit=PIECE_BYTES))

    async def ask(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> Reply:
        """Sends the request and waits for the head of the answer.

        Raises:
            ConnectionError: The other side ends before that, or says what is no HTTP.
            InvalidMessage: The request is none that may be sent.
        """
        try:
            request = h11.Request(method=method, target=target, headers=headers)
        except h11.LocalProtocolError as error:
            raise InvalidMessage(
                f"the request cannot be handed on to the worker process of its session: {error}"
            ) from error
        sent = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
        self._writer.write(b"".join(part for part in sent if part))
        await self._writer.drain()
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return _reply(event)
            if not isinstance(event, h11.InformationalResponse):
                raise ConnectionResetError("no answer came")

    async def body(self) -> AsyncIterator[bytes]:
        """The body of the answer, as it comes.

        Raises:
            ConnectionError: It is not whole.
        """
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    def close(self) -> None:
        """Gives the connection up, whatever was still to come."""
        self._writer.transport.abort()

    async def _next(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(PIECE_BYTES))
        except h11.RemoteProtocolError as error:
            raise ConnectionResetError(str(error)) from error
        return event


def _reply(response: h11.Response) -> Reply:
    headers = [(bytes(name), bytes(value)) for name, value in response.headers]
    length = next((int(value) for name, value in headers if name == b"content-length"), None)
    return Reply(response.status_code, headers, length)
