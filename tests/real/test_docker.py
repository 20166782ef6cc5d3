"""Servers in containers, on a Docker engine that is there (DOCKER_HOST, or this machine's)."""

from __future__ import annotations

import io
import socket
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import openenv
from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, NotReady, ProviderFailed, StepTimeout, UsageError
from openenv.providers import DockerSwarmProvider, LocalDockerProvider
from openenv.providers.engine import LABEL, connected

from ..server.wires import eventually

pytestmark = pytest.mark.real

REPOSITORY = "openenv-test-empty"
IMAGE = f"{REPOSITORY}:1"
# An image with nothing in it, and this machine's own Python: nothing is downloaded.
PLACES = ["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(Path(openenv.__file__).parents[1])]
VOLUMES = {place: {"bind": place, "mode": "ro"} for place in dict.fromkeys(PLACES) if Path(place).exists()}
PYTHON = [sys.executable, "-c"]
SERVE = [sys.executable, "-m", "openenv", "serve", "echo", "--host", "0.0.0.0", "--port", "8000"]
HERE: dict[str, Any] = {"volumes": VOLUMES, "command": SERVE, "working_dir": "/"}
VARIABLES = {"PYTHONPATH": PLACES[-1], "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    pytest.importorskip("docker")
    try:
        engine = connected()
    except ProviderFailed as error:
        pytest.skip(str(error))
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name in ("tmp", "etc", "proc", "dev", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry)
    engine.api.import_image_from_data(tree.getvalue(), repository=REPOSITORY, tag="1")
    yield engine
    engine.close()


@pytest.fixture
def provider(engine: Any) -> Iterator[LocalDockerProvider]:
    with LocalDockerProvider() as provider:
        yield provider
    assert engine.containers.list(all=True, filters={"label": LABEL}) == []


def test_an_episode_in_a_container_from_a_plain_program(provider: LocalDockerProvider, engine: Any) -> None:
    env = GenericEnvClient.from_docker_image(IMAGE, provider, env_vars=VARIABLES, **HERE)
    env.reset()
    assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
    (container,) = engine.containers.list(filters={"label": LABEL})
    assert container.name.startswith("openenv-openenv-test-empty-")
    assert container.ports["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    env.close()
    assert engine.containers.list(all=True, filters={"label": LABEL}) == []
    env.close()


async def test_in_an_asynchronous_block(engine: Any) -> None:
    async with GenericEnvClient.from_docker_image(IMAGE, env_vars=VARIABLES, **HERE) as env:
        assert (await env.reset()).done is False
    assert engine.containers.list(all=True, filters={"label": LABEL}) == []


def test_containers_from_several_threads(engine: Any) -> None:
    def play(number: int) -> str:
        with GenericEnvClient.from_docker_image(IMAGE, env_vars=VARIABLES, **HERE) as env:
            env.reset()
            echoed: str = env.step({"message": str(number)}).observation["echoed_message"]
            return echoed

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(play, range(4))) == ["0", "1", "2", "3"]
    assert engine.containers.list(all=True, filters={"label": LABEL}) == []


def test_a_key_for_the_server_is_shown_by_the_client(provider: LocalDockerProvider) -> None:
    variables = VARIABLES | {"OPENENV_API_KEYS": "control:a-key-that-is-long-enough"}
    with GenericEnvClient.from_docker_image(IMAGE, provider, env_vars=variables, **HERE) as env:
        env.reset()
        with pytest.raises(RuntimeError, match="key"):
            GenericEnvClient(env.base_url).reset()


def test_a_container_that_ends_says_why_at_once(provider: LocalDockerProvider) -> None:
    command = [*PYTHON, "import os, sys; print('no model at', os.environ['MODEL_TOKEN']); sys.exit(7)"]
    variables = VARIABLES | {"MODEL_TOKEN": "hush-hush"}
    with pytest.raises(LaunchFailed, match="exit code 7") as caught:
        GenericEnvClient.from_docker_image(
            IMAGE, provider, env_vars=variables, ready_timeout_s=60.0, **HERE | {"command": command}
        )
    assert "no model at ***" in str(caught.value)
    assert "hush-hush" not in str(caught.value)


def test_a_container_that_never_becomes_ready(provider: LocalDockerProvider) -> None:
    command = [
        *PYTHON,
        "import signal, sys; signal.signal(15, sys.exit); print('thinking', flush=True); signal.pause()",
    ]
    with pytest.raises(NotReady, match=r"within 1 s(.|\n)*thinking"):
        GenericEnvClient.from_docker_image(
            IMAGE, provider, env_vars=VARIABLES, ready_timeout_s=1.0, **HERE | {"command": command}
        )


def test_a_server_that_is_killed_leaves_no_container(provider: LocalDockerProvider, engine: Any) -> None:
    env = GenericEnvClient.from_docker_image(IMAGE, provider, env_vars=VARIABLES, connect_timeout_s=1.0, **HERE)
    env.reset()
    (container,) = engine.containers.list(filters={"label": LABEL})
    container.remove(force=True)
    with pytest.raises(StepTimeout, match="connection is lost"):
        env.step({"message": "hi"}, timeout_s=2.0)
    env.close()


def test_an_image_that_there_is_not(provider: LocalDockerProvider) -> None:
    with pytest.raises(LaunchFailed, match="127.0.0.1:1/nothing"):
        provider.start_container("127.0.0.1:1/nothing:here")


def test_what_is_no_argument_and_what_runs_already(provider: LocalDockerProvider) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        provider.start_container(IMAGE, nonsense=1, command=["x"])
    with pytest.raises(LaunchFailed, match="nothing-to-run"):
        provider.start_container(IMAGE, command=["/nothing-to-run"])
    provider.start_container(IMAGE, env_vars=VARIABLES, **HERE)
    with pytest.raises(UsageError, match="already"):
        provider.start_container(IMAGE)


def test_a_port_of_ones_own_and_one_that_is_taken(provider: LocalDockerProvider) -> None:
    url = provider.start_container(IMAGE, env_vars=VARIABLES, **HERE)
    port = int(url.rpartition(":")[2])
    with LocalDockerProvider() as other, pytest.raises(LaunchFailed, match="allocated|in use"):
        other.start_container(IMAGE, port, env_vars=VARIABLES, **HERE)
    provider.stop_container()
    provider.stop_container()
    assert provider.start_container(IMAGE, port, env_vars=VARIABLES, **HERE) == url
    provider.wait_for_ready(url)


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    for provider in (LocalDockerProvider, DockerSwarmProvider):
        with pytest.raises(ProviderFailed, match="DOCKER_HOST"):
            provider()


# Swarms.


@pytest.fixture(scope="module")
def own_swarm(engine: Any) -> Iterator[None]:
    """A swarm for these tests, and none after them."""
    if engine.info()["Swarm"]["LocalNodeState"] == "active":
        pytest.skip("this engine is in a swarm already, which is left alone")
    with pytest.raises(ProviderFailed, match="auto_init_swarm"):
        DockerSwarmProvider(auto_init_swarm=False)
    DockerSwarmProvider().close()
    yield
    engine.swarm.leave(force=True)


@pytest.fixture
def swarm(own_swarm: None, engine: Any) -> Iterator[DockerSwarmProvider]:
    with DockerSwarmProvider(auto_init_swarm=False) as provider:
        yield provider
    assert engine.services.list(filters={"label": LABEL}) == []
    eventually(lambda: engine.containers.list() == [])


MOUNTED: dict[str, Any] = {"command": SERVE, "mounts": [f"{place}:{place}:ro" for place in VOLUMES]}


def task_of(engine: Any) -> tuple[Any, Any]:
    (service,) = engine.services.list(filters={"label": LABEL})
    return service, service.attrs["Spec"]["TaskTemplate"]


def test_what_a_service_is_asked_for(own_swarm: None, engine: Any) -> None:
    with DockerSwarmProvider(overlay_network="openenv-test") as swarm:
        url = swarm.start_container(
            IMAGE,
            env_vars=VARIABLES,
            replicas=2,
            cpu_limit=0.5,
            memory_limit="512m",
            labels={"team": "a"},
            constraints=["node.role==manager"],
            **MOUNTED,
        )
        service, task = task_of(engine)
        assert url == f"http://127.0.0.1:{service.attrs['Endpoint']['Ports'][0]['PublishedPort']}"
        assert service.attrs["Spec"]["Mode"]["Replicated"]["Replicas"] == 2
        assert task["Resources"]["Limits"] == {"NanoCPUs": 500_000_000, "MemoryBytes": 512 * 1024 * 1024}
        assert task["Placement"]["Constraints"] == ["node.role==manager"]
        assert service.attrs["Spec"]["Labels"]["team"] == "a"
        assert len(task["Networks"]) == 1
        eventually(lambda: [state["Status"]["State"] for state in service.tasks()] == ["running"] * 2)
        with pytest.raises(UsageError, match="already"):
            swarm.start_container(IMAGE)
    eventually(lambda: engine.containers.list() == [])
    engine.networks.get("openenv-test").remove()


@pytest.mark.parametrize("mode", ["ingress", "host"])
def test_an_episode_in_a_swarm(swarm: DockerSwarmProvider, engine: Any, mode: str) -> None:
    more: dict[str, Any] = {}
    if mode == "host":
        from docker.types import EndpointSpec

        with socket.create_server(("127.0.0.1", 0)) as finder:
            port = finder.getsockname()[1]
        published = {"Protocol": "tcp", "TargetPort": 8000, "PublishedPort": port, "PublishMode": "host"}
        more = {"endpoint_spec": EndpointSpec(ports=[published])}
    elif not Path("/proc/net/ip_vs").exists():
        pytest.skip("this kernel has no IPVS, which swarms reach their containers by")
    with GenericEnvClient.from_docker_image(
        IMAGE, swarm, env_vars=VARIABLES, ready_timeout_s=60.0, **MOUNTED, **more
    ) as env:
        env.reset()
        assert env.step({"message": "hi"}).observation["echoed_message"] == "hi"
        with pytest.raises(RuntimeError, match="key"):  # a swarm is open to other machines
            GenericEnvClient(env.base_url).reset()


def test_a_service_that_fails_says_why(swarm: DockerSwarmProvider) -> None:
    with pytest.raises(LaunchFailed, match="was (failed|rejected)"):
        GenericEnvClient.from_docker_image(IMAGE, swarm, command=["/nothing-to-run"], ready_timeout_s=60.0)
    with pytest.raises(UsageError, match="replicas"):
        swarm.start_container(IMAGE, replicas=0)
