"""The stack file in `deploy/swarm`, as its README deploys it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import OpenEnvError

from .parts.crowd import Crowd
from .parts.image import CHECKOUT, QUICK
from .parts.swarm import Node

pytestmark = pytest.mark.real

STACK = CHECKOUT / "deploy" / "swarm" / "stack.yaml"
KEY = "a-key-that-is-long-enough"
READY_S = 40.0


@pytest.fixture(scope="module")
def address(nodes: list[Node], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the gateway of the stack is, whose images are this checkout."""
    with contextlib.closing(nodes[0].engine.client()) as client:
        image = client.images.get(QUICK.image).id
    here = {
        "volumes": QUICK.mounts,
        "working_dir": "/",
        "init": True,
        "environment": {**QUICK.variables, "OPENENV_GRACE_S": "0"},
    }
    gateway = ["--backends", "servers:8000", "--listen", "0.0.0.0:8000"]
    ours = {
        "version": "3.9",
        "services": {
            "servers": {**here, "command": QUICK.serving("benchmark")},
            "gateway": {**here, "command": [sys.executable, "-m", "openenv", "gateway", "run", *gateway]},
        },
    }
    override = tmp_path_factory.mktemp("stack") / "here.json"
    override.write_text(json.dumps(ours))
    given = {"OPENENV_IMAGE": image, "OPENENV_GATEWAY_IMAGE": image, "OPENENV_KEY": KEY}
    files = ["--compose-file", str(STACK), "--compose-file", str(override), "--resolve-image", "never"]
    docker(nodes, "stack", "deploy", *files, "oe", **given)
    yield f"http://{nodes[0].address}:8000"
    remove(nodes)


def docker(nodes: list[Node], *command: str, **variables: str) -> None:
    code, said = asked(nodes, *command, **variables)
    assert code == 0, said


def asked(nodes: list[Node], *command: str, **variables: str) -> tuple[int, str]:
    """Exit code and words of a command of Docker's, at the first node."""
    done = subprocess.run(
        ["docker", "-H", nodes[0].engine.host, *command],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def remove(nodes: list[Node]) -> None:
    """Removes the stack. Docker does not wait for tasks to end before it removes the network that they are in."""
    limit = time.monotonic() + READY_S
    code, said = asked(nodes, "stack", "rm", "oe")
    while code and "in use by task" in said and time.monotonic() < limit:
        time.sleep(0.2)
        code, said = asked(nodes, "stack", "rm", "oe")
    assert code == 0, said


async def until_even(address: str, servers: int) -> None:
    """Waits until the gateway spreads sessions over so many servers."""
    limit = time.monotonic() + READY_S
    while True:
        async with Crowd([address], 4 * servers, KEY) as crowd:
            if not crowd.failures and len(crowd.hosts) == servers:
                return
        assert time.monotonic() < limit, (crowd.failures, crowd.hosts)
        await asyncio.sleep(0.2)


def test_sessions_are_spread_over_the_servers_of_the_stack_also_when_there_are_more(
    address: str, nodes: list[Node]
) -> None:
    async def test() -> None:
        await until_even(address, 4)
        async with Crowd([address], 200, KEY) as crowd:
            assert await crowd.step() == []
            docker(nodes, "service", "scale", "--detach", "oe_servers=5")
            await until_even(address, 5)
            assert await crowd.step() == []
        with pytest.raises(OpenEnvError, match="key"):
            async with GenericEnvClient(address, api_key="another-key-than-that-one") as env:
                await env.reset()

    asyncio.run(test())


def test_it_is_what_the_readme_says() -> None:
    text = (STACK.parent / "README.md").read_text(encoding="utf-8")
    for command in ("docker stack deploy", "docker service scale", "docker service update", "docker stack rm"):
        assert command in text
    assert Path(STACK.parent / "gateway.Dockerfile").name in text
