"""Who has a session: opens it with the first call, another one in place of one that has ended, and ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast
from weakref import WeakSet

from ..errors import ConnectionFailed, ConnectionLost, SessionLost, UsageError
from . import memory, websocket
from .conversation import Conversation
from .dial import dial
from .home import Homed
from .hosting import Hosting, on_thread
from .link import Link
from .linked_session import LinkedSession
from .resumption import Resumption
from .session import Session
from .transport import Receiver, Transport
from .url import websocket_url, with_worker

if TYPE_CHECKING:
    from .env_client import EnvClient

__all__ = ["SessionHolder"]

# What belongs to one connection or process, and is made anew in a copy.
_OF_NOW = ("_resumption", "_held", "_closed", "_others", "_home", "_pid", "_connecting", "_claiming", "_blocking")


class SessionHolder(Homed):
    """What a client does about its session, but for what is said in it. A subclass sets what is declared here."""

    _app: Any
    _base_url: str | None
    _url: str | None
    _hosting: Hosting | None
    _client_mode: str
    _options: websocket.Options
    _wait_s: float | None

    def _begin(self) -> None:
        """Begins without a session."""
        self._settle()
        self._resumption = Resumption(self._dial, self._options.connect_timeout_s)
        self._held: Session | None = None
        self._closed = False
        self._others: WeakSet[SessionHolder] = WeakSet()

    def _copied(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_NOW}

    async def _connect_async(self) -> Self:
        await self._open(anew=True)
        return self

    async def _new_session_async(self) -> Self:
        connecting = self._connecting
        async with connecting:
            self._check_open(connecting)
            await self._host()
        other = type(self).__new__(type(self))
        other.__dict__.update(self._copied() | {"_hosting": None})
        other._begin()
        self._others.add(other)
        return await other._routed(other._connect_async())

    async def _disconnect_async(self) -> None:
        # Another one tells whoever is connecting now that it is of no use any more.
        self._connecting, self._closed = asyncio.Lock(), True
        session, self._held, self._home = self._held, None, None
        if session is not None:
            await session.aclose()

    async def _close(self) -> None:
        others, self._others = list(self._others), WeakSet()
        try:
            await asyncio.gather(*(other._routed(other._close()) for other in others), return_exceptions=True)
            await self._disconnect_async()
        finally:
            if self._hosting is not None:
                await on_thread(self._hosting.stop)

    async def _host(self) -> None:
        """Has the provider start the server, if it does not run."""
        hosting = self._hosting
        if hosting is not None and hosting.url is None:
            self._base_url = (await on_thread(hosting.start, hosting.stop)).rstrip("/")
            self._url = websocket_url(self._base_url)

    async def _open(self, anew: bool = False) -> Session:
        """The session of this client; with `anew`, a new one in place of one that has ended or is about to."""
        session = self._held
        if session is not None and (not anew or (session.error is None and not session.leaving)):
            return session
        if self._closed and not anew:
            raise SessionLost("this client was closed, and its session with it: call reset() for a new one")
        if self._client_mode == "production":
            raise UsageError(
                "in production mode (mode, OPENENV_CLIENT_MODE) servers offer tools and no reset, step or state: "
                "use MCPToolClient, or mode='simulation'"
            )
        self._closed = False
        connecting = self._connecting
        async with connecting:
            self._check_open(connecting)
            if self._held is session:
                await self._host()
                try:
                    end = await self._dial()
                except ConnectionFailed:
                    if session is None or session.error is not None:
                        raise
                    return session  # there is no other server: this one serves for as long as it does
                if isinstance(end, Link) and end.check is not None:
                    from .agreement import checked

                    await checked(end, self._options.connect_timeout_s)
                if connecting is not self._connecting:
                    await end.aclose()
                self._check_open(connecting)
                self._held = self._session_of(end)
                if session is not None:
                    await session.aclose()
            assert self._held is not None
            return self._held

    def _check_open(self, connecting: asyncio.Lock) -> None:
        """Raises `SessionLost` where the client was closed since somebody began to connect."""
        if connecting is not self._connecting:
            raise SessionLost("this client was closed while it was connecting: call reset() for a new session")

    def _session_of(self, end: Link | Conversation) -> Session:
        if isinstance(end, Link):
            return LinkedSession(end, self._resumption, self._wait_s)
        end.owner = self
        return end

    async def _dial(self, worker: str | None = None) -> Link | Conversation:
        """A connection to the server, to one of its workers if that is named."""
        end = await dial(partial(self._transport, worker), self._options.max_message_bytes)
        if isinstance(end, Link):
            from .agreement import check_of  # with all that compares schemas, and not before there is a server

            end.check = check_of(cast("EnvClient[Any, Any, Any]", self), self._options.connect_timeout_s)
        return end

    async def _transport(self, worker: str | None, receiver: Callable[[str | None], Receiver]) -> Transport:
        if self._url is None:
            return await memory.connect(self._app, receiver)
        return await websocket.connect(with_worker(self._url, worker), receiver, self._options)

    def _cut(self, reason: str) -> None:
        if self._held is not None:
            self._held.error = ConnectionLost(reason)
