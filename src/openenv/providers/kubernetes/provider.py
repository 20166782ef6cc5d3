"""Servers on a Kubernetes cluster: a Pod each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...errors import LaunchFailed, ProviderFailed, UsageError
from ..blocking import BlockingContainers
from ..capabilities import Capabilities
from ..deployment import Deployment, Server
from ..one_by_one import OneByOne
from ..owner import DEPLOYMENT, OWNER, PROVIDER, Owner
from ..pace import Pace
from ..provider import FOR_ITS_OWNER, Leftover, Refusal
from ..secrecy import masked
from ..spec import LaunchSpec, Resources
from . import manifests
from .access import Access
from .api import SERVICE_ACCOUNT
from .belongings import Belongings
from .cluster import Manifest
from .forward import Forward
from .state import address_of, end_of, never_ran, unplaced
from .workload import PodOptions, Workload

__all__ = ["KubernetesProvider"]

# Warnings of the cluster that an error shows.
EVENTS = 5
# Kinds that deployments have objects of, those that make others first.
_OURS = ("DaemonSet", "Pod", "NetworkPolicy", "Secret")
_LABELS = {
    "app.kubernetes.io/name": "openenv",
    "app.kubernetes.io/managed-by": "openenv",
}


@dataclass(eq=False)
class _Pod:
    """A server's Pod, as far as its start has come."""

    deployment: Deployment
    termination_s: float = 0.0
    begun: bool = False
    forward: Forward | None = None
    unplaced_since: float | None = None

    @property
    def workload(self) -> Workload:
        workload: Workload = self.deployment.handle.workload
        return workload


class KubernetesProvider(BlockingContainers, OneByOne):
    """Runs each server in a Pod of its own. (Extra `kubernetes`.)

    A deployment has one Secret with the variables of its servers, and a NetworkPolicy. All of it is removed with it.

    Example::

        provider = KubernetesProvider(namespace="training")
        async with await provider.launch(LaunchSpec(image="my-env:1", replicas=8)) as deployment:
            await deployment.ready()

    Args:
        namespace: Where the Pods are; None: the namespace of the context, or of the Pod that this runs in.
        kubeconfig: File that says where the cluster is; None: KUBECONFIG, ~/.kube/config, or this Pod's account.
        context: Context of that file; None: its current one.
        reach: How servers are reached: "cluster", by the addresses of their Pods, from within the cluster; "forward",
            through its API, from anywhere; None: "cluster" if this runs in a Pod.
        unschedulable_s: Seconds that there may be no node for a Pod. More than 0 where nodes are added on demand.
        env_vars: Environment variables of all servers.
        start_timeout_s: Seconds for a Pod to have an address, and again until its server is ready.
        pace: How fast Pods are made.
        options: `PodOptions` of every deployment; those of a `LaunchSpec` win.

    Raises:
        UsageError: An option that there is not, or of no such value.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image"}), gpus=True, limits=frozenset({"cpus", "memory"}), options=PodOptions.names()
    )
    public = True

    def __init__(
        self,
        namespace: str | None = None,
        *,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        reach: str | None = None,
        unschedulable_s: float = 0.0,
        env_vars: Mapping[str, str] | None = None,
        start_timeout_s: float = 300.0,
        pace: Pace | None = None,
        **options: Any,
    ):
        if reach not in {None, "cluster", "forward"}:
            raise UsageError(f"reach must be 'cluster' or 'forward', got {reach!r}")
        self.capabilities.check(type(self).__name__, LaunchSpec(image="any", options=options))
        PodOptions(**options)
        self._options = options
        self._where = (namespace, kubeconfig, context)
        self._forwards = reach == "forward" or (reach is None and not SERVICE_ACCOUNT.exists())
        self._unschedulable_s = unschedulable_s
        self.variables = {**FOR_ITS_OWNER, **(env_vars or {})}
        self.ready_timeout_s = start_timeout_s
        self.pace = pace or Pace(rate=20.0, at_once=32)
        self._access: Access | None = None

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`.

        Raises:
            UsageError: An option of no such value, or a variable of no such name.
        """
        deployment = super().deployment(spec.changed(options={**self._options, **spec.options}))
        if spec.count > 1 and deployment.spec.options.get("local_port") is not None:
            raise UsageError("several servers cannot be forwarded to one local_port: leave it out")
        deployment.handle = Belongings(_workload(deployment))
        return deployment

    def _spec(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        resources = Resources(
            cpus=options.pop("cpu_limit", None),
            memory=options.pop("memory_limit", None),
            gpus=options.pop("gpus", 0),
        )
        command = options.pop("command", None)
        if port is not None:
            options["local_port"] = port
        return LaunchSpec(
            image=image,
            command=command.split() if isinstance(command, str) else command,
            port=options.pop("container_port", None),
            replicas=options.pop("replicas", 1),
            env_vars=env_vars,
            resources=resources,
            options=options,
        )

    async def _resize(self, deployment: Deployment, replicas: int) -> None:
        access = self._accessed()
        if replicas:
            access.enter(deployment)
        await super()._resize(deployment, replicas)
        if not replicas:
            await deployment.handle.unmake(access)
            await access.leave(deployment)

    async def _start_one(self, deployment: Deployment, server: Server) -> None:
        access = self._accessed()
        server.handle = pod = _Pod(deployment)
        with _masking(deployment):
            await deployment.handle.make(access)
            workload = pod.workload
            if self._forwards:
                pod.forward = Forward(access.cluster, server.name, workload.port)
                port = await pod.forward.start(workload.options.local_port)
            manifest = manifests.pod(workload, server.name)
            pod.termination_s = manifest["spec"]["terminationGracePeriodSeconds"]
            pod.begun = True
            await access.create(manifest)
            if self._forwards:
                server.url = f"http://127.0.0.1:{port}"
            else:
                server.url = f"http://{await self._address(server)}:{workload.port}"

    async def _stop_one(self, server: Server) -> None:
        pod: _Pod | None = server.handle
        if pod is None:
            return
        if pod.forward is not None:
            await pod.forward.stop()
        if pod.begun:
            await self._accessed().remove(server.name, pod.termination_s)

    async def _gone(self, server: Server) -> str | None:
        pod: _Pod | None = server.handle
        if pod is None or not pod.begun:
            return None
        found = await self._accessed().look(server.name)
        if found is None:
            return "is no longer there: its Pod was deleted"
        end = self._over(pod, found)
        if end is not None and never_ran(found):
            # Its log is empty: what the cluster says of it stands in its events.
            told = await self._accessed().cluster.warnings(server.name)
            end = "; ".join([end, *dict.fromkeys(told[-EVENTS:])])
        return end if end is None else masked(end, pod.deployment.secrets)

    def _refusal(self, server: Server) -> Refusal | None:
        pod: _Pod | None = server.handle
        return None if pod is None or pod.forward is None else pod.forward.refusal

    async def _log(self, server: Server, lines: int) -> str:
        if server.handle is None or not server.handle.begun:
            return ""
        return await self._accessed().cluster.log(server.name, lines)

    async def _leftovers(self) -> list[Leftover]:
        selector = f"{PROVIDER}={type(self).__name__}"
        async with self._accessed().visit() as cluster:
            lists = await asyncio.gather(*(cluster.find(kind, labelSelector=selector) for kind in _OURS))
        return [_leftover(kind, found) for kind, (items, _) in zip(_OURS, lists, strict=True) for found in items]

    async def _discard(self, leftover: Leftover) -> None:
        access = self._accessed()
        kind, uid, termination_s = leftover.handle
        async with access.visit() as cluster:
            if kind == "Pod":
                await access.remove(leftover.name, termination_s, uid)
            else:
                await cluster.delete(kind, leftover.name, uid=uid)

    def _accessed(self) -> Access:
        """The cluster, for this event loop: after a fork it is another one."""
        if self._access is None or self._access.loop is not asyncio.get_running_loop():
            self._access = Access(*self._where)
        return self._access

    def _over(self, pod: _Pod, found: Manifest) -> str | None:
        homeless = unplaced(found)
        now = self._accessed().loop.time()
        if homeless is None:
            pod.unplaced_since = None
            return end_of(found)
        if pod.unplaced_since is None:
            pod.unplaced_since = now
        if now - pod.unplaced_since < self._unschedulable_s:
            return None
        return f"{homeless}; unschedulable_s gives the cluster time to add one"

    async def _address(self, server: Server) -> str:
        access, pod, limit_s = self._accessed(), server.handle, self.ready_timeout_s

        def known() -> bool:
            found = access.watch.pods.get(server.name)
            return found is not None and (address_of(found) is not None or self._over(pod, found) is not None)

        await access.watch.until(known, limit_s)
        found = access.watch.pods.get(server.name) or {}
        address, end = address_of(found), await self._gone(server)
        if address is None:
            how = end or f"was given no address within {limit_s:g} s (start_timeout_s)"
            raise LaunchFailed(f"the server {how}")
        return address


def _workload(deployment: Deployment) -> Workload:
    labels = {**_LABELS, **deployment.labels}
    selector = {DEPLOYMENT: deployment.name}
    return Workload.of(deployment.spec, deployment.name, selector, labels, deployment.variables)


def _leftover(kind: str, found: Manifest) -> Leftover:
    metadata = found["metadata"]
    labels = metadata["labels"]
    termination_s = found.get("spec", {}).get("terminationGracePeriodSeconds", 0) if kind == "Pod" else 0
    owner = Owner.read(labels.get(OWNER, ""))
    return Leftover(kind, metadata["name"], labels.get(DEPLOYMENT, ""), owner, (kind, metadata["uid"], termination_s))


@contextmanager
def _masking(deployment: Deployment) -> Iterator[None]:
    """Has no error show what servers were given."""
    try:
        yield
    except ProviderFailed as error:
        error.message = masked(error.message, deployment.secrets)
        error.args = (error.message,)
        raise
