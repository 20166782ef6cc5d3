"""One HTTP request and its answer, passed on as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from ...errors import ConnectionFailed, ConnectTimeout, OpenEnvError
from .route import Headers, Route, answer_of

if TYPE_CHECKING:
    import httpx

__all__ = ["ABORT", "HttpRelay", "refuse"]

ABORT = "openenv.abort"
"""Extension of a scope: cuts the connection, which is how a client learns that an answer is not whole."""
# Statuses that the road gives as well as an application: only the Hub knows which of the two it was.
_DOUBTFUL = frozenset({404, 410, 502, 503, 504})


class _Cut(Exception):
    """The sandbox went away in the middle of its answer."""


class HttpRelay:
    """One request.

    Args:
        client: Whose connections are used.
        route: Where it goes.
        key: The key that it showed.
        place: Path and query there.
        scope, receive, send: Of the request, as ASGI has them.
    """

    def __init__(
        self, client: httpx.AsyncClient, route: Route, key: bytes, place: str, scope: Any, receive: Any, send: Any
    ):
        self._client = client
        self._route = route
        self._key = key
        self._place = place
        self._scope = scope
        self._receive = receive
        self._send = send
        self._read = asyncio.Event()
        self._begun = False
        self._reason: OpenEnvError = ConnectionFailed("the sandbox was stopped")

    async def run(self) -> None:
        """Passes it on, until it is answered, its client has left, the job has ended, or the route is closed."""
        relay = asyncio.ensure_future(self._relay())
        ends = (self._route.closed.wait(), self._client_leaves(), self._job_ends())
        waits = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait([relay, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = relay.done()
            for task in (relay, *waits):
                task.cancel()
            await asyncio.wait([relay, *waits])
        if over:
            await self._conclude(relay)
        elif self._begun:
            await self._cut()
        else:
            await refuse(self._send, self._reason)

    async def _conclude(self, relay: asyncio.Future[None]) -> None:
        try:
            relay.result()
        except OpenEnvError as error:
            await refuse(self._send, error)
        except _Cut:
            await self._cut()

    async def _cut(self) -> None:
        self._scope["extensions"][ABORT]()
        await asyncio.sleep(0)  # for uvicorn to hear of it before this returns

    async def _client_leaves(self) -> None:
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _job_ends(self) -> None:
        """Looks at the job now and then: a machine that is no more does not say so."""
        while True:
            await asyncio.sleep(self._route.patience.ping_s)
            try:
                await self._route.job.look()
                self._route.job.check()
            except OpenEnvError as error:
                self._reason = error
                return

    async def _body(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _Cut
            yield message.get("body", b"")
            more = message.get("more_body", False)
        self._read.set()

    async def _relay(self) -> None:
        import httpx

        route, patience = self._route, self._route.patience
        address = await route.job.address()
        headers = route.outward(self._scope["headers"], self._key)
        has_body = any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._scope["headers"])
        if not has_body:
            self._read.set()
        limits = httpx.Timeout(patience.connect_s, read=patience.read_s, write=patience.read_s)
        request = self._client.build_request(
            self._scope["method"],
            address + self._place,
            headers=headers,
            content=self._body() if has_body else None,
            timeout=limits,
        )
        answer = await self._answer_to(request)
        try:
            await self._pass_on(answer, address)
        except httpx.TransportError as error:
            raise _Cut from error
        finally:
            await answer.aclose()

    async def _answer_to(self, request: httpx.Request) -> httpx.Response:
        import httpx

        job = self._route.job
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            await job.look()
            job.check()
            kind: Callable[[str], OpenEnvError]
            kind = ConnectTimeout if isinstance(error, httpx.TimeoutException) else ConnectionFailed
            raise kind(f"the sandbox does not answer: {str(error) or type(error).__name__}") from None
        if answer.status_code in _DOUBTFUL:
            try:
                await job.look()
                job.check()
            except BaseException:  # also when its client has left meanwhile
                await answer.aclose()
                raise
        return answer

    async def _pass_on(self, answer: httpx.Response, address: str) -> None:
        headers: Headers = self._route.inward(answer.headers.raw, address)
        self._begun = True
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        async for part in answer.aiter_raw():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def refuse(send: Any, error: OpenEnvError, kind: str = "http") -> None:
    """Answers a request (`kind` "http") or a handshake ("websocket.http") that reaches no sandbox."""
    status, headers, body = answer_of(error)
    await send({"type": f"{kind}.response.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.response.body", "body": body, "more_body": False})
