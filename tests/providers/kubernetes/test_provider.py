"""What users ask of the provider, and what is asked of the cluster for it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, UsageError
from openenv.providers import KubernetesProvider, LaunchSpec, Resources
from openenv.providers.kubernetes import provider as access
from openenv.providers.kubernetes import provider as module
from openenv.providers.owner import OWNER, OwnerProcess

from ...ports import held_port
from .api import NAMESPACE, Cluster, standing_in, write_kubeconfig
from .conftest import Make

SERVE = [sys.executable, "-m", "openenv.testing.misbehaving", "serve"]
IDLE = ["sleep", "1000"]


def pods_of(cluster: Cluster) -> list[dict[str, Any]]:
    return [thing for (kind, _, _), thing in list(cluster.store.things.items()) if kind == "Pod"]


# The names that existing code calls.


def test_an_episode_from_a_plain_program(provider: Make, cluster: Cluster) -> None:
    with GenericEnvClient.from_docker_image("any:1", provider(namespace=NAMESPACE), command=SERVE) as env:
        env.reset()
        assert env.step({"message": "hi"}).observation["message"] == "hi"
        with pytest.raises(RuntimeError, match="key"):  # Pods can be reached by all of the cluster
            GenericEnvClient(env.base_url).reset()


def test_a_container_as_existing_code_starts_it(provider: Make, cluster: Cluster) -> None:
    with held_port() as port:
        with provider() as kubernetes:
            variables = {"OPENENV_API_KEYS": "control:a-key-that-is-long-enough"}
            url = kubernetes.start_container(
                "any:1", port, variables, command=SERVE, cpu_limit=0.5, memory_limit="256m", annotations={"a": "b"}
            )
            assert url == f"http://127.0.0.1:{port}"
            assert kubernetes.api_key == "a-key-that-is-long-enough"
            kubernetes.wait_for_ready(url, 20.0)
            (pod,) = pods_of(cluster)
            assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "500m", "memory": "256Mi"}
            assert pod["metadata"]["annotations"] == {"a": "b"}
            with pytest.raises(UsageError, match="already"):
                kubernetes.start_container("any:1")
            kubernetes.stop_container()
            kubernetes.stop_container()
        with provider() as kubernetes, socket.create_server(("127.0.0.1", port)):
            with pytest.raises(LaunchFailed, match=f"port {port} of this machine"):
                kubernetes.start_container("any:1", port, command=SERVE)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"reach": "telepathy"}, "reach"),
        ({"colour": "red"}, "colour"),
        ({"user": 0}, "user"),
    ],
)
def test_arguments_of_no_such_value(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        KubernetesProvider(**arguments)


async def test_specifications_that_cannot_be_met_start_nothing(provider: Make, cluster: Cluster) -> None:
    for spec, named in (
        (LaunchSpec(target="echo"), "target"),
        (LaunchSpec(image="a", resources=Resources(processes=3)), "processes"),
        (LaunchSpec(image="a", options={"colour": "red"}), "colour"),
        (LaunchSpec(image="a", options={"pull_policy": "Sometimes"}), "pull_policy"),
        (LaunchSpec(image="a", env_vars={"not a name": "x"}), "not a name"),
        (LaunchSpec(image="a", replicas=2, options={"local_port": 9000}), "local_port"),
    ):
        with pytest.raises(UsageError, match=named):
            await provider().launch(spec)
    assert cluster.asked == []


# What the cluster is asked.


async def test_what_a_deployment_is_made_of_and_who_it_belongs_to(provider: Make, cluster: Cluster) -> None:
    options = {"prepull": True, "labels": {"team": "a"}}
    async with await provider(runtime_class="gvisor").launch(
        LaunchSpec(image="any:1", command=IDLE, replicas=2, options=options, resources=Resources(gpus=1))
    ) as deployment:
        made = {(kind, name) for kind, _, name in list(cluster.store.things) if kind not in {"Namespace", "Pod"}}
        name = deployment.name
        assert made == {("Secret", name), ("NetworkPolicy", name), ("DaemonSet", f"{name}-image")}
        for thing in list(cluster.store.things.values()):
            if thing["kind"] != "Namespace":
                labels = thing["metadata"]["labels"]
                assert labels.items() >= {**deployment.labels, "team": "a"}.items()
        pods = pods_of(cluster)
        assert sorted(pod["metadata"]["name"] for pod in pods) == sorted(each.name for each in deployment.servers)
        assert all(pod["spec"]["runtimeClassName"] == "gvisor" for pod in pods)
        assert [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods] == [{"nvidia.com/gpu": "1"}] * 2


async def test_many_pods_are_watched_over_one_connection(provider: Make, cluster: Cluster) -> None:
    kubernetes = provider()
    async with await kubernetes.launch(LaunchSpec(image="any:1", command=IDLE, replicas=20)) as deployment:
        for _ in range(20):
            await deployment.refresh()
        assert all(server.gone is None for server in deployment.servers)
        looks = [each for each in cluster.asked if each.method == "GET" and "/pods/" in each.path]
        assert len(looks) == 0
        assert sum(each.parameters.get("watch") == "true" for each in cluster.asked) == 1


def test_where_there_is_no_cluster_nothing_is_said_to_be_left(tmp_path: Path) -> None:
    code = (
        "from openenv.providers import deploy\n"
        "from openenv.providers import KubernetesProvider, LaunchSpec\n"
        "with deploy(LaunchSpec(image='any:1'), KubernetesProvider()):\n"
        "    pass\n"
    )
    nowhere = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    outcome = subprocess.run(
        [sys.executable, "-c", code], env=nowhere, capture_output=True, text=True, check=False, timeout=60
    )
    assert "openenv.errors.ProviderFailed: no Kubernetes cluster is configured" in outcome.stderr
    assert "was not removed" not in outcome.stderr


async def test_nothing_is_asked_for_what_was_never_started(provider: Make, cluster: Cluster) -> None:
    deployment = provider().deployment(LaunchSpec(image="any:1"))
    await deployment.stop()
    assert cluster.asked == []


async def test_from_within_the_cluster_everything_goes_with_the_pod_of_the_trainer(
    provider: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "trainer-0")
    trainer = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer-0"}, "spec": {}}
    cluster.on_loop(lambda: cluster.store.put(trainer, NAMESPACE))
    async with await provider(reach=None).launch(LaunchSpec(image="any:1", command=IDLE)) as deployment:
        assert re.fullmatch(r"http://127\.[0-9.]+:8000", deployment.url)  # the address of the Pod
        assert not deployment.url.startswith("http://127.0.0.1")
        made = [thing for (kind, _, name), thing in list(cluster.store.things.items()) if name.startswith("openenv")]
        assert {thing["kind"] for thing in made} == {"Pod", "Secret", "NetworkPolicy"}
        for thing in made:
            assert thing["metadata"]["ownerReferences"][0]["uid"] == trainer["metadata"]["uid"]
    cluster.on_loop(lambda: cluster.store.remove(trainer))


# What a killed trainer leaves.

_TRAINER = """
import asyncio, sys
from openenv.providers import KubernetesProvider, LaunchSpec

async def main():
    provider = KubernetesProvider(kubeconfig=sys.argv[1], reach="forward")
    await provider.launch(LaunchSpec(image="any:1", command=["sleep", "1000"], replicas=2))
    print("there", flush=True)
    await asyncio.sleep(float(sys.argv[2]))

asyncio.run(main())
"""


def trainer_on(cluster: Cluster, seconds: float = 600.0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _TRAINER, str(cluster.kubeconfig), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def gc(cluster: Cluster) -> str:
    """What `openenv providers gc` says that it has removed."""
    command = [sys.executable, "-m", "openenv", "providers", "gc", "--provider", "kubernetes"]
    here = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(command, env=here, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_a_program_forgets_goes_with_it(tmp_path: Path, interrupted: bool) -> None:
    """Also when it has to connect anew for that, to a cluster that has a name and no address."""
    cluster = Cluster()
    cluster.keep_alive_s = 0
    with standing_in(cluster, tmp_path) as cluster.kubeconfig:
        cluster.url = cluster.url.replace("127.0.0.1", "localhost")
        write_kubeconfig(cluster, cluster.kubeconfig)
        trainer = trainer_on(cluster, 600.0 if interrupted else 0.3)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"there\n"
        if interrupted:
            trainer.send_signal(signal.SIGINT)
        said = trainer.stdout.read().decode()
        trainer.wait()
        trainer.stdout.close()
        assert "not removed" not in said
        assert {kind for kind, _, _ in cluster.store.things} == {"Namespace"}


@pytest.mark.slow
async def test_what_a_killed_trainer_left_is_found_and_removed_and_nothing_else(
    provider: Make, cluster: Cluster
) -> None:
    kubernetes = provider()
    async with await kubernetes.launch(LaunchSpec(image="any:1", command=IDLE)) as mine:
        trainer = trainer_on(cluster)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"there\n"
        assert all(each.owner is not None and each.owner.alive for each in await kubernetes.leftovers())
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
        dead = [each for each in await kubernetes.leftovers() if each.owner is not None and each.owner.alive is False]
        assert sorted(each.kind for each in dead) == ["NetworkPolicy", "Pod", "Pod", "Secret"]
        told = await asyncio.to_thread(gc, cluster)
        assert all(each.name in told for each in dead)
        assert mine.name not in told
        for each in dead:
            await kubernetes.discard(each)  # what is gone already is no error
        left = {each.deployment for each in await kubernetes.leftovers()}
        assert left == {mine.name}
        assert mine.servers[0].gone is None


async def test_another_object_of_a_name_that_was_found_is_left_alone(provider: Make, cluster: Cluster) -> None:
    kubernetes = provider()
    async with await kubernetes.launch(LaunchSpec(image="any:1", command=IDLE)):
        found = await kubernetes.leftovers()
        for (kind, _, _), thing in list(cluster.store.things.items()):
            if kind != "Namespace":
                cluster.on_loop(lambda thing=thing: thing["metadata"].update(uid="another"))
        for each in found:
            await kubernetes.discard(each)
        assert len(await kubernetes.leftovers()) == len(found)
        for pod in pods_of(cluster):
            cluster.on_loop(lambda pod=pod: cluster.store.remove(pod))


async def test_an_owner_that_nobody_can_read_is_no_ones(provider: Make, cluster: Cluster) -> None:
    kubernetes = provider()
    labels = {"openenv.provider": "KubernetesProvider", OWNER: "somebody"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "labels": labels}}
    cluster.on_loop(lambda: cluster.store.put(secret, NAMESPACE))
    (found,) = await kubernetes.leftovers()
    assert (found.kind, found.name, found.owner) == ("Secret", "a", None)
    await kubernetes.discard(found)


# Ports of this machine that lead to Pods.


async def test_connections_end_with_their_pod_and_come_back_with_none(provider: Make, cluster: Cluster) -> None:
    async with await provider().launch(LaunchSpec(image="any:1", command=SERVE)) as deployment:
        await deployment.ready(20.0)
        host, port = deployment.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10.0) as idle:
            (pod,) = pods_of(cluster)
            cluster.on_loop(lambda: cluster.kubelet.end(pod, 0))
            assert idle.recv(1) == b""
        asked = len(cluster.methods("WS"))
        with socket.create_connection((host, int(port)), timeout=10.0) as refused:
            assert refused.recv(1) == b""
        # Asked once: a Pod that is gone is not asked for again and again.
        assert len(cluster.methods("WS")) == asked + 1
        began = time.monotonic()
        await deployment.stop()
        assert time.monotonic() - began < 5.0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))


async def test_much_goes_through_a_forwarded_port_both_ways(provider: Make, cluster: Cluster) -> None:
    async with await provider().launch(LaunchSpec(image="any:1", command=SERVE)) as deployment:
        await deployment.ready(20.0)
        async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
            await env.reset()
            much = "x" * 5_000_000
            assert (await env.step({"message": much})).observation["message"] == much


def test_this_process_is_an_owner_that_a_label_can_name() -> None:
    assert OwnerProcess.read(str(OwnerProcess.this())) is not None
    assert len(str(OwnerProcess.this())) <= 63
