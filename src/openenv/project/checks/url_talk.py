"""A conversation of protocol v1 with a server, frame by frame."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from ...testing.probe import Fault
from .url_site import MAX_BYTES, Site, clipped, parsed

__all__ = ["Closed", "Refused", "Talk"]

# Between two attempts to be let in by a server that is full.
AGAIN_S = 0.2


class Closed(Fault):
    """The server has ended the conversation, with a `code` if it gave one."""

    def __init__(self, saw: str, code: int | None):
        super().__init__(saw, "keep the connection until the client closes it")
        self.code = code


class Refused(Fault):
    """The server does not take the connection; with the `status` that it answers, if it is one of HTTP."""

    def __init__(self, saw: str, mend: str, status: int | None = None):
        super().__init__(saw, mend)
        self.status = status


class _Connect(connect):
    """One that follows nobody elsewhere."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Talk:
    """One connection, which is one session of the server.

    Args:
        site: The server.
        connection: To its endpoint.
    """

    def __init__(self, site: Site, connection: ClientConnection):
        self._site = site
        self._connection = connection

    @classmethod
    def begin(cls, site: Site) -> Talk:
        """Connects.

        Raises:
            Refused: The server does not let anybody in.
        """
        return site.run(cls._begin(site))

    @classmethod
    async def _begin(cls, site: Site) -> Talk:
        try:
            async with asyncio.timeout(site.seconds()):
                connection = await _Connect(
                    site.endpoint,
                    additional_headers=site.headers,
                    open_timeout=None,
                    ping_interval=None,
                    close_timeout=site.timeout_s,
                    max_size=MAX_BYTES,
                    proxy=None if site.nearby else True,
                )
        except TimeoutError:
            raise site.late("the handshake at /ws") from None
        except InvalidStatus as error:
            status = error.response.status_code
            mend = "serve the environment's WebSocket there"
            if status in {401, 403}:
                mend = "give a key of scope control by --api-key (OPENENV_API_KEY)"
            raise Refused(f"/ws answers the handshake with status {status}", mend, status) from None
        except (InvalidHandshake, WebSocketException, OSError, EOFError) as error:
            raise Refused(
                f"/ws: no WebSocket ({clipped(str(error) or type(error).__name__)})",
                "serve the environment's WebSocket there",
            ) from None
        return cls(site, connection)

    def ask(self, frame: Mapping[str, Any] | str) -> dict[str, Any]:
        """Sends a frame and takes the next one; see `take` for what it raises."""
        self.say(frame)
        return self.take(f"a frame {_shown(frame)}")

    def say(self, frame: Mapping[str, Any] | str) -> None:
        """Sends a frame, a text as it is."""
        self._site.run(self._say(frame if isinstance(frame, str) else json.dumps(frame)))

    def take(self, after: str) -> dict[str, Any]:
        """The next frame: an object with `type` and `data`.

        Args:
            after: What it answers, for messages.

        Raises:
            Fault: It is none, or none comes.
            Closed: The connection is.
        """
        return self._site.run(self._take(after))

    def end(self) -> None:
        """Closes, whatever state it is in."""
        self._site.run(self._end())

    async def _say(self, text: str) -> None:
        try:
            async with asyncio.timeout(self._site.seconds()):
                await self._connection.send(text)
        except TimeoutError:
            raise Fault("the server does not read what it is sent", "read each connection all the time") from None
        except ConnectionClosed as error:
            self._closed(error, "the last frame")

    async def _take(self, after: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._site.seconds()):
                text = await self._connection.recv()
        except TimeoutError:
            raise self._site.late(after) from None
        except ConnectionClosed as error:
            self._closed(error, after)
        if isinstance(text, bytes):
            raise Fault(f"{after} is answered by a binary frame: {clipped(text)}", "v1 speaks JSON in text frames")
        frame = parsed(text, f"the answer to {after}")
        wrong = Fault(
            f"{after} is answered by {clipped(text)}", 'answer an object {"type": ..., "data": {...}}, as v1 says'
        )
        if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
            raise wrong
        if not isinstance(frame.get("data"), dict):
            raise wrong
        return frame

    def _closed(self, error: ConnectionClosed, after: str) -> NoReturn:
        code = None if error.rcvd is None else error.rcvd.code
        how = "without a word" if error.rcvd is None else f"with code {error.rcvd.code} {clipped(error.rcvd.reason)}"
        raise Closed(f"after {after} the server ended the connection {how.strip()}", code) from None

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(self._site.timeout_s):
                await self._connection.close()
        except TimeoutError:
            pass
        finally:
            self._connection.transport.abort()


def _shown(frame: Mapping[str, Any] | str) -> str:
    return clipped(frame if isinstance(frame, str) else json.dumps(frame))
