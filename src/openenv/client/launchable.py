"""Clients that come with a server of their own."""

from __future__ import annotations

import importlib
from typing import Any, Self, cast

__all__ = ["Launchable", "launch"]


class Launchable:
    """What client classes offer beside their constructor."""

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **kwargs: Any) -> Self:
        """A client with a server of its own: a container, which is stopped when the client is closed.

        In a running event loop it is to be awaited, or entered by `async with`, and the container is started then; by
        `.sync()` or `with`, which block, it is also to be had there. In other code it is started before this returns.

        Args:
            image: Name of the image.
            provider: A `ContainerProvider`; None takes Docker on this machine, its swarm with `replicas`.
            kwargs: Arguments of this class go to it, `ready_timeout_s` is how long the server has to become ready,
                and all others (`port`, `env_vars`, ...) go to the provider.

        Raises:
            LaunchFailed: The container did not start; with the end of its log.
            NotReady: It was not ready in its time.
            MissingExtra: The provider needs a package that is not installed.
        """
        return cast("Self", launch().from_docker_image(cls, image, provider, **kwargs))

    @classmethod
    def from_env(cls, repo_id: str, use_docker: bool = True, provider: Any = None, **kwargs: Any) -> Self:
        """A client of an environment that is published on the Hub, served on this machine. See `from_docker_image`.

        Args:
            repo_id: Its name there, `owner/name`.
            use_docker: Whether it runs in its container; without, it is installed and run by uv.
            provider: What runs it; None takes Docker or uv.
            kwargs: As for `from_docker_image`; `tag` is the image's, `latest` by default.
        """
        return cast("Self", launch().from_env(cls, repo_id, use_docker, provider, **kwargs))

    @classmethod
    def from_hub(cls, repo_id: str, provider: Any = None, replicas: int | None = None, **kwargs: Any) -> Self:
        """A client of an environment that is published on the Hub, in its container. See `from_docker_image`.

        Args:
            repo_id: Its name there, `owner/name`.
            provider: A `ContainerProvider`; None takes Docker on this machine, its swarm with `replicas`.
            replicas: How many containers share the sessions.
            kwargs: As for `from_env`.
        """
        return cast("Self", launch().from_hub(cls, repo_id, provider, replicas, **kwargs))


def launch() -> Any:
    """The package `openenv.launch`, by its name, since it stands above client, server and providers."""
    return importlib.import_module("openenv.launch")
