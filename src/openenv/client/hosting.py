"""The server of a client, where a provider runs it: started once, and stopped with the client."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any, TypeVar

from ..errors import SessionLost, UsageError

__all__ = ["Hosting", "hosting_of", "kept", "key_of", "on_thread"]

T = TypeVar("T")


class Hosting:
    """What a client needs of a provider. Its calls block; `stop` may come while another thread starts.

    Args:
        start: Starts the server and returns its address; None where it runs already.
        ready: Waits until the server at an address is ready.
        stop: Stops the server, whatever has become of it.
        url: Its address, where it runs already.
        provider: Whose it is.
    """

    def __init__(
        self,
        start: Callable[[], str] | None,
        ready: Callable[[str], None] | None,
        stop: Callable[[], object],
        url: str | None = None,
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

    def start(self) -> str:
        """The address of the server, which is ready.

        Raises:
            SessionLost: It was stopped meanwhile, or its owner has stopped it before.
            Exception: Whatever the provider raised; its server is stopped.
        """
        with self._starting:
            return self._started() if self.url is None else self.url

    def stop(self) -> None:
        """Stops the server, if it runs or is being started."""
        running, self._running = self._running, False
        self._attempt = self.url = None
        if running and os.getpid() == self._owner:  # a fork leaves it to its parent
            self._stop()

    def hand_over(self) -> Hosting:
        """The same server for another owner, who only stops it."""
        url, self.url, self._running = self.url, None, False
        return Hosting(None, None, self._stop, url, self.provider)

    def _started(self) -> str:
        if self._start is None:
            raise SessionLost("this client was closed, and its provider has stopped the server: make a new client")
        attempt = self._attempt = object()
        self._running, self._owner = True, os.getpid()
        try:
            url = self._start()
            self._check(attempt)
            if self._ready is not None:
                self._ready(url)
            self.url = url
            self._check(attempt)  # after that, whoever stops it finds it running
        except BaseException as error:
            self._running, self.url = False, None
            with kept(error):
                self._stop()
            raise
        return url

    def _check(self, attempt: object) -> None:
        if self._attempt is not attempt:
            raise SessionLost("this client was closed while its server was being started")


def hosting_of(provider: Any, url: str | None) -> Hosting:
    """How a client has its server from a provider that was handed to it.

    Args:
        provider: With `start`, `wait_for_ready` and `stop` (a `RuntimeProvider`), or `stop_container` (a
            `ContainerProvider`).
        url: The address, where the provider has started the server already.

    Raises:
        UsageError: It is no provider, or one that needs to be told an image first.
    """
    stop = getattr(provider, "stop_container", None) or getattr(provider, "stop", None)
    if not callable(stop):
        raise UsageError(f"provider is a {type(provider).__name__}: pass a ContainerProvider or a RuntimeProvider")
    if url is not None:
        return Hosting(None, None, stop, url, provider)
    start = getattr(provider, "start", None)
    if not callable(start) or hasattr(provider, "start_container"):
        raise UsageError(
            f"{type(provider).__name__} starts containers, and none was named: "
            "use from_docker_image(image, provider=...), or give the base_url of one that runs"
        )
    return Hosting(start, lambda _: provider.wait_for_ready(), stop, provider=provider)


def key_of(provider: Any) -> str | None:
    """The key that a provider has given its server, if it says so."""
    key = getattr(provider, "api_key", None)
    return key if isinstance(key, str) else None


async def on_thread(call: Callable[[], T], abandon: Callable[[], object] | None = None) -> T:
    """Runs a call that blocks for long on a thread of its own.

    Args:
        call: The call.
        abandon: What to do, on another thread, when nobody waits for it any more.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # it goes on when nobody waits any more
    # No executor: those refuse work when the interpreter ends, which is when forgotten servers are stopped.
    Thread(target=_settle, args=(outcome, call), name="openenv-hosting").start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        if abandon is not None:
            Thread(target=_settle, args=(Future(), abandon), name="openenv-hosting").start()
        raise


def _settle(outcome: Future[T], call: Callable[[], T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001 - for whoever waits
        outcome.set_exception(error)


@contextlib.contextmanager
def kept(error: BaseException | None) -> Iterator[None]:
    """Cleaning up after an error, which goes first: what goes wrong here becomes a note of it."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"and cleaning up failed: {type(failure).__name__}: {failure}")
