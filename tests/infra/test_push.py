"""`openenv push --registry`, at a real registry of images."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import LaunchFailed, ProviderBusy
from openenv.project.image import PushProgress, push_image
from openenv.providers import LaunchSpec, LocalDockerProvider
from tests.infra.parts.dockerd import Dockerd, dockerd
from tests.infra.parts.image import QUICK, quick
from tests.infra.parts.registry import PASSWORD, USER, registry

pytestmark = pytest.mark.real

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[Dockerd]:
    pytest.importorskip("docker")
    with dockerd() as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.host)
        yield daemon


@pytest.fixture(scope="module")
def engine(daemon: Dockerd) -> Iterator[Any]:
    engine = daemon.client()
    quick(engine)
    yield engine
    engine.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose image has a layer of its own."""
    folder = tmp_path / "my_env"
    folder.mkdir()
    (folder / "openenv.yaml").write_text("name: My_Env\nversion: 1.2\n")
    (folder / "Dockerfile").write_text(f"FROM {QUICK.image}\nCOPY . /tmp/my_env\n")
    (folder / "weights").write_bytes(os.urandom(3 << 20))
    return folder


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration of Docker, with nothing in it."""
    folder = tmp_path / "config"
    folder.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder / "config.json"


def logged_in(config: Path, place: str, password: str) -> None:
    """As `docker login` leaves it."""
    word = base64.b64encode(f"{USER}:{password}".encode()).decode()
    config.write_text(json.dumps({"auths": {place: {"auth": word}}}))


def push(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "error", "-m", "openenv", "push", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def forget(engine: Any, *names: str) -> None:
    """Removes images, so that they are to be had from the registry alone."""
    for name in names:
        with contextlib.suppress(Exception):
            engine.images.remove(name, force=True)


def test_an_image_is_built_pushed_and_run_from_there(
    engine: Any, project: Path, tmp_path: Path, config: Path
) -> None:
    with registry(tmp_path) as place:
        outcome = push(project, "--registry", f"{place}/team", "--json")
        assert outcome.returncode == 0, outcome.stderr
        document = json.loads(outcome.stdout)
        name = f"{place}/team/my_env:1.2"
        assert document["image"] == name
        assert document["run"].endswith(name)
        assert f"pushing {name}" in outcome.stderr
        image = engine.images.get(name)
        assert image.attrs["RepoDigests"] == [document["reference"]]
        assert "ENABLE_WEB_INTERFACE=false" in image.attrs["Config"]["Env"]
        forget(engine, image.id)
        asyncio.run(played(document["reference"]))

        outcome = push(project, "--registry", f"{place}/team", "-t", "other", "--interface")
        assert outcome.returncode == 0, outcome.stderr
        assert f"pushed {place}/team/my_env:other: 2 layers, 1 of them existed already" in outcome.stdout
        assert f"docker run --rm -p 8000:8000 {place}/team/my_env:other" in outcome.stdout
        assert f'LaunchSpec(image="{place}/team/my_env@sha256:' in outcome.stdout
        image = engine.images.get(f"{place}/team/my_env:other")
        assert "ENABLE_WEB_INTERFACE=true" in image.attrs["Config"]["Env"]


async def played(reference: str) -> None:
    options: dict[str, Any] = {**QUICK.options, "command": QUICK.serve}
    with LocalDockerProvider(env_vars=QUICK.variables, **options) as provider:
        async with await provider.launch(LaunchSpec(image=reference)) as deployment:
            await deployment.ready()
            async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
                await env.reset()
                assert (await env.step({"message": "hi"})).observation["echoed_message"] == "hi"


def test_an_image_of_the_engine_s_is_pushed_and_nothing_is_built(
    engine: Any, project: Path, tmp_path: Path, config: Path
) -> None:
    (project / "Dockerfile").write_text("FROM nothing-that-there-is\n")
    with registry(tmp_path) as place:
        outcome = push(project, "--registry", place, "--image", QUICK.image)
        assert outcome.returncode == 0, outcome.stderr
        assert f"{place}/my_env:1.2" in outcome.stdout
    outcome = push(project, "--registry", place, "--image", "none:1")
    assert outcome.returncode == 1
    assert "there is no image none:1 here" in outcome.stderr


def test_who_is_not_logged_in_is_told_how(engine: Any, tmp_path: Path, config: Path) -> None:
    with registry(tmp_path, locked=True) as place:
        name = f"{place}/team/echo:1"
        with pytest.raises(LaunchFailed, match=f"`docker login {place}`") as caught:
            push_image(QUICK.image, name)
        assert "\n" not in str(caught.value)
        logged_in(config, place, "wrong-wrong-wrong")
        with pytest.raises(LaunchFailed, match=f"`docker login {place}`") as caught:
            push_image(QUICK.image, name)
        assert "wrong-wrong" not in str(caught.value)
        assert engine.images.list(name=f"{place}/team/echo") == []  # what was not pushed is not named so
        logged_in(config, place, PASSWORD)
        assert push_image(QUICK.image, name).digest.startswith("sha256:")


def test_a_registry_that_takes_no_images(engine: Any, tmp_path: Path, config: Path) -> None:
    with registry(tmp_path, readonly=True) as place, pytest.raises(LaunchFailed, match="--registry") as caught:
        push_image(QUICK.image, f"{place}/echo:1")
    assert not isinstance(caught.value, ProviderBusy)


def test_a_registry_that_is_not_there(engine: Any, config: Path) -> None:
    with pytest.raises(ProviderBusy, match="check 127.0.0.1:1, and whether the engine reaches it"):
        push_image(QUICK.image, "127.0.0.1:1/echo:1")


def test_a_caller_that_gives_up_ends_the_push(engine: Any, project: Path, tmp_path: Path, config: Path) -> None:
    def give_up(_: PushProgress) -> None:
        raise KeyboardInterrupt

    with registry(tmp_path) as place:
        with pytest.raises(KeyboardInterrupt):
            push_image(QUICK.image, f"{place}/echo:1", give_up)
        assert engine.images.list(name=f"{place}/echo") == []
        assert push_image(QUICK.image, f"{place}/echo:1").digest
