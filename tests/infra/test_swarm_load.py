"""What the swarm and the gateway promise together: even load, and faults that stay where they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import ClassVar

import pytest

from openenv.providers import Deployment, DockerSwarmProvider, Gateway, LaunchSpec
from openenv.providers.owner import DEPLOYMENT

from .parts.crowd import Crowd
from .parts.image import QUICK
from .parts.load import SOME, SOON_S, LoadChecks, tell, until
from .parts.swarm import Node

pytestmark = pytest.mark.real

BENCHMARK = LaunchSpec(
    image=QUICK.image,
    command=QUICK.serving("benchmark"),
    env_vars={**QUICK.variables, "OPENENV_RESUME_WINDOW_S": "3"},
    options={"mounts": QUICK.mounts, "workdir": "/", "init": True},
)


@pytest.fixture(scope="module")
def behind(nodes: list[Node]) -> Iterator[tuple[Deployment, Gateway]]:
    """Servers on 2 nodes, and the gateway before them."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("DOCKER_HOST", nodes[0].engine.host)
        swarm = stack.enter_context(contextlib.closing(DockerSwarmProvider(publish="host", auto_init_swarm=False)))
        spec = BENCHMARK.changed(replicas=TestSwarmBehindEnvoy.replicas)
        deployment = stack.enter_context(asyncio.run(swarm.launch(spec)))
        asyncio.run(deployment.ready())
        yield deployment, stack.enter_context(Gateway(deployment))


class TestSwarmBehindEnvoy(LoadChecks):
    replicas: ClassVar = 4
    nodes: ClassVar[list[Node]]

    @pytest.fixture(autouse=True)
    def swarm(self, nodes: list[Node]) -> None:
        type(self).nodes = nodes

    async def kill(self, deployment: Deployment, host: str) -> None:
        await asyncio.to_thread(self._kill, f"{DEPLOYMENT}={deployment.name}", host)

    def _kill(self, label: str, host: str) -> None:
        for node in self.nodes:
            with contextlib.closing(node.engine.client()) as client:
                for container in client.containers.list(filters={"label": label}):
                    if container.id.startswith(host):
                        container.kill()
                        return
        raise AssertionError(f"{host} is on no node")

    def test_the_successor_of_a_server_that_was_killed_takes_load(
        self, behind: tuple[Deployment, Gateway], capsys: pytest.CaptureFixture[str]
    ) -> None:
        async def test(deployment: Deployment, gateway: Gateway) -> None:
            async with Crowd([gateway.url], SOME, deployment.api_key) as before:
                (victim, _), *_ = before.hosts.most_common()
            await self.kill(deployment, victim)

            async def succeeded() -> bool:
                async with Crowd([gateway.url], 8 * self.replicas, deployment.api_key) as after:
                    return not after.failures and bool(set(after.hosts) - set(before.hosts))

            taken = await until(succeeded, 4 * SOON_S)
            tell(capsys, f"the successor of a server that was killed takes load after {taken:.2f} s")

        self.conduct(behind, test)
