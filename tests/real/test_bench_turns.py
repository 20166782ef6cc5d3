"""`openenv bench frames` with few and small images, and the bare server that it is compared with."""

import json
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.bare import BareServers, BareVectorEnv
from benchmarks.image_envs import EPISODE, IMAGES
from openenv.bench.result import read_result
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
