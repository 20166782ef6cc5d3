"""What a place for servers looks like, to those who start one there and to those who write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

__all__ = ["FOR_ITS_OWNER", "ContainerProvider", "RuntimeProvider"]

FOR_ITS_OWNER: Mapping[str, str] = {"OPENENV_API_KEYS": "none", "OPENENV_GRACE_S": "0"}
"""Variables of a server on loopback that one program has for itself: it asks for no key, and when that program stops
it, nobody's episode is waited for."""


class ContainerProvider(ABC):
    """Runs a server from an image. One provider has one server at a time; a new one may follow when it was stopped.

    A subclass of yours works wherever a provider is asked for, if it implements the three abstract methods. Leaving
    `with provider:` closes it.

    Attributes:
        public: Whether its servers can be reached from other machines: clients then give them a key.
        api_key: The key that its server asks for, if the provider knows it.
    """

    public: bool = False
    api_key: str | None = None

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Starts a server, and does not wait for it.

        Args:
            image: Name of the image.
            port: Port of this machine that it is to be reached at; None takes a free one.
            env_vars: Environment variables of the server.
            kwargs: What else the place can do.

        Returns:
            The address of the server.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stops the server and removes what is left of it. May be called repeatedly."""

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Waits until sessions can be opened at an address that `start_container` returned.

        Raises:
            NotReady: Not within `timeout_s`.
        """

    def close(self) -> None:
        """Stops what runs."""
        self.stop_container()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class RuntimeProvider(ABC):
    """Runs one server that it knows how to make. One at a time; it may be started again when it was stopped.

    A subclass of yours works wherever a provider is asked for, if it implements the three abstract methods. Entering
    `with provider:` starts the server and waits until it is ready; leaving stops it.

    Attributes:
        public: Whether its servers can be reached from other machines: clients then give them a key.
        api_key: The key that its server asks for, if the provider knows it.
    """

    public: bool = False
    api_key: str | None = None

    @abstractmethod
    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        """Starts the server, and does not wait until it is ready.

        Args:
            port: Port that it listens on; None takes a free one.
            env_vars: Environment variables of the server.
            kwargs: What else the place can do.

        Returns:
            The address of the server.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stops the server. May be called repeatedly."""

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Waits until sessions can be opened.

        Raises:
            NotReady: Not within `timeout_s`.
        """

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_for_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
