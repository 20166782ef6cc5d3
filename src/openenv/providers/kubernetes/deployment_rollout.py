"""Deploy servers that outlive the process that starts them: a Deployment with Services, limits and autoscaler."""

from __future__ import annotations

import asyncio
import base64
import re
from dataclasses import dataclass, replace

from ...errors import LaunchFailed, NotReady, ProviderFailed, UsageError
from ..redaction import KEYS, TAIL_LINES, redact, secrets_of, with_tail
from . import manifests
from .api import KubernetesCluster
from .manifests import Manifest, PodWorkload
from .pods import end_of, unplaced

GLANCE_S = 0.5
OLDEST = (1, 30)
"""The first version of Kubernetes with all fields of these manifests."""


def selector_of(name: str) -> dict[str, str]:
    """Labels that only the Pods of a rollout have."""
    return {"app.kubernetes.io/name": "openenv", "app.kubernetes.io/instance": name}


def labels_of(name: str) -> dict[str, str]:
    """Labels of all objects of a rollout, without an owner: a rollout outlives the process that created it."""
    return {**selector_of(name), "app.kubernetes.io/managed-by": "openenv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRollout:
    """The desired objects of a rollout.

    Attributes:
        workload: The servers.
        replicas: Number of servers; with `most`, the minimum.
        most: Maximum of servers, for an autoscaler by sessions; None: always `replicas`.
        sessions: Sessions per server, on average, above which the autoscaler adds servers.
        namespace: Namespace to create. None if it exists.
        made: Names of generated variables, such as keys. Values that the cluster already has are kept.
    """

    workload: PodWorkload
    replicas: int = 1
    most: int | None = None
    sessions: int = 64
    namespace: str | None = None
    made: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise UsageError(f"replicas must be 1 or more, got {self.replicas!r}")
        if self.most is not None and self.most < self.replicas:
            raise UsageError(
                f"the maximum of replicas ({self.most}) must not be less than the minimum ({self.replicas})"
            )
        if self.sessions < 1:
            raise UsageError(f"sessions must be 1 or more, got {self.sessions!r}")

    @property
    def manifests(self) -> list[Manifest]:
        """All objects, in the order of their creation."""
        workload, options = self.workload, self.workload.options
        found = [] if self.namespace is None else [manifests.namespace(self.namespace)]
        found.append(manifests.secret(workload))
        if options.policy:
            found.append(manifests.network_policy(workload))
        found += [manifests.service(workload), manifests.headless_service(workload)]
        found.append(manifests.deployment(workload, self.replicas if self.most is None else None))
        found.append(manifests.disruption_budget(workload))
        if self.most is not None:
            found.append(manifests.autoscaler(workload, self.replicas, self.most, self.sessions))
        if options.prepull:
            found.append(manifests.prepull(workload))
        return found

    async def kept(self, cluster: KubernetesCluster) -> DeploymentRollout:
        """A copy with the generated keys that the cluster already has, since clients use them.

        Raises:
            LaunchFailed: The cluster is too old for the manifests.
            ProviderFailed: The request failed.
        """
        there = await cluster.get("Secret", self.workload.name)
        found = re.match(r"v?(\d+)\.(\d+)", cluster.version)
        if found is not None and (int(found[1]), int(found[2])) < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise LaunchFailed(
                f"the cluster has Kubernetes {cluster.version}, but these objects need {oldest} or newer: "
                "nothing was changed. KubernetesProvider supports older versions"
            )
        coded = (there or {}).get("data", {})
        known = {name: base64.b64decode(coded[name]).decode() for name in self.made & coded.keys()}
        return replace(self, workload=replace(self.workload, variables={**self.workload.variables, **known}))

    async def apply(self, cluster: KubernetesCluster, timeout_s: float | None) -> None:
        """Applies the manifests, and waits until all servers run.

        Args:
            cluster: The cluster.
            timeout_s: Seconds to wait until all servers run; None does not wait.

        Raises:
            LaunchFailed: The cluster refuses it, or a new server has failed; with the end of its log.
            NotReady: Not in time.
        """
        older = {pod["metadata"]["name"] for pod in await self._pods(cluster)}
        await self._check_names(cluster)
        wanted = self.manifests
        if self.most is not None:
            # Keep the current number: a Deployment without `replicas` would scale to one server.
            there = await cluster.get("Deployment", self.workload.name)
            live: int = (there or {}).get("spec", {}).get("replicas", self.replicas)
            replicas = min(max(live, self.replicas), self.most)
            for each in wanted:
                if each["kind"] == "Deployment":
                    each["spec"]["replicas"] = replicas
        # First, since a leftover autoscaler would change the number of servers again.
        await self._remove_unwanted(cluster, {(each["kind"], each["metadata"]["name"]) for each in wanted})
        for each in wanted:
            await cluster.apply(each)
        if timeout_s is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not _complete(await cluster.get("Deployment", self.workload.name) or {}):
                    await self._check(cluster, older)
                    await asyncio.sleep(GLANCE_S)
        except TimeoutError:
            raise NotReady(
                f"{self.workload.name} was not ready within {timeout_s:g} s (--timeout); the cluster continues: "
                f"see kubectl rollout status deployment/{self.workload.name}"
            ) from None

    async def _remove_unwanted(self, cluster: KubernetesCluster, wanted: set[tuple[str, str]]) -> None:
        """Deletes objects of an earlier rollout of this name that this one does not have."""
        for each in (
            manifests.autoscaler(self.workload, 1, 1, 1),
            manifests.prepull(self.workload),
            manifests.network_policy(self.workload),
        ):
            kind, name = each["kind"], each["metadata"]["name"]
            if (kind, name) in wanted:
                continue
            try:
                there = await cluster.get(kind, name)
            except ProviderFailed as error:
                if error.retryable:
                    raise
                continue  # an account that may not read such objects has not created one
            if there is not None and _has_our_label(there):
                await cluster.delete(kind, name, uid=there["metadata"]["uid"])

    async def _check_names(self, cluster: KubernetesCluster) -> None:
        """Raises `LaunchFailed` if a foreign object has one of the names, since the rollout would change it."""
        for each in self.manifests:
            kind, metadata = each["kind"], each["metadata"]
            there = None if kind == "Namespace" else await cluster.get(kind, metadata["name"])
            # A Secret that was created by hand, as in docs/kubernetes.md, has our keys instead of our label.
            ours = there is None or KEYS in there.get("data", {}) or _has_our_label(there)
            if not ours:
                raise LaunchFailed(
                    f"the namespace has a {kind} {metadata['name']} that openenv did not create: choose another "
                    "--name, or delete it first"
                )

    async def _pods(self, cluster: KubernetesCluster) -> list[Manifest]:
        selector = ",".join(f"{name}={value}" for name, value in self.workload.selector.items())
        pods, _ = await cluster.find("Pod", labelSelector=selector)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def _check(self, cluster: KubernetesCluster, older: set[str]) -> None:
        """Raises `LaunchFailed` if one of the new servers has failed."""
        for pod in await self._pods(cluster):
            name = pod["metadata"]["name"]
            end = None if name in older else end_of(pod) or unplaced(pod)
            if end is not None:
                tail = await cluster.log(name, TAIL_LINES) or "\n".join(await cluster.warnings(name))
                said = with_tail(f"the server {name} {end}", tail)
                raise LaunchFailed(redact(said, secrets_of(self.workload.variables)))


def _has_our_label(manifest: Manifest) -> bool:
    """Whether an object belongs to a rollout of openenv."""
    return bool((manifest["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by") == "openenv")


def _complete(deployment: Manifest) -> bool:
    """Whether all servers of a Deployment run in its last version. False without a Deployment."""
    spec, status, metadata = (deployment.get(part) or {} for part in ("spec", "status", "metadata"))
    wanted = spec.get("replicas", 1)
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return False
    counts = (status.get(name, 0) for name in ("updatedReplicas", "availableReplicas"))
    return all(count >= wanted for count in counts) and status.get("replicas", 0) <= wanted
