"""The server of a client, where a provider runs it: started once, and stopped with the client."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any

from ..cleanup import kept
from ..errors import SessionLost, UsageError

__all__ = ["Hosting", "Urls", "hosting_of", "key_of"]

Urls = str | Sequence[str]
"""The address of a server, or those of several that do the same."""


class Hosting:
    """What a client needs of a provider. Its calls block; `stop` may come while another thread starts.

    Args:
        start: Starts the server, or several, and returns the address or addresses; None where it runs already.
        ready: Waits until the server at an address is ready.
        stop: Stops the server, whatever has become of it.
        url: Its address, where it runs already.
        provider: Whose it is.
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

    def _started(self) -> Urls:
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


def hosting_of(provider: Any, url: Urls | None) -> Hosting:
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
    if "keyed" in inspect.signature(start).parameters:  # nobody but this client is to use the server
        start = partial(start, keyed=True)
    return Hosting(start, lambda _: provider.wait_for_ready(), stop, provider=provider)


def key_of(provider: Any) -> str | None:
    """The key that a provider has given its server, if it says so."""
    key = getattr(provider, "api_key", None)
    return key if isinstance(key, str) else None
