"""What goes wrong on a cluster and on the way to it, and how soon and in what words it is told."""

from __future__ import annotations

import asyncio
import base64
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openenv.errors import LaunchFailed, MissingExtra, NotReady, ProviderBusy, ProviderFailed
from openenv.providers import KubernetesProvider, LaunchSpec, Resources
from openenv.providers.kubernetes import provider as access
from openenv.providers.kubernetes.api import ApiFailure, KubernetesCluster

from ...asynchronous import until
from ...cli.certificates import certificate
from . import kubelet
from .api import NAMESPACE, Asked, Cluster, standing_in, write_kubeconfig
from .conftest import Make

IDLE = ["sleep", "1000"]
SECRET = "what-nobody-may-see"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def idle(**changes: Any) -> LaunchSpec:
    return LaunchSpec(image="any:1", command=IDLE).changed(**changes)


def serving(**changes: Any) -> LaunchSpec:
    return idle(command=[sys.executable, "-m", "openenv.testing.misbehaving", "serve"], **changes)


async def fails(deployment: Any, limit_s: float = 15.0) -> str:
    """What `ready` says of a server that will never be one, at once."""
    began = time.monotonic()
    with pytest.raises(LaunchFailed) as caught:
        await deployment.ready(60.0)
    assert not isinstance(caught.value, NotReady)
    assert time.monotonic() - began < limit_s
    return caught.value.message


# Servers that do not start.


async def test_an_image_that_cannot_be_pulled_ends_the_wait_with_what_the_cluster_says(provider: Make) -> None:
    async with await provider().launch(idle(image="missing:1")) as deployment:
        told = await fails(deployment)
        assert 'ImagePullBackOff: Back-off pulling image "missing:1"' in told
        assert 'Failed: Failed to pull image "missing:1"' in told


async def test_a_pod_that_no_node_takes_ends_the_wait(provider: Make) -> None:
    async with await provider().launch(idle(resources=Resources(gpus=99))) as deployment:
        told = await fails(deployment)
        assert "Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu" in told
        assert "unschedulable_s" in told


async def test_a_cluster_that_grows_is_given_time_for_a_node(provider: Make) -> None:
    spec = idle(options={"node_selector": {"pool": "none"}})
    async with await provider(unschedulable_s=60.0).launch(spec) as deployment:
        with pytest.raises(NotReady):
            await deployment.ready(0.5)
    async with await provider(unschedulable_s=0.3).launch(spec) as deployment:
        assert "Unschedulable" in await fails(deployment)


async def test_from_within_a_cluster_a_launch_waits_for_an_address_no_longer_than_there_may_be_one(
    provider: Make, cluster: Cluster
) -> None:
    with pytest.raises(LaunchFailed, match="Unschedulable"):
        await provider(reach="cluster").launch(idle(resources=Resources(gpus=99)))
    assert cluster.names("Secret") == []


async def test_a_command_that_there_is_not(provider: Make) -> None:
    async with await provider().launch(idle(command=["no-such-program"])) as deployment:
        assert "RunContainerError: failed to start container: No such file" in await fails(deployment)


async def test_one_that_is_started_again_and_crashes_again_shows_its_last_log(
    provider: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "RESTART_PAUSE_S", 10.0)  # as a kubelet has it: until then, that log is the last
    crashing = [sys.executable, "-c", "import os; print('no model', os.environ['MODEL_TOKEN']); raise SystemExit(4)"]
    spec = idle(command=crashing, env_vars={"MODEL_TOKEN": SECRET}, options={"restart": True})
    async with await provider().launch(spec) as deployment:
        told = await fails(deployment)
        assert "exit code 4" in told
        assert "no model ***" in told
        assert SECRET not in told


async def test_a_pod_that_somebody_deletes_is_gone(provider: Make, cluster: Cluster) -> None:
    async with await provider().launch(idle()) as deployment:
        (server,) = deployment.servers
        cluster.on_loop(lambda: cluster.kubelet.end(cluster.store.get("Pod", NAMESPACE, server.name), 0))
        told = await fails(deployment)
        assert "its Pod was deleted" in told or "is being removed from the cluster" in told
        await deployment.refresh()
        assert server.gone is not None
        assert deployment.urls == []


async def test_a_pod_that_is_deleted_before_its_creation_is_answered_is_gone(
    provider: Make, cluster: Cluster
) -> None:
    cluster.misbehave("POST .*/pods", "slow")
    launch = asyncio.ensure_future(provider().launch(idle()))
    await until(lambda: cluster.names("Pod"))
    (name,) = cluster.names("Pod")
    cluster.on_loop(lambda: cluster.kubelet.end(cluster.store.get("Pod", NAMESPACE, name), 0))
    async with await launch as deployment:
        assert "deleted" in await fails(deployment)


# A cluster that refuses, or fails for a moment.


@pytest.mark.parametrize("how", [429, 500, 503, "drop"])
@pytest.mark.parametrize("what", ["POST .*/secrets", "POST .*/pods", "GET .*/pods$", "GET .*/version"])
async def test_what_passes_is_tried_again(provider: Make, cluster: Cluster, what: str, how: Any) -> None:
    cluster.misbehave(what, how, times=2)
    async with await provider().launch(idle()) as deployment:
        assert len(deployment.urls) == len(cluster.names("Pod")) == 1
    assert all(fault.times == 0 for fault in cluster.faults)


async def test_a_pod_whose_creation_was_not_answered_is_not_left(provider: Make, cluster: Cluster) -> None:
    cluster.misbehave("POST .*/pods", 500, after=True)
    cluster.misbehave("POST .*/secrets", "drop", after=True)
    async with await provider().launch(idle(replicas=2)) as deployment:
        assert sorted(cluster.names("Pod")) == sorted(server.name for server in deployment.servers)


async def test_what_lasts_is_told_and_nothing_is_left(provider: Make, cluster: Cluster) -> None:
    cluster.misbehave("POST .*/pods", 503, times=100)
    with pytest.raises(ProviderBusy, match=r"creating Pod .* failed: the stand-in was told to say 503"):
        await provider().launch(idle())
    assert len(cluster.methods("POST .*/pods")) == 3


async def test_a_refusal_is_told_at_once(provider: Make, cluster: Cluster) -> None:
    cluster.limit = 1
    with pytest.raises(LaunchFailed, match="exceeded quota") as caught:
        await provider().launch(idle(replicas=2))
    assert not caught.value.retryable
    with pytest.raises(LaunchFailed, match='namespaces "elsewhere" not found'):
        await provider(namespace="elsewhere").launch(idle())


async def test_what_answers_and_is_no_cluster_is_told(provider: Make, cluster: Cluster) -> None:
    cluster.misbehave("GET .*/secrets", "nonsense", times=100)
    with pytest.raises(ProviderBusy, match="not from a Kubernetes API: <html>please log in"):
        await provider().leftovers()


async def test_a_slow_cluster_is_waited_for(provider: Make, cluster: Cluster) -> None:
    cluster.misbehave("POST .*/pods", "slow")
    async with await provider().launch(idle()) as deployment:
        assert deployment.urls


@pytest.mark.slow
async def test_a_launch_that_is_cancelled_on_a_slow_cluster_leaves_nothing(provider: Make, cluster: Cluster) -> None:
    for what in ("POST .*/secrets", "POST .*/pods"):
        cluster.misbehave(what, "slow")
        launching = asyncio.ensure_future(provider().launch(idle()))
        await until(partial(cluster.methods, what))
        launching.cancel()
        await asyncio.wait([launching])
        assert launching.cancelled()
        assert cluster.names("Pod") + cluster.names("Secret") == []


@pytest.mark.slow
@pytest.mark.parametrize("forget", [False, True])
async def test_what_happens_is_heard_of_after_a_watch_broke(provider: Make, cluster: Cluster, forget: bool) -> None:
    async with await provider().launch(serving()) as deployment:
        await deployment.ready(15.0)
        cluster.cut_watches(forget)
        await deployment.scale(2)
        await deployment.ready(15.0)
        process = cluster.kubelet.processes[
            cluster.store.get("Pod", NAMESPACE, deployment.servers[0].name)["metadata"]["uid"]
        ]
        process.kill()
        async with asyncio.timeout(15.0):
            while deployment.servers[0].gone is None:
                await deployment.refresh()
                await asyncio.sleep(0.02)
        assert deployment.servers[0].gone == "ended with exit code 137"
        assert len(deployment.urls) == 1


async def test_stopping_goes_on_when_the_cluster_is_back(provider: Make, cluster: Cluster) -> None:
    deployment = await provider().launch(idle())
    cluster.misbehave("DELETE", 500, times=2)
    await deployment.stop()
    assert cluster.names("Pod") == []


@pytest.mark.slow
async def test_what_could_not_be_stopped_can_be_stopped_later(provider: Make, cluster: Cluster) -> None:
    deployment = await provider().launch(idle())
    cluster.misbehave("DELETE .*/pods", 500, times=5)
    with pytest.raises(ProviderBusy, match="deleting Pod"):
        await deployment.stop()
    assert len(cluster.names("Pod")) == 1
    await deployment.stop()


async def test_a_pod_that_does_not_go_is_forgotten(
    provider: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BEYOND_END_S", 0.0)
    spec = idle(options={"pod": {"terminationGracePeriodSeconds": 1}})
    deployment = await provider().launch(spec)
    (name,) = cluster.names("Pod")
    cluster.on_loop(lambda: cluster.store.get("Pod", NAMESPACE, name)["metadata"].update(finalizers=["a/b"]))
    await deployment.stop()
    bodies = [each.body for each in cluster.asked if each.method == "DELETE" and name in each.path]
    assert [body.get("gracePeriodSeconds") for body in bodies] == [None, 0]


# Ports that are not forwarded.


async def test_a_role_without_forwarded_ports_ends_the_wait_with_what_the_cluster_says(
    provider: Make, cluster: Cluster
) -> None:
    said = 'pods "a" is forbidden: User "trainer" cannot create resource "pods/portforward"'
    cluster.no_forwards = (403, said)
    async with await provider(reach="forward").launch(serving()) as deployment:
        told = await fails(deployment)
    assert f"answers 403 to a port-forward: {said}" in told
    assert "the role of this account needs create and get of pods/portforward" in told


@pytest.mark.slow
async def test_a_server_that_is_there_is_not_gone_when_a_forwarded_port_is_refused(
    provider: Make, cluster: Cluster
) -> None:
    async with await provider(reach="forward").launch(serving()) as deployment:
        await deployment.ready(60.0)
        cluster.no_forwards = (403, "the role has changed")
        await fails(deployment)
        await deployment.refresh()
        assert deployment.servers[0].gone is None
        cluster.no_forwards = None
        await deployment.ready(60.0)


@pytest.mark.slow
async def test_a_backend_that_cannot_be_dialled_is_the_reason_of_a_server_that_is_not_ready(
    provider: Make, cluster: Cluster
) -> None:
    cluster.no_forwards = (500, "error dialing backend: dial tcp 192.0.2.2:10250: i/o timeout")
    async with await provider(reach="forward").launch(serving()) as deployment:
        with pytest.raises(NotReady, match="answers 500 to a port-forward: error dialing backend: dial tcp"):
            await deployment.ready(3.0)
        cluster.no_forwards = None
        await deployment.ready(60.0)


# Credentials.


@pytest.mark.slow
async def test_new_credentials_are_looked_for_when_the_old_ones_end(provider: Make, cluster: Cluster) -> None:
    async with await provider().launch(serving()) as deployment:
        await deployment.ready(15.0)
        cluster.token = "another-token"
        write_kubeconfig(cluster, cluster.kubeconfig)
        await deployment.ready(15.0)
        await deployment.scale(2)
        await deployment.ready(15.0)


@pytest.mark.slow
async def test_old_credentials_are_the_reason_of_a_server_that_is_not_ready(provider: Make, cluster: Cluster) -> None:
    async with await provider(reach="forward").launch(serving()) as deployment:
        await deployment.ready(60.0)
        cluster.token = "another-token"
        with pytest.raises(NotReady, match="Unauthorized"):
            await deployment.ready(3.0)
        write_kubeconfig(cluster, cluster.kubeconfig)
        await deployment.ready(60.0)
        assert deployment.servers[0].gone is None


async def test_an_account_that_may_neither_make_nor_delete_anything_leaves_nothing_to_be_removed(
    provider: Make, cluster: Cluster
) -> None:
    deployment = provider().deployment(serving())
    cluster.misbehave("(POST|DELETE) .*/(secrets|networkpolicies)", 403, times=100)
    with pytest.raises(LaunchFailed, match="creating Secret"):
        await deployment.start()
    await deployment.stop()
    assert cluster.methods("DELETE .*/(secrets|networkpolicies)") == []


@pytest.mark.slow
async def test_over_tls_and_no_copy_of_a_key_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificate(tmp_path)
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    cluster = Cluster()
    with standing_in(cluster, tmp_path, made.chain, made.key) as kubeconfig:
        provider = KubernetesProvider(kubeconfig=kubeconfig, reach="forward")
        async with await provider.launch(serving()) as deployment:
            await deployment.ready(15.0)
            assert list(copies.iterdir()) == []
        assert not [thing for thing in cluster.store.things if thing[0] == "Pod"]
    assert list(copies.iterdir()) == []


async def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    nobody = Cluster()
    nobody.url = "http://127.0.0.1:1"
    there = KubernetesProvider(kubeconfig=write_kubeconfig(nobody, tmp_path / "config"))
    with pytest.raises(ProviderBusy, match="does not answer"):
        await there.leftovers()
    (tmp_path / "odd").write_text("contexts: [")
    (tmp_path / "empty").write_text("")
    for arguments in (
        {"kubeconfig": tmp_path / "none"},
        {"kubeconfig": tmp_path / "odd"},
        {"kubeconfig": tmp_path / "empty"},
        {"kubeconfig": tmp_path / "config", "context": "other"},
    ):
        with pytest.raises(ProviderFailed, match="KUBECONFIG"):
            await KubernetesProvider(**arguments).leftovers()


async def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kr8s", None)
    monkeypatch.setitem(sys.modules, "kr8s.asyncio", None)
    with pytest.raises(MissingExtra, match="openenv\\[kubernetes\\]"):
        await KubernetesProvider().leftovers()


# Connections.


async def refused_at_first(cluster: Cluster, api: KubernetesCluster) -> None:
    cluster.misbehave("GET .*/version", 500)
    with pytest.raises(ApiFailure):
        await api.namespace()


async def let_in_anew(cluster: Cluster, api: KubernetesCluster) -> None:
    await api.text("GET", PODS)
    cluster.token = "another-token"
    write_kubeconfig(cluster, cluster.kubeconfig)
    await asyncio.gather(*(api.text("GET", PODS) for _ in range(10)))


async def renewed_while_forwarding(cluster: Cluster, api: KubernetesCluster) -> None:
    _, needed = await api.port_forward_to("one", 8000)
    forwards = await asyncio.gather(*(api.port_forward_to("one", 8000, refused=needed) for _ in range(10)))
    assert len({id(options) for _, options in forwards}) == 1
    assert len(cluster.methods("GET .*/version")) == 2


@pytest.mark.parametrize("course", [refused_at_first, let_in_anew, renewed_while_forwarding])
async def test_no_connection_is_left_open(course: Any, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.keep_alive_s = 600
    with standing_in(cluster, tmp_path) as cluster.kubeconfig:
        api = KubernetesCluster(None, cluster.kubeconfig, None)
        await course(cluster, api)
        await api.aclose()
        await until(lambda: not cluster.connections)


async def test_who_stops_breaks_no_request_of_another_provider(provider: Make, cluster: Cluster) -> None:
    first = await provider().launch(idle())
    cluster.misbehave("POST .*/pods", "slow")
    launching = asyncio.ensure_future(provider().launch(idle()))
    await until(lambda: len(cluster.methods("POST .*/pods")) == 2)
    await first.stop()
    async with await launching:
        assert len(cluster.methods("POST .*/pods")) == 2


async def test_who_looks_for_leftovers_breaks_no_request_of_another_who_does(
    provider: Make, cluster: Cluster
) -> None:
    kubernetes = provider()
    cluster.misbehave("GET .*/daemonsets", "slow")
    looking = asyncio.ensure_future(kubernetes.leftovers())
    await until(lambda: cluster.methods("GET .*/daemonsets"))
    await kubernetes.leftovers()
    await looking
    assert len(cluster.methods("GET .*/daemonsets")) == 2


# What nobody may see.


@pytest.mark.slow
async def test_secrets_go_to_the_secret_and_nowhere_else(provider: Make, cluster: Cluster) -> None:
    spec = serving(env_vars={"MODEL_TOKEN": SECRET, "HARMLESS": "what-nobody-would-guess"})
    async with await provider().launch(spec) as deployment:
        await deployment.ready(15.0)
        assert deployment.api_key is not None
        for value in (SECRET, "what-nobody-would-guess", deployment.api_key):
            told = [each.path for each in cluster.asked if value in _in_clear(each)]
            assert {path.rpartition("/")[2] for path in told} == {"secrets"}


def _in_clear(asked: Asked) -> str:
    """Everything that a request says, the values of a Secret decoded."""
    coded = (asked.body or {}).get("data", {})
    return f"{asked.body} {asked.parameters} {[base64.b64decode(value).decode() for value in coded.values()]}"
