"""Agents on a Docker engine of the tests' own, and agents in use, which `make agents` installs, in each sandbox."""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openenv.agents import AgentEnvironment, AgentOutcome, AgentProgram, AgentTask, DockerSandbox, RunAgent, Sandbox
from openenv.capture import CaptureServer
from openenv.errors import LaunchFailed
from openenv.harbor.checks import check_task
from tests.agents.contract import SandboxContract
from tests.agents.planted import PROGRAM, TESTS, planted, sum_fault
from tests.harbor.written import write_task
from tests.infra.parts.dockerd import dockerd
from tests.infra.parts.image import base_of
from tests.model_server import model_server

pytestmark = pytest.mark.real
IMAGE = "openenv-test-usr:1"
AGENTS = Path(__file__).parents[2] / "out" / "agents"


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[Any]:
    """An engine with an image that has nothing but links into /usr, which is this machine's."""
    pytest.importorskip("docker")
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name in ("tmp", "etc", "proc", "dev", "sys", "usr", "bin", "lib", "lib64"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            if name in ("bin", "lib", "lib64"):
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry)
    with dockerd() as daemon, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.host)
        engine = daemon.client()
        repository, _, tag = IMAGE.rpartition(":")
        engine.api.import_image_from_data(tree.getvalue(), repository=repository, tag=tag)
        yield engine
        engine.close()


@pytest.fixture(autouse=True)
def nothing_left(engine: Any) -> Iterator[None]:
    """No test leaves a container."""
    yield
    assert engine.containers.list(all=True) == []


class TestContract(SandboxContract):
    def sandbox(self, folder: Path | None = None, **options: Any) -> Sandbox:
        return DockerSandbox(IMAGE, folder, **{"mounts": ["/usr"], **options})


async def test_an_image_that_runs_nothing_does_not_start() -> None:
    sandbox = DockerSandbox(IMAGE)
    with pytest.raises(LaunchFailed, match=IMAGE):
        await sandbox.start()
    await sandbox.close()


@pytest.fixture
def image(request: pytest.FixtureRequest, engine: Any) -> str | None:
    """The image of a task in Docker; None for the process sandbox."""
    return base_of(engine) if request.param == "docker" else None


def solved(agent: str | AgentProgram, image: str | None, folder: Path) -> tuple[AgentOutcome, int]:
    """What an agent makes of the planted fault, and the number of recorded segments to train on."""
    with model_server(policies={"policy": sum_fault}) as model, CaptureServer(llm_url=model.url) as proxy:
        task = AgentTask(
            "sum", "Fix add in calc.py.", planted(folder), image, TESTS, "python3 /tests/check.py", timeout_s=120.0
        )
        programs = [AGENTS, AGENTS / "mini"] if isinstance(agent, str) else []
        environment = AgentEnvironment([task], agent, proxy=proxy, programs=programs, folder=folder / "kept")
        try:
            environment.reset()
            outcome = environment.step(RunAgent())
        finally:
            environment.close()
        return outcome, len(proxy.segments(outcome.session_id))


@pytest.mark.parametrize("image", ["docker"], indirect=True)
def test_a_task_has_an_image(image: str, tmp_path: Path) -> None:
    outcome, segments = solved(PROGRAM, image, tmp_path)
    assert (outcome.reward, outcome.status, outcome.model_calls, segments) == (1.0, "finished", 2, 1)
    assert "+    return a + b" in outcome.diff


@pytest.mark.parametrize("image", ["process", "docker"], indirect=True)
@pytest.mark.parametrize("agent", ["codex", "mini-swe-agent"])
def test_an_agent_in_use_solves_a_task(agent: str, image: str | None, tmp_path: Path) -> None:
    if not (AGENTS / ".installed").exists():
        pytest.skip("no agents here: make agents")
    outcome, segments = solved(agent, image, tmp_path)
    assert (outcome.reward, outcome.status, segments) == (1.0, "finished", 1), outcome
    assert "+    return a + b" in outcome.diff


@pytest.mark.parametrize("image", ["docker"], indirect=True)
def test_a_task_of_harbor_runs_in_its_image(image: str, tmp_path: Path) -> None:
    folder = write_task(
        tmp_path,
        dockerfile=f"FROM {image}\nRUN echo done > /made\nWORKDIR /app\n",
        solve="#!/bin/sh\ncp /made result.txt\n",
    )
    check = asyncio.run(check_task(folder, "docker"))
    assert (check.faults, check.oracle, check.nothing) == ([], 1.0, 0.0)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (IMAGE, f"starting a container of|{IMAGE} runs no command"),
        ("openenv-test-missing:1", "pulling openenv-test-missing:1 failed"),
    ],
)
def test_a_task_of_harbor_whose_image_does_not_start_is_one_fault(image: str, sentence: str, tmp_path: Path) -> None:
    folder = write_task(tmp_path, toml=f"[environment]\ndocker_image = '{image}'\n")
    check = asyncio.run(check_task(folder, "docker"))
    (fault,) = check.faults
    assert re.search(sentence, fault), fault
    assert "\n" not in fault
    assert (check.oracle, check.nothing) == (None, None)
