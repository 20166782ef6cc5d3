"""Arrays that travel as image files, between a client and an environment that is served."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from starlette.testclient import TestClient

from openenv import (
    Action,
    Array,
    EnvClient,
    Environment,
    GenericEnvClient,
    Observation,
    RenderedImage,
    State,
    create_app,
)
from openenv.adapters.gymnasium import RemoteEnv, RemoteVectorEnv
from openenv.client import memory
from openenv.errors import InvalidAction, InvalidArgument, ProtocolViolation, StepFailed
from openenv.recording import Recording
from openenv.settings import ServerSettings

from ..server.wires import served

NOISE = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
FLAT = np.full((40, 30, 3), (90, 140, 90), np.uint8)


class Look(Action):
    glasses: Annotated[np.ndarray, Array("uint8", (2, 3), encoding="png")] | None = None
    fault: str = ""


class Views(Observation):
    exact: Annotated[np.ndarray, Array("uint8", (40, 30, 4), encoding="png")]
    small: Annotated[np.ndarray, Array("uint8", (40, 30, 4), encoding="webp")]
    lossy: Annotated[np.ndarray, Array("uint8", (40, 30, 3), encoding="jpeg")]
    mask: Annotated[np.ndarray, Array("uint8", (40, 30, 1), encoding="webp")]
    plain: Annotated[np.ndarray, Array("uint8", (2, 2))]


class Shown(State):
    last: Annotated[np.ndarray, Array("uint8", (40, 30, 4), encoding="png")]


def views(**changes: Any) -> Views:
    given = {"exact": NOISE, "small": NOISE[::-1], "lossy": FLAT, "mask": NOISE[:, :, :1], "plain": NOISE[:2, :2, 0]}
    return Views.model_construct(**{**Views(**given).__dict__, **changes})


class Scenery(Environment[Look, Views, Shown]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Views:
        return views()

    def step(self, action: Look, timeout_s: float | None = None) -> Views:
        if action.fault == "shape":
            return views(small=NOISE[:3])
        if action.fault == "dtype":
            return views(exact=NOISE.astype(np.float32))
        seen = views(reward=1.0)
        if action.glasses is not None:
            assert action.glasses.shape == (2, 3)
            seen.metadata = {"sum": int(action.glasses.sum())}
        return seen

    @property
    def state(self) -> Shown:
        return Shown(last=NOISE)


class ProcessScenery(Scenery):
    execution = "process"


class SceneryEnv(EnvClient[Look, Views, Shown]):
    pass


def check(seen: Views) -> None:
    for name, expected in (("exact", NOISE), ("small", NOISE[::-1]), ("mask", NOISE[:, :, :1])):
        array = getattr(seen, name)
        np.testing.assert_array_equal(array, expected)
        assert array.flags.writeable
    assert np.abs(seen.lossy.astype(int) - FLAT).max() <= 3
    np.testing.assert_array_equal(seen.plain, NOISE[:2, :2, 0])


@pytest.mark.parametrize("wire", ["openenv.v2.msgpack", "openenv.v2.json", None])
@pytest.mark.parametrize("environment", [Scenery, ProcessScenery])
async def test_a_typed_client_gets_arrays(wire: Any, environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SUBPROTOCOL", wire)
    app = create_app(environment)
    try:
        async with SceneryEnv(app=app) as env:
            check((await env.reset()).observation)
            result = await env.step(Look(glasses=NOISE[:2, :3, 0]))
            check(result.observation)
            assert (result.metadata or {})["sum"] == NOISE[:2, :3, 0].sum()
            np.testing.assert_array_equal((await env.state()).last, NOISE)
    finally:
        await app.state.openenv.aclose()


@pytest.mark.parametrize("environment", [Scenery, ProcessScenery])
def test_an_untyped_client_gets_image_files(environment: Any) -> None:
    with served(create_app(environment)) as address, GenericEnvClient(address).sync() as env:
        seen = env.reset().observation
        assert RenderedImage.of(seen["exact"]).media_type == "image/png"
        np.testing.assert_array_equal(RenderedImage.of(seen["small"]).to_array(), NOISE[::-1])
        assert len(seen["lossy"]) < FLAT.nbytes / 2
        assert isinstance(seen["plain"], np.ndarray)
        file = RenderedImage.of(NOISE[:2, :3, 0]).data
        assert env.step({"glasses": file}).metadata == {"sum": int(NOISE[:2, :3, 0].sum())}


def test_json_has_lists(tmp_path: Path) -> None:
    with TestClient(create_app(Scenery)) as http:
        seen = http.post("/reset", json={}).json()["observation"]
        assert seen["exact"] == NOISE.tolist()
        schema = http.get("/schema").json()["observation"]["properties"]["lossy"]
    assert schema["x-array"] == {"dtype": "uint8", "shape": [40, 30, 3], "encoding": "jpeg"}
    assert schema["type"] == "array"


async def test_a_server_records_the_arrays_before_compression(tmp_path: Path) -> None:
    app = create_app(Scenery, settings=ServerSettings(record=str(tmp_path)))
    async with SceneryEnv(app=app) as env:
        await env.reset()
    await app.state.openenv.aclose()
    app.state.openenv.recorder.close()
    (episode,) = Recording(tmp_path).episodes()
    (transition,) = episode.transitions()
    np.testing.assert_array_equal(transition.observation["lossy"], FLAT)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("shape", r"field 'small' .*\(40, 30, 4\) is declared, got \(3, 30, 4\)"), ("dtype", "field 'exact' .*float32")],
)
async def test_an_array_that_does_not_fit_fails_the_step(fault: str, message: str) -> None:
    async with SceneryEnv(app=create_app(Scenery)) as env:
        await env.reset()
        with pytest.raises(StepFailed, match=f"(?s){message}"):
            await env.step(Look(fault=fault))
        check((await env.reset()).observation)


def file_of(*size: int, kind: str = "PNG", mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind)
    return file.getvalue()


def file_that_says(width: int, height: int) -> bytes:
    """A PNG file with another size in its header, which is all that is read of it."""
    file = file_of(3, 2)
    header = b"IHDR" + struct.pack(">II", width, height) + file[24:29]
    return file[:12] + header + struct.pack(">I", zlib.crc32(header)) + file[33:]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (file_that_says(30_000, 30_000), "exceeds limit of 178956970 pixels"),
        (file_that_says(5_000, 4_000), "4000 rows and 5000 columns"),
        (file_of(3, 2, mode="RGB"), "of RGB"),
        (file_of(3, 2)[:-24], "cannot be decoded|no readable image"),
        (file_of(3, 2, kind="GIF"), "no readable image"),
        (b"", "0 bytes"),
    ],
)
def test_a_bad_file_in_an_action_names_the_field(file: bytes, message: str) -> None:
    with served(create_app(Scenery)) as address, GenericEnvClient(address).sync() as env:
        env.reset()
        with pytest.raises(InvalidAction, match=rf"glasses.*({message})"):
            env.step({"glasses": file})
        assert env.step({}).reward == 1.0


class Cropped(Views):
    exact: Annotated[np.ndarray, Array("uint8", (40, 29, 4), encoding="png")]
    plain: Annotated[np.ndarray, Array("uint8", (2, 2))]


class Unaware(Views):
    exact: Annotated[np.ndarray, Array("uint8", (40, 30, 4))]


class CroppedEnv(EnvClient[Look, Cropped, Shown]):
    pass


class UnawareEnv(EnvClient[Look, Unaware, Shown]):
    pass


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (CroppedEnv, "exact.*40 rows and 30 columns"),
        (UnawareEnv, "exact.*an array without an encoding is declared, got"),
    ],
)
async def test_a_file_that_a_client_does_not_declare_names_the_field(
    client: type[CroppedEnv | UnawareEnv], message: str
) -> None:
    env = client(app=create_app(Scenery))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the schemas differ
        async with env:
            with pytest.raises(ProtocolViolation, match=f"(?s){message}"):
                await env.reset()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float32", (4, 4, 3)), "not float32"),
        (("uint8", (4, 4, 2)), r"not uint8 of shape \(4, 4, 2\)"),
        (("uint8", (None, 4, 3)), r"a height and width from 1 to \d+, not \(None, 4\)"),
        (("uint8", (None,)), "an image is uint8 of shape"),
    ],
)
def test_a_field_that_is_no_image_has_no_encoding(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"(?s){message}"):
        Array(*arguments, encoding="png")


class Screen(Observation):
    screen: Annotated[np.ndarray, Array("uint8", (40, 30, 4), encoding="webp")]


class Button(Action):
    press: bool = False


class Console(Environment[Button, Screen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Screen:
        return Screen(screen=NOISE)

    def step(self, action: Button, timeout_s: float | None = None) -> Screen:
        return Screen(screen=NOISE[::-1], reward=1.0)

    @property
    def state(self) -> State:
        return State()


def test_gymnasium_clients_get_arrays_by_the_schema() -> None:
    with served(create_app(Console)) as address:
        env = RemoteEnv(address)
        assert env.observation_space.dtype == np.uint8
        np.testing.assert_array_equal(env.reset(seed=1)[0], NOISE)
        env.close()
        envs = RemoteVectorEnv(address, num_envs=2)
        seen: NDArray[np.uint8] = envs.reset(seed=1)[0]
        np.testing.assert_array_equal(seen, [NOISE, NOISE])
        np.testing.assert_array_equal(envs.step(np.zeros(2, int))[0], [NOISE[::-1]] * 2)
        envs.close()
