"""Servers in actors of a Ray cluster (`RayProvider`)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from .._asyncio import on_thread, start_task
from .._exceptions import undo_async_on_error
from ..errors import LaunchFailed, MissingExtra, ProviderFailed, UsageError
from ..settings import variable_here
from . import deployment
from .base import PRIVATE_SERVER_VARIABLES, BlockingRuntime, Leftover, SingleServerProvider, StartRate
from .deployment import Deployment, Server
from .local import environment_labels, variables_of
from .owner import OwnerProcess
from .process import GRACE_S
from .ray_actor import ActorPlan, ActorReport, ServerActor
from .redaction import KEYS, key_of, last_lines, redact, with_tail
from .spec import Capabilities, LaunchSpec

ANSWER_S = 5.0
"""Seconds for an answer of an actor."""
# Concurrent calls of an actor: calls that wait until its server listens must not block the others.
_CALLS = 8
_connecting = threading.Lock()


class ActorGone(ProviderFailed):
    """The actor is gone, and Ray will not restart it."""


class ActorAway(ProviderFailed):
    """The actor does not answer now: Ray is starting it, or restarting it on another node."""

    retryable = True


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A Ray cluster; connects to it when needed.

    Attributes:
        address: Address for `ray.init`.
        start: Whether to start a local cluster for this process, if it is not connected to one.
        namespace: Ray namespace of the actors' names.
    """

    address: str | None
    start: bool
    namespace: str

    def connected(self) -> Any:
        """The module `ray`, connected. An existing connection of the process is used and kept.

        Raises:
            MissingExtra: Ray is not installed.
            ProviderFailed: No cluster can be reached.
        """
        ray = import_ray()
        with _connecting:
            if not ray.is_initialized():
                address = "local" if self.start else self.address or variable_here("RAY_ADDRESS") or "auto"
                try:
                    # A TCP connection fails at once where no process listens; Ray takes more than a minute to fail.
                    place = urlsplit(address if "//" in address else f"//{address}")
                    with contextlib.suppress(ValueError):
                        if place.hostname and place.port:
                            socket.create_connection((place.hostname, place.port), ANSWER_S).close()
                    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
                except Exception as error:  # noqa: BLE001 - Ray passes on any exception from below
                    raise ProviderFailed(
                        f"no Ray cluster can be reached ({_brief(error)}); start one with "
                        "`ray start --head`, set its address (address, RAY_ADDRESS; also its RAY_AUTH_MODE and "
                        "token), or use RayProvider(start=True)"
                    ) from None
                deployment.run_exit_hook_first()  # Ray's own exit hook disconnects
        return ray

    def reserve(self, name: str, bundles: Sequence[Mapping[str, float]], strategy: str) -> str:
        """Requests a placement group, without waiting for its bundles; returns its id."""
        with self._said("reserving places") as ray:
            group = ray.util.placement_group(list(map(dict, bundles)), strategy, name, lifetime="detached")
            return str(group.id.hex())

    def placed(self, group: str, timeout_s: float) -> bool:
        """Whether a group has all of its bundles; waits `timeout_s` at most."""
        with self._said("placing servers") as ray:
            return bool(_group(ray, group).wait(timeout_s))

    def release(self, group: str) -> None:
        """Removes a placement group. Does nothing if it is gone already."""
        with self._said("releasing places") as ray:
            ray.util.remove_placement_group(_group(ray, group))

    def room(self) -> str:
        """The free resources of the cluster, as text."""
        with self._said("requesting resources") as ray:
            free = ray.available_resources()
            return ", ".join(f"{free[name]:g} {name}" for name in sorted(free) if ":" not in name) or "nothing"

    def create(self, name: str, plan: ActorPlan, needs: Mapping[str, float], group: str, place: int) -> None:
        """Creates an actor with a server, without waiting for it."""
        with self._said("creating an actor") as ray:
            custom = {key: value for key, value in needs.items() if key not in {"CPU", "GPU", "memory"}}
            where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(_group(ray, group), place)
            options = {
                "name": name,
                "namespace": self.namespace,
                "lifetime": "detached",
                "max_restarts": plan.restarts,
                "max_concurrency": _CALLS,
                "num_cpus": needs.get("CPU", 0),
                "num_gpus": needs.get("GPU", 0),
                "resources": custom,
                "scheduling_strategy": where,
            }
            if "memory" in needs:
                options["memory"] = needs["memory"]
            ray.remote(ServerActor).options(**options).remote(plan)

    def report(self, name: str, wait_s: float = 0.0) -> ActorReport:
        """See `ServerActor.report`. Raises `ActorGone` or `ActorAway`."""
        found: ActorReport = self._asked(name, "report", ANSWER_S + wait_s, wait_s)
        return found

    def tail(self, name: str) -> str:
        """See `ServerActor.tail`. Raises `ActorGone` or `ActorAway`."""
        return str(self._asked(name, "tail", ANSWER_S))

    def end(self, name: str, namespace: str | None = None) -> None:
        """Ends a server, then its actor. Does nothing if they are gone already."""
        with contextlib.suppress(ActorGone, ActorAway):
            self._asked(name, "stop", GRACE_S + ANSWER_S, namespace=namespace)
        with contextlib.suppress(ActorGone), self._said("ending an actor") as ray:
            ray.kill(self._actor(ray, name, namespace), no_restart=True)

    def named(self) -> list[tuple[str, str, Any]]:
        """Kind, name and identifier of all named actors and of all placement groups, of all programs."""
        with self._said("listing actors") as ray:
            actors = ray.util.list_named_actors(all_namespaces=True)
        with self._said("listing placement groups") as ray:
            groups = ray.util.placement_group_table()
        found = [("actor", each["name"], (each["namespace"], each["name"])) for each in actors]
        return found + [
            ("placement group", row["name"], key) for key, row in groups.items() if row["state"] != "REMOVED"
        ]

    def _asked(self, name: str, method: str, limit_s: float, *arguments: Any, namespace: str | None = None) -> Any:
        with self._said(f"{method} of an actor") as ray:
            call = getattr(self._actor(ray, name, namespace), method).remote(*arguments)
            try:
                return ray.get(call, timeout=limit_s)
            except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError) as error:
                raise ActorAway(f"does not answer: {_brief(error)}") from None
            except ray.exceptions.RayActorError as error:
                raise ActorGone(f"has lost its actor: {_brief(error)}") from None

    def _actor(self, ray: Any, name: str, namespace: str | None) -> Any:
        try:
            return ray.get_actor(name, namespace=namespace or self.namespace)
        except ValueError:
            raise ActorGone("no longer has an actor") from None

    @contextlib.contextmanager
    def _said(self, what: str) -> Iterator[Any]:
        """Translates Ray's exceptions."""
        ray = self.connected()
        try:
            yield ray
        except ProviderFailed:
            raise
        except Exception as error:  # noqa: BLE001 - Ray passes on any exception from below
            raise LaunchFailed(f"{what} failed: {_brief(error)}") from None


def import_ray() -> Any:
    """The module `ray`. Raises `MissingExtra`."""
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError:
        raise MissingExtra("ray", "ray") from None
    return ray


def _group(ray: Any, group: str) -> Any:
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group)))


def _brief(error: BaseException) -> str:
    """An error of Ray in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


T = TypeVar("T")
_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
# Prefix of the names of our actors and placement groups. An "@" and the owner end the name.
_PREFIX = "openenv-"
# Seconds for a connection, for an answer of the cluster, and for the end of a server.
CONNECT_S, CALL_S, END_S = 30.0, 2 * ANSWER_S, 3 * ANSWER_S
# Seconds for one request for the state of a server that is being started, and between two such requests.
LOOK_S, PAUSE_S = 1.0, 0.1


@dataclass(slots=True)
class _Group:
    """A placement group: equal bundles, one for each server."""

    servers: list[Server | None]
    id: str | None = None
    dropped: bool = False


class RayProvider(BlockingRuntime, SingleServerProvider):
    """Runs servers in a Ray cluster: each in a detached, named actor, in a placement group's bundle. (Extra `ray`.)

    A program that is already connected to Ray, such as a trainer, has its servers in that cluster. Nodes need this
    package and the environment's code. The actor restarts a server that dies; Ray restarts an actor that dies with
    its process or node, on another node if necessary. `Deployment.refresh` finds the new address.

    Options of a `LaunchSpec`: `strategy`, `max_restarts`, `resources` (Ray's custom resources, name to amount), and
    for a project `app` and `workers`. Ray counts CPUs and memory, and does not enforce them.

    Example::

        deployment = await RayProvider().launch(LaunchSpec(target="echo", replicas=8))

    Args:
        target: Argument of `openenv serve`. None takes the target of each `LaunchSpec`.
        folder: Working folder of the servers on their nodes, from which they also import modules. None for that of
            Ray's workers.
        address: Address for `ray.init`, if this process is not connected to a cluster. None takes RAY_ADDRESS, or
            the cluster of this machine.
        start: Whether to start a local cluster for this process, if it is not connected to one.
        namespace: Ray namespace of the actors' names. The search for leftovers covers all namespaces.
        strategy: SPREAD or PACK; STRICT_SPREAD for different nodes, or STRICT_PACK for one node.
        max_restarts: Maximum of restarts of a server by its actor, and of an actor by Ray.
        env_vars: Environment variables of the servers, added to those of their nodes.
        start_timeout_s: Timeout in seconds of each of three waits: for room in the cluster, until a server listens,
            and until it is ready.
        start_rate: How fast servers are started.
        settings: Settings of the servers by name (`workers`, `max_sessions`, ...).

    Raises:
        MissingExtra: Ray is not installed.
        UsageError: An unknown strategy or setting.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"target", "project", "command"}),
        gpus=True,
        limits=frozenset({"cpus", "memory"}),
        options=frozenset({"strategy", "max_restarts", "resources", "app", "workers"}),
    )
    public = True

    def __init__(
        self,
        target: str | None = None,
        *,
        folder: str | Path | None = None,
        address: str | None = None,
        start: bool = False,
        namespace: str = "openenv",
        strategy: str = "SPREAD",
        max_restarts: int = 3,
        env_vars: Mapping[str, str] | None = None,
        start_timeout_s: float = 60.0,
        start_rate: StartRate | None = None,
        **settings: Any,
    ):
        import_ray()
        self._target = target
        self._folder = None if folder is None else str(folder)
        self._cluster = RayCluster(address, start, namespace)
        self._strategy = strategy
        self._max_restarts = max_restarts
        _checked(strategy, max_restarts, {})
        self.variables = {**PRIVATE_SERVER_VARIABLES, **variables_of(settings), **(env_vars or {})}
        # Clients get the key before their server starts.
        self.api_key = key_of(self.variables) or (None if KEYS in self.variables else secrets.token_urlsafe(24))
        self.ready_timeout_s = start_timeout_s
        self.start_rate = start_rate or StartRate()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`."""
        deployment = super().deployment(spec)
        self._options(spec)
        if spec.port is not None and spec.count > 1 and self._options(spec)[0] != "STRICT_SPREAD":
            raise UsageError("several servers cannot listen on one port: leave out port, or strategy='STRICT_SPREAD'")
        deployment.handle = []
        return deployment

    def _options(self, spec: LaunchSpec) -> tuple[str, int, Mapping[str, float]]:
        given = spec.options
        strategy = given.get("strategy", self._strategy)
        return _checked(strategy, given.get("max_restarts", self._max_restarts), given.get("resources", {}))

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        groups: list[_Group] = deployment.handle
        missing = replicas - sum(len(group.servers) for group in groups)
        async with undo_async_on_error(lambda: self._release(groups)):
            if missing > 0:
                await self._reserve(deployment, missing)
            await super().resize(deployment, replicas)
        await self._release(groups)

    async def _reserve(self, deployment: Deployment, places: int) -> None:
        """Adds a placement group, and waits until it has all of its bundles."""
        name = f"{deployment.name}-{secrets.token_hex(3)}@{OwnerProcess.this()}"
        group = _Group([None] * places)
        deployment.handle.append(group)
        bundles = [self._needs(deployment.spec)] * places

        def reserve() -> str:
            group.id = found = self._cluster.reserve(name, bundles, self._options(deployment.spec)[0])
            if group.dropped:
                self._cluster.release(found)  # the answer came after its caller was cancelled
            return found

        found = await self._asked(reserve)
        limit = asyncio.get_running_loop().time() + self.ready_timeout_s
        while not await self._asked(lambda: self._cluster.placed(found, LOOK_S)):
            if asyncio.get_running_loop().time() > limit:
                room = await self._asked(self._cluster.room)
                each = ", ".join(f"{amount:g} {name}" for name, amount in bundles[0].items())
                raise LaunchFailed(
                    f"the Ray cluster had no room for {places} server(s) of {each} each within "
                    f"{self.ready_timeout_s:g} s (start_timeout_s); free: {room}"
                )

    async def _release(self, groups: list[_Group]) -> None:
        """Removes placement groups without servers."""
        for group in [each for each in groups if not any(each.servers)]:
            group.dropped = True
            if group.id is not None:
                await self._asked(partial(self._cluster.release, group.id))
            groups.remove(group)

    def _needs(self, spec: LaunchSpec) -> dict[str, float]:
        """The resources that Ray reserves for a server."""
        needs = {"CPU": float(spec.resources.cpus or 1)}
        if spec.gpus_each:
            needs["GPU"] = float(spec.gpus_each)
        if spec.resources.memory_bytes is not None:
            needs["memory"] = float(spec.resources.memory_bytes)
        return {**needs, **self._options(spec)[2]}

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        group, place = next((each, each.servers.index(None)) for each in deployment.handle if None in each.servers)
        group.servers[place] = server
        assert group.id is not None
        found = group.id
        name = f"{server.name}@{OwnerProcess.this()}"
        server.handle = name
        restarts = self._options(spec)[1]
        variables = {**deployment.variables, **environment_labels(deployment.labels)}
        # `variables` has the variables and the key. The specification is sent without them: a node may lack the class
        # of their mapping.
        plan = ActorPlan(
            spec.changed(env_vars={}, api_key=None), self._folder, variables, self.ready_timeout_s, restarts
        )
        await self._asked(lambda: self._cluster.create(name, plan, self._needs(spec), found, place))
        try:
            server.url = await self._address(server)
        except ActorGone as error:
            raise LaunchFailed(redact(f"the server {error}", deployment.secrets)) from None

    async def _address(self, server: Server) -> str:
        """Waits until a server listens; returns its address."""
        name, loop = server.handle, asyncio.get_running_loop()
        # The actor limits the start of its server and reports a timeout. This limit is for the actor itself.
        limit = loop.time() + self.ready_timeout_s + ANSWER_S
        why = "did not report its address"
        while loop.time() < limit:
            try:
                report = await self._asked(lambda: self._cluster.report(name, LOOK_S))
            except ActorAway as error:
                why = str(error)
                await asyncio.sleep(PAUSE_S)
                continue
            if report.url is not None:
                return report.url
            if report.end is not None:
                raise LaunchFailed(with_tail(f"the server {report.end}", report.log))
        raise LaunchFailed(f"the server {why} within {self.ready_timeout_s:g} s (start_timeout_s)")

    async def stop_server(self, server: Server) -> None:
        if server.handle is not None:
            await self._asked(lambda: self._cluster.end(server.handle), END_S)

    async def _end(self, deployment: Deployment, server: Server) -> None:
        await super()._end(deployment, server)
        for group in deployment.handle:
            group.servers = [None if each is server else each for each in group.servers]

    async def why_gone(self, server: Server) -> str | None:
        if server.handle is None:
            return "was not started"
        try:
            return (await self._asked(lambda: self._cluster.report(server.handle))).end
        except ActorGone as error:
            return str(error)
        except ActorAway:
            return None

    async def refresh_servers(self, deployment: Deployment) -> None:
        async def look(server: Server) -> None:
            try:
                report = await self._asked(lambda: self._cluster.report(server.handle))
            except (ActorGone, ActorAway) as error:
                server.gone = str(error)
            else:
                server.gone = report.end or (None if report.url else "is being restarted")
                server.url = report.url or server.url

        # Servers without an address are still starting.
        await asyncio.gather(*(look(server) for server in deployment.servers if server.url is not None))

    async def read_log(self, server: Server, lines: int) -> str:
        if server.handle is None:
            return ""
        try:
            log = await self._asked(lambda: self._cluster.tail(server.handle))
        except (ActorGone, ActorAway):
            return ""
        return last_lines(log, lines)

    async def find_leftovers(self) -> list[Leftover]:
        found = []
        for kind, name, handle in await self._asked(self._cluster.named):
            ours, at, owner = name.partition("@")
            if at and ours.startswith(_PREFIX):
                deployment = ours.rpartition("-")[0]
                found.append(Leftover(kind, ours, deployment, OwnerProcess.read(owner), handle))
        return found

    async def remove_leftover(self, leftover: Leftover) -> None:
        if leftover.kind == "placement group":
            await self._asked(lambda: self._cluster.release(leftover.handle))
        else:
            namespace, name = leftover.handle
            await self._asked(lambda: self._cluster.end(name, namespace), END_S)

    async def _asked(self, call: Callable[[], T], limit_s: float | None = None) -> T:
        """Runs a blocking call of the cluster. A cancellation waits for its end, so that its result can be removed.

        Raises:
            ProviderFailed: No answer within `limit_s`, or CALL_S.
        """
        if not import_ray().is_initialized():
            await _bounded(self._cluster.connected, CONNECT_S)
        return await _bounded(call, limit_s or CALL_S)


def _checked(
    strategy: str, max_restarts: int, resources: Mapping[str, float]
) -> tuple[str, int, Mapping[str, float]]:
    if strategy not in _STRATEGIES:
        raise UsageError(f"strategy must be one of {', '.join(_STRATEGIES)}, got {strategy!r}")
    if not isinstance(max_restarts, int) or max_restarts < 0:
        raise UsageError(f"max_restarts must be 0 or more, got {max_restarts!r}")
    if any(not amount > 0 for amount in resources.values()):
        raise UsageError(f"amounts of resources must be more than 0, got {dict(resources)!r}")
    return strategy, max_restarts, resources


async def _bounded(call: Callable[[], T], limit_s: float) -> T:
    # Ray waits for its head node without a limit; the exit of this process must not wait for Ray.
    task = start_task(on_thread(call, detached=True))
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=limit_s)
        raise
    if not done:
        raise ProviderFailed(f"the Ray cluster has not answered for {limit_s:g} s: check that it runs")
    return task.result()
