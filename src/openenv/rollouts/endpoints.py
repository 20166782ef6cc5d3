"""Several endpoints of one model: which one gets a call, how many at once, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .._backoff import Backoff
from ..errors import ModelFailed, ModelTimeout, ModelUnavailable, UsageError
from ..llm.sender import Address, HttpSender, ModelReply
from ..llm.service import within

T = TypeVar("T")
_FIRST_LIMIT = 64.0
_CONGESTED = frozenset({408, 429, 503, 529})
_MISSES = 3
_LONGEST_PAUSE_S = 30.0
_RETRY_RESERVE = 64.0
_MOST_SESSIONS = 100_000


class ModelEndpoint:
    """One address: how many requests it bears at once, and whether it answers.

    The limit grows by one for each answer until the first sign of congestion (408, 429, 503, 529, silence), which
    halves it; from then on it grows by one for each `limit` answers. Three connections in a row that fail close
    the endpoint for a pause that doubles; then one request at a time finds out whether it is back. Requests that were
    sent before a cut or a closing neither cut nor close again.

    Args:
        address: The address.
        most: Upper bound of the limit.
        backoff_s: First pause after its connections fail.

    Attributes:
        limit: Most requests at once, now.
        in_flight: Requests without an answer.
        open_at: Time of the event loop before which it gets no request.
        failure: Why it is closed; None unless its connections fail.
    """

    def __init__(self, address: Address, most: int, backoff_s: float):
        self.address = address
        self.limit = min(_FIRST_LIMIT, most)
        self.in_flight = 0
        self.open_at = 0.0
        self.failure: ModelUnavailable | None = None
        self._most = most
        self._cut_at: float | None = None
        self._closed_at = float("-inf")
        self._misses = 0
        self._backoff = Backoff(backoff_s, _LONGEST_PAUSE_S)
        self._sender: HttpSender | None = None

    @property
    def sender(self) -> HttpSender:
        """Sends requests over this endpoint's connections, on the running event loop."""
        if self._sender is None:
            self._sender = HttpSender(self.address, connections=0)
        return self._sender

    def has_room(self, now: float) -> bool:
        """Whether it may get a request."""
        return self.in_flight < self.limit and now >= self.open_at

    def answered(self) -> None:
        """Notes an answer."""
        self.failure, self._misses = None, 0
        self._backoff.reset()
        if 2 * self.in_flight >= self.limit:
            self.limit = min(self.limit + (1.0 if self._cut_at is None else 1.0 / self.limit), self._most)

    def failed(self, error: ModelFailed, sent_at: float, now: float) -> None:
        """Notes a failure of a request that was sent at a time."""
        if not isinstance(error, ModelUnavailable):
            self.answered()
        elif isinstance(error, ModelTimeout) or error.status in _CONGESTED:
            if self._cut_at is None or sent_at >= self._cut_at:
                self.limit, self._cut_at = max(1.0, self.limit / 2), now
            self.open_at = max(self.open_at, now + (error.retry_after_s or 0.0))
        elif error.status is None:
            self._misses += 1
            if self._misses >= _MISSES and sent_at >= self._closed_at:
                self.limit, self.failure, self._closed_at = 1.0, error, now
                self.open_at = max(self.open_at, now + self._backoff.grow())

    async def close(self) -> None:
        """Closes the connections."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()


class RetryBudget:
    """Bounds the retries of all calls, so that retries do not keep an endpoint overloaded.

    Args:
        share: Share of calls that may be retries in the long run; a reserve of 64 covers bursts.
    """

    def __init__(self, share: float):
        self._share = share
        self._balance = _RETRY_RESERVE

    def call(self) -> None:
        """Notes a first attempt."""
        self._balance = min(self._balance + self._share, _RETRY_RESERVE)

    def may_retry(self, error: Exception) -> bool:
        """Whether a retry is within the budget. One after a failed connection or a Retry-After is free."""
        if getattr(error, "status", None) is None and not isinstance(error, ModelTimeout):
            return True
        if getattr(error, "retry_after_s", None) is not None:
            return True
        if self._balance < 1.0:
            return False
        self._balance -= 1.0
        return True


class EndpointPool:
    """Sends calls to the least loaded endpoint, and those of a session to the one that has its prefix in its cache.

    Args:
        addresses: The endpoints.
        name: Name of the model, for messages.
        most: Most requests at once to one endpoint.
        retries: Most retries of one call.
        backoff_s: Base of the pause before a retry.
        retry_share: As in `RetryBudget`.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        name: str,
        *,
        most: int,
        retries: int,
        backoff_s: float,
        retry_share: float,
    ):
        self.addresses = addresses
        self._most = most
        self._what = f"{name} at {', '.join(address.name for address in addresses)}"
        self._retries = retries
        self._backoff_s = backoff_s
        self._budget = RetryBudget(retry_share)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._endpoints: list[ModelEndpoint] = []
        self._waiting: deque[tuple[asyncio.Future[ModelEndpoint], str, ModelEndpoint | None]] = deque()
        self._sessions: dict[str, ModelEndpoint] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def ask(
        self,
        path: str,
        body: Any,
        read: Callable[[ModelReply, Address], T],
        *,
        key: str,
        session: str,
        timeout_s: float | None,
        stall_s: float | None,
    ) -> T:
        """Sends a call until an endpoint answers it.

        Args:
            path: Path behind the root of an address.
            body: The JSON value to send.
            read: Reads an answer, and raises its errors.
            key: Idempotency key.
            session: Its calls go to the same endpoint, if that has room.
            timeout_s: Seconds for all attempts; None for no limit.
            stall_s: Seconds of silence after which an attempt fails; None for no limit.

        Raises:
            ModelFailed: As `read` does.
            ModelUnavailable: The last attempt failed; `ModelTimeout` after `timeout_s`.
        """
        loop = self._begin()
        headers = {"idempotency-key": key} if key else None
        tried: ModelEndpoint | None = None
        sent_at: float | None = None  # None unless a request is on its way

        async def attempt() -> T:
            nonlocal tried, sent_at
            endpoint = tried = await self._acquire(session, tried)
            sent_at = sent = loop.time()
            try:
                reply = await endpoint.sender.post(path, body, headers=headers, stall_s=stall_s)
                sent_at = None
                answer = read(reply, endpoint.address)
                endpoint.answered()
                return answer
            except ModelFailed as error:
                sent_at = None
                endpoint.failed(error, sent, loop.time())
                raise
            finally:
                self._release(endpoint)

        self._budget.call()
        try:
            return await within(
                timeout_s,
                attempt,
                retries=self._retries,
                backoff_s=self._backoff_s,
                what=self._what,
                may_retry=self._budget.may_retry,
            )
        except ModelTimeout as error:
            if tried is not None and sent_at is not None:  # silence until the deadline
                tried.failed(error, sent_at, loop.time())
            raise

    async def get(self, path: str) -> list[tuple[Address, ModelReply]]:
        """Reads a path of every endpoint. Raises `ModelUnavailable` if one does not answer."""
        self._begin()
        return [(endpoint.address, await endpoint.sender.get(path)) for endpoint in self._endpoints]

    async def aclose(self) -> None:
        """Closes all connections. A later call opens new ones."""
        if self._timer is not None:
            self._timer.cancel()
        for endpoint in self._endpoints if self._loop is asyncio.get_running_loop() else ():
            await endpoint.close()

    def _begin(self) -> asyncio.AbstractEventLoop:
        """The running event loop; connections of another one are of no use on it."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if any(endpoint.in_flight for endpoint in self._endpoints) and self._loop and self._loop.is_running():
                raise UsageError(f"{self._what} is in use on another event loop: make a model for each loop")
            self._loop = loop
            self._endpoints = [ModelEndpoint(address, self._most, self._backoff_s) for address in self.addresses]
            self._waiting.clear()
            self._sessions.clear()
        return loop

    async def _acquire(self, session: str, avoid: ModelEndpoint | None) -> ModelEndpoint:
        """Waits for room at an endpoint. Raises its failure if all of them are closed by failures."""
        loop = asyncio.get_running_loop()
        endpoint = None if self._waiting else self._choose(session, avoid, loop.time())
        if endpoint is None:
            waiter: asyncio.Future[ModelEndpoint] = loop.create_future()
            entry = (waiter, session, avoid)
            self._waiting.append(entry)
            self._admit()
            try:
                return await waiter
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                elif not waiter.cancelled() and waiter.exception() is None:
                    self._release(waiter.result())
                raise
        endpoint.in_flight += 1
        return endpoint

    def _release(self, endpoint: ModelEndpoint) -> None:
        endpoint.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        """Gives room to waiting calls, in order; has itself called again when a closed endpoint opens."""
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting:
            waiter, session, avoid = self._waiting[0]
            if waiter.cancelled():
                self._waiting.popleft()
                continue
            try:
                endpoint = self._choose(session, avoid, now)
            except ModelUnavailable as error:
                waiter.set_exception(error)
            else:
                if endpoint is None:
                    break
                endpoint.in_flight += 1
                waiter.set_result(endpoint)
            self._waiting.popleft()
        if self._timer is not None:
            self._timer.cancel()
        opening = [endpoint.open_at for endpoint in self._endpoints if endpoint.open_at > now]
        self._timer = loop.call_at(min(opening), self._admit) if self._waiting and opening else None

    def _choose(self, session: str, avoid: ModelEndpoint | None, now: float) -> ModelEndpoint | None:
        """The endpoint for a call; None if none has room now. Raises a failure if failures closed all of them."""
        free = [endpoint for endpoint in self._endpoints if endpoint.has_room(now)]
        if not free:
            if all(each.failure is not None and now < each.open_at for each in self._endpoints):
                first = min(self._endpoints, key=lambda each: each.open_at)
                message = first.failure.message if first.failure else ""
                raise ModelUnavailable(message, retry_after_s=first.open_at - now)
            return None
        last = self._sessions.get(session)
        if last in free and last is not avoid:
            return last
        endpoint = min(free, key=lambda each: (each is avoid, each.in_flight / each.limit))
        if session and len(self._endpoints) > 1:
            if len(self._sessions) >= _MOST_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session] = endpoint
        return endpoint
