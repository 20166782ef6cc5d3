"""The Docker engine, by its SDK: its errors are translated here and nowhere else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import LaunchFailed, MissingExtra, ProviderFailed, UsageError
from .secrecy import masked, secrets_of

__all__ = ["LABEL", "connected", "new_name", "translated"]

DEFAULT_HOST = "unix:///var/run/docker.sock"
LABEL = "openenv.provider"
"""What every container and service of ours is labelled with; its value is the provider's class."""


def connected() -> Any:
    """A client of the engine that DOCKER_HOST names, or of the one on this machine.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no engine.
    """
    try:
        import docker
    except ImportError:
        raise MissingExtra("docker", "docker") from None
    try:
        _knock(docker.utils.kwargs_from_env().get("base_url") or DEFAULT_HOST)
        engine = docker.from_env()
    except (OSError, docker.errors.DockerException) as error:
        raise ProviderFailed(_absent(error)) from error
    try:
        engine.ping()
    except Exception as error:
        engine.close()
        raise ProviderFailed(_absent(error)) from error
    return engine


def _knock(host: str) -> None:
    """Tries the engine's socket, if it is one of this machine: the SDK leaves one open that nobody answers at."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(host.removeprefix("unix://"))


def _absent(error: Exception) -> str:
    return f"no Docker engine answers: is it running, and may you use it (DOCKER_HOST)? {error}"


@contextlib.contextmanager
def translated(what: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Runs calls of the SDK, whose errors become ours.

    Args:
        what: What is being done, to be followed by "failed".
        variables: The server's environment variables, whose secrets no error repeats.

    Raises:
        LaunchFailed: The engine refused it.
        UsageError: The SDK knows no such argument.
    """
    from docker.errors import DockerException, ImageNotFound
    from requests.exceptions import RequestException

    try:
        yield
    except ImageNotFound as error:
        raise LaunchFailed(f"{what} failed: no such image, here or at its registry: {error.explanation}") from None
    except (DockerException, RequestException) as error:
        reason = getattr(error, "explanation", None) or error
        raise LaunchFailed(f"{what} failed: {masked(str(reason), secrets_of(variables))}") from None
    except TypeError as error:
        raise UsageError(f"{what} failed: {error}") from None


def new_name(image: str) -> str:
    """A name for what runs an image."""
    import secrets

    base = image.rpartition("/")[2].partition("@")[0].partition(":")[0]
    plain = "".join(letter if letter.isalnum() else "-" for letter in base.lower()).strip("-")
    return f"openenv-{plain[:40] or 'server'}-{secrets.token_hex(4)}"
