"""`openenv bench frames` and `openenv bench batched`, in small, and the bare server that they are compared with."""

import json
from contextlib import ExitStack, closing

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.bare import BATCHED, ROOT, BareServers, BareVectorEnv
from benchmarks.batched import OwnedBatch
from benchmarks.image_envs import EPISODE, IMAGES
from benchmarks.result import read_result
from benchmarks.worlds import WORLDS, LocalBatch
from openenv.bench.served import ServedTarget
from openenv.cli.bench import app

pytestmark = [pytest.mark.real, pytest.mark.slow]
SMALL = ("--envs", "3", "--workers", "2", "--rounds", "2", "--duration", "0.1")


def run(*arguments):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_frames_are_measured_next_to_all_others(tmp_path):
    text = run("frames", "--shape", "6x5x3", *SMALL, "--json")
    found = json.loads(text)
    systems = ["openenv", "AsyncVectorEnv", "SyncVectorEnv", "bare socket", "memcpy"]
    assert list(found["systems"]) == systems == list(found["ratios"])
    assert found["workload"] == {"env": None, "shape": [6, 5, 3], "envs": 3, "workers": 2}
    for name, rounds in found["systems"].items():
        assert len(rounds) == 2
        assert all(each["steps_per_second"] > 0 and each["client_us_per_step"] > 0 for each in rounds)
        served = name in {"openenv", "bare socket"}
        assert all((each["server_us_per_step"] is not None) is served for each in rounds)
    memory = found["memory"]
    assert memory["arrays"] == 3 * 6 * 5 * 3
    assert memory["server_base"] > 2**20
    path = tmp_path / "frames.json"
    path.write_text(text)
    assert read_result(path).cases.keys() == found["systems"].keys()


def test_frames_are_a_table_with_the_memory_below():
    text = run("frames", "--shape", "6x5", *SMALL)
    for words in ("AsyncVectorEnv", "bare socket", "MB/s", "openenv by it", "resident memory: the server has"):
        assert words in text


def test_a_real_environment_is_measured_if_its_observations_are_an_array():
    assert json.loads(run("frames", "--env", "CartPole-v1", *SMALL, "--json"))["memory"]["arrays"] == 3 * 4 * 4


def test_a_batch_is_measured_next_to_sessions_and_in_process():
    found = json.loads(run("batched", *SMALL, "--json"))
    assert list(found["systems"]) == [
        *("openenv", "RemoteVectorEnv", "bare socket", "in process"),
        *("sessions of the batch", "ordinary sessions", "SyncVectorEnv"),
    ]
    assert found["workload"] == {"world": "cartpole", "envs": 3, "workers": 2}
    assert all(rates[0]["steps_per_second"] > 0 for rates in found["systems"].values())
    assert found["ratios"]["bare socket"] > 0


def test_a_batch_steps_alike_by_its_client_by_a_bare_server_and_in_process():
    world = WORLDS["cartpole"]
    with ExitStack() as stack:
        served = stack.enter_context(ServedTarget("benchmarks.worlds:CartPoles5", cwd=ROOT))
        bare = stack.enter_context(BareServers("cartpole", 5, 1, BATCHED, {}))
        made = (OwnedBatch(served.url), BareVectorEnv(bare, world.observation_space), LocalBatch(world, 5))
        systems = [stack.enter_context(closing(system)) for system in made]
        observations = [np.array(system.reset(seed=0)[0]) for system in systems]

        def step(actions):
            results = [[np.array(column) for column in system.step(actions)] for system in systems]
            for other in results[1:]:
                for name, ours, theirs in zip(("observation", "reward", "ends"), results[0], other, strict=False):
                    assert np.array_equal(ours, theirs), name
            return results[0]

        assert all(np.array_equal(observations[0], other) for other in observations[1:])
        batch = observations[0]
        for _ in range(50):
            batch, rewards, terminated, _ = step(world.policy(batch))
            assert rewards.all()
            assert not terminated.any()
        while not terminated.any():
            _, _, terminated, _ = step(np.ones(5, np.int64))
        # The next step starts other episodes, which are random.
        for system in systems:
            assert np.array_equal(system.step(np.ones(5, np.int64))[1] == 0, terminated)


def test_the_bare_server_steps_like_the_environments_in_process():
    shape = {"shape": [2, 3]}
    actions = np.random.default_rng(0).integers(0, 6, (EPISODE + 5, 3))
    with (
        BareServers(IMAGES, 3, 2, "sync", shape) as servers,
        closing(gymnasium.make_vec(IMAGES, 3, **shape)) as local,
    ):
        space = local.single_observation_space
        with closing(BareVectorEnv(servers, space)) as bare:
            assert np.array_equal(bare.reset(seed=0)[0], local.reset(seed=0)[0])
            for batch in actions:
                for ours, theirs in zip(bare.step(batch), local.step(batch)[:4], strict=True):
                    assert np.array_equal(ours, theirs)
            assert servers.resident_bytes() > 0
