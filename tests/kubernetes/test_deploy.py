"""What `openenv deploy kubernetes` writes, applied to a real API server by our own client."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed
from openenv.providers.kubernetes.api import KINDS, KubernetesCluster
from openenv.providers.kubernetes.deployment_rollout import DeploymentRollout, labels_of, selector_of
from openenv.providers.kubernetes.manifests import PodWorkload

from .conftest import Space
from .parts.servers import READY_S, at_length, serving

pytestmark = pytest.mark.real

# What this version has not got. tests/providers/kubernetes holds these kinds against the schemas of newer ones.
NEWER = {("HorizontalPodAutoscaler", "autoscaling/v2"), ("PodDisruptionBudget", "policy/v1")}
KEY = "a-key-that-is-long-enough"
WAYS = {
    "few options": ["--replicas", "2"],
    "most options": [
        *("--max-replicas", "5", "--sessions", "8", "--cpus", "0.5", "--memory", "64m", "--gpus", "1", "--prepull"),
        *("--egress", "--runtime-class", "gvisor", "--env", "LEVEL=3", "--port", "9000", "--create-namespace"),
        *("--option", "labels={team: a}", "--option", "annotations={note: b}", "--option", "callers={role: trainer}"),
        *("--option", "node_selector={pool: envs}", "--option", "tolerations=[{key: a, operator: Exists}]"),
        *("--option", "pull_secrets=[registry]", "--option", "writable=[/tmp, /var/data]", "--option", "user=2000"),
    ],
}


def openenv(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openenv", "deploy", "kubernetes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


@asynccontextmanager
async def as_admin(space: Space) -> AsyncIterator[KubernetesCluster]:
    """Our client of the cluster; at the end, all that was applied is deleted."""
    cluster = KubernetesCluster(space.name, space.cluster.admin, None)
    try:
        yield cluster
    finally:
        ours = "-l=app.kubernetes.io/managed-by=openenv"
        kinds = "deployments,daemonsets,services,networkpolicies,secrets"
        await asyncio.to_thread(space.kubectl, "delete", kinds, ours)
        await asyncio.to_thread(
            space.kubectl, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false"
        )
        await asyncio.to_thread(space.until_without, "")
        await cluster.aclose()


def known(space: Space, manifest: dict[str, Any]) -> bool:
    """Whether the API server has a kind, in that version."""
    group = manifest["apiVersion"]
    path = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    told = space.cluster.kubectl("get", "--raw", path, check=False)
    if "could not find the requested resource" in told:
        return False
    return manifest["kind"] in {each["kind"] for each in json.loads(told)["resources"]}


@pytest.mark.parametrize("way", WAYS)
@at_length
async def test_every_manifest_of_a_kind_that_this_version_has_is_taken(space: Space, way: str) -> None:
    done = openenv("my-env:1", "-n", space.name, "--dry-run", "--show-secrets", *WAYS[way])
    assert done.returncode == 0, done.stderr
    written = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"] for each in written} >= {"Secret", "Deployment", "Service", "NetworkPolicy"}
    newer = {(each["kind"], each["apiVersion"]) for each in written if not known(space, each)}
    assert newer == {each for each in NEWER if each[0] in {one["kind"] for one in written}}
    async with as_admin(space) as cluster:
        for each in written:
            assert KINDS[each["kind"]][0] == each["apiVersion"]
            if (each["kind"], each["apiVersion"]) in NEWER:
                with pytest.raises(LaunchFailed, match="could not find the requested resource"):
                    await cluster.apply(each)
                continue
            if each["kind"] == "Deployment":
                # The only field that came later: the rest is applied without it.
                with pytest.raises(LaunchFailed, match=r"preStop\.sleep: field not declared in schema"):
                    await cluster.apply(each)
                each = copy.deepcopy(each)  # noqa: PLW2901
                (container,) = each["spec"]["template"]["spec"]["containers"]
                assert container.pop("lifecycle").keys() == {"preStop"}
            await cluster.apply(each)
            there = await cluster.get(each["kind"], each["metadata"]["name"])
            assert there is not None
            assert there["metadata"].get("labels", {}).items() >= each["metadata"]["labels"].items()


def test_a_version_that_is_too_old_is_told_before_anything_is_applied(space: Space) -> None:
    done = openenv("my-env:1", "--kubeconfig", str(space.cluster.admin), "-n", space.name)
    assert done.returncode == 1
    assert "the cluster has Kubernetes v1.20.2, but these objects need 1.30 or newer" in done.stderr
    assert space.names == []


class Known(DeploymentRollout):
    """A rollout without the kinds that this version has not got."""

    @property
    def manifests(self) -> list[dict[str, Any]]:
        newer = {kind for kind, _ in NEWER}
        return [each for each in super().manifests if each["kind"] not in newer]


def rollout(variables: dict[str, str] | None = None, behaviour: str = "serve", **changes: Any) -> DeploymentRollout:
    """Servers that end at once when they are asked to: then Pods have no preStop.sleep."""
    options = {"policy": False, **changes.pop("options", {})}
    spec = serving(behaviour, options=options)
    given = {"OPENENV_API_KEYS": f"control:{KEY}", "OPENENV_GRACE_S": "0", **spec.env_vars, **(variables or {})}
    return Known(workload=PodWorkload.of(spec, "mine", selector_of("mine"), labels_of("mine"), given), **changes)


async def pods(cluster: KubernetesCluster) -> dict[str, str]:
    """Addresses of the servers that there are."""
    found, _ = await cluster.find("Pod", labelSelector="app.kubernetes.io/instance=mine")
    return {
        each["metadata"]["name"]: each["status"]["podIP"]
        for each in found
        if "deletionTimestamp" not in each["metadata"]
    }


@at_length
async def test_servers_that_stay_are_changed_without_losing_one(space: Space) -> None:
    async with as_admin(space) as cluster:
        await rollout(replicas=3).apply(cluster, READY_S)
        first = await pods(cluster)
        assert len(first) == 3
        for address in first.values():
            async with GenericEnvClient(f"http://{address}:8000", api_key=KEY) as env:
                await env.reset()
                assert (await env.step({"message": "a"})).observation["message"] == "a"
        # An autoscaler takes over: it begins with the servers that there are.
        await rollout(replicas=1, most=5).apply(cluster, READY_S)
        assert await pods(cluster) == first
        # A new version that fails is told of, with its log, and the old servers stay.
        with pytest.raises(LaunchFailed, match="(?s)exit code 3.*crashing on purpose"):
            await rollout(behaviour="crash", replicas=3).apply(cluster, READY_S)
        assert first.keys() <= (await pods(cluster)).keys()


@at_length
async def test_what_is_no_longer_wanted_is_removed(space: Space) -> None:
    async with as_admin(space) as cluster:
        before = rollout({"A": "1", "B": "2"}, options={"policy": True, "prepull": True})
        await before.apply(cluster, None)
        assert await cluster.get("DaemonSet", "mine-image") is not None
        assert await cluster.get("NetworkPolicy", "mine") is not None
        await rollout({"A": "1"}).apply(cluster, None)
        assert await cluster.get("DaemonSet", "mine-image") is None
        assert await cluster.get("NetworkPolicy", "mine") is None
        secret = await cluster.get("Secret", "mine")
        assert secret is not None
        assert base64.b64decode(secret["data"]["A"]) == b"1"
        assert "B" not in secret["data"]
