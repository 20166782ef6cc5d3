"""The Docker SDK: connect to the engine, translate its errors, pull images."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .._asyncio import on_thread
from .._exceptions import undo_on_error
from .._sockets import unix_socket
from ..errors import LaunchFailed, MissingExtra, ProviderBusy, ProviderFailed, UsageError
from .redaction import redact, secrets_of

T = TypeVar("T")
G = TypeVar("G")
DEFAULT_HOST = "unix:///var/run/docker.sock"
# Size of the pool of connections to the engine: as many as concurrent calls.
CONNECTIONS = 32
_TOO_MANY = re.compile(r"too ?many ?requests|rate limit", re.IGNORECASE)
_STORE = "install it, or remove `credsStore` and `credHelpers` from Docker's config.json"
# Engines also answer 500 to invalid requests. A retry of these fails again.
_FINAL = re.compile(
    r"no such|not found|unknown|invalid|denied|unauthorized|not supported|already (allocated|in use)|could not select"
    r"|executable file|cannot be|read-only file system|must be",
    re.IGNORECASE,
)


def docker_client() -> Any:
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
        if host.startswith("unix://"):
            # The SDK leaks a socket when it connects to a Unix socket without a listener.
            with unix_socket() as end:
                end.connect(host.removeprefix("unix://"))
        engine = docker.from_env(max_pool_size=CONNECTIONS)
        with undo_on_error(engine.close):
            engine.ping()
    except (OSError, docker.errors.DockerException) as error:
        raise ProviderFailed(_absent(host, error)) from error
    if host.startswith("unix://"):
        _close_failed_sockets(engine.api, host)
    return engine


def _close_failed_sockets(api: Any, host: str) -> None:
    """Replaces the SDK's adapter of Unix sockets, which leaks a socket each time that no engine answers."""
    from docker.transport import unixconn

    class Connection(unixconn.UnixHTTPConnection):
        def connect(self) -> None:
            self.sock = unix_socket()  # closed with its connection, also if the connect below fails
            self.sock.settimeout(self.timeout)
            self.sock.connect(self.unix_socket)

    class Pool(unixconn.UnixHTTPConnectionPool):
        def _new_conn(self) -> Any:
            timeout: Any = self.timeout  # as the SDK gives it: seconds
            return Connection(self.base_url, self.socket_path, timeout)

    class Adapter(unixconn.UnixHTTPAdapter):
        def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
            with self.pools.lock:
                if self.pools.get(url) is None:
                    self.pools[url] = Pool(str(url), self.socket_path, self.timeout, maxsize=self.max_pool_size)
            return super().get_connection(url, proxies)

    api.get_adapter("http+docker://").close()
    api.mount("http+docker://", Adapter(f"http+{host}", api.timeout, max_pool_size=CONNECTIONS))


def _absent(host: str, error: Exception) -> str:
    if isinstance(error, PermissionError):
        advice = "permission denied: run `sudo usermod -aG docker $USER` and log in again"
    elif host != DEFAULT_HOST:
        advice = "start it, or set DOCKER_HOST to a running engine"
    elif shutil.which("dockerd") or shutil.which("docker"):
        advice = "start it (`sudo systemctl start docker`, or Docker Desktop), or set DOCKER_HOST to a running engine"
    else:
        advice = "install Docker (`sudo apt-get install docker.io`), or set DOCKER_HOST to a running engine"
    return f"no Docker engine answers at {host}: {advice}; {error}"


@contextlib.contextmanager
def docker_errors(what: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Translates the SDK's errors into ours, around calls of the SDK.

    Args:
        what: The operation, followed by "failed" in the message.
        variables: The server's environment variables; errors mask the secrets among them.

    Raises:
        LaunchFailed: The engine refused the operation.
        ProviderBusy: It failed for a temporary reason, or did not answer.
        UsageError: The SDK does not have such an argument.
    """
    from docker.credentials.errors import StoreError
    from docker.errors import APIError, DockerException, ImageNotFound, StreamParseError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    secrets = secrets_of(variables)
    try:
        yield
    except ImageNotFound as error:
        reason = redact(str(error.explanation), secrets)
        raise LaunchFailed(f"{what} failed: no such image, here or at its registry: {reason}") from None
    except APIError as error:
        reason = redact(str(error.explanation or error), secrets)
        raise docker_refusal(what, reason, error.status_code or 500) from None
    except StoreError as error:
        raise LaunchFailed(f"{what} failed: {redact(str(error), secrets)}: {_STORE}") from None
    except DockerException as error:
        hint = f": {_STORE}" if "Credentials store" in str(error) else ""
        raise LaunchFailed(f"{what} failed: {redact(str(error), secrets)}{hint}") from None
    except (RequestException, HTTPError, StreamParseError) as error:  # the latter two within a stream
        raise ProviderBusy(f"{what} failed: the engine does not answer: {redact(str(error), secrets)}") from None
    except TypeError as error:
        raise UsageError(f"{what} failed: {redact(str(error), secrets)}") from None


def unless_gone(call: Callable[[], T], gone: G) -> T | G:
    """Result of a call of the SDK, or `gone` if the engine does not have the object."""
    from docker.errors import NotFound

    try:
        return call()
    except NotFound:
        return gone


def docker_refusal(what: str, reason: str, status: int) -> LaunchFailed:
    """The error for a refusal of the engine.

    Args:
        what: The refused operation.
        reason: The engine's message, without secrets.
        status: The HTTP status of its answer.
    """
    passing = status == 429 or _TOO_MANY.search(reason) or (status >= 500 and not _FINAL.search(reason))
    return (ProviderBusy if passing else LaunchFailed)(f"{what} failed: {reason}")


logger = logging.getLogger("openenv.providers")
# Seconds between two reports to the caller, and between two lines in the log.
REPORT_S, LOG_S = 0.25, 5.0
_DONE = {"Pull complete", "Already exists", "Download complete"}
_PASSING = ("timeout", "timed out", "eof", "connection", "unexpected http status: 5", "temporary", "unavailable")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of the pull of an image.

    Attributes:
        image: Name of the image.
        layers: Number of its layers, as far as known.
        done: Number of complete layers.
        received: Bytes received so far, compressed as they are sent.
        total: Bytes of all layers, as far as known: layers that still wait have no size yet.
        finished: Whether the image is complete.
    """

    image: str
    layers: int = 0
    done: int = 0
    received: int = 0
    total: int = 0
    finished: bool = False

    def __str__(self) -> str:
        if self.finished:
            return f"pulled {self.image}: {self.layers} layers, {self.total / 1e6:.1f} MB"
        sizes = f"{self.received / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        return f"pulling {self.image}: {self.done} of {self.layers} layers, {sizes}"


ProgressCallback = Callable[[PullProgress], object]


@dataclass(slots=True)
class ImageLayer:
    """One layer of an image that is pulled or pushed.

    Attributes:
        moved: Bytes that were received or sent so far.
        total: Bytes of the layer, as far as known.
        done: Whether it is complete at its destination.
        there: Whether its destination had it already.
    """

    moved: int = 0
    total: int = 0
    done: bool = False
    there: bool = False

    def note(self, event: Mapping[str, Any], moving: str, done: bool) -> None:
        """Handles one message of the engine; the status `moving` comes with the number of bytes."""
        self.done = self.done or done
        if event.get("status") == moving:
            sizes = event.get("progressDetail") or {}
            self.moved = int(sizes.get("current") or 0)
            self.total = max(int(sizes.get("total") or 0), self.moved)
        elif self.done:
            self.moved = self.total


@dataclass
class _Pull:
    """The pull of one image. `run` blocks; `abandon` ends it from another thread."""

    engine: Any
    image: str
    platform: str | None
    report: ProgressCallback | None
    secrets: list[str]
    layers: dict[str, ImageLayer] = field(default_factory=dict)
    over: bool = False
    reported: float = 0.0
    logged: float = 0.0

    def abandon(self) -> None:
        self.over = True

    def run(self) -> None:
        # The stream of events lasts as long as the pull: closing it ends the pull at the engine, too.
        events = self.engine.api.pull(self.image, platform=self.platform, stream=True, decode=True)
        try:
            for event in events:
                if self.over:
                    return
                self._note(event)
                self._tell(finished=False)
        finally:
            events.close()
        self._tell(finished=True)

    def _note(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            reason, code = redact(str(event["error"]), self.secrets), (event.get("errorDetail") or {}).get("code")
            what = f"pulling {self.image}"
            if any(word in reason.lower() for word in _PASSING):  # engines give no status code here, only a text
                raise ProviderBusy(f"{what} failed: {reason}")
            raise docker_refusal(what, reason, code if isinstance(code, int) else 400)
        name, status = event.get("id"), str(event.get("status", ""))
        if name is None or status.startswith(("Pulling from", "Digest", "Status")):
            return
        self.layers.setdefault(name, ImageLayer()).note(event, "Downloading", status in _DONE)

    def _tell(self, finished: bool) -> None:
        now = time.monotonic()
        to_caller = self.report is not None and (finished or now - self.reported >= REPORT_S)
        to_log = finished or now - self.logged >= LOG_S
        if not (to_caller or to_log):
            return
        layers = self.layers.values()
        done = sum(layer.done for layer in layers)
        received, total = sum(layer.moved for layer in layers), sum(layer.total for layer in layers)
        progress = PullProgress(self.image, len(layers), done, received, total, finished)
        if to_log:
            self.logged = now
            logger.info("%s", progress)
        if self.report is not None and to_caller:
            self.reported = now
            self.report(progress)


async def pull(
    engine: Any,
    image: str,
    platform: str | None = None,
    report: ProgressCallback | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Pulls an image. A cancellation ends the pull at the engine, too.

    Args:
        engine: A client of the SDK.
        image: Its name; without a tag, `latest`.
        platform: As in `linux/amd64`; None: the engine's.
        report: Called on another thread with the progress; an exception from it ends the pull.
        variables: Environment variables; errors mask the secrets among them.

    Raises:
        LaunchFailed: There is no such image, or no access to it.
        ProviderBusy: The registry is overloaded, or does not answer.
    """
    given = dict(variables or {})
    order = _Pull(engine, image, platform, report, secrets_of(given))

    def fetch() -> None:
        with docker_errors(f"pulling {image}", given):
            order.run()

    # The time between two events has no bound: the thread must not delay the exit of the program.
    await on_thread(fetch, order.abandon, detached=True)
