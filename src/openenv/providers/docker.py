"""A server in a container on this machine's Docker engine."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchFailed, UsageError
from .engine import LABEL, connected, new_name, translated
from .process import TAIL_LINES
from .provider import FOR_ITS_OWNER, ContainerProvider
from .readiness import wait_until_ready
from .secrecy import key_of, masked, secrets_of

__all__ = ["LocalDockerProvider"]

LOOPBACK = "127.0.0.1"
# What images of environments listen on (`port` in openenv.yaml).
CONTAINER_PORT = 8000
# Seconds between the request to end and the end.
GRACE_S = 5
_OVER = {"exited", "dead", "removing"}


class LocalDockerProvider(ContainerProvider):
    """Runs a container that is reached on loopback alone. It carries the label `openenv.provider`. (Extra `docker`.)

    What is still running when the process ends is removed then, unless the process is killed.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no Docker engine.
    """

    def __init__(self) -> None:
        self._engine = connected()
        self._container: Any = None
        self._variables: dict[str, str] = {}
        self._owner = os.getpid()

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        container_port: int = CONTAINER_PORT,
        **kwargs: Any,
    ) -> str:
        """Starts a container.

        Args:
            image: Name of the image, which is pulled if it is not there.
            port: Port of this machine; None has the engine take a free one.
            env_vars: Environment variables of the server.
            container_port: Port that the server listens on in its container.
            kwargs: Further arguments of `docker.containers.create` (`mem_limit`, `command`, ...).

        Returns:
            The server's address.

        Raises:
            LaunchFailed: There is no such image, the port is taken, or whatever else the engine says.
            UsageError: It runs one already, or an argument that there is not.
        """
        if self._container is not None:
            raise UsageError("this LocalDockerProvider runs a container already: stop it first, or make another")
        self._variables = {**FOR_ITS_OWNER, **(env_vars or {})}
        self.api_key = key_of(self._variables)
        given = {
            "name": new_name(image),
            **kwargs,
            "environment": self._variables,
            "ports": {f"{container_port}/tcp": (LOOPBACK, port)},
            "labels": {**kwargs.get("labels", {}), LABEL: type(self).__name__},
        }
        with translated(f"starting a container of {image}", self._variables):
            self._container = self._create(image, given)
            atexit.register(self.stop_container)
            try:
                self._container.start()
                return f"http://{LOOPBACK}:{self._published(container_port)}"
            except BaseException:
                self.stop_container()
                raise

    def stop_container(self) -> None:
        """Stops the container and removes it, with its volumes."""
        container, self._container = self._container, None
        if container is None or os.getpid() != self._owner:
            return
        atexit.unregister(self.stop_container)
        with translated("stopping a container", self._variables):
            from docker.errors import NotFound

            try:
                try:
                    container.stop(timeout=GRACE_S)
                finally:  # by force, if it would not be asked
                    container.remove(force=True, v=True)
            except NotFound:
                return

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """See `ContainerProvider.wait_for_ready`.

        Raises:
            NotReady: Not in time; with the end of the container's log.
            LaunchFailed: The container has ended; with the end of its log.
        """
        wait_until_ready(base_url, timeout_s, gone=self._gone, log=self._log, api_key=self.api_key)

    def close(self) -> None:
        """Stops what runs, and leaves the engine."""
        self.stop_container()
        self._engine.close()

    def _create(self, image: str, given: dict[str, Any]) -> Any:
        from docker.errors import ImageNotFound

        try:
            return self._engine.containers.create(image, **given)
        except ImageNotFound:
            self._engine.images.pull(*_split(image))
            return self._engine.containers.create(image, **given)

    def _published(self, container_port: int) -> str:
        self._container.reload()
        published = self._container.ports.get(f"{container_port}/tcp")
        if not published:
            raise LaunchFailed(f"the container {self._gone() or 'was given no port'}{self._ending()}")
        return str(published[0]["HostPort"])

    def _gone(self) -> str | None:
        container = self._container
        if container is None:
            return "was stopped"
        with translated("looking at the container", self._variables):
            container.reload()
        if container.status not in _OVER:
            return None
        return f"ended with exit code {container.attrs.get('State', {}).get('ExitCode')}"

    def _log(self) -> str:
        container = self._container
        if container is None:
            return ""
        with translated("reading the container's log", self._variables):
            text = container.logs(tail=TAIL_LINES).decode(errors="replace").rstrip()
        return masked(text, secrets_of(self._variables))

    def _ending(self) -> str:
        log = self._log()
        return f"; its log ends with:\n{log}" if log else ""


def _split(image: str) -> tuple[str, str | None]:
    """An image's repository and tag; one that is named by its digest has no tag of its own."""
    if "@" in image:
        return image, None
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")
