"""Fields that are declared as arrays: what they take and refuse, and how they are sent, recorded and copied."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from pydantic import Field, ValidationError

from openenv import Action, Array, Environment, Observation, State, _backoff
from openenv.client import EnvClient, GenericEnvClient, VectorEnvClient, memory, session, websocket
from openenv.errors import InvalidAction, InvalidArgument, MessageTooLarge
from openenv.protocol.arrays import pack_array, unpack_array
from openenv.protocol.codecs import SUBPROTOCOLS, codec_of
from openenv.recording import Recording
from openenv.server import create_app
from openenv.server.transports.uvicorn import FastPath
from openenv.settings import ServerSettings

from .chaos.proxy import Proxy
from .server.wires import served


class Move(Action):
    force: Annotated[np.ndarray, Array("float32", (2,), low=-1, high=1)]
    cell: Annotated[np.ndarray, Array("int32", ())] = Field(default_factory=lambda: np.int32(0))


class View(Observation):
    image: Annotated[np.ndarray, Array("uint8", (40, 30, 4))]
    force: Annotated[np.ndarray, Array("float32", (2,))]
    points: Annotated[np.ndarray, Array("float64", (None, 3))]
    layers: dict[str, Annotated[np.ndarray, Array("int16", (2, 2))]] = {}


class Map(State):
    seen: Annotated[np.ndarray, Array("uint8", (40, 30, 4))]


class World(Environment[Move, View, Map]):
    """Its images are a function of all forces so far. It changes them after they were returned."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def reset(self, seed: int | None = None, **kwargs: Any) -> View:
        self.image = np.full((40, 30, 4), seed or 0, np.uint8)
        return self.view(np.zeros(2, np.float32))

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: Any) -> View:
        self.image += np.uint8(1 + abs(action.force[0]) * 100)
        return self.view(action.force)

    def view(self, force: np.ndarray) -> View:
        points = np.arange(6.0)[::-1].reshape(2, 3)
        return View(
            image=self.image,
            force=force,
            points=points,
            layers={"a": np.eye(2, dtype=np.int16)},
            reward=float(force[0]),
        )

    @property
    def state(self) -> Map:
        return Map(seen=self.image)


class WorldEnv(EnvClient[Move, View, Map]):
    pass


@pytest.fixture(params=[*SUBPROTOCOLS, None], ids=str)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    subprotocol: str | None = request.param
    return subprotocol


def app_of(environment: Any = World) -> Any:
    return create_app(environment, Move, View, state_cls=Map, max_concurrent_envs=4)


async def test_arrays_are_arrays_on_both_sides(wire: str | None) -> None:
    async with WorldEnv(app=app_of()) as env:
        first = (await env.reset(seed=7)).observation
        seen = (await env.step(Move(force=np.array([0.5, -1], np.float32)))).observation
        state = await env.state()
    assert (first.image == 7).all()
    assert (seen.image == 58).all()
    assert (state.seen == seen.image).all()
    expected = {"image": ("uint8", (40, 30, 4)), "force": ("float32", (2,)), "points": ("float64", (2, 3))}
    assert {name: (getattr(seen, name).dtype.name, getattr(seen, name).shape) for name in expected} == expected
    assert seen.force.tolist() == [0.5, -1]
    assert seen.points.tolist() == [[5, 4, 3], [2, 1, 0]]
    assert seen.layers["a"].tolist() == [[1, 0], [0, 1]]
    seen.image[:] = 0  # it belongs to the caller
    assert (state.seen == 58).all()


async def test_a_client_without_types_gets_lists_in_json_and_arrays_in_msgpack(wire: str | None) -> None:
    async with GenericEnvClient(app=app_of()) as env:
        await env.reset()
        seen = (await env.step({"force": [0.5, 1], "cell": 3})).observation
    if wire == "openenv.v2.msgpack":
        assert isinstance(seen["image"], np.ndarray)
        assert isinstance(seen["layers"]["a"], np.ndarray)
    else:
        assert seen["force"] == [0.5, 1.0]
        assert seen["layers"] == {"a": [[1, 0], [0, 1]]}
        assert np.shape(seen["image"]) == (40, 30, 4)


REFUSED: list[tuple[Any, str]] = [
    (np.zeros(3, np.float32), r"force.*shape \(2,\) is declared, got \(3,\)"),
    (np.zeros((2, 1), np.float32), r"force.*shape \(2,\) is declared, got \(2, 1\)"),
    (np.zeros(2, np.complex64), "force.*float32 is declared, got elements of complex64"),
    (np.array([0.0, np.nan]), r"nan at \[1\] is not between -1.0 and 1.0 \(float32\)"),
    (np.array([2, 0], np.int8), r"2.0 at \[0\] is not between -1.0 and 1.0"),
    (np.array([0, 1e300]), "an element of float64 does not fit float32"),
    ([0.0, 2.0], "less than or equal to 1"),
    ([0.0], "at least 2 items"),
    ("left", "valid list"),
]


@pytest.mark.parametrize(("force", "message"), REFUSED)
def test_what_does_not_fit_is_refused_and_both_sides_of_it_are_named(force: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        Move(force=force)


@pytest.mark.parametrize("elements", [["a", "b"], [None, 1]])
def test_arrays_of_objects_and_texts_are_refused(elements: list[Any]) -> None:
    with pytest.raises(ValidationError, match="float32 is declared, got elements of"):
        Move(force=np.array(elements))


async def test_a_server_names_the_field_and_the_session_goes_on(wire: str | None) -> None:
    async with GenericEnvClient(app=app_of()) as env:
        await env.reset()
        for force in (np.zeros(3, np.float32), [0.0, float("nan")], np.zeros((1, 2)), "left"):
            with pytest.raises(InvalidAction) as caught:
                await env.step({"force": force})
            assert caught.value.data["errors"][0]["loc"][0] == "force"
        assert (await env.step({"force": [1.0, 0.0]})).reward == 1


@pytest.mark.parametrize(
    "given",
    [
        np.array([7, 8], ">i8"),
        np.array([7, 8], np.uint8),
        np.asfortranarray(np.array([[7, 8], [9, 9]]))[0],
        np.array([7, 0, 8, 0])[::2],
        np.frombuffer(np.array([7, 8], np.int32).tobytes(), np.int32),  # read-only
        [7, 8],
    ],
)
def test_integers_of_another_size_order_or_layout_are_taken(given: Any) -> None:
    class Cells(Action):
        cells: Annotated[np.ndarray, Array("int32", (2,))]

    taken = Cells(cells=given).cells
    assert taken.dtype == np.int32
    assert taken.tolist() == [7, 8]
    codec = codec_of("openenv.v2.msgpack")
    assert list(codec.decode(codec.encode({"cells": given}))["cells"]) == [7, 8]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_integer_that_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(ValidationError, match="an element of int64 does not fit int32"):
        Move(force=[0, 0], cell=np.array(value))
    with pytest.raises(ValidationError, match="cell"):
        Move(force=[0, 0], cell=value)


@pytest.mark.parametrize("given", [[1e300, 0.0], np.array([1e300, 0.0])])
def test_a_number_that_the_elements_cannot_hold_is_refused_in_lists_and_arrays(given: Any) -> None:
    class Unbounded(Action):
        force: Annotated[np.ndarray, Array("float32", (2,))]

    with pytest.raises(ValidationError, match="an element of float64 does not fit float32"):
        Unbounded(force=given)


def test_lists_without_elements_have_the_declared_dimensions() -> None:
    class Points(Action):
        points: Annotated[np.ndarray, Array("float32", (None, 2))]
        grid: Annotated[np.ndarray, Array("float32", (2, None, 3))]

    points = Points(points=[], grid=[[], []])
    assert points.points.shape == (0, 2)
    assert points.grid.shape == (2, 0, 3)


class OnDevice:
    """An array of another library: its element type is numpy's, and it shares its memory."""

    def __init__(self, elements: Any):
        self.elements = elements
        self.dtype, self.shape, self.ndim = elements.dtype, elements.shape, elements.ndim

    def __dlpack__(self, **_: Any) -> Any:
        return self.elements.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.elements.__dlpack_device__()


@pytest.mark.parametrize("name", ["openenv.v2.msgpack", "openenv.v2.json"])
def test_arrays_of_other_libraries_are_sent_as_numpys(name: str) -> None:
    codec, elements = codec_of(name), np.arange(3, dtype=np.float32)
    for given in (elements, OnDevice(elements), OnDevice(elements)):  # numpy's first: its element type is known then
        assert codec.decode(codec.encode({"a": given}))["a"].tolist() == [0, 1, 2]


def test_bools_of_a_peer_are_true_or_false() -> None:
    packed = bytearray(pack_array(np.array([True, False])))
    packed[-2:] = b"\x07\x00"
    assert unpack_array(bytes(packed)).view(np.uint8).tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), ()])
async def test_arrays_without_elements_and_without_dimensions_keep_their_shape(
    wire: str | None, shape: tuple[int, ...]
) -> None:
    class Empty(Observation):
        data: Annotated[np.ndarray, Array("float64", shape)]

    class Still(Environment[Move, Empty, State]):
        execution = "inline"

        def reset(self, **kwargs: Any) -> Empty:
            return Empty(data=np.ones(shape))

        def step(self, action: Move, **kwargs: Any) -> Empty:
            return Empty(data=np.ones(shape))

        @property
        def state(self) -> State:
            return State()

    class StillEnv(EnvClient[Move, Empty, State]):
        pass

    async with StillEnv(app=create_app(Still, Move, Empty)) as env:
        assert np.array_equal((await env.reset()).observation.data, np.ones(shape))


@pytest.mark.parametrize(
    "arguments",
    [
        ("float32", (), 2, 1),
        ("U3", (2,)),
        ("complex64", ()),
        ("O", ()),
        ("float32", (-1,)),
        ("float32", (2,), [0, 0, 0]),
        ("float128", ()),
        ("nothing", ()),
        ("uint8", (), -1),
        ("uint8", (), 0, 256),
        ("int32", (), 0.5),
    ],
)
def test_a_declaration_that_cannot_be_sent_is_refused_where_it_is_written(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument, match="Array"):
        Array(*arguments)


def test_the_schema_is_that_of_nested_lists_with_the_element_type_beside_it() -> None:
    schema = Move.model_json_schema()["properties"]["force"]
    assert schema == {
        "items": {"type": "number", "minimum": -1.0, "maximum": 1.0},
        "minItems": 2,
        "maxItems": 2,
        "title": "Force",
        "type": "array",
        "x-array": {"dtype": "float32", "shape": [2]},
    }
    assert Move.model_json_schema(mode="serialization")["properties"]["force"] == schema


def test_models_with_arrays_are_equal_if_their_elements_are() -> None:
    one, other = Move(force=[0, 1]), Move(force=[0, 1])
    assert one == other
    assert one != Move(force=[1, 1])
    assert one != View.model_construct(force=one.force)
    assert Move.model_validate_json(one.model_dump_json()) == one


async def test_an_array_over_the_limit_of_messages_ends_no_session() -> None:
    async with GenericEnvClient(app=app_of(), message_timeout_s=10) as env:
        await env.reset()
        with pytest.raises((InvalidAction, MessageTooLarge), match="max_message|shape"):
            await env.step({"force": np.zeros(20_000_000, np.float32)})


async def test_a_fork_has_arrays_of_its_own() -> None:
    async with WorldEnv(app=app_of()) as env:
        await env.reset(seed=3)
        async with await env.fork() as copy:
            await copy.step(Move(force=[1, 0]))
            assert ((await env.state()).seen == 3).all()
            assert ((await copy.state()).seen == 104).all()


@pytest.mark.parametrize("side", ["server", "client"])
async def test_records_have_small_arrays_as_lists_and_large_ones_as_files(tmp_path: Path, side: str) -> None:
    settings = ServerSettings(record=str(tmp_path) if side == "server" else None)
    app = create_app(World, Move, View, state_cls=Map, settings=settings)
    async with WorldEnv(app=app, record=tmp_path if side == "client" else None) as env:
        await env.reset(seed=5)
        await env.step(Move(force=[0.25, 1]))
    await app.state.openenv.aclose()
    (episode,) = Recording(tmp_path).episodes()
    first, second = episode.transitions(arrays=False)
    if side == "server":  # a client records what it sent
        assert second.action["force"] == [0.25, 1.0]
        assert second.observation["force"] == [0.25, 1.0]
    assert "sha256" in first.observation["image"]["$array"]
    first, second = episode.transitions()
    assert (first.observation["image"] == 5).all()
    assert (second.observation["image"] == 31).all()


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
async def test_a_connection_that_is_cut_in_the_middle_of_arrays_changes_none(
    subprotocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_backoff, session):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(websocket, "SUBPROTOCOLS", (subprotocol,))
    forces = np.linspace(-1, 1, 40, dtype=np.float32)

    async def played(url: str, proxy: Proxy | None) -> bytes:
        seen = b""
        async with WorldEnv(url) as env:
            seen += (await env.reset(seed=1)).observation.image.tobytes()
            for force in forces:
                if proxy is not None:
                    proxy.doom(within_bytes=12_000)
                result = await env.step(Move(force=[force, 0]))
                seen += result.observation.image.tobytes() + result.observation.force.tobytes()
        return seen

    with ExitStack() as stack:
        address = stack.enter_context(served(app_of(), ws=FastPath))
        proxy = stack.enter_context(Proxy(urlsplit(f"//{address}").port, 11))
        assert await played(proxy.url, proxy) == await played(f"http://{address}", None)
        assert proxy.accepted > 5


async def test_an_action_that_its_owner_changes_after_send_is_executed_as_it_was() -> None:
    with ExitStack() as stack:
        address = stack.enter_context(served(app_of(), ws=FastPath))
        proxy = stack.enter_context(Proxy(urlsplit(f"//{address}").port, 3))
        async with VectorEnvClient(GenericEnvClient, proxy.url, 1) as envs:
            await envs.reset()
            proxy.freeze()
            force = np.array([0.5, 0], np.float32)
            await envs.send([{"force": force}])
            force[:] = -1
            await asyncio.to_thread(proxy.cut_all, 1, 0.1)  # before the server gets it
            proxy.thaw()
            ((_, result),) = await envs.recv()
    assert result.reward == 0.5
