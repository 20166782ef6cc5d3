"""Providers as users write them, whose server runs already, and who remember what they were asked for."""

from __future__ import annotations

import threading
from typing import Any

from openenv.providers import ContainerProvider, RuntimeProvider

from ..asynchronous import Gate

__all__ = ["Containers", "Runtime"]


class _Place:
    """What both kinds remember.

    Attributes:
        calls: What was called, with what.
        starting: Where a start waits, if anywhere.
        failing: What waiting for readiness raises.
    """

    def __init__(self, url: str = "http://127.0.0.1:1", starting: Gate | None = None):
        self.url = url
        self.calls: list[Any] = []
        self.starting = starting
        self.failing: BaseException | None = None
        self.unstoppable: BaseException | None = None
        self.stopped = threading.Event()

    def _begin(self, *call: Any) -> str:
        self.calls.append(call)
        if self.starting is not None:
            self.starting.wait()
        return self.url

    def _ready(self, *call: Any) -> None:
        self.calls.append(("ready", *call))
        if self.failing is not None:
            raise self.failing

    def _end(self) -> None:
        self.calls.append(("stop",))
        self.stopped.set()
        if self.unstoppable is not None:
            raise self.unstoppable

    @property
    def names(self) -> list[str]:
        """What was called, without the arguments."""
        return [name for name, *_ in self.calls]


class Containers(_Place, ContainerProvider):
    def start_container(self, image: str, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
        return self._begin("start", image, port, env_vars, kwargs)

    def stop_container(self) -> None:
        self._end()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        self._ready(base_url, timeout_s)


class Runtime(_Place, RuntimeProvider):
    def start(self, port: Any = None, env_vars: Any = None, **kwargs: Any) -> str:
        return self._begin("start", port, env_vars, kwargs)

    def stop(self) -> None:
        self._end()

    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        self._ready(timeout_s)
