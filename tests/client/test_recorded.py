"""What a client records of its episodes."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openenv import GenericEnvClient, VectorEnvClient
from openenv.client.recorded import recorder_at
from openenv.errors import InvalidAction, InvalidArgument, StepTimeout
from openenv.server import create_app
from openenv.settings import ServerSettings

from ..recording.lines import lines_in
from ..server.forkable import Walk
from ..server.probe import ProbeAction, ProbeEnvironment, ProbeObservation


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "records"
    yield place
    if place.exists():
        recorder_at(place).close()


@pytest.fixture
def app() -> Any:
    return create_app(Walk, ProbeAction, ProbeObservation, "walk", settings=ServerSettings(max_sessions=20))


async def test_an_episode_is_on_disk_when_the_client_is_closed(app: Any, folder: Path) -> None:
    async with GenericEnvClient(app=app, record=folder) as env:
        first = await env.reset(seed=7, episode_id="mine")
        result = await env.step({"number": 5})
        await env.state()
    start, step = lines_in(folder)
    assert (start["seed"], start["episode_id"], start["observation"]) == (7, "mine", first.observation)
    assert (step["action"], step["observation"], step["reward"]) == ({"number": 5}, result.observation, 1.5)
    assert (step["environment"], step["schema"]) == ("walk", app.state.openenv.contract.hash)
    assert step["versions"]["environment"] is None


async def test_it_is_what_the_server_records(app: Any, folder: Path, tmp_path: Path) -> None:
    settings = ServerSettings(record=str(tmp_path / "server"))
    app = create_app(Walk, ProbeAction, ProbeObservation, "walk", settings=settings)
    async with GenericEnvClient(app=app, record=folder) as env:
        await env.reset(seed=7)
        await env.step({"kind": "ok", "number": 5, "metadata": {}})
        with pytest.raises(Exception, match="reward"):
            await env.step({"kind": "nan_reward", "number": 0, "metadata": {}})
    app.state.openenv.recorder.close()
    both = [lines_in(place) for place in (folder, tmp_path / "server")]
    for mine, its in zip(*both, strict=True):
        for line in (mine, its):
            del line["time"], line["duration_s"], line["versions"]
        assert mine == its


async def test_errors_are_recorded_as_they_came(app: Any, folder: Path) -> None:
    async with GenericEnvClient(app=app, record=folder) as env:
        await env.reset()
        with pytest.raises(InvalidAction):
            await env.step({"nonsense": 1})
        with pytest.raises(StepTimeout):
            ProbeEnvironment.forget()
            await env.step({"kind": "wait"}, timeout_s=0.05)
        ProbeEnvironment.gate.set()
    found = [line["error"] for line in lines_in(folder)]
    assert found[0] is None
    assert [error.partition(":")[0] for error in found[1:]] == ["InvalidAction", "StepTimeout"]
    assert "nonsense" in found[1]


async def test_a_call_that_its_client_cancelled_is_recorded_as_that(app: Any, folder: Path) -> None:
    ProbeEnvironment.forget()
    async with GenericEnvClient(app=app, record=folder) as env:
        await env.reset()
        call = asyncio.ensure_future(env.step({"kind": "wait"}))
        await asyncio.to_thread(ProbeEnvironment.waiting.wait, 20)
        call.cancel()
        await asyncio.wait([call])
        ProbeEnvironment.gate.set()
        await env.step({})
    errors = [line["error"] for line in lines_in(folder)]
    assert errors == [None, "Cancelled: the call was cancelled by its client", None]


async def test_calls_made_at_the_same_time_have_their_own_lines(app: Any, folder: Path) -> None:
    async with GenericEnvClient(app=app, record=folder) as env:
        await env.reset()
        results = await asyncio.gather(*(env.step({"number": number}) for number in range(5)))
    steps = lines_in(folder)[1:]
    assert [(line["step"], line["action"]["number"]) for line in steps] == [(n + 1, n) for n in range(5)]
    assert [line["observation"] for line in steps] == [result.observation for result in results]


async def test_forks_say_where_they_come_from(app: Any, folder: Path) -> None:
    async with GenericEnvClient(app=app, record=folder) as env:
        await env.reset(episode_id="trunk")
        await env.step({})
        branch = await env.fork()
        await branch.step({})
        await env.restore(branch)
        await env.step({})
        await branch.close()
    lines = lines_in(folder)
    trunk, branched = lines[0]["session_id"], lines[2]["session_id"]
    found = [(line["session_id"], line["step"], line.get("source")) for line in lines]
    assert found == [
        (trunk, 0, None),
        (trunk, 1, None),
        (branched, 2, {"session_id": trunk, "episode_id": "trunk", "step": 1}),
        (trunk, 3, {"session_id": branched, "episode_id": "trunk", "step": 2}),
    ]


def test_without_an_event_loop(app: Any, folder: Path) -> None:
    with GenericEnvClient(app=app, record=folder).sync() as env:
        env.reset(seed=1)
        env.step({"number": 2})
    assert [line["step"] for line in lines_in(folder)] == [0, 1]


@pytest.mark.parametrize("mode", ["disabled", "same_step"])
async def test_a_vector(app: Any, folder: Path, mode: Any) -> None:
    make = partial(VectorEnvClient, GenericEnvClient, num_envs=3, autoreset_mode=mode, app=app, record=folder)
    async with make() as envs:
        await envs.reset(seeds=[1, 2, 3])
        results = await envs.step([{"number": 4}, {"nonsense": 1}, {"number": 6}])
    lines = lines_in(folder)
    assert sorted(line["seed"] for line in lines if line["step"] == 0) == [1, 2, 3]
    assert len({line["session_id"] for line in lines}) == 3
    steps = {line["action"].get("number"): line for line in lines if line["step"] == 1}
    assert steps[4]["observation"] == results[0].observation
    assert steps[None]["error"].startswith("InvalidAction: ")
    assert steps[6]["environment"] == "walk"


async def test_the_end_of_an_episode_and_the_next_beginning_are_two_lines(app: Any, folder: Path) -> None:
    class Short(Walk):
        def step(self, action: ProbeAction) -> ProbeObservation:
            return ProbeObservation(reward=1.0, done=True)

    app = create_app(Short, ProbeAction, ProbeObservation, settings=ServerSettings(max_sessions=4))
    client = VectorEnvClient(GenericEnvClient, num_envs=1, autoreset_mode="same_step", app=app, record=folder)
    async with client as envs:
        await envs.reset()
        await envs.step([{}])
        await envs.step([{}])
    found = [(line["step"], line["done"], line["episode_id"][-2:]) for line in lines_in(folder)]
    assert found == [(0, False, "-1"), (1, True, "-1"), (0, False, "-2"), (1, True, "-2"), (0, False, "-3")]


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(InvalidArgument, match="cannot record into"):
        GenericEnvClient("http://localhost:1", record=place)


def test_a_copy_records_too(folder: Path) -> None:
    client = GenericEnvClient("http://localhost:1", record=folder)
    assert pickle.loads(pickle.dumps(client))._record == folder
