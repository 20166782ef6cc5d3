"""The names that existing code calls, which block, on top of deployments."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ..background import shared_loop
from ..cleanup import kept
from ..errors import UsageError
from .deployment import Deployment
from .provider import ContainerProvider, Provider, RuntimeProvider
from .secrecy import KEYS
from .spec import LaunchSpec

__all__ = ["BlockingContainers", "BlockingRuntime"]


_claiming = threading.Lock()


class _One(Provider):
    """A provider that remembers the one deployment that its blocking calls are about."""

    _current: Deployment | None = None

    @property
    def current(self) -> Deployment | None:
        """What the blocking calls have started."""
        return self._current

    def _begin_current(self, spec: LaunchSpec, keyed: bool) -> str:
        open_to_all = not self.public and not keyed
        if open_to_all and spec.api_key is None and KEYS not in {**self.variables, **spec.env_vars}:
            # Programs that call this hand the address alone to their clients.
            spec = spec.changed(api_key="")
        with _claiming:
            if self._current is not None:
                raise UsageError(f"this {type(self).__name__} runs a server already: stop it first, or make another")
            self._current = deployment = self.deployment(spec)
        self.api_key = deployment.api_key
        try:
            shared_loop().run(deployment._start())
            return deployment.url
        except BaseException as error:
            with kept(error):
                self._end_current()
            raise

    def _end_current(self) -> None:
        deployment = self._current
        if deployment is None:
            return
        shared_loop().run(deployment._stop())  # where this fails, it may be called again
        if self._current is deployment:
            self._current = None

    def _await_current(self, timeout_s: float | None) -> None:
        if self._current is None:
            raise UsageError(f"this {type(self).__name__} has no server: start it first")
        shared_loop().run(self._current._ready(timeout_s))


class BlockingContainers(_One, ContainerProvider):
    """`ContainerProvider` on top of deployments."""

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        keyed: bool = False,
        **kwargs: Any,
    ) -> str:
        """See `ContainerProvider.start_container`; `kwargs` as the class says.

        Args:
            keyed: Whether a server of this machine asks for a key that nobody has chosen; it is `api_key` then.

        Raises:
            LaunchFailed: Whatever the place says.
            UsageError: It runs one already, or an argument that there is not.
        """
        return self._begin_current(self._spec(image, port, dict(env_vars or {}), kwargs), keyed)

    def stop_container(self) -> None:
        """See `ContainerProvider.stop_container`."""
        self._end_current()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """See `ContainerProvider.wait_for_ready`.

        Raises:
            NotReady: Not in time; with the end of the log.
            LaunchFailed: The server is gone; with the end of the log. At once.
        """
        self._await_current(timeout_s)

    @abstractmethod
    def _spec(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """What the arguments of `start_container` ask for."""


class BlockingRuntime(_One, RuntimeProvider):
    """`RuntimeProvider` on top of deployments."""

    @property
    def base_url(self) -> str:
        """The server's address.

        Raises:
            UsageError: It was not started.
        """
        if self._current is None:
            raise UsageError(f"this {type(self).__name__} has no server: call start(), or use it in `with`")
        return self._current.url

    def start(
        self,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        keyed: bool = False,
        **kwargs: Any,
    ) -> str:
        """See `RuntimeProvider.start`.

        Args:
            keyed: Whether a server of this machine asks for a key that nobody has chosen; it is `api_key` then.

        Raises:
            LaunchFailed: It ended, or did not listen in its time; with the end of its log.
            UsageError: It runs already, or an argument that there is not.
        """
        return self._begin_current(self._spec(port, dict(env_vars or {}), kwargs), keyed)

    def stop(self) -> None:
        """See `RuntimeProvider.stop`."""
        self._end_current()

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """See `RuntimeProvider.wait_for_ready`; None takes the time that it had for its start."""
        self._await_current(timeout_s)

    @abstractmethod
    def _spec(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        """What the arguments of `start` ask for."""
