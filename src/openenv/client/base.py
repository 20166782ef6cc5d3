"""The base of the clients: starts the server, connects, and opens, replaces, forks and closes the session."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakSet

from .. import errors
from .._asyncio import on_thread
from .._exceptions import add_cleanup_note
from . import memory, websocket
from .connection import (
    ClientConnectionV1,
    ClientConnectionV2,
    ClientSession,
    OneSessionConnection,
    Receiver,
    Transport,
    dial,
)
from .endpoints import ANY_SERVER, Affinity, Endpoint, Endpoints, Headers
from .portal import LoopBound
from .schema_check import schema_check_of
from .session import ResumableSession, SessionRef

if TYPE_CHECKING:
    from .recorded import RecordedClientSession
    from .session_client import SessionClient

Urls = str | Sequence[str]
"""The address of a server, or of several with the same environment."""


class ManagedServer:
    """A server that a provider runs for a client. Its calls block; `stop` may come while another thread starts.

    Args:
        start: Starts the server or servers and returns the addresses; None if they already run.
        ready: Waits until the server at an address is ready.
        stop: Stops the server, in every state.
        url: The address, if it already runs.
        provider: The provider.
    """

    def __init__(
        self,
        start: Callable[[], Urls] | None,
        ready: Callable[[Urls], None] | None,
        stop: Callable[[], object],
        url: Urls | None = None,
        provider: Any = None,
    ):
        self.url = url
        self.provider = provider
        self._start = start
        self._ready = ready
        self._stop = stop
        self._starting = Lock()
        self._attempt: object = None
        self._running = url is not None
        self._owner = os.getpid()

    def start(self) -> Urls:
        """The address of the server, which is ready.

        Raises:
            SessionLost: It was stopped during the start, or by its owner before.
            Exception: From the provider; its server is stopped.
        """
        with self._starting:
            if self.url is not None:
                return self.url
            if self._start is None:
                gone = "this client was closed, and its provider has stopped the server: make a new client"
                raise errors.SessionLost(gone)
            attempt = self._attempt = object()
            self._running, self._owner = True, os.getpid()
            try:
                url = self._start()
                self._check(attempt)
                if self._ready is not None:
                    self._ready(url)
                self.url = url
                self._check(attempt)  # a later `stop` finds it running
            except BaseException as error:
                self._running, self.url = False, None
                with add_cleanup_note(error):
                    self._stop()
                raise
            return url

    def stop(self) -> None:
        """Stops the server, if it runs or is being started."""
        running, self._running = self._running, False
        self._attempt = self.url = None
        if running and os.getpid() == self._owner:  # a forked child leaves it to the parent
            self._stop()

    def hand_over(self) -> ManagedServer:
        """The same server for another client, which only stops it."""
        url, self.url, self._running = self.url, None, False
        return ManagedServer(None, None, self._stop, url, self.provider)

    def _check(self, attempt: object) -> None:
        if self._attempt is not attempt:
            raise errors.SessionLost("this client was closed while its server was being started")


def managed_server_of(provider: Any, url: Urls | None) -> ManagedServer:
    """The server of a client that was given a provider.

    Args:
        provider: With `start`, `wait_for_ready` and `stop` (a `RuntimeProvider`), or `stop_container` (a
            `ContainerProvider`).
        url: The address, if the provider has already started the server.

    Raises:
        UsageError: Not a provider, or a container provider, which needs an image.
    """
    stop = getattr(provider, "stop_container", None) or getattr(provider, "stop", None)
    if not callable(stop):
        raise errors.UsageError(
            f"provider is a {type(provider).__name__}: pass a ContainerProvider or a RuntimeProvider"
        )
    if url is not None:
        return ManagedServer(None, None, stop, url, provider)
    start = getattr(provider, "start", None)
    if not callable(start) or hasattr(provider, "start_container"):
        raise errors.UsageError(
            f"{type(provider).__name__} starts containers, and none was named: "
            "use from_docker_image(image, provider=...), or give the base_url of one that runs"
        )
    if "keyed" in inspect.signature(start).parameters:  # only this client may use the server
        start = partial(start, keyed=True)
    return ManagedServer(start, lambda _: provider.wait_for_ready(), stop, provider=provider)


def key_of(provider: Any) -> str | None:
    """The key that a provider gave its server, if known."""
    key = getattr(provider, "api_key", None)
    return key if isinstance(key, str) else None


T = TypeVar("T")

# Attributes of one connection or process: a copy gets new ones.
_NOT_COPIED = ("_held", "_closed", "_others", "_loop", "_pid", "_connecting", "_blocking")


class BaseClient(LoopBound):
    """Opens and closes the session of a client; the subclass makes the calls, and sets these attributes."""

    _app: Any
    _base_url: str | None
    _endpoints: Endpoints | None
    _managed_server: ManagedServer | None
    _client_mode: str
    _options: websocket.WebSocketOptions
    _headers_with: Callable[[str | None], Headers]
    _wait_s: float | None
    _record: Path | None
    _session_options: dict[str, Any] | None = None
    _production_calls: frozenset[str] = frozenset()

    def _set_servers(self, base_url: str | Sequence[str] | None) -> None:
        """Sets the addresses of the servers; None for a client of an app."""
        urls = [base_url] if isinstance(base_url, str) else base_url
        self._endpoints = None if urls is None else Endpoints(urls)
        self._base_url = None if urls is None else urls[0].rstrip("/")

    @property
    def _url(self) -> str | None:
        """The environment endpoint; with several servers, the first one's."""
        return None if self._endpoints is None else self._endpoints.all[0].url

    def _begin(self) -> None:
        """Begins without a session."""
        self._unbind()
        self._held: ClientSession | None = None
        self._closed = False
        self._others: WeakSet[BaseClient] = WeakSet()

    def _copied(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}

    def _copy(self) -> Self:
        """Another client of the same server, without a session."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self._copied() | {"_managed_server": None})
        other._begin()
        return other

    async def _connect_async(self) -> Self:
        await self._open("connect", anew=True)
        return self

    async def _new_session_async(self) -> Self:
        connecting = self._connecting
        async with connecting:
            self._check_open(connecting)
            await self._host()
        other = self._copy()
        self._others.add(other)
        return await other._routed(other._connect_async())

    async def _fork_async(self, wait_s: float | None, timeout_s: float | None) -> Self:
        session = await self._session_for("fork")
        tap = getattr(self._held, "tap", None)  # recorded sessions have one
        place = None if tap is None else tap.place
        ref = await session.fork(wait_s, timeout_s)
        try:
            other = self._copy()
            await other._routed(other._attach_async(ref, session.link.affinity))
            if place is not None:
                cast("RecordedClientSession", other._held).tap.continue_from(place)
            return other
        except BaseException:
            session.dismiss(ref)
            raise

    async def _attach_async(self, ref: SessionRef, affinity: Affinity) -> Self:
        """Takes over an existing session from its connection."""
        end = await self._dial(affinity)
        if not isinstance(end, ClientConnectionV2):
            await end.aclose()
            raise errors.ProtocolViolation("the server no longer speaks protocol v2")
        try:
            end.check = None  # done for the source session
            try:
                async with asyncio.timeout(self._options.connect_timeout_s):
                    await end.request("attach", ref._asdict())
            except TimeoutError as late:
                limit = f"{self._options.connect_timeout_s:g} s (connect_timeout_s)"
                raise errors.ConnectTimeout(f"the fork exists, but did not answer within {limit}") from late
            self._held = self._session_of(end, ref)
        except BaseException:
            await end.aclose([ref.session])
            raise
        return self

    async def _restore_async(self, source: BaseClient, timeout_s: float | None) -> None:
        other = source._held
        if other is None or other.resumable is None or other.error is not None or other is self._held:
            which = "itself" if other is not None and other is self._held else "a client without a session"
            raise errors.UsageError(f"restore from {which}: give a client of the same server that has an episode")
        session = await self._session_for("fork")
        mine, its = session.link.affinity, other.resumable.link.affinity
        if mine != its:
            raise errors.UsageError(
                f"restore from a session of another server or worker process ({its}, and here {mine}): take sessions "
                "that were forked from one another"
            )
        ref = other.resumable.ref
        assert self._held is not None
        await self._held.call("restore", {"source": ref.session, "token": ref.token}, timeout_s)

    async def _session_for(self, capability: str) -> ResumableSession:
        """The session, on a server that can do more than reset and step. Raises `UsageError` if it cannot."""
        session = (await self._open(capability)).resumable
        if session is None:
            raise errors.UsageError(f"{capability} needs protocol v2, and this server speaks v1 only: upgrade it")
        hello = await session.link.greeting(self._options.connect_timeout_s)
        known = hello.get("capabilities")
        if not isinstance(known, list) or capability not in known:
            version = hello.get("server", "unknown")
            raise errors.UsageError(f"this server (openenv {version}) does not know {capability}: upgrade it")
        return session

    async def _disconnect_async(self) -> None:
        # A new lock shows a call that is connecting now that the client was closed.
        self._connecting, self._closed = asyncio.Lock(), True
        session, self._held, self._loop = self._held, None, None
        if session is not None:
            await session.aclose()

    async def _close(self) -> None:
        others, self._others = list(self._others), WeakSet()
        try:
            await asyncio.gather(*(other._routed(other._close()) for other in others), return_exceptions=True)
            await self._disconnect_async()
        finally:
            if self._managed_server is not None:
                await on_thread(self._managed_server.stop)

    async def _host(self) -> None:
        """Has the provider start the server unless it runs."""
        managed_server = self._managed_server
        if managed_server is not None and managed_server.url is None:
            self._set_servers(await on_thread(managed_server.start, managed_server.stop))
            key = key_of(managed_server.provider)  # some keys are made with the server
            if key is not None:
                self._options = replace(self._options, headers=self._headers_with(key))

    async def _open(self, what: str, anew: bool = False) -> ClientSession:
        """The session of this client for a call (`what`); `anew` replaces a session that has ended or soon will."""
        session = self._held
        if session is not None and (not anew or (session.error is None and not session.leaving)):
            return session
        self._check_mode(what)
        if self._closed and not anew:
            again = "connect" if self._client_mode == "production" else "reset"
            raise errors.SessionLost(f"this client was closed, and its session with it: call {again}() for a new one")
        self._closed = False
        connecting = self._connecting
        async with connecting:
            self._check_open(connecting)
            if self._held is session:
                await self._host()
                try:
                    end = await self._dial_session()
                except (errors.ConnectionFailed, errors.ProviderFailed):
                    if session is None or session.error is not None:
                        raise
                    return session  # there is no other server: this one serves for as long as it runs
                if isinstance(end, ClientConnectionV2) and end.check is not None:
                    await self._check_schema(end)
                if connecting is not self._connecting:
                    await end.aclose()
                self._check_open(connecting)
                self._held = self._session_of(end)
                if session is not None:
                    await session.aclose()
            assert self._held is not None
            return self._held

    async def _check_schema(self, link: ClientConnectionV2) -> None:
        """Waits for the check of a new link; if it fails, closes the link and raises."""
        try:
            await link.greeting(self._options.connect_timeout_s)
        except BaseException as error:
            if error is link.error and link.error.retryable:
                return  # the session connects again
            await link.aclose()
            raise

    def _check_open(self, connecting: asyncio.Lock) -> None:
        """Raises `SessionLost` if the client was closed since the caller began to connect."""
        if connecting is not self._connecting:
            raise errors.SessionLost("this client was closed while it was connecting: call reset() for a new session")

    def _check_mode(self, what: str) -> None:
        """Raises `UsageError` in production mode, except for the calls that servers then offer."""
        if self._client_mode == "production" and what not in self._production_calls:
            raise errors.UsageError(
                f"{what} is not for clients in production mode (mode, OPENENV_CLIENT_MODE), where servers offer "
                "tools and no call that drives an episode: use list_tools and call_tool of MCPToolClient, or leave "
                "mode out (EnvClient takes mode='simulation' too)"
            )

    def _session_of(
        self, end: ClientConnectionV2 | OneSessionConnection, ref: SessionRef | None = None
    ) -> ClientSession:
        session: ClientSession
        if isinstance(end, ClientConnectionV2):
            session = ResumableSession(
                end, self._dial, self._options.connect_timeout_s, self._wait_s, ref, self._session_options
            )
        else:
            end.owner, session = self, end
        if self._record is None or self._client_mode == "production":
            return session
        from .recorded import RecordedClientSession  # noqa: PLC0415 - few clients record

        return RecordedClientSession(session, end, self._record)

    async def _dial_session(self) -> ClientConnectionV2 | OneSessionConnection:
        """Opens the connection of a new session."""
        return await self._dial()

    async def _dial(self, affinity: Affinity = ANY_SERVER) -> ClientConnectionV2 | ClientConnectionV1:
        """Connects to the server that the affinity names, else to the one with the fewest connections of ours."""
        size = self._options.max_message_bytes
        if self._endpoints is None:
            end = await dial(partial(memory.connect, self._app), size)
        else:

            def dial_at(endpoint: Endpoint) -> Awaitable[ClientConnectionV2 | ClientConnectionV1]:
                return dial(partial(self._transport, endpoint, affinity.to(endpoint.url)), size)

            end = await self._at_one_of(self._endpoints, affinity, dial_at)
        if isinstance(end, ClientConnectionV2):
            end.check = schema_check_of(cast("SessionClient", self), self._options.connect_timeout_s)
        return end

    async def _at_one_of(
        self, endpoints: Endpoints, affinity: Affinity, connect: Callable[[Endpoint], Awaitable[T]]
    ) -> T:
        """Connects to the server that the affinity names, else tries one server after another."""
        one = endpoints.at(affinity.server) if affinity.server is not None else None
        tried: list[Endpoint] = []
        while (endpoint := one or endpoints.pick(tried)) is not None:
            try:
                return await connect(endpoint)
            except (errors.ConnectionFailed, errors.ProviderFailed, errors.Draining):
                endpoint.failed()
                tried.append(endpoint)
                if one is not None or len(tried) == len(endpoints.all):
                    raise
        raise AssertionError("there is always one to be tried")

    async def _transport(self, endpoint: Endpoint, url: str, receiver: Callable[[str | None], Receiver]) -> Transport:
        endpoint.opened()
        try:
            transport = await websocket.connect(url, receiver, self._options)
        except BaseException:
            endpoint.closed()
            raise
        transport.affinity = transport.affinity._replace(server=endpoint.url)
        transport.on_closed(endpoint.closed)
        return transport

    def _cut(self, reason: str) -> None:
        if self._held is not None:
            self._held.error = errors.ConnectionLost(reason)
