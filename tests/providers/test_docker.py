"""What the Docker providers ask an engine for, and what they make of its answers. `tests/real` has a real engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, MissingExtra, NotReady, ProviderFailed, UsageError
from openenv.providers import DockerSwarmProvider, LaunchSpec, LocalDockerProvider, launch
from openenv.providers.owner import OwnerProcess

from .engine import Engine

pytest.importorskip("docker")
SECRETS = {"MY_TOKEN": "hush-hush"}


@pytest.fixture
def docker(engine: Engine) -> Iterator[LocalDockerProvider]:
    with LocalDockerProvider() as provider:
        yield provider


# Containers.


def test_an_episode_from_beginning_to_end(engine: Engine) -> None:
    with GenericEnvClient.from_docker_image("img:1", env_vars={"A": "b"}) as env:
        env.reset()
        assert env.step({"by": 2}).observation["total"] == 2
        asked = engine.made["container"]
    assert asked["Image"] == "img:1"
    assert asked["Name"].startswith("openenv-img-")
    assert asked["HostConfig"]["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    variables = dict(entry.split("=", 1) for entry in asked["Env"])
    assert variables.pop("OPENENV_API_KEYS").startswith("control:")
    assert variables == {"A": "b", "OPENENV_GRACE_S": "0"}
    assert asked["Labels"]["openenv.provider"] == "LocalDockerProvider"
    assert asked["Name"].startswith(asked["Labels"]["openenv.deployment"])
    assert asked["Labels"]["openenv.owner"] == str(OwnerProcess.this())
    assert engine.asked[-2:] == ["POST /containers/c1/stop", "DELETE /containers/c1"]


def test_what_else_docker_can_do(docker: LocalDockerProvider, engine: Engine) -> None:
    docker.start_container(
        "img:1", 4711, {"OPENENV_API_KEYS": "control:abc"}, mem_limit="1g", labels={"team": "a"}, name="mine"
    )
    asked = engine.made["container"]
    assert asked["HostConfig"]["PortBindings"]["8000/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": "4711"}]
    assert asked["HostConfig"]["Memory"] == 1 << 30
    assert asked["Labels"].items() >= {"team": "a", "openenv.provider": "LocalDockerProvider"}.items()
    assert (asked["Name"], docker.api_key) == ("mine", "abc")
    with pytest.raises(UsageError, match="already"):
        docker.start_container("img:1")


@pytest.mark.parametrize(
    ("image", "pulled"),
    [("other", "other:latest"), ("other:2", "other:2"), ("host:1/team/other", "host:1/team/other:latest")],
)
def test_an_image_that_is_not_here_is_pulled(
    docker: LocalDockerProvider, engine: Engine, image: str, pulled: str
) -> None:
    engine.images.clear()
    with pytest.raises(LaunchFailed):  # the name that it has is the one with its tag
        docker.start_container(image + "-nothing")
    engine.images.add(image)
    engine.images.discard(pulled)
    docker.start_container(image)
    assert engine.made["container"]["Image"] == image


def test_a_start_that_is_refused_leaves_no_container(docker: LocalDockerProvider, engine: Engine) -> None:
    engine.refusal = "port is already allocated for hush-hush"
    with pytest.raises(LaunchFailed, match=r"starting a container of img:1 failed: .*allocated for \*\*\*"):
        docker.start_container("img:1", env_vars=SECRETS)
    assert "container" not in engine.made
    engine.refusal = None
    docker.start_container("img:1")


def test_a_container_that_ended_at_once(docker: LocalDockerProvider, engine: Engine) -> None:
    engine.status, engine.log = "exited", "no model for hush-hush\n"
    with pytest.raises(LaunchFailed, match=r"exit code 7; its log ends with:\nno model for \*\*\*"):
        docker.start_container("img:1", env_vars=SECRETS)


def test_a_container_that_ends_before_it_is_ready(docker: LocalDockerProvider, engine: Engine) -> None:
    engine.port = 1
    url = docker.start_container("img:1", env_vars=SECRETS)
    engine.status, engine.log = "exited", "no model for hush-hush\n"
    with pytest.raises(LaunchFailed, match=r"exit code 7 before it was ready; .*\nno model for \*\*\*"):
        docker.wait_for_ready(url)


def test_a_container_that_is_not_ready_in_time(docker: LocalDockerProvider, engine: Engine) -> None:
    engine.port = 1
    docker.start_container("img:1")
    with pytest.raises(NotReady, match=r"within 0\.\d+ s(.|\n)*ends with:\nup"):
        docker.wait_for_ready("http://127.0.0.1:1", 0.3)
    docker.stop_container()
    with pytest.raises(UsageError, match="start it first"):
        docker.wait_for_ready("http://127.0.0.1:1", 5.0)


def test_a_container_that_somebody_else_removed(docker: LocalDockerProvider, engine: Engine) -> None:
    docker.start_container("img:1")
    engine.made.clear()
    docker.stop_container()
    docker.stop_container()


def test_a_container_that_would_not_stop_is_removed_by_force(docker: LocalDockerProvider, engine: Engine) -> None:
    engine.clinging = "cannot stop it"
    docker.start_container("img:1")
    docker.stop_container()
    assert "container" not in engine.made


def test_a_client_that_was_given_no_provider_leaves_no_connection_to_the_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []

    class Leaving(LocalDockerProvider):
        def close(self) -> None:
            super().close()
            left.append("closed")

    monkeypatch.setattr(launch, "LocalDockerProvider", Leaving)
    GenericEnvClient.from_docker_image("img:1").close()
    assert left == ["closed"]
    with Leaving() as mine:
        GenericEnvClient.from_docker_image("img:1", mine).close()
        assert left == ["closed"]


@pytest.mark.parametrize("options", [{"name": "mine"}, {"host_port": 4711}])
def test_a_second_one_cannot_have_the_name_or_the_port_of_the_first(
    docker: LocalDockerProvider, engine: Engine, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="leave out both"):
        docker.deployment(LaunchSpec(image="img:1", options=options, replicas=2))
    with asyncio.run(docker.launch(LaunchSpec(image="img:1", options=options))) as made:
        with pytest.raises(UsageError, match="leave out both"):
            made.wait(made.scale(2))
        assert len(made.urls) == 1
        assert "container" in engine.made


def test_an_argument_that_there_is_not(docker: LocalDockerProvider) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        docker.start_container("img:1", nonsense=1)


# Engines.


@pytest.mark.parametrize("provider", [LocalDockerProvider, DockerSwarmProvider])
@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "unix:///nowhere/docker.sock"])
def test_no_engine(provider: Any, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(ProviderFailed, match="DOCKER_HOST"):
        provider()


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtra, match=r"openenv\[docker\]"):
        GenericEnvClient.from_docker_image("img")


def test_a_program_that_ends_removes_its_container(engine: Engine) -> None:
    program = "from openenv.providers import LocalDockerProvider as P; p = P(); p.start_container('img:1')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert engine.asked[-1] == "DELETE /containers/c1"
    assert "container" not in engine.made
