"""As many servers behind a gateway as their sessions need (`Autoscaler`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import NamedTuple, Self

from .._asyncio import on_shared, on_thread
from .._backoff import Backoff
from .._exceptions import undo_async_on_error
from .._http import bearer, fetch
from ..errors import NotReady, OpenEnvError, ProviderFailed, UsageError
from .base import Provider, gather_all
from .deployment import Deployment, StartedOnEntry
from .gateway import Backend
from .gateway.gateway import Gateway, backends_of
from .launch import deploy
from .redaction import KEYS
from .spec import LaunchSpec

logger = logging.getLogger("openenv.gateway")

# Seconds between two checks of the gateway at the start.
GLANCE_S = 0.1
# Seconds between two looks at the servers, and for the answer of one.
LOOK_S, ANSWER_S = 1.0, 5.0
# Looks in a row that must find a draining server without sessions: a handshake may have been on its way to it.
IDLE_LOOKS = 2
# Seconds that new sessions wait at full servers while others start, unless the servers' variables say otherwise.
QUEUE_TIMEOUT, QUEUE_TIMEOUT_S = "OPENENV_QUEUE_TIMEOUT_S", 60
# The first and the longest pause in seconds after a start that failed.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


class ServerLoad(NamedTuple):
    """The sessions of a server, as it counts them.

    Attributes:
        held: Sessions with a slot.
        slots: Its number of slots.
        waiting: Sessions that wait for a slot.
    """

    held: int
    slots: int
    waiting: int

    @property
    def sessions(self) -> int:
        """Sessions with a slot, or waiting for one."""
        return self.held + self.waiting

    @property
    def room(self) -> int:
        """Free slots, less those for which sessions wait."""
        return self.slots - self.sessions

    @classmethod
    def read(cls, url: str, api_key: str | None) -> Self:
        """Asks a server for its metrics. Blocks.

        Raises:
            ConnectionLost: It does not answer.
            ProviderFailed: It has no such metrics, or does not show them to this key.
        """
        reply = fetch(f"{url}/metrics", bearer(api_key), ANSWER_S)
        rows = dict(line.rsplit(" ", 1) for line in reply.body.decode(errors="replace").splitlines() if " " in line)
        try:
            if reply.status != HTTPStatus.OK:
                raise KeyError
            names = ("openenv_slots_held", "openenv_slots_limit", "openenv_queue_length")
            return cls(*(round(float(rows[name])) for name in names))
        except (KeyError, ValueError):
            raise ProviderFailed(
                f"{url}/metrics does not show its sessions (status {reply.status}): leave the servers' setting "
                "metrics on (OPENENV_METRICS), and use a key of scope view or control"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRule:
    """The number of servers for a number of sessions.

    Attributes:
        least: Minimum of servers.
        most: Maximum of servers.
        utilization: Part of the slots (0 to 1) that sessions may take before a server is added.
        settle_s: Seconds for which fewer servers must have been enough before one is drained.

    Raises:
        UsageError: An invalid value.
    """

    least: int
    most: int
    utilization: float = 0.8
    settle_s: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise UsageError(f"scale must be MIN:MAX with 1 <= MIN <= MAX, got {self.least}:{self.most}")
        if not 0 < self.utilization <= 1 or not self.settle_s >= 0:
            raise UsageError(
                "utilization must be more than 0 and at most 1, and settle_s 0 or more, "
                f"got {self.utilization:g} and {self.settle_s:g}"
            )

    def servers(self, sessions: int, slots: int) -> int:
        """Servers that these sessions need, if each has that many slots."""
        return min(max(math.ceil(sessions / (self.utilization * slots)), self.least), self.most)


class ScalingHistory:
    """Decides the number of servers: up at once, down to the most that was needed in the last `settle_s`."""

    def __init__(self, rule: ScalingRule):
        self._rule = rule
        self._needs: deque[tuple[float, int]] = deque()

    def decide(self, now: float, servers: int, sessions: int, slots: int) -> int:
        """The number of servers from now on.

        Args:
            now: Monotonic seconds.
            servers: Number of servers that accept new sessions, or are being started.
            sessions: Sessions at all servers, waiting ones among them.
            slots: Slots of each server.
        """
        need = self._rule.servers(sessions, slots)
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._rule.settle_s:
            self._needs.popleft()
        return max(need, min(servers, max(need for _, need in self._needs)))


@dataclass(eq=False, slots=True)
class FleetServer:
    """One server of an autoscaler.

    Attributes:
        deployment: Its deployment, which has no other server.
        load: Its sessions when it last answered.
        reached: Whether the gateway has got an answer from it.
        draining_since: When it stopped taking new sessions, in monotonic seconds. None if it takes them.
        idle: Looks in a row that found no session while it drained.
        end: Its removal, once begun.
    """

    deployment: Deployment
    load: ServerLoad
    reached: bool = False
    draining_since: float | None = None
    idle: int = 0
    end: asyncio.Future[None] | None = None

    @property
    def state(self) -> str:
        """accepting, draining or ending."""
        if self.end is not None:
            return "ending"
        return "accepting" if self.draining_since is None else "draining"


class Autoscaler(StartedOnEntry):
    """Starts and drains servers behind a gateway as sessions come and go. Leaving `async with` or `with` stops all.

    A server is added as soon as sessions take more than the rule's part of the slots, or wait. When fewer servers
    have been enough for a while, the one with the fewest sessions gets no new ones, and stops after its last one.

    Example::

        async with Gateway() as gateway:
            rule = ScalingRule(least=1, most=8)
            async with Autoscaler(gateway, LaunchSpec(target="echo"), LocalProvider(), rule) as fleet:
                async with EchoEnv(gateway.url, api_key=fleet.api_key) as env:
                    await env.reset()

    Args:
        gateway: A running gateway; this replaces its backends.
        spec: One server; `replicas` is ignored.
        provider: Where servers are started, each as a deployment.
        rule: How many there are.
        drain_s: Seconds until a draining server is stopped even if it has sessions; None waits for their end.

    Raises:
        UsageError: The provider cannot start this specification, or an invalid value.

    Attributes:
        servers: Its servers, with those that drain or end.
        starting: Number of servers that are being started.
        api_key: API key of its servers. None if they do not check keys, or if the key is unknown.
    """

    def __init__(
        self,
        gateway: Gateway,
        spec: LaunchSpec,
        provider: Provider,
        rule: ScalingRule,
        *,
        drain_s: float | None = None,
    ):
        if drain_s is not None and not drain_s > 0:
            raise UsageError(f"drain_s must be more than 0, got {drain_s!r}")
        spec = spec.changed(replicas=1, one_per_gpu=False)
        first = provider.deployment(spec)
        variables = {QUEUE_TIMEOUT: str(QUEUE_TIMEOUT_S), **first.variables}
        # Clients know one key for all servers.
        shared = {name: variables[name] for name in (QUEUE_TIMEOUT, KEYS)}
        self.servers: list[FleetServer] = []
        self.starting = 0
        self.api_key = first.api_key
        self._spec = spec.changed(env_vars={**spec.env_vars, **shared})
        self._gateway, self._provider, self._rule = gateway, provider, rule
        self._drain_s = drain_s
        self._history = ScalingHistory(rule)
        # The backends that the gateway has.
        self._given: list[Backend] = []
        self._telling = asyncio.Lock()
        self._starts: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._no_start_before = 0.0
        self._reported = ""
        self._watch: asyncio.Task[None] | None = None

    # For users, from any thread or event loop.

    async def start(self) -> Self:
        """Starts the minimum of servers, gives them to the gateway, and follows the sessions from then on.

        Raises:
            LaunchFailed: A server did not start; nothing is left.
            NotReady: The gateway does not reach a server.
            ProviderFailed: A server does not show its sessions, or the gateway does not take the servers.
        """
        async with undo_async_on_error(self.stop, asyncio.CancelledError):
            await on_shared(self._start())
        return self

    async def stop(self) -> None:
        """Stops all servers, which ends their sessions. May be called repeatedly."""
        await on_shared(self._stop())

    # On the loop of this process.

    async def _start(self) -> None:
        async with undo_async_on_error(self._stop):
            await gather_all(*(self._add() for _ in range(self._rule.least)))
            await self._tell_gateway()
            await self._until_reached()
        self._watch = asyncio.get_running_loop().create_task(self._look_on())

    async def _tell_gateway(self) -> None:
        """Gives the gateway the servers, if they have changed."""
        async with self._telling:
            backends = self._backends
            if backends != self._given:
                self._given = []  # until it has taken the change
                await self._gateway.update(backends)
                self._given = backends
                for server in self.servers:
                    server.idle = 0

    async def _until_reached(self) -> None:
        """Waits until the gateway sends sessions to the servers: it asks for their health first."""
        silent = self._backends
        try:
            async with asyncio.timeout(self._provider.ready_timeout_s):
                while silent:
                    silent = await self._gateway.silent()
                    await asyncio.sleep(GLANCE_S)  # within that time, all threads of Envoy know it too
        except TimeoutError:
            path = self._gateway.topology.health_path
            raise NotReady(
                f"the gateway gets no answer to GET {path} at {silent[0].place}: check health_path, and that this "
                "machine reaches the server"
            ) from None

    async def _stop(self) -> None:
        watch, self._watch = self._watch, None
        tasks = {*self._starts, *({watch} if watch is not None else ())}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.starting = 0  # a task that had not begun has not counted down
        await gather_all(*(self._remove(server) for server in list(self.servers)))

    @property
    def _backends(self) -> list[Backend]:
        """The backends for the gateway: a full server gets no new sessions while another has room."""
        servers = [server for server in self.servers if server.end is None]
        open_ones = [server for server in servers if server.draining_since is None]
        if any(server.reached and server.load.room > 0 for server in open_ones):
            open_ones = [server for server in open_ones if server.load.room > 0]
        return [
            replace(backend, accepting=server in open_ones)
            for server in servers
            for backend in backends_of(server.deployment)
        ]

    async def _add(self) -> None:
        deployment = await deploy(self._spec, self._provider)
        async with undo_async_on_error(deployment.stop):
            load = await self._load_of(deployment)
        self.servers.append(FleetServer(deployment, load))

    async def _remove(self, server: FleetServer) -> None:
        await server.deployment.stop()
        if server in self.servers:
            self.servers.remove(server)

    async def _load_of(self, deployment: Deployment) -> ServerLoad:
        # One address may be that of several servers; it answers for one of them.
        return await on_thread(lambda: ServerLoad.read(deployment.url, deployment.api_key), detached=True)

    async def _look_on(self) -> None:
        while self._watch is not None:  # a provider's code may swallow the cancellation
            await asyncio.sleep(LOOK_S)
            try:
                await self._look(asyncio.get_running_loop().time())
            except OpenEnvError as error:  # perhaps temporary: the servers serve on
                self._report(error.message)
            except Exception:  # an edge: no caller awaits this task
                logger.exception("the autoscaler keeps its servers, and looks again")

    async def _look(self, now: float) -> None:
        """Reads the sessions, decides, and acts."""
        silent = {backend.name for backend in await self._gateway.silent()}
        known = {backend.name for backend in self._given} - silent
        for server in self.servers:
            server.reached = any(backend.name in known for backend in backends_of(server.deployment))
        await asyncio.gather(*(self._survey(server) for server in self.servers if server.end is None))
        there = [server for server in self.servers if server.end is None]
        accepting = [server for server in there if server.draining_since is None]
        sessions = sum(server.load.sessions for server in there)
        slots = max((server.load.slots for server in there), default=1)
        count = len(accepting) + self.starting
        wanted = self._history.decide(now, count, sessions, max(slots, 1))
        for server in sorted(accepting, key=lambda each: each.load.held)[: max(0, count - wanted)]:
            server.draining_since = now
            logger.info("%s drains: %d servers are enough", server.deployment.name, wanted)
        draining = [server for server in there if server.draining_since is not None]
        for server in sorted(draining, key=lambda each: each.load.held, reverse=True)[: max(0, wanted - count)]:
            server.draining_since = None  # quicker than a start
            count += 1
        for _ in range(wanted - count if now >= self._no_start_before else 0):
            self.starting += 1
            start = asyncio.get_running_loop().create_task(self._start_one())
            self._starts.add(start)
            start.add_done_callback(self._starts.discard)
        await self._tell_gateway()
        for server in draining:
            self._end_if_drained(server, now)

    async def _survey(self, server: FleetServer) -> None:
        """Updates the sessions of a server, or ends it if it is gone. One that does not answer keeps its load."""
        deployment = server.deployment
        try:
            await deployment.refresh()
            if not deployment.urls:
                why = next((each.gone for each in deployment.servers if each.gone), "has no address")
                logger.warning("%s %s: its %d sessions are lost", deployment.name, why, server.load.held)
                server.end = asyncio.ensure_future(self._end(server))
                return
            server.load = await self._load_of(deployment)
        except OpenEnvError as error:
            self._report(f"{deployment.name} was not seen: {error.message}")
            server.idle = 0
        else:
            server.idle = 0 if server.load.sessions else server.idle + 1

    async def _start_one(self) -> None:
        try:
            await self._add()
        except OpenEnvError as error:
            pause = max(self._backoff.grow(), error.retry_after_s or 0.0)
            self._no_start_before = asyncio.get_running_loop().time() + pause
            there = len(self.servers)
            self._report(
                f"a further server could not be started; {there} serve on, and it is tried again, in pauses of up to "
                f"{LONGEST_PAUSE_S:g} s (free resources, raise the quota, or lower MAX): {error.message}"
            )
            return
        finally:
            self.starting -= 1  # before the gateway is told: it is among the servers now
        self._backoff.reset()
        self._reported = ""
        with contextlib.suppress(OpenEnvError):  # the next look tries it again
            await self._tell_gateway()

    def _end_if_drained(self, server: FleetServer, now: float) -> None:
        if server.draining_since is None:
            return
        late = self._drain_s is not None and now - server.draining_since > self._drain_s
        if late and server.load.held:
            logger.warning(
                "%s still has %d sessions after %g s (drain_s), which are lost: set a longer time",
                server.deployment.name,
                server.load.held,
                self._drain_s,
            )
        if late or server.idle >= IDLE_LOOKS:
            server.end = asyncio.ensure_future(self._end(server))

    async def _end(self, server: FleetServer) -> None:
        try:
            await self._remove(server)
        except OpenEnvError as error:
            self._report(f"{server.deployment.name} was not removed: {error.message}")

    def _report(self, message: str) -> None:
        """Logs a failure, but not again and again."""
        if message != self._reported:
            self._reported = message
            logger.warning("%s", message)
