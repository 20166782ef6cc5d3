"""Servers as services of a swarm of two engines, each in a network namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady, ProviderFailed
from openenv.providers import Deployment, DockerSwarmProvider, LaunchSpec, Provider, Resources
from openenv.providers.owner import DEPLOYMENT, PROVIDER
from openenv.providers.swarm_api import mesh_works
from openenv.testing import ProviderConformance

from ..server.wires import eventually
from .parts.dockerd import dockerd
from .parts.image import QUICK, quick
from .parts.swarm import Node, everywhere, swarm_of

pytestmark = pytest.mark.real

# With an init, what is stopped before it listens ends at once.
OPTIONS: dict[str, Any] = {"mounts": QUICK.mounts, "workdir": "/", "init": True}
ECHO = LaunchSpec(image=QUICK.image, command=QUICK.serve, env_vars=QUICK.variables, options=OPTIONS)
GPU = "NVIDIA-GPU"


def patient(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Gives a test with many starts more time than coroutines have."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 60.0))

    return run


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    pytest.importorskip("docker")
    with swarm_of(2, ["--node-generic-resource", f"{GPU}=one", "--node-generic-resource", f"{GPU}=two"]) as nodes:
        everywhere(nodes)
        yield nodes


@pytest.fixture(autouse=True)
def manager(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The first node's engine, which DOCKER_HOST names; after each test, nothing is on any of them."""
    monkeypatch.setenv("DOCKER_HOST", nodes[0].engine.host)
    with contextlib.closing(nodes[0].engine.client()) as client:
        yield client
        assert client.services.list() == []
    eventually(lambda: containers_of(nodes) == [])


@pytest.fixture
def swarm() -> Iterator[DockerSwarmProvider]:
    with contextlib.closing(DockerSwarmProvider(publish="host", auto_init_swarm=False)) as provider:
        yield provider


def containers_of(nodes: list[Node], label: str = PROVIDER) -> list[Any]:
    found = []
    for node in nodes:
        with contextlib.closing(node.engine.client()) as client:
            found += client.api.containers(all=True, filters={"label": label})
    return found


def kill_one_of(nodes: list[Node], deployment: Deployment, node: int) -> None:
    with contextlib.closing(nodes[node].engine.client()) as client:
        client.containers.list(filters={"label": f"{DEPLOYMENT}={deployment.name}"})[0].kill()


async def play(deployment: Deployment) -> None:
    """An episode at each server."""
    for url in deployment.urls:
        async with GenericEnvClient(url, api_key=deployment.api_key) as env:
            await env.reset()
            assert (await env.step({"message": "hi"})).observation["echoed_message"] == "hi"


@contextlib.asynccontextmanager
async def launched(provider: DockerSwarmProvider, **changes: Any) -> AsyncIterator[Deployment]:
    async with await provider.launch(ECHO.changed(**changes)) as deployment:
        yield await deployment.ready()


async def by_hand(node: Node, *command: str) -> None:
    """What somebody does at a terminal."""
    await asyncio.to_thread(
        subprocess.run, ["docker", "-H", node.engine.host, *command], check=True, capture_output=True
    )


async def followed(deployment: Deployment, holds: Callable[[], bool], limit_s: float = 15.0) -> None:
    limit = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < limit, [(server.url, server.gone) for server in deployment.servers]
        await asyncio.sleep(0.05)
        await deployment.refresh()


class TestConformance(ProviderConformance):
    ready_s = 180.0  # on a machine that does other work too
    restarts = True
    chooses = True
    moments = (0.0, 0.1, 0.4)

    def provider(self) -> Provider:
        return DockerSwarmProvider(publish="host", auto_init_swarm=False)

    def spec(self, behaviour: str) -> LaunchSpec:
        command = [sys.executable, "-m", "openenv.testing.misbehaving", behaviour]
        return ECHO.changed(command=command, env_vars={**QUICK.variables, "HOST": "0.0.0.0", "PORT": "8000"})


# Where the servers are.


@patient
async def test_scaling_leaves_the_sessions_of_the_others_alone(swarm: DockerSwarmProvider) -> None:
    async with launched(swarm, replicas=2) as deployment, contextlib.AsyncExitStack() as stack:
        before = deployment.urls
        clients = [GenericEnvClient(url, api_key=deployment.api_key) for url in before]
        for client in clients:
            await stack.enter_async_context(client)
            await client.reset()
        await deployment.scale(4)
        assert deployment.urls[:2] == before
        places = [url.rpartition(":")[0] for url in deployment.urls]
        assert len(set(deployment.urls)) == 4
        assert sorted(places) == sorted([*set(places)] * 2)  # two nodes with two each
        for client in clients:
            assert (await client.step({"message": "hi"})).observation["echoed_message"] == "hi"
            assert (await client.state())["step_count"] == 1


@patient
async def test_a_server_that_ended_is_found_again_where_the_swarm_has_started_it(
    swarm: DockerSwarmProvider, nodes: list[Node]
) -> None:
    async with launched(swarm, replicas=2) as deployment:
        before = {server.name: server.url for server in deployment.servers}
        await asyncio.to_thread(kill_one_of, nodes, deployment, 1)
        await followed(deployment, lambda: any(server.gone for server in deployment.servers))
        (gone,) = [server for server in deployment.servers if server.gone]
        assert "exit (137)" in str(gone.gone)
        assert deployment.urls == [url for name, url in before.items() if name != gone.name]
        await followed(deployment, lambda: len(deployment.urls) == 2)
        assert [server.name for server in deployment.servers] == list(before)
        assert gone.url != before[gone.name]
        await deployment.ready()
        await play(deployment)


@patient
async def test_servers_of_a_node_that_is_drained_are_found_on_the_other(
    swarm: DockerSwarmProvider, nodes: list[Node], manager: Any
) -> None:
    def set_worker(availability: str) -> None:
        (worker,) = manager.nodes.list(filters={"role": "worker"})
        worker.update({**worker.attrs["Spec"], "Availability": availability})

    async with launched(swarm, replicas=2) as deployment:
        await asyncio.to_thread(set_worker, "drain")
        try:
            on_manager = f"http://{nodes[0].address}:"
            await followed(deployment, lambda: [url.startswith(on_manager) for url in deployment.urls] == [True] * 2)
            await deployment.ready()
            await play(deployment)
        finally:
            await asyncio.to_thread(set_worker, "active")


@patient
async def test_what_others_do_to_the_service_is_seen(
    swarm: DockerSwarmProvider, nodes: list[Node], manager: Any
) -> None:
    async with launched(swarm) as deployment:
        await by_hand(nodes[0], "service", "scale", "--detach", f"{deployment.name}=2")
        await followed(deployment, lambda: len(deployment.urls) == 2)
        await deployment.ready()
        before = set(deployment.urls)
        # A rolling update starts new ones before it ends the old ones.
        await by_hand(nodes[0], "service", "update", "--detach", "--force", deployment.name)
        await followed(deployment, lambda: len(set(deployment.urls) - before) == 2)
        await deployment.ready()
        await play(deployment)
        manager.services.list()[0].remove()
        await followed(deployment, lambda: deployment.urls == [])
        with pytest.raises(ProviderFailed, match="removed from the swarm"):
            _ = deployment.url


@patient
async def test_a_port_of_ones_own_is_had_once_on_a_node(nodes: list[Node]) -> None:
    with contextlib.closing(DockerSwarmProvider(publish="host", start_timeout_s=3.0)) as swarm:
        async with launched(swarm, replicas=2, options={**OPTIONS, "published_port": 4711}) as deployment:
            assert set(deployment.urls) == {f"http://{node.address}:4711" for node in nodes}
            with pytest.raises(NotReady, match="host-mode port already in use on 2 nodes"):
                await deployment.scale(3)
            assert len(deployment.urls) == 2
            await play(deployment)


@pytest.mark.skipif(not mesh_works(), reason="this kernel has no IPVS, which the mesh is made of")
async def test_the_mesh_has_one_address_for_all() -> None:
    with contextlib.closing(DockerSwarmProvider(publish="ingress")) as swarm:
        async with launched(swarm, replicas=2) as deployment:
            assert len(deployment.urls) == 1
            await play(deployment)


@patient
async def test_addresses_in_a_network_are_for_those_who_are_in_it(nodes: list[Node], manager: Any) -> None:
    program = (
        "import asyncio, json, os, sys; from openenv.providers.readiness import until_ready\n"
        "for url in json.loads(sys.argv[1]):\n"
        "    asyncio.run(until_ready(url, 20.0, api_key=os.environ['KEY'])); print(url)\n"
    )
    with contextlib.closing(DockerSwarmProvider(publish="dnsrr", overlay_network="oe-test")) as swarm:
        deployment = await swarm.launch(ECHO.changed(replicas=2))
        async with deployment:
            assert [url.startswith("http://10.") and url.endswith(":8000") for url in deployment.urls] == [True] * 2
            assert [left.kind for left in await swarm.leftovers()] == ["service", "network"]
            (here,) = manager.containers.list()
            inside = ["nsenter", "-n", "-t", str(here.attrs["State"]["Pid"]), "--"]
            done = await asyncio.to_thread(
                lambda: subprocess.run(
                    [*inside, sys.executable, "-c", program, json.dumps(deployment.urls)],
                    env={**os.environ, "KEY": str(deployment.api_key)},
                    capture_output=True,
                    text=True,
                    timeout=30,
                    check=False,
                )
            )
            assert done.stdout.split() == deployment.urls, done.stderr
        assert await swarm.leftovers() == []
    assert manager.networks.list(names=["oe-test"]) == []


# What they may use.


async def test_limits_and_places(swarm: DockerSwarmProvider, nodes: list[Node]) -> None:
    resources = Resources(cpus=0.5, memory="300m", processes=50)
    constraints = [f"node.hostname=={nodes[1].namespace}"]
    preferences = [("spread", "node.labels.rack")]
    options = {**OPTIONS, "constraints": constraints, "preferences": preferences}
    async with launched(swarm, replicas=2, resources=resources, options=options) as deployment:
        assert {url.rpartition(":")[0] for url in deployment.urls} == {f"http://{nodes[1].address}"}
        with contextlib.closing(nodes[1].engine.client()) as client:
            limits = client.containers.list()[0].attrs["HostConfig"]
        assert (limits["NanoCpus"], limits["Memory"], limits["PidsLimit"]) == (500_000_000, 300 << 20, 50)


@patient
async def test_each_has_a_gpu_of_its_own(swarm: DockerSwarmProvider, nodes: list[Node]) -> None:
    spec = {"resources": Resources(gpus=2), "one_per_gpu": True}
    options = {**OPTIONS, "constraints": ["node.role==manager"]}
    async with launched(swarm, **spec, options=options) as deployment:
        with contextlib.closing(nodes[0].engine.client()) as client:
            given = [container.attrs["Config"]["Env"] for container in client.containers.list()]
        gpus = [entry for variables in given for entry in variables if entry.startswith(f"DOCKER_RESOURCE_{GPU}=")]
        assert sorted(gpus) == [f"DOCKER_RESOURCE_{GPU}=one", f"DOCKER_RESOURCE_{GPU}=two"]
        await play(deployment)
    with contextlib.closing(DockerSwarmProvider(publish="host", start_timeout_s=1.0)) as hasty:
        with pytest.raises(NotReady, match="no suitable node"):
            await hasty.launch(ECHO.changed(resources=Resources(gpus=3)))


async def test_secrets_of_the_swarm_are_files_there(swarm: DockerSwarmProvider, manager: Any) -> None:
    secret = manager.secrets.create(name="of-the-model", data=b"hush")
    try:
        code = "import pathlib, sys; sys.exit(pathlib.Path('/run/secrets/of-the-model').read_text() + '!')"
        with pytest.raises(LaunchFailed, match="hush!"):
            options = {**OPTIONS, "secrets": ["of-the-model"]}
            async with launched(swarm, command=QUICK.running(code), options=options):
                pass
    finally:
        secret.remove()


# What goes wrong.


async def test_an_image_that_a_node_does_not_have_is_said_at_once(
    swarm: DockerSwarmProvider, nodes: list[Node], manager: Any
) -> None:
    manager.images.get(QUICK.image).tag("only-here", "1")
    spec = {"image": "only-here:1", "options": {**OPTIONS, "constraints": ["node.role==worker"]}}
    with contextlib.closing(nodes[1].engine.client()) as worker:
        worker.images.remove(QUICK.image, force=True)
    try:
        with pytest.raises(LaunchFailed, match=r"was rejected \(No such image(.|\n)*load it on every node"):
            await swarm.launch(ECHO.changed(**spec))
    finally:
        await asyncio.to_thread(everywhere, nodes)


async def test_one_of_several_that_fails_ends_the_start_and_leaves_nothing(swarm: DockerSwarmProvider) -> None:
    variables = {**QUICK.variables, "NODE": "{{.Node.Hostname}}", "MODEL_TOKEN": "hush-hush"}
    code = (
        "import os, signal, sys, time\n"
        "if os.environ['NODE'].endswith('-2'): sys.exit('no model at ' + os.environ['MODEL_TOKEN'])\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    with pytest.raises(LaunchFailed, match=r"failed (.|\n)*no model at \*\*\*"):
        async with launched(swarm, replicas=4, command=QUICK.running(code), env_vars=variables):
            pass
    assert time.monotonic() - began < 15.0
    assert await swarm.leftovers() == []


def test_what_a_killed_trainer_has_left_is_told_from_all_else(nodes: list[Node], manager: Any) -> None:
    program = (
        "import asyncio, signal; from tests.infra.test_swarm import *\n"
        "async def main():\n"
        "    swarm = DockerSwarmProvider(publish='host', overlay_network='oe-left')\n"
        "    deployment = await swarm.launch(ECHO)\n"
        "    print(deployment.name, flush=True); signal.pause()\n"
        "asyncio.run(main())\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    try:
        left = trainer.stdout.readline().strip()
        with contextlib.closing(DockerSwarmProvider(publish="host")) as swarm:
            mine = asyncio.run(swarm.launch(ECHO))
            owners = {each.deployment: each.owner for each in asyncio.run(swarm.leftovers())}
            assert {name: owner is not None and owner.alive for name, owner in owners.items()} == {
                mine.name: True,
                left: True,
            }
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
            orphans = [each for each in asyncio.run(swarm.leftovers()) if each.owner and each.owner.alive is False]
            assert [(each.kind, each.deployment) for each in orphans] == [("service", left), ("network", left)]
            for each in orphans:
                asyncio.run(swarm.discard(each))
            assert [each.deployment for each in asyncio.run(swarm.leftovers())] == [mine.name]
            asyncio.run(mine.ready())
            asyncio.run(play(mine))
            asyncio.run(mine.stop())
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_asked_to_end_takes_its_service_along(ending: signal.Signals, manager: Any) -> None:
    program = (
        "import signal, sys; from tests.infra.test_swarm import *\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        "swarm = DockerSwarmProvider(publish='host')\n"
        "swarm.start_container(QUICK.image, command=QUICK.serve, env_vars=QUICK.variables, **OPTIONS)\n"
        "print('up', flush=True); signal.pause()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert trainer.stdout is not None
    try:
        assert trainer.stdout.readline() == "up\n"
        assert len(manager.services.list()) == 1
        trainer.send_signal(ending)
        assert trainer.wait(30) != 0
    finally:
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
    assert manager.services.list() == []


def test_a_worker_starts_nothing(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", nodes[1].engine.host)
    with contextlib.closing(DockerSwarmProvider()) as swarm:
        assert asyncio.run(swarm.leftovers()) == []
        with pytest.raises(ProviderFailed, match="set DOCKER_HOST to a manager"):
            asyncio.run(swarm.launch(ECHO))


# The names that existing code calls.


def test_an_episode_from_a_plain_program(swarm: DockerSwarmProvider, manager: Any) -> None:
    env = GenericEnvClient.from_docker_image(
        QUICK.image,
        swarm,
        replicas=2,
        env_vars=QUICK.variables,
        command=" ".join(QUICK.serve),
        ready_timeout_s=120.0,  # the machine is full of other tests
        **OPTIONS,
    )
    env.reset()
    assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    assert manager.services.list()[0].attrs["Spec"]["Mode"]["Replicated"]["Replicas"] == 2
    with pytest.raises(RuntimeError, match="key"):  # a swarm is open to other machines
        GenericEnvClient(env.base_url).reset()
    env.close()
    env.close()


def test_an_engine_that_is_in_no_swarm_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with dockerd(hostname="oe-alone") as engine, contextlib.closing(engine.client()) as client:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        quick(client)
        with pytest.raises(ProviderFailed, match="auto_init_swarm"):
            DockerSwarmProvider(auto_init_swarm=False)
        with contextlib.closing(DockerSwarmProvider(publish="host")) as swarm:
            assert client.info()["Swarm"]["LocalNodeState"] == "inactive"
            with socket.create_server(("127.0.0.1", 0)) as finder:
                port = finder.getsockname()[1]
            url = swarm.start_container(QUICK.image, port, command=QUICK.serve, env_vars=QUICK.variables, **OPTIONS)
            assert url == f"http://127.0.0.1:{port}"
            swarm.wait_for_ready(url, 120.0)
