"""`VectorEnvClient(arrays="batch")` on real sockets: the arrays of a call are the rows of one."""

from __future__ import annotations

import gc
import sys
from typing import Annotated, Any

import numpy as np
import pytest

from openenv import Array, BatchResult, Environment
from openenv.client import EnvClient, GenericEnvClient, VectorEnvClient, websocket
from openenv.errors import MissingExtra, ProtocolViolation, StepFailed, UsageError
from openenv.protocol.codecs import SUBPROTOCOLS
from openenv.recording import Recording
from openenv.server import create_app
from openenv.types import Action, Observation, State

from ..server.wires import served

COUNT = 3
LARGE = (80, 80, 4)  # above the size from which arrays travel in shared memory


class Show(Action):
    shade: int
    kind: str = "good"


class Shown(Observation):
    image: Annotated[np.ndarray, Array("uint8", LARGE)]
    joints: Annotated[np.ndarray, Array("float32", (3,))]
    views: dict[str, Any] = {}
    pair: tuple[Any, ...] = ()


class Screen(Environment[Show, Shown, State]):
    """Shows the shade of the action, 0 at first; the shade 9 ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Shown:
        return self._show(seed or 0, "good")

    def step(self, action: Show) -> Shown:
        if action.kind == "fails":
            raise ValueError("broken")
        return self._show(action.shade, action.kind)

    @property
    def state(self) -> State:
        return State()

    def _show(self, shade: int, kind: str) -> Shown:
        other = np.full(
            (100, 100) if kind == "other shape" else LARGE, shade, "int16" if kind == "other type" else "u1"
        )
        shown = Shown(
            image=np.full(LARGE, shade, np.uint8),
            joints=np.full(3, shade, np.float32),
            views={"left": {"depth": other}, "name": "l"},
            pair=(np.full(LARGE, shade + 1, np.uint8), shade),
            reward=float(shade),
        )
        shown.done = shade == 9
        return shown


class ScreenEnv(EnvClient[Show, Shown, State]):
    pass


@pytest.fixture(scope="module")
def url() -> Any:
    with served(create_app(Screen, Show, Shown, max_concurrent_envs=64)) as address:
        yield f"http://{address}"


def vector(url: str, cls: Any = GenericEnvClient, **options: Any) -> VectorEnvClient[Any, Any]:
    return VectorEnvClient(cls, url, COUNT, arrays="batch", **options)


def shades(*numbers: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"shade": number, **fields} for number in numbers]


def is_row(array: Any, batch: Any, row: int) -> bool:
    return bool(np.shares_memory(array, batch[row]) and array.shape == batch[row].shape)


@pytest.mark.parametrize("cls", [GenericEnvClient, ScreenEnv])
@pytest.mark.parametrize("connections", [1, COUNT])
async def test_each_field_is_one_array_and_results_have_its_rows(url: str, cls: Any, connections: int) -> None:
    async with vector(url, cls, connections=connections) as envs:
        for results in (await envs.reset(seeds=[1, 2, 3]), await envs.step(shades(1, 2, 3))):
            seen = BatchResult.of(results).observation
            assert (seen["image"].shape, seen["image"].dtype) == ((COUNT, *LARGE), np.uint8)
            assert seen["image"].flags.writeable
            assert seen["image"][:, 0, 0, 0].tolist() == [1, 2, 3]
            assert seen["joints"].tolist() == [[1] * 3, [2] * 3, [3] * 3]
            assert seen["views"]["left"]["depth"].shape == (COUNT, *LARGE)
            assert seen["views"]["name"] == ["l"] * COUNT
            assert seen["pair"][0][:, 0, 0, 0].tolist() == [2, 3, 4]
            assert list(seen["pair"][1]) == [1, 2, 3]
            for row, result in enumerate(results):
                observation = result.observation if cls is GenericEnvClient else dict(result.observation)
                assert is_row(observation["image"], seen["image"], row)
                assert is_row(observation["joints"], seen["joints"], row)
                assert is_row(observation["views"]["left"]["depth"], seen["views"]["left"]["depth"], row)
                assert is_row(observation["pair"][0], seen["pair"][0], row)


async def test_an_array_is_written_again_when_nothing_of_it_is_left(url: str) -> None:
    async with vector(url) as envs:
        await envs.reset()
        places, kept = [], []
        for shade in range(1, 7):
            image = BatchResult.of(await envs.step(shades(shade, shade, shade))).observation["image"]
            places.append(image.__array_interface__["data"][0])
            kept += [image[1, 5:]] if shade == 2 else []
            del image
            gc.collect()
        assert len(set(places)) < len(places) - 1
        assert (kept[0] == 2).all()


async def test_a_failed_environment_has_a_row_of_zeros(url: str) -> None:
    async with vector(url) as envs:
        await envs.reset(seeds=[5, 5, 5])
        results = await envs.step([*shades(1), *shades(2, kind="fails"), *shades(3)])
        assert isinstance(results[1].error, StepFailed)
        batch = BatchResult.of(results)
        assert batch.observation["image"][:, 0, 0, 0].tolist() == [1, 0, 3]
        assert list(batch.errors) == [1]
        assert np.isnan(batch.reward).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "given"),
    [("other shape", "uint8 of shape (100, 100)"), ("other type", "int16 of shape (80, 80, 4)")],
)
async def test_an_array_that_differs_from_the_others_is_the_error_of_its_environment(
    url: str, kind: str, given: str
) -> None:
    async with vector(url) as envs:
        await envs.reset()
        results = await envs.step([*shades(1, 2), *shades(3, kind=kind)])
        assert [result.error is None for result in results] == [True, True, False]
        assert isinstance(results[2].error, ProtocolViolation)
        assert f"views.left.depth is {given}, and was uint8 of shape (80, 80, 4)" in results[2].error.message
        assert [result.reward for result in await envs.step(shades(4, 5, 6))] == [4, 5, 6]


async def test_with_same_step_the_row_is_that_of_the_next_episode(url: str) -> None:
    async with vector(url, autoreset_mode="same_step") as envs:
        await envs.reset(seeds=[1, 1, 1])
        results = await envs.step(shades(1, 9, 3))
        seen = BatchResult.of(results).observation["image"]
        assert seen[:, 0, 0, 0].tolist() == [1, 0, 3]
        assert is_row(results[1].observation["image"], seen, 1)
        assert ((results[1].metadata or {})["final_observation"]["image"] == 9).all()


async def test_the_last_observation_of_an_episode_and_partial_resets_have_rows(url: str) -> None:
    async with vector(url) as envs:
        await envs.reset()
        results = await envs.step(shades(1, 9, 9))
        assert is_row(results[1].observation["image"], BatchResult.of(results).observation["image"], 1)
        again = await envs.reset(seeds=[7, 8], env_ids=[2, 1])
        seen = BatchResult.of(again).observation["image"]
        assert seen[:, 0, 0, 0].tolist() == [7, 8]
        assert is_row(again[1].observation["image"], seen, 1)


async def test_results_that_are_received_are_rows_if_all_were_sent(url: str) -> None:
    async with vector(url) as envs:
        await envs.send_reset()
        await envs.recv(COUNT)
        await envs.send(shades(1, 2, 3))
        results = [result for _, result in sorted(await envs.recv(COUNT), key=lambda finished: finished.env_id)]
        seen = BatchResult.of(results).observation["image"]
        assert seen[:, 0, 0, 0].tolist() == [1, 2, 3]
        assert is_row(results[2].observation["image"], seen, 2)
        await envs.send(shades(4, 5), env_ids=[2, 0])
        assert {env_id: result.reward for env_id, result in await envs.recv(2)} == {2: 4, 0: 5}


async def test_a_record_has_the_same_arrays(url: str, tmp_path: Any) -> None:
    async with vector(url, record=tmp_path) as envs:
        await envs.reset(seeds=[1, 2, 3])
        results = await envs.step(shades(4, 5, 9))
        assert is_row(results[0].observation["image"], BatchResult.of(results).observation["image"], 0)
        results[0].observation["image"][:] = 77
    images = [
        transition.observation["image"]
        for episode in Recording(tmp_path).episodes()
        for transition in episode.transitions()
    ]
    assert {int(np.asarray(image).flat[0]) for image in images} >= {4, 5, 9}


@pytest.mark.parametrize("subprotocol", [name for name in SUBPROTOCOLS if "json" in name])
async def test_lists_of_json_become_one_array(url: str, monkeypatch: pytest.MonkeyPatch, subprotocol: str) -> None:
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", (subprotocol,))
    async with vector(url, ScreenEnv) as envs:
        seen = BatchResult.of(await envs.reset(seeds=[1, 2, 3])).observation["image"]
    assert (seen.shape, seen[:, 0, 0, 0].tolist()) == ((COUNT, *LARGE), [1, 2, 3])


def test_another_word_and_a_missing_numpy_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other: Any = "rows"
    with pytest.raises(UsageError, match="arrays='rows': one of each, batch"):
        VectorEnvClient(GenericEnvClient, "http://localhost:1", arrays=other)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match="numpy"):
        VectorEnvClient(GenericEnvClient, "http://localhost:1", arrays="batch")
