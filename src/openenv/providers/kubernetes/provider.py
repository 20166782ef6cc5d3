"""Run each server in a Pod (`KubernetesProvider`)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from ..._backoff import Backoff
from ...errors import LaunchFailed, OpenEnvError, ProviderFailed, UsageError
from ..base import (
    PRIVATE_SERVER_VARIABLES,
    BlockingContainers,
    ConnectionRefusal,
    Leftover,
    SingleServerProvider,
    StartRate,
    spec_of_options,
)
from ..deployment import Deployment, Server
from ..owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from ..redaction import redact
from ..spec import Capabilities, LaunchSpec
from . import manifests
from .api import SERVICE_ACCOUNT, KubernetesCluster
from .manifests import Manifest, PodOptions, PodWorkload
from .pods import PodWatch, PortForward, address_of, end_of, never_ran, unplaced

# Seconds between two checks that a Pod is gone, at first and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
# The same for a watched Pod.
GLANCE_S = 5.0
# Seconds until a Pod is gone, beyond its grace period; and after a forced deletion.
BEYOND_END_S, FORGET_S = 10.0, 10.0
# Maximum of seconds that the first Pod waits for the list of existing Pods, which saves a request for each Pod.
LISTING_S = 5.0


class ClusterAccess:
    """A cluster, and a watch of the Pods of this process. Belongs to one event loop.

    Args:
        namespace, kubeconfig, context: Arguments of `KubernetesCluster`.

    Attributes:
        loop: The event loop.
        deployments: The deployments with servers there. Without any, there is no watch, and each visit opens a
            connection.
    """

    def __init__(self, namespace: str | None, kubeconfig: str | Path | None, context: str | None):
        self.loop = asyncio.get_running_loop()
        self.cluster = KubernetesCluster(namespace, kubeconfig, context)
        self.watch = PodWatch(self.cluster, f"{OWNER}={OwnerProcess.this()}")
        self.deployments: set[Deployment] = set()
        self._visits = 0

    def enter(self, deployment: Deployment) -> None:
        """Starts to watch the Pods of a deployment."""
        self.deployments.add(deployment)
        self.watch.start()

    async def leave(self, deployment: Deployment) -> None:
        """Stops watching a deployment."""
        self.deployments.discard(deployment)
        await self._disconnect()

    @contextlib.asynccontextmanager
    async def visit(self) -> AsyncIterator[KubernetesCluster]:
        """The cluster, for calls that do not belong to a deployment of this process."""
        self._visits += 1
        try:
            yield self.cluster
        finally:
            self._visits -= 1
            await self._disconnect()

    async def look(self, name: str) -> Manifest | None:
        """The last known manifest of a Pod of this process; None if it is gone.

        Raises:
            ProviderFailed: The cluster has been silent for too long.
        """
        self.watch.check()
        known, losses = self.watch.pods.get(name), self.watch.losses
        if known is None:
            known = await self.cluster.get("Pod", name)
            if known is not None:
                self.watch.note(known, losses)
        return known

    async def create(self, manifest: Manifest) -> None:
        """Creates a Pod and adds it to the watched ones. Raises as `KubernetesCluster.create` does."""
        await self.watch.until(lambda: self.watch.listed, LISTING_S)
        losses = self.watch.losses
        self.watch.note(await self.cluster.create(manifest), losses)

    async def remove(self, name: str, termination_s: float, uid: str | None = None) -> None:
        """Deletes a Pod and waits until it is gone; forces the deletion of a Pod that does not end.

        Raises:
            ProviderFailed: It still exists.
        """
        for grace_s, patience_s in ((None, termination_s + BEYOND_END_S), (0, FORGET_S)):
            await self.cluster.delete("Pod", name, uid=uid, grace_s=grace_s)
            if await self._vanished(name, uid, patience_s):
                return
        raise ProviderFailed(f"Pod {name} still exists after its deletion: check its finalizers")

    async def own_pod(self) -> Manifest | None:
        """The Pod that this process runs in, if it is in the same namespace: owner references need that."""
        try:
            here = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        if here != await self.cluster.namespace():
            return None
        return await self.cluster.get("Pod", socket.gethostname())

    async def _disconnect(self) -> None:
        """Stops the watch once no deployment needs it, and closes the connection once no caller needs it."""
        if not self.deployments:
            await self.watch.stop()
        if not self.deployments and not self._visits:
            await self.cluster.aclose()

    async def _vanished(self, name: str, uid: str | None, limit_s: float) -> bool:
        backoff, limit = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), self.loop.time() + limit_s
        while True:
            found = await self.cluster.get("Pod", name)
            if found is None or (uid is not None and found["metadata"]["uid"] != uid):
                return True
            if self.loop.time() > limit:
                return False
            if self.deployments:  # the watch reports the deletion, which saves most requests
                await self.watch.until(lambda: name not in self.watch.pods, min(limit - self.loop.time(), GLANCE_S))
            await asyncio.sleep(backoff.grow())


@dataclass(eq=False)
class SharedObjects:
    """The shared objects of a deployment: a Secret, perhaps a NetworkPolicy and a DaemonSet.

    They are created before the first server and removed after the last.

    Attributes:
        workload: The workload of the deployment.
    """

    workload: PodWorkload
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Objects that may exist on the cluster.
    _there: list[Manifest] = field(default_factory=list)
    _made: bool = False

    async def make(self, access: ClusterAccess) -> None:
        """Creates them, unless they exist.

        Raises:
            LaunchFailed: The cluster refuses it (`ProviderBusy`: for a temporary reason).
        """
        async with self._making:
            if self._made:
                return
            own = await access.own_pod()
            if own is not None:
                self.workload = replace(self.workload, owner=own["metadata"])
            options = self.workload.options
            wanted = [manifests.secret(self.workload)]
            if options.policy:
                wanted.append(manifests.network_policy(self.workload))
            if options.prepull:
                wanted.append(manifests.prepull(self.workload))
            for each in wanted:
                if each not in self._there:
                    self._there.append(each)
                try:
                    await access.cluster.create(each)
                except OpenEnvError as error:
                    if not (error.retryable and access.cluster.reached):
                        self._there.remove(each)  # certainly not created: it was refused, or no cluster was reached
                    raise
            self._made = True

    async def unmake(self, access: ClusterAccess) -> None:
        """Deletes those that may exist.

        Raises:
            ProviderFailed: The cluster does not delete one.
        """
        while self._there:
            each = self._there[-1]
            await access.cluster.delete(each["kind"], each["metadata"]["name"])
            self._there.remove(each)
        self._made = False


# Number of the cluster's warnings that an error shows.
EVENTS = 5
# Kinds of a deployment's objects; kinds that create other objects come first.
_OURS = ("DaemonSet", "Pod", "NetworkPolicy", "Secret")
_LABELS = {"app.kubernetes.io/name": "openenv", "app.kubernetes.io/managed-by": "openenv"}


@dataclass(eq=False)
class _Pod:
    """State of a server's Pod. `termination_s` is its grace period, or None before its creation."""

    deployment: Deployment
    termination_s: float | None = None
    forward: PortForward | None = None
    unplaced_since: float | None = None


class KubernetesProvider(BlockingContainers, SingleServerProvider):
    """Runs each server in a separate Pod. (Extra `kubernetes`.)

    A deployment also has a Secret with the variables of its servers, and a NetworkPolicy. Its end removes them all.

    Example::

        provider = KubernetesProvider(namespace="training")
        async with await provider.launch(LaunchSpec(image="my-env:1", replicas=8)) as deployment:
            await deployment.ready()

    Args:
        namespace: Namespace of the Pods; None: that of the context, or of the Pod that this process runs in.
        kubeconfig: File with the cluster's address and credentials; None: KUBECONFIG, ~/.kube/config, or this Pod's
            service account.
        context: Context of that file; None: its current one.
        reach: How clients reach servers. "cluster": at the addresses of their Pods, from within the cluster.
            "forward": through the cluster's API, from anywhere. None: "cluster" if this process runs in a Pod.
        unschedulable_s: Seconds that a Pod may wait for a node. Set it above 0 where nodes are added on demand.
        env_vars: Environment variables of all servers.
        start_timeout_s: Timeout in seconds until a Pod has an address, and a second one until its server is ready.
        start_rate: How fast Pods are created.
        options: `PodOptions` of every deployment; those of a `LaunchSpec` override them.

    Raises:
        UsageError: An unknown option, or an invalid value.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"image"}),
        gpus=True,
        limits=frozenset({"cpus", "memory"}),
        options=frozenset(each.name for each in fields(PodOptions)),
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
        start_rate: StartRate | None = None,
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
        self.variables = {**PRIVATE_SERVER_VARIABLES, **(env_vars or {})}
        self.ready_timeout_s = start_timeout_s
        self.start_rate = start_rate or StartRate(rate=20.0, at_once=32)
        self._access: ClusterAccess | None = None

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`.

        Raises:
            UsageError: An invalid option, or an invalid name of a variable.
        """
        deployment = super().deployment(spec.changed(options={**self._options, **spec.options}))
        if spec.count > 1 and deployment.spec.options.get("local_port") is not None:
            raise UsageError("several servers cannot be forwarded to one local_port: leave it out")
        labels = {**_LABELS, **deployment.labels}
        selector = {DEPLOYMENT: deployment.name}
        workload = PodWorkload.of(deployment.spec, deployment.name, selector, labels, deployment.variables)
        deployment.handle = SharedObjects(workload)
        return deployment

    def spec_of(self, image: str, port: int | None, env_vars: dict[str, str], options: dict[str, Any]) -> LaunchSpec:
        if port is not None:
            options["local_port"] = port
        return spec_of_options(image, env_vars, options, options.pop("gpus", 0))

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        access = self._accessed()
        if replicas:
            access.enter(deployment)
        await super().resize(deployment, replicas)
        if not replicas:
            await deployment.handle.unmake(access)
            await access.leave(deployment)

    async def start_server(self, deployment: Deployment, server: Server) -> None:
        access = self._accessed()
        server.handle = pod = _Pod(deployment)
        try:
            await deployment.handle.make(access)
            workload: PodWorkload = deployment.handle.workload
            if self._forwards:
                pod.forward = PortForward(access.cluster, server.name, workload.port)
                port = await pod.forward.start(workload.options.local_port)
            manifest = manifests.pod(workload, server.name)
            pod.termination_s = manifest["spec"]["terminationGracePeriodSeconds"]
            await access.create(manifest)
            if self._forwards:
                server.url = f"http://127.0.0.1:{port}"
            else:
                server.url = f"http://{await self._address(server)}:{workload.port}"
        except ProviderFailed as error:
            error.message = redact(error.message, deployment.secrets)
            error.args = (error.message,)
            raise

    async def stop_server(self, server: Server) -> None:
        pod: _Pod | None = server.handle
        if pod is None:
            return
        if pod.forward is not None:
            await pod.forward.stop()
        if pod.termination_s is not None:
            await self._accessed().remove(server.name, pod.termination_s)

    async def why_gone(self, server: Server) -> str | None:
        pod: _Pod | None = server.handle
        if pod is None or pod.termination_s is None:
            return None
        found = await self._accessed().look(server.name)
        if found is None:
            return "is gone: its Pod was deleted"
        end = self._over(pod, found)
        if end is not None and never_ran(found):
            # Its log is empty; its events have the reason.
            warnings = await self._accessed().cluster.warnings(server.name)
            end = "; ".join([end, *dict.fromkeys(warnings[-EVENTS:])])
        return end if end is None else redact(end, pod.deployment.secrets)

    def last_refusal(self, server: Server) -> ConnectionRefusal | None:
        pod: _Pod | None = server.handle
        return None if pod is None or pod.forward is None else pod.forward.refusal

    async def read_log(self, server: Server, lines: int) -> str:
        if server.handle is None or server.handle.termination_s is None:
            return ""
        return await self._accessed().cluster.log(server.name, lines)

    async def find_leftovers(self) -> list[Leftover]:
        selector = f"{PROVIDER}={type(self).__name__}"
        async with self._accessed().visit() as cluster:
            lists = await asyncio.gather(*(cluster.find(kind, labelSelector=selector) for kind in _OURS))
        leftovers = []
        for kind, (items, _) in zip(_OURS, lists, strict=True):
            for found in items:
                name, uid, labels = (found["metadata"][key] for key in ("name", "uid", "labels"))
                termination_s = found.get("spec", {}).get("terminationGracePeriodSeconds", 0) if kind == "Pod" else 0
                leftovers.append(Leftover.from_labels(kind, name, labels, (kind, uid, termination_s)))
        return leftovers

    async def remove_leftover(self, leftover: Leftover) -> None:
        access = self._accessed()
        kind, uid, termination_s = leftover.handle
        async with access.visit() as cluster:
            if kind == "Pod":
                await access.remove(leftover.name, termination_s, uid)
            else:
                await cluster.delete(kind, leftover.name, uid=uid)

    def _accessed(self) -> ClusterAccess:
        """The cluster, for this event loop: after a fork, the loop is a new one."""
        if self._access is None or self._access.loop is not asyncio.get_running_loop():
            self._access = ClusterAccess(*self._where)
        return self._access

    def _over(self, pod: _Pod, found: Manifest) -> str | None:
        unscheduled = unplaced(found)
        now = self._accessed().loop.time()
        if unscheduled is None:
            pod.unplaced_since = None
            return end_of(found)
        if pod.unplaced_since is None:
            pod.unplaced_since = now
        if now - pod.unplaced_since < self._unschedulable_s:
            return None
        return f"{unscheduled}; set unschedulable_s to give the cluster time to add one"

    async def _address(self, server: Server) -> str:
        access, pod, limit_s = self._accessed(), server.handle, self.ready_timeout_s

        def known() -> bool:
            found = access.watch.pods.get(server.name)
            return found is not None and (address_of(found) is not None or self._over(pod, found) is not None)

        await access.watch.until(known, limit_s)
        found = access.watch.pods.get(server.name) or {}
        address, end = address_of(found), await self.why_gone(server)
        if address is None:
            how = end or f"got no address within {limit_s:g} s (start_timeout_s)"
            raise LaunchFailed(f"the server {how}")
        return address
