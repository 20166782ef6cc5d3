"""Client and server as two processes of one machine: images pass through memory, and nothing of it is left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from openenv import BatchedEnvClient, BatchResult, _backoff
from openenv.client import GenericEnvClient, VectorEnvClient, session, websocket
from openenv.errors import OpenEnvError

from ..asynchronous import until
from ..chaos.proxy import Proxy
from ..cli.process import LIMIT_S, serving
from ..server.wires import eventually

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="memory files are of Linux")]

MODULE = """
import numpy as np
from typing import Any
from openenv import Action, Environment, Observation, State
from openenv.server import create_app


class SeedAction(Action):
    seed: int


class ImageObservation(Observation):
    image: Any = None


class Images(Environment[SeedAction, ImageObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._steps = 0
        return self._observe(seed or 0)

    def step(self, action, timeout_s=None, **kwargs):
        self._steps += 1
        return self._observe(action.seed)

    def _observe(self, seed):
        image = np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8)
        return ImageObservation(image=image, reward=float(self._steps))

    @property
    def state(self):
        return State(step_count=self._steps)


app = create_app(Images, SeedAction, ImageObservation)
"""
MEMORY = "openenv-arrays"


def image(seed):
    return np.random.default_rng(seed).integers(0, 256, (120, 160, 3), dtype=np.uint8)


@pytest.fixture
def serve(tmp_path):
    (tmp_path / "images.py").write_text(MODULE)
    gc.collect()
    assert maps() == 0
    yield lambda **variables: serving("images:app", cwd=tmp_path, **variables)
    assert [entry for entry in Path("/dev/shm").iterdir() if "openenv" in entry.name] == []


def maps(pid="self"):
    """How much memory of this kind a process has mapped, in parts larger than a page."""
    lines = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if MEMORY in line]
    spans = [line.split()[0].split("-") for line in lines]
    return len([1 for start, end in spans if int(end, 16) - int(start, 16) > 4096])


async def play(envs, count, begin=1):
    played = []
    for number in range(begin, begin + count):
        seeds = [number * 100 + place for place in range(envs.num_envs)]
        results = await envs.step([{"seed": seed} for seed in seeds])
        for seed, result in zip(seeds, results, strict=True):
            assert (result.error, result.reward) == (None, float(number))
            assert result.observation["image"].tobytes() == image(seed).tobytes()
        played.append(results)
    return played


async def test_images_pass_through_memory_and_it_is_gone_with_the_connection(serve):
    with serve() as server:
        async with VectorEnvClient(GenericEnvClient, server.url, num_envs=4) as envs:
            await envs.reset()
            await play(envs, 20)
            assert (maps(), maps(server.pid)) == (1, 1)
        await until(lambda: maps(server.pid) == 0)


def test_a_single_client_uses_it_too(serve):
    with serve() as server, GenericEnvClient(server.url) as env:
        env.reset()
        for number in range(20):
            assert env.step({"seed": number}).observation["image"].tobytes() == image(number).tobytes()
        assert (maps(), maps(server.pid)) == (1, 1)


@pytest.mark.parametrize("variables", [{"OPENENV_SHARED_MEMORY_MB": "0"}, {}], ids=["off", "json"])
async def test_images_of_other_connections_pass_in_frames(serve, monkeypatch, variables):
    if not variables:
        monkeypatch.setattr(websocket, "SUBPROTOCOLS", ("openenv.v2.json",))
    with serve(**variables) as server:
        async with VectorEnvClient(GenericEnvClient, server.url, num_envs=2) as envs:
            await envs.reset()
            await play(envs, 5)
            assert (maps(), maps(server.pid)) == (0, 0)


async def test_a_client_that_cannot_open_the_memory_plays_without_a_word(serve, monkeypatch, caplog):
    def refuse(process, descriptor):
        raise PermissionError(f"/proc/{process}/fd/{descriptor}")

    monkeypatch.setattr("openenv.client.connection.open_segment", refuse)
    with serve() as server:
        async with VectorEnvClient(GenericEnvClient, server.url, num_envs=2) as envs:
            await envs.reset()
            await play(envs, 5)
        assert maps(server.pid) == 0
    assert caplog.records == []


async def test_memory_that_is_too_small_delays_and_loses_nothing(serve):
    with serve(OPENENV_SHARED_MEMORY_MB="0.2") as server:
        async with VectorEnvClient(GenericEnvClient, server.url, num_envs=4) as envs:
            await envs.reset()
            await play(envs, 10)


@pytest.mark.parametrize(("variables", "within_bytes"), [({}, 3000), ({"OPENENV_SHARED_MEMORY_MB": "0"}, 300_000)])
@pytest.mark.parametrize("arrays", ["each", "batch"])
async def test_images_are_bit_equal_when_connections_are_cut_at_any_byte(
    serve, monkeypatch, arrays, variables, within_bytes
):
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)
    kept = []
    with serve(**variables) as server, Proxy(urlsplit(server.url).port, 1) as proxy:
        async with VectorEnvClient(GenericEnvClient, proxy.url, num_envs=4, arrays=arrays) as envs:
            await envs.reset()
            begin = 1
            while proxy.accepted < 20:
                proxy.doom(within_bytes)
                kept += await play(envs, 3, begin)
                begin += 3
    for number, results in enumerate(kept, 1):
        images = BatchResult.of(results).observation["image"]
        assert np.shares_memory(images, results[2].observation["image"]) == (arrays == "batch")
        assert images.tobytes() == b"".join(image(number * 100 + place).tobytes() for place in range(4))


async def test_a_server_that_is_killed_leaves_nothing(serve):
    with serve(OPENENV_RESUME_WINDOW_S="0") as server:
        async with VectorEnvClient(GenericEnvClient, server.url, num_envs=2) as envs:
            await envs.reset()
            await play(envs, 3)
            os.kill(server.pid, signal.SIGKILL)
            results = await envs.step([{"seed": 1}] * 2)
            assert all(isinstance(result.error, OpenEnvError) for result in results)
        assert maps() == 0


def test_a_client_that_is_killed_leaves_nothing(serve):
    script = """
import sys
from openenv.client import GenericEnvClient
env = GenericEnvClient(sys.argv[1])
env.reset()
for number in range(5):
    env.step({"seed": number})
print("plays", flush=True)
sys.stdin.read()
"""
    with serve(OPENENV_RESUME_WINDOW_S="0") as server:
        process = subprocess.Popen(
            [sys.executable, "-c", script, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == "plays\n"
            assert (maps(process.pid), maps(server.pid)) == (1, 1)
        finally:
            process.kill()
            process.communicate(timeout=LIMIT_S)
        eventually(lambda: maps(server.pid) == 0)


BATCH = """
import numpy as np
from openenv import create_app
from openenv.envs.cartpole import CartPoles


class ManyPoles(CartPoles):
    num_envs = 2048


app = create_app(ManyPoles)
"""


async def trajectory(url, cut=lambda: None):
    """The observations and rewards of a batch of episodes that one client owns, as bytes."""
    results = []
    async with BatchedEnvClient(url) as envs:
        results.append(await envs.reset(seed=7))
        for number in range(30):
            cut()
            actions = np.arange(envs.num_envs) * (number + 3) % 2
            results.append(await envs.step(actions))
    arrays = [(*result.observation.values(), result.reward, result.terminated) for result in results]
    return [array.tobytes() for step in arrays for array in step if array is not None]


async def test_a_batch_with_one_owner_is_bit_equal_in_memory_in_frames_and_when_it_is_cut(tmp_path, monkeypatch):
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)
    (tmp_path / "poles.py").write_text(BATCH)
    with serving("poles:app", cwd=tmp_path, OPENENV_SHARED_MEMORY_MB="0") as server:
        in_frames = await trajectory(server.url)
    with serving("poles:app", cwd=tmp_path) as server, Proxy(urlsplit(server.url).port, 1) as proxy:
        assert await trajectory(server.url) == in_frames
        assert await trajectory(proxy.url, lambda: proxy.doom(60_000)) == in_frames
        assert proxy.accepted > 3
