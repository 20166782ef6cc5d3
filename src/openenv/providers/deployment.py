"""The servers of one specification, from their start to their removal, also at the exit of the process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .._asyncio import on_shared, run_to_completion, shared_loop, shielded, start_task
from .._exceptions import add_cleanup_note, undo_async_on_error
from ..errors import NotReady, OpenEnvError, ProviderFailed, UsageError
from .owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from .readiness import until_ready
from .redaction import KEYS, TAIL_LINES, key_of, redact, secrets_of
from .spec import LaunchSpec

if TYPE_CHECKING:
    from .base import ConnectionRefusal, Provider

T = TypeVar("T")
TaskFactory = Callable[[], Coroutine[Any, Any, None]]
# Seconds to read the end of a log for an error.
LOG_S = 5.0


class SerialTasks:
    """Runs tasks one after the other on the loop of this process. The removal is the last one.

    Args:
        name: The deployment's name, for errors.

    Attributes:
        over: Whether the removal has begun: no further task starts.
    """

    def __init__(self, name: str):
        self.over = False
        self._name = name
        self._task: asyncio.Future[None] | None = None
        self._removal: asyncio.Future[None] | None = None

    async def settled(self, timeout_s: float) -> bool:
        """Waits until no task runs; False if one still runs after `timeout_s`."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeout_s)
        return self._task is None or self._task.done()

    async def do(self, call: TaskFactory) -> None:
        """Runs a task after those before it. A cancelled caller cancels the task, and waits for its end.

        Raises:
            UsageError: The removal has begun before the call.
            ProviderFailed: The removal has begun during the call.
        """
        if self.over:
            raise UsageError(f"{self._name} was stopped: launch another one")
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
        if self.over:
            raise self._stopped()
        # A separate task, so that the removal can cancel it.
        self._task = task = start_task(call())
        caller = asyncio.current_task()
        assert caller is not None
        requests = caller.cancelling()
        try:
            await shielded(task)
        except asyncio.CancelledError:
            if task.cancelled() and caller.cancelling() == requests:
                raise self._stopped() from None
            task.cancel()
            await asyncio.wait([task])
            raise

    async def remove(self, call: TaskFactory) -> None:
        """Cancels the running task, then runs the removal.

        Concurrent callers share one removal and its outcome. After a failure, it may be called again. A cancelled
        caller does not cancel it: half a removal is of no use.
        """
        self.over = True
        if self._removal is None or self._removal.done():
            self._removal = start_task(self._remove(call))
        removal = self._removal
        try:
            await shielded(removal)
        except asyncio.CancelledError:
            await asyncio.wait([removal])
            raise

    async def _remove(self, call: TaskFactory) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await call()

    def _stopped(self) -> ProviderFailed:
        return ProviderFailed(f"{self._name} was stopped while its servers were being started")


# Seconds to remove the remaining deployments at the exit of the process.
EXIT_STOP_S = 30.0
_logger = logging.getLogger("openenv.providers")

live_deployments: set[Deployment] = set()
"""Deployments that may have servers or other objects at their places."""


def stop_at_exit() -> None:
    """Stops the remaining deployments, in a bounded time. Called at the exit of the process."""
    mine = [deployment for deployment in list(live_deployments) if deployment._owner == os.getpid()]

    async def stop_all() -> None:
        stops = {asyncio.ensure_future(deployment._stop()): deployment.name for deployment in mine}
        await asyncio.wait(stops, timeout=EXIT_STOP_S)
        for stop, name in stops.items():
            reason = f"timeout after {EXIT_STOP_S:g} s" if not stop.done() else stop.exception()
            if reason is not None:
                _logger.error("%s was not removed (%s): run `openenv providers gc` to remove it", name, reason)

    if mine:
        shared_loop().run(stop_all())


atexit.register(stop_at_exit)


def run_exit_hook_first() -> None:
    """Moves `stop_at_exit` before the exit hooks: those of libraries may close connections that it needs."""
    atexit.unregister(stop_at_exit)
    atexit.register(stop_at_exit)


@dataclass(eq=False, slots=True)
class Server:
    """One server of a deployment, or one address with several servers behind it.

    Attributes:
        name: Its name at its place.
        url: Its address, `http(s)://host:port`, once it has one; it may change when the place restarts it.
        handle: Its identifier at the place. Only for its provider.
        gone: Why it is gone, phrased to follow "the server". None while it exists.
    """

    name: str
    url: str | None = None
    handle: Any = field(default=None, repr=False)
    gone: str | None = None


class StoppedOnExit(ABC):
    """Leaving `async with` or `with` stops it. After an error, a failure to stop it becomes a note of that error."""

    @abstractmethod
    async def stop(self) -> None:
        """Stops it."""

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with add_cleanup_note(error):
            await self.stop()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with add_cleanup_note(error):
            shared_loop().run(self.stop())


class StartedOnEntry(StoppedOnExit):
    """`async with` and `with` start it, too."""

    @abstractmethod
    async def start(self) -> Self:
        """Starts it."""

    async def __aenter__(self) -> Self:
        return await self.start()

    def __enter__(self) -> Self:
        return shared_loop().run(self.start())


class Deployment(StoppedOnExit):
    """Servers of one specification at one provider. Made by `Provider.launch`, or `openenv.providers.deploy`.

    May be used from any event loop or thread. Leaving `async with` or `with` stops it.

    Attributes:
        provider: Its provider.
        spec: Its specification.
        name: Its name, which all its objects carry as a label.
        api_key: API key of its servers. None if they do not check keys, or if the key is unknown.
        servers: Its servers, in the order of their start.
        handle: Its identifier at the place. Only for its provider.
    """

    def __init__(self, provider: Provider, spec: LaunchSpec):
        self.provider = provider
        self.spec = spec
        self.name = f"openenv-{_plain(spec)}-{secrets.token_hex(4)}"
        self.servers: list[Server] = []
        self.handle: Any = None
        self._variables = {**provider.variables, **spec.env_vars}
        if spec.api_key is not None:
            self._variables[KEYS] = f"control:{spec.api_key}" if spec.api_key else "none"
        elif KEYS not in self._variables:
            self._variables[KEYS] = f"control:{secrets.token_urlsafe(24)}"
        self.api_key = key_of(self._variables)
        self._owner = os.getpid()
        self._work = SerialTasks(self.name)
        self._begun = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {type(self.provider).__name__}: {len(self.urls)} servers>"

    # For users, from any thread or event loop.

    @property
    def urls(self) -> list[str]:
        """The addresses of the servers that are not gone."""
        return [server.url for server in self.servers if server.url is not None and server.gone is None]

    @property
    def url(self) -> str:
        """The address of its first server.

        Raises:
            ProviderFailed: It has none.
        """
        if not self.urls:
            raise ProviderFailed(f"{self.name} has no server: {self._state()}")
        return self.urls[0]

    async def start(self) -> Self:
        """Starts its servers, once. `Provider.launch` calls it.

        Raises:
            LaunchFailed: The start failed; nothing is left of it.
            ProviderFailed: It was stopped meanwhile.
            UsageError: It was started, or stopped, before.
        """
        # After a cancellation the start may have succeeded, and the caller has no deployment to stop.
        async with undo_async_on_error(lambda: run_to_completion(self.stop()), asyncio.CancelledError):
            await on_shared(self._start())
        return self

    async def ready(self, timeout_s: float | None = None) -> Self:
        """Waits until a session was opened, reset and closed at every server.

        Args:
            timeout_s: Seconds for all servers together. None takes the provider's timeout.

        Raises:
            NotReady: Not in time; with the end of the log.
            LaunchFailed: A server has ended; with the end of its log. Raised at once.
        """
        await on_shared(self._ready(timeout_s))
        return self

    async def scale(self, replicas: int) -> None:
        """Starts more servers, or stops the newest ones, which ends their sessions.

        Raises:
            UsageError: `replicas` is less than 1 or more than the place allows, or the deployment was stopped.
            LaunchFailed: The place refused the servers.
        """
        if replicas < 1:
            raise UsageError(f"replicas must be 1 or more, got {replicas!r}: stop() ends a deployment")
        self.provider.capabilities.check(type(self.provider).__name__, self.spec.changed(replicas=replicas))
        await on_shared(self._resize(replicas))

    async def refresh(self) -> list[Server]:
        """Asks the place for the current state and address of each server."""
        self._check()
        await on_shared(self.provider.refresh_servers(self))
        return self.servers

    async def logs(self, server: Server | None = None, lines: int = TAIL_LINES) -> str:
        """The last lines of a server's log, or of all logs; secrets are masked."""
        return await on_shared(self._logs(server, lines))

    async def stop(self) -> None:
        """Stops all servers and removes all that belongs to them. May be called repeatedly, also during the start."""
        await on_shared(self._stop())

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Runs one of the coroutines above, and blocks until it returns."""
        return shared_loop().run(call)

    async def __aenter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    # For providers.

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its servers, the key among them."""
        return dict(self._variables)

    @property
    def labels(self) -> dict[str, str]:
        """The labels of all its objects."""
        return {PROVIDER: type(self.provider).__name__, DEPLOYMENT: self.name, OWNER: str(OwnerProcess.this())}

    @property
    def secrets(self) -> list[str]:
        """Values that errors and logs must mask."""
        return secrets_of(self._variables)

    def new_server(self) -> Server:
        """Adds a server before its start, so that `stop` also removes one with an incomplete start."""
        server = Server(f"{self.name}-{secrets.token_hex(3)}")
        self.servers.append(server)
        return server

    def allow_restart(self) -> None:
        """Allows a second `start`, which finds it running: a warm pool starts it before a caller does."""
        self._begun = False

    # On the loop of this process.

    async def _start(self) -> None:
        self._check()
        if self._begun and not self._work.over:
            raise UsageError(f"{self.name} was started already: use scale() to change the number of servers")
        self._begun = True
        if not self._work.over:
            live_deployments.add(self)
        async with undo_async_on_error(self._stop):
            await self._resize(self.spec.count)

    async def _resize(self, replicas: int) -> None:
        self._check()
        if not self._begun:
            raise UsageError(f"{self.name} was not started: start() it first")
        await self._work.do(lambda: self.provider.resize(self, replicas))

    async def _stop(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork: the deployment belongs to the parent
        self._work.over = True
        if self in live_deployments:
            await self._work.remove(self._remove)

    async def _remove(self) -> None:
        await self.provider.resize(self, 0)
        live_deployments.discard(self)

    async def _ready(self, timeout_s: float | None) -> None:
        self._check()
        limit = self.provider.ready_timeout_s if timeout_s is None else timeout_s
        if not limit > 0:
            raise UsageError(f"timeout_s must be more than 0, got {limit!r}")
        clock = asyncio.get_running_loop().time
        began = clock()
        settled = await self._work.settled(limit)
        left = round(limit - (clock() - began), 3)
        if not settled or left <= 0:
            raise NotReady(f"servers of {self.name} are still being started after {limit:g} s (timeout_s)")
        servers = [server for server in self.servers if server.url is not None]
        if not servers:
            raise ProviderFailed(f"{self.name} has no server: {self._state()}")
        try:
            async with asyncio.TaskGroup() as waits:
                for server in servers:
                    waits.create_task(self._wait_for(server, left))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others were only cancelled

    async def _wait_for(self, server: Server, timeout_s: float) -> None:
        assert server.url is not None
        earlier = self.provider.last_refusal(server)

        def refusal() -> ConnectionRefusal | None:
            found = self.provider.last_refusal(server)
            return None if found is earlier else found

        async def gone() -> str | None:
            if self._work.over:
                return "was stopped"
            end, refused = await self.provider.why_gone(server), refusal()
            if end is None and refused is not None and refused.lasting:
                return f"cannot be reached: {refused.reason}"
            return end

        async def log() -> str:
            try:
                async with asyncio.timeout(LOG_S):
                    return await self._logs(server, TAIL_LINES)
            except (OpenEnvError, TimeoutError) as error:
                return f"(it could not be read: {error if isinstance(error, OpenEnvError) else 'no answer'})"

        await until_ready(
            server.url,
            timeout_s,
            gone=gone,
            log=log,
            api_key=self.api_key,
            trouble=lambda: refused.reason if (refused := refusal()) else None,
        )

    async def _logs(self, server: Server | None, lines: int) -> str:
        self._check()
        if lines < 1:
            raise UsageError(f"lines must be 1 or more, got {lines!r}")
        if server is not None and not isinstance(server, Server):
            raise UsageError(f"server must be one of deployment.servers, got {server!r}")
        wanted = [server] if server is not None else list(self.servers)
        texts = [redact(await self.provider.read_log(each, lines), self.secrets) for each in wanted]
        if len(texts) == 1:
            return texts[0]
        return "\n".join(f"{each.name}:\n{text}" for each, text in zip(wanted, texts, strict=True))

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise UsageError(f"{self.name} belongs to another process: only its urls and api_key may be used here")

    def _state(self) -> str:
        if self._work.over:
            return "it was stopped"
        return next((f"its server {server.gone}" for server in self.servers if server.gone), "none was started")


def _plain(spec: LaunchSpec) -> str:
    """The prefix of the names of a deployment's objects."""
    word = spec.name or spec.image or spec.target or (str(spec.project) if spec.project is not None else "server")
    base = word.rstrip("/").rpartition("/")[2].partition("@")[0].partition(":")[0]
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in base.lower()).strip("-")
    return plain[:24].strip("-") or "server"
