"""What Slurm and the gateway promise together: even load, and faults that stay where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar

import pytest

from openenv.errors import MissingExtra
from openenv.providers import Deployment, Gateway, LaunchSpec, SlurmProvider
from openenv.providers.gateway.programs import envoy_program

from .parts.load import LoadChecks
from .parts.slurm import Slurm, Unavailable

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Two nodes to begin with, and a third for a server that is added."""
    try:
        envoy_program()
    except MissingExtra as reason:
        pytest.skip(str(reason))
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(Slurm(nodes=3))
        except Unavailable as reason:
            pytest.skip(f"no Slurm here: {reason}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in cluster.variables.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(scope="module")
def behind(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Gateway]]:
    provider = SlurmProvider("benchmark", shared_folder=tmp_path_factory.mktemp("shared"), exclusive=True)
    spec = LaunchSpec(target="benchmark", replicas=TestSlurmBehindEnvoy.replicas)
    deployment = asyncio.run(provider.launch(spec.changed(env_vars={"OPENENV_RESUME_WINDOW_S": "3"})))
    with deployment:
        asyncio.run(deployment.ready())
        with Gateway(deployment) as gateway:
            yield deployment, gateway


@pytest.mark.usefixtures("slurm")
class TestSlurmBehindEnvoy(LoadChecks):
    replicas: ClassVar = 2
    slurm: ClassVar[Slurm]

    @pytest.fixture(autouse=True)
    def cluster(self, slurm: Slurm) -> None:
        type(self).slurm = slurm

    async def kill(self, deployment: Deployment, host: str) -> None:
        node = next(node for node in self.slurm.nodes if node.name == host)
        await asyncio.to_thread(node.kill_jobs)

    async def heal(self, deployment: Deployment) -> None:
        await deployment.scale(self.replicas)
        await deployment.ready()
