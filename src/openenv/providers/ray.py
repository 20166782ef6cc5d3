"""Servers as actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..background import heard, on_thread
from ..cleanup import kept
from ..errors import LaunchFailed, ProviderFailed, UsageError
from .blocking import BlockingRuntime
from .capabilities import Capabilities
from .deployment import Deployment, Server
from .local import variables_of
from .one_by_one import OneByOne
from .owner import Owner
from .pace import Pace
from .provider import FOR_ITS_OWNER, Leftover
from .ray_actor import Plan
from .ray_cluster import ANSWER_S, ActorAway, ActorGone, Cluster, required
from .secrecy import KEYS, key_of, masked
from .server_process import environment_labels
from .spec import LaunchSpec
from .tail import with_tail

__all__ = ["RayProvider"]

T = TypeVar("T")
_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
# How everything of ours begins that Ray knows by name; its owner follows after an "@".
_PREFIX = "openenv-"
# Seconds for a connection, for an answer of the cluster, and for the end of a server.
CONNECT_S, CALL_S, END_S = 30.0, 2 * ANSWER_S, 3 * ANSWER_S
# For one look at a server that is being started, and between two of them.
LOOK_S, PAUSE_S = 1.0, 0.1


@dataclass(slots=True)
class _Group:
    """A placement group: places of one size, for a server each."""

    name: str
    servers: list[Server | None]
    id: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Actor:
    name: str


class RayProvider(BlockingRuntime, OneByOne):
    """Runs servers in a Ray cluster: each in a detached, named actor, in a place of a placement group. (Extra `ray`.)

    A program that is connected to Ray already, as a trainer is, has its servers in that cluster. Nodes need this
    package, and what is to be served. A server that dies is started again at its node, and an actor that dies with
    its process or node is made again by Ray, on another node if need be; `Deployment.refresh` finds the new address.

    Options of a `LaunchSpec`: `strategy`, `max_restarts`, `resources` (of Ray's own kind, by name: amount), and for a
    project `app` and `workers`. CPUs and memory are counted by Ray, which does not enforce them.

    Example::

        deployment = await RayProvider().launch(LaunchSpec(target="echo", replicas=8))

    Args:
        target: What to serve, as for `openenv serve`; None leaves it to each `LaunchSpec`.
        folder: Where servers run on their nodes, and modules are looked for; None: where Ray's workers do.
        address: The cluster, as for `ray.init`, if this process is not connected to one; None: what RAY_ADDRESS says,
            or the one of this machine.
        start: Whether a cluster of this process alone is started, if it is not connected to one.
        namespace: Where names of actors are. Whoever looks for leftovers, looks in all.
        strategy: SPREAD or PACK, or with STRICT_ before it: all on different nodes, or all on one.
        max_restarts: How often a server is started again, and an actor made again.
        env_vars: Environment variables of the servers, besides those of their nodes.
        start_timeout_s: Seconds until there is room in the cluster, again until a server listens, and again until it
            is ready.
        pace: How fast servers are started.
        settings: Settings of the servers by name (`workers`, `max_sessions`, ...).

    Raises:
        MissingExtra: Ray is not installed.
        UsageError: A strategy or setting that there is not.
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
        pace: Pace | None = None,
        **settings: Any,
    ):
        required()
        self._target = target
        self._folder = None if folder is None else str(folder)
        self._cluster = Cluster(address, start, namespace)
        self._strategy = strategy
        self._max_restarts = max_restarts
        _checked(strategy, max_restarts, {})
        self.variables = {**FOR_ITS_OWNER, **variables_of(settings), **(env_vars or {})}
        # Clients are told it before their server is started.
        self.api_key = key_of(self.variables) or (None if KEYS in self.variables else secrets.token_urlsafe(24))
        self.ready_timeout_s = start_timeout_s
        self.pace = pace or Pace()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`."""
        deployment = super().deployment(spec)
        self._options(spec)
        if spec.port is not None and spec.count > 1 and self._options(spec)[0] != "STRICT_SPREAD":
            raise UsageError("several servers cannot listen on one port: leave out port, or strategy='STRICT_SPREAD'")
        deployment.handle = []
        return deployment

    def _spec(self, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if self._target is None:
            raise UsageError('RayProvider() has no target: RayProvider("echo"), or launch() a LaunchSpec')
        key = None if KEYS in {**self.variables, **env_vars} else self.api_key
        return LaunchSpec(target=self._target, port=port, env_vars=env_vars, options=options, api_key=key)

    def _options(self, spec: LaunchSpec) -> tuple[str, int, Mapping[str, float]]:
        given = spec.options
        strategy = given.get("strategy", self._strategy)
        return _checked(strategy, given.get("max_restarts", self._max_restarts), given.get("resources", {}))

    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        groups: list[_Group] = deployment.handle
        missing = replicas - sum(len(group.servers) for group in groups)
        try:
            if missing > 0:
                await self._reserve(deployment, missing)
            await super()._resize(deployment, replicas)
        except BaseException as error:
            with kept(error):
                await self._release(groups)
            raise
        await self._release(groups)

    async def _reserve(self, deployment: Deployment, places: int) -> None:
        """Adds a placement group, and waits until it has all of its places."""
        name = f"{deployment.name}-{secrets.token_hex(3)}@{Owner.this()}"
        group = _Group(name, [None] * places)
        deployment.handle.append(group)
        bundles = [self._needs(deployment.spec)] * places

        def reserve() -> str:
            group.id = found = self._cluster.reserve(name, bundles, self._options(deployment.spec)[0])
            if group.dropped:
                self._cluster.release(found)  # its answer came when nobody waited for it any more
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
        """What Ray sets aside for a server."""
        needs = {"CPU": float(spec.resources.cpus or 1)}
        if spec.gpus_each:
            needs["GPU"] = float(spec.gpus_each)
        if spec.resources.memory_bytes is not None:
            needs["memory"] = float(spec.resources.memory_bytes)
        return {**needs, **self._options(spec)[2]}

    async def _start_one(self, deployment: Deployment, server: Server) -> None:
        spec = deployment.spec
        group, place = next((each, each.servers.index(None)) for each in deployment.handle if None in each.servers)
        group.servers[place] = server
        assert group.id is not None
        found = group.id
        name = f"{server.name}@{Owner.this()}"
        server.handle = _Actor(name)
        restarts = self._options(spec)[1]
        variables = {**deployment.variables, **environment_labels(deployment.labels)}
        # Its environment may be anything that can be pickled here; a server has no use for its options.
        plan = Plan(spec.changed(env_vars={}, api_key=None), self._folder, variables, self.ready_timeout_s, restarts)
        await self._asked(lambda: self._cluster.create(name, plan, self._needs(spec), found, place))
        try:
            server.url = await self._address(server)
        except ActorGone as error:
            raise LaunchFailed(masked(f"the server {error}", deployment.secrets)) from None

    async def _address(self, server: Server) -> str:
        """Where a server listens, as soon as it does."""
        name, loop = server.handle.name, asyncio.get_running_loop()
        # The actor counts the time of its server, and tells; this is for the actor itself.
        limit = loop.time() + self.ready_timeout_s + ANSWER_S
        why = "does not say where it listens"
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

    async def _stop_one(self, server: Server) -> None:
        if server.handle is not None:
            await self._asked(lambda: self._cluster.end(server.handle.name), END_S)

    async def _end(self, deployment: Deployment, server: Server) -> None:
        await super()._end(deployment, server)
        for group in deployment.handle:
            group.servers = [None if each is server else each for each in group.servers]

    async def _gone(self, server: Server) -> str | None:
        if server.handle is None:
            return "was not started"
        try:
            return (await self._asked(lambda: self._cluster.report(server.handle.name))).end
        except ActorGone as error:
            return str(error)
        except ActorAway:
            return None

    async def _survey(self, deployment: Deployment) -> None:
        there = [server for server in deployment.servers if server.url is not None]  # others are on their way
        await asyncio.gather(*map(self._look, there))

    async def _look(self, server: Server) -> None:
        """Sees whether a server is there, and where it is now."""
        try:
            report = await self._asked(lambda: self._cluster.report(server.handle.name))
        except ActorGone as error:
            server.gone = str(error)
        except ActorAway as error:
            server.gone = str(error)
        else:
            server.gone = report.end or (None if report.url else "is being started again")
            server.url = report.url or server.url

    async def _log(self, server: Server, lines: int) -> str:
        if server.handle is None:
            return ""
        try:
            log = await self._asked(lambda: self._cluster.tail(server.handle.name))
        except (ActorGone, ActorAway):
            return ""
        return "\n".join(log.splitlines()[-lines:])

    async def _leftovers(self) -> list[Leftover]:
        actors = await self._asked(self._cluster.actors)
        groups = await self._asked(self._cluster.groups)
        found = [_leftover("actor", name, (namespace, name)) for namespace, name in actors]
        found += [_leftover("placement group", name, group) for group, name in groups]
        return [each for each in found if each is not None]

    async def _discard(self, leftover: Leftover) -> None:
        if leftover.kind == "placement group":
            await self._asked(lambda: self._cluster.release(leftover.handle))
        else:
            namespace, name = leftover.handle
            await self._asked(lambda: self._cluster.end(name, namespace), END_S)

    async def _asked(self, call: Callable[[], T], limit_s: float | None = None) -> T:
        """Runs a blocking call of the cluster. A cancel waits for its end: what it makes is then known, and removed.

        Raises:
            ProviderFailed: No answer within `limit_s`, or CALL_S.
        """
        if not self._cluster.is_connected():
            await _bounded(self._cluster.connected, CONNECT_S)
        return await _bounded(call, limit_s or CALL_S)


def _leftover(kind: str, name: str, handle: Any) -> Leftover | None:
    ours, at, owner = name.partition("@")
    if not at or not ours.startswith(_PREFIX):
        return None
    return Leftover(kind, ours, ours.rpartition("-")[0], Owner.read(owner), handle)


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
    # Ray may wait for its head for as long as it likes: the end of this process does not wait for that.
    task = asyncio.ensure_future(on_thread(call, detached=True))
    task.add_done_callback(heard)
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=limit_s)
        raise
    if not done:
        raise ProviderFailed(f"the Ray cluster has not answered for {limit_s:g} s: is it still there?")
    return task.result()
