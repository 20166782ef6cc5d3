"""The Docker engine, by its SDK: its errors are translated here and nowhere else."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import LaunchFailed, MissingExtra, ProviderBusy, ProviderFailed, UsageError
from .secrecy import masked, secrets_of

__all__ = ["connected", "refused", "translated"]

DEFAULT_HOST = "unix:///var/run/docker.sock"
# Connections to the engine that are kept: as many as there may be calls at once.
CONNECTIONS = 32
_TOO_MANY = re.compile(r"too ?many ?requests|rate limit", re.IGNORECASE)
_STORE = "install it, or take `credsStore` and `credHelpers` out of Docker's config.json"
# Engines answer 500 to what is a mistake of the request, too. It would fail again.
_FINAL = re.compile(
    r"no such|not found|unknown|invalid|denied|unauthorized|not supported|already (allocated|in use)|could not select"
    r"|executable file|cannot be|read-only file system|must be",
    re.IGNORECASE,
)


def connected() -> Any:
    """A client of the engine that DOCKER_HOST names, or of the one on this machine.

    Raises:
        MissingExtra: The SDK is not installed.
        ProviderFailed: There is no engine.
    """
    try:
        import docker
        from docker.utils import kwargs_from_env
    except ImportError:
        raise MissingExtra("docker", "docker") from None
    host = kwargs_from_env().get("base_url") or DEFAULT_HOST
    try:
        _knock(host)
        engine = docker.from_env(max_pool_size=CONNECTIONS)
    except (OSError, docker.errors.DockerException) as error:
        raise ProviderFailed(_absent(host, error)) from error
    try:
        engine.ping()
    except (OSError, docker.errors.DockerException) as error:
        engine.close()
        raise ProviderFailed(_absent(host, error)) from error
    if host.startswith("unix://"):
        _reach(engine.api, host)
    return engine


def _knock(host: str) -> None:
    """Tries the engine's socket, if it is one of this machine: the SDK leaves one open that nobody answers at."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(host.removeprefix("unix://"))


def _reach(api: Any, host: str) -> None:
    """Has a client's requests leave no socket open where nobody answers any more."""
    from .engine_socket import SocketAdapter

    scheme = "http+docker://"
    api.get_adapter(scheme).close()
    api.mount(scheme, SocketAdapter(f"http+{host}", api.timeout, max_pool_size=CONNECTIONS))


def _absent(host: str, error: Exception) -> str:
    if isinstance(error, PermissionError):
        advice = "you may not use it: `sudo usermod -aG docker $USER`, and log in anew"
    elif host != DEFAULT_HOST:
        advice = "start it, or let DOCKER_HOST name one that runs"
    elif shutil.which("dockerd") or shutil.which("docker"):
        advice = "start it (`sudo systemctl start docker`, or Docker Desktop), or let DOCKER_HOST name one that runs"
    else:
        advice = "install Docker (`sudo apt-get install docker.io`), or let DOCKER_HOST name an engine that runs"
    return f"no Docker engine answers at {host}: {advice}; {error}"


@contextlib.contextmanager
def translated(what: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Runs calls of the SDK, whose errors become ours.

    Args:
        what: What is being done, to be followed by "failed".
        variables: The server's environment variables, whose secrets no error repeats.

    Raises:
        LaunchFailed: The engine refused it.
        ProviderBusy: It could not at the moment, or did not answer.
        UsageError: The SDK knows no such argument.
    """
    from docker.credentials.errors import StoreError
    from docker.errors import APIError, DockerException, ImageNotFound, StreamParseError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    secrets = secrets_of(variables)
    try:
        yield
    except ImageNotFound as error:
        reason = masked(str(error.explanation), secrets)
        raise LaunchFailed(f"{what} failed: no such image, here or at its registry: {reason}") from None
    except APIError as error:
        reason = masked(str(error.explanation or error), secrets)
        raise refused(what, reason, error.status_code or 500) from None
    except StoreError as error:
        raise LaunchFailed(f"{what} failed: {masked(str(error), secrets)}: {_STORE}") from None
    except DockerException as error:
        hint = f": {_STORE}" if "Credentials store" in str(error) else ""
        raise LaunchFailed(f"{what} failed: {masked(str(error), secrets)}{hint}") from None
    except (RequestException, HTTPError, StreamParseError) as error:  # the latter two in the midst of a stream
        raise ProviderBusy(f"{what} failed: the engine does not answer: {masked(str(error), secrets)}") from None
    except TypeError as error:
        raise UsageError(f"{what} failed: {masked(str(error), secrets)}") from None


def refused(what: str, reason: str, status: int) -> LaunchFailed:
    """The error that a refusal of the engine stands for.

    Args:
        what: What was being done.
        reason: What the engine said, without secrets.
        status: The HTTP status of its answer.
    """
    passing = status == 429 or _TOO_MANY.search(reason) or (status >= 500 and not _FINAL.search(reason))
    return (ProviderBusy if passing else LaunchFailed)(f"{what} failed: {reason}")
