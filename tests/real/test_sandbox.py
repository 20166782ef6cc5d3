"""Jobs on a stand-in of the Hub, and processes that end in their midst."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv.client import GenericEnvClient
from openenv.providers import HFSandboxProvider, LaunchSpec

from ..docs.page import Page
from ..docs.playing import play_page
from ..providers.hub import TOKEN, Hub, running_hub

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.real

SERVING = [sys.executable, "-m", "openenv.testing.misbehaving", "serve"]
TRAINER = """
import asyncio, signal, sys
from openenv.providers import HFSandboxProvider, LaunchSpec

async def train():
    deployment = await HFSandboxProvider().launch(LaunchSpec(command=sys.argv[2:], replicas=2))
    print("launched", flush=True)
    if sys.argv[1] == "leave":
        return
    await asyncio.Event().wait()

asyncio.run(train())
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as stand_in:
        yield stand_in


def environ(hub: Hub) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}


def trainer(hub: Hub, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAINER, how, *SERVING]
    return subprocess.Popen(command, env=environ(hub), stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["leave", signal.SIGINT])
def test_a_process_that_ends_cancels_its_jobs(hub: Hub, how: str | int) -> None:
    with trainer(hub, how if isinstance(how, str) else "stay") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "launched\n"
        if not isinstance(how, str):
            process.send_signal(how)
        process.wait(30)
    assert len(hub.jobs) == 2
    assert hub.alive == []


@pytest.mark.slow
def test_the_example_of_the_page_runs(hub: Hub, tmp_path: Path) -> None:
    play_page(Page("docs/sandbox.md"), tmp_path, frozenset({"hub"}), HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN)
    assert hub.alive == []


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_and_nothing_else(hub: Hub) -> None:
    command = [sys.executable, "-m", "openenv", "providers", "gc", "--provider", "hf"]
    with trainer(hub, "stay") as killed, trainer(hub, "stay") as alive:
        for process in (killed, alive):
            assert process.stdout is not None
            assert process.stdout.readline() == "launched\n"
        killed.kill()
        killed.wait(30)
        assert len(hub.alive) == 4
        subprocess.run(command, env=environ(hub), check=True, capture_output=True, timeout=60)
        left = {run.body["labels"]["openenv-owner"].split("_")[2] for run in hub.alive}
        assert (len(hub.alive), left) == (2, {str(alive.pid)})
        alive.send_signal(signal.SIGINT)
        alive.wait(30)
    assert hub.alive == []


def test_a_connection_that_is_lost_on_the_way_is_made_again_and_its_session_goes_on(hub: Hub) -> None:
    async def play() -> None:
        provider = HFSandboxProvider(endpoint=hub.url, token=TOKEN, glance_s=0.05)
        async with await provider.launch(LaunchSpec(command=SERVING)) as deployment:
            await deployment.ready(30)
            (run,) = hub.jobs.values()
            async with GenericEnvClient(deployment.url, api_key=deployment.api_key) as env:
                await env.reset()
                for _ in range(3):
                    await env.step({"message": "before"})
                    assert run.gate is not None
                    run.gate.cut()
                await env.step({"message": "after"})
                assert (await env.state())["step_count"] == 4

    asyncio.run(play())


@pytest.mark.slow
def test_many_sessions_go_over_one_proxy(hub: Hub) -> None:
    async def play() -> None:
        provider = HFSandboxProvider(endpoint=hub.url, token=TOKEN, glance_s=0.2)
        async with await provider.launch(LaunchSpec(command=SERVING, replicas=2)) as deployment:
            await deployment.ready(30)

            async def one(number: int) -> None:
                url = deployment.urls[number % 2]
                async with GenericEnvClient(url, api_key=deployment.api_key) as env:
                    await env.reset()
                    for step in range(5):
                        said = await env.step({"message": f"{number}.{step}"})
                        assert said.observation["message"] == f"{number}.{step}"

            await asyncio.gather(*(one(number) for number in range(64)))

    asyncio.run(play())
