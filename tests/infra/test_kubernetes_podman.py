"""The manifests of a Pod and its Secret, as podman runs them: with the limits that a cluster would set."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openenv
from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError
from openenv.providers.kubernetes import manifests
from openenv.providers.kubernetes.manifests import PodOptions, PodWorkload
from openenv.providers.readiness import until_ready
from openenv.providers.spec import Resources

pytestmark = pytest.mark.real

IMAGE = "localhost/openenv-empty:1"
KEY = "a-key-that-is-long-enough"
# An image with nothing in it, and this machine's own Python: nothing is downloaded.
SOURCES = str(Path(openenv.__file__).parents[1])
PLACES = [
    place
    for place in dict.fromkeys(["/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, SOURCES])
    if Path(place).exists()
]
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Podman:
    """Podman with storage of its own."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._variables = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "CONTAINERS_CONF": str(folder / "containers.conf"),
        }
        self._places = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
        (folder / "containers.conf").write_text(_CONFIGURATION)

    def __call__(self, *arguments: str, check: bool = True) -> str:
        command = ["podman", *self._places, "--storage-driver", "vfs", *arguments]
        done = subprocess.run(
            command, env=self._variables, capture_output=True, text=True, check=False, timeout=60, cwd=self._folder
        )
        if check and done.returncode != 0:
            raise AssertionError(f"podman {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", name))[0]
        return found


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    folder = tmp_path_factory.mktemp("podman")
    podman = Podman(folder)
    with tarfile.open(folder / "empty.tar", mode="w") as tar:
        for name in ("tmp", "etc", "proc", "dev", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            tar.addfile(entry, io.BytesIO())
    try:
        podman("import", str(folder / "empty.tar"), IMAGE)
        podman(
            "run",
            "--rm",
            "-v",
            "/usr:/usr:ro",
            "-v",
            "/lib:/lib:ro",
            "-v",
            "/lib64:/lib64:ro",
            IMAGE,
            "/usr/bin/true",
        )
    except AssertionError as error:
        pytest.skip(f"podman runs no containers here: {error}")
    yield podman
    podman("pod", "rm", "--all", "--force", "--time", "0", check=False)


def workload(command: list[str], **variables: str) -> PodWorkload:
    mounts = [
        {"name": f"place-{number}", "mountPath": place, "readOnly": True} for number, place in enumerate(PLACES)
    ]
    volumes = [{"name": f"place-{number}", "hostPath": {"path": place}} for number, place in enumerate(PLACES)]
    return PodWorkload(
        name="openenv-echo",
        image=IMAGE,
        command=command,
        selector={"openenv.deployment": "openenv-echo"},
        labels={"openenv.deployment": "openenv-echo"},
        variables={
            "OPENENV_API_KEYS": f"control:{KEY}",
            "PYTHONPATH": SOURCES,
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        },
        resources=Resources(memory="256m"),
        options=PodOptions(pod={"volumes": volumes}, container={"volumeMounts": mounts}, pull_policy="Never"),
    )


@pytest.fixture
def play(podman: Podman, tmp_path: Path) -> Iterator[Any]:
    """Runs a workload's Pod; its container's name and its address."""
    file = tmp_path / "pod.yaml"

    def play(of: PodWorkload, name: str) -> tuple[str, str]:
        # Podman before 4.4 reads Secrets of manifests for volumes alone, and this form of them for variables.
        file.write_text(json.dumps(manifests.secret(of)["data"]))
        podman("secret", "create", of.name, str(file))
        file.write_text(json.dumps(manifests.pod(of, name)))
        podman("play", "kube", str(file))
        infra = podman.inspect(f"{name}-{manifests.CONTAINER}")["Pod"]
        networks = podman.inspect(json.loads(podman("pod", "inspect", infra))["InfraContainerID"])["NetworkSettings"]
        (network,) = networks["Networks"].values()
        return f"{name}-{manifests.CONTAINER}", f"http://{network['IPAddress']}:{of.port}"

    yield play
    podman("pod", "rm", "--all", "--force", "--time", "0", check=False)
    podman("secret", "rm", "openenv-echo", check=False)


SERVE = [sys.executable, "-m", "openenv", "serve", "echo"]
# What it is allowed to do, told by itself.
_CONFESSION = """
import os, pathlib
def may(path):
    try:
        pathlib.Path(path).write_text("x")
        return True
    except OSError:
        return False
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print(os.getuid(), may("/etc/x"), may("/tmp/of-its-own"), int(status["CapEff"], 16), status["NoNewPrivs"].strip(),
      status["Seccomp"].strip(), flush=True)
"""


async def test_an_episode_in_a_pod_with_the_key_of_its_secret(play: Any) -> None:
    _, url = play(workload(SERVE), "openenv-echo-a")
    await until_ready(url, 15.0, api_key=KEY)
    async with GenericEnvClient(url, api_key=KEY) as env:
        await env.reset()
        assert (await env.step({"message": "hi"})).observation["echoed_message"] == "hi"
    with pytest.raises(OpenEnvError, match="key"):
        async with GenericEnvClient(url) as env:
            await env.reset()


def test_a_server_can_do_no_more_than_it_needs(play: Any, podman: Podman) -> None:
    container, _ = play(workload([sys.executable, "-c", f"exec({_CONFESSION!r})"]), "openenv-echo-b")
    podman("wait", container)
    user, root, tmp, capabilities, no_new, seccomp = podman("logs", container).split()
    assert (int(user) > 0, root, tmp, capabilities, no_new) == (True, "False", "True", "0", "1")
    assert seccomp == "2"
    assert podman.inspect(container)["HostConfig"]["Memory"] == 256 * 1024 * 1024


async def test_episodes_end_before_their_pod_does(play: Any, podman: Podman) -> None:
    container, url = play(workload(SERVE, OPENENV_GRACE_S="30"), "openenv-echo-c")
    await until_ready(url, 15.0, api_key=KEY)
    async with GenericEnvClient(url, api_key=KEY) as env:
        await env.reset()
        podman("kill", "--signal", "TERM", container)
        for number in range(3):
            assert (await env.step({"message": str(number)})).observation["echoed_message"] == str(number)
        assert podman.inspect(container)["State"]["Running"]
    ended = threading.Event()
    threading.Thread(target=lambda: (podman("wait", container), ended.set())).start()
    began = time.monotonic()
    assert ended.wait(15.0)  # long before its grace is over: the last episode has ended
    assert time.monotonic() - began < 15.0
    assert podman.inspect(container)["State"]["ExitCode"] == 0
