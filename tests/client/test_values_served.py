"""Values of every kind between a client and an environment that is served, wherever it runs."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from starlette.testclient import TestClient

from openenv.client import EnvClient, GenericEnvClient, memory
from openenv.environment import Environment
from openenv.errors import InvalidAction, InvalidArgument
from openenv.server import create_app
from openenv.types import Action, Observation, State


class Colour(enum.Enum):
    RED = "red"


class Tile(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    image: NDArray[np.uint8]
    raw: bytes = b"\xff\x00"


class Contents(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    pixels: np.ndarray
    tiles: list[Tile]
    raw: bytes
    colour: Colour
    at: datetime
    lasts: timedelta
    price: Decimal
    id: UUID
    either: int | Tile | None = None
    codes: tuple[bytes, ...] = ()
    names: frozenset[str] = frozenset()


class Sent(Action, Contents):
    pass


class Seen(Observation, Contents):
    pass


class Kept(State, Contents):
    pass


class Mirror(Environment[Sent, Seen, Kept]):
    """Shows and keeps what it is given, after it has looked whether it is of the types declared."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state: Any = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        self._state = kept(np.zeros(1, np.int64))
        return Seen(**contents(np.zeros(1, np.int64)), metadata={"given": kwargs.get("mask")})

    def step(self, action: Sent, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        fields = {name: getattr(action, name) for name in Contents.model_fields}
        assert isinstance(action.pixels, np.ndarray)
        assert action.pixels.flags.writeable
        self._state = Kept(**fields)
        return Seen(**fields, reward=1)

    @property
    def state(self) -> Any:
        return self._state


class InlineMirror(Mirror):
    execution = "inline"


class ProcessMirror(Mirror):
    execution = "process"


class MirrorEnv(EnvClient[Sent, Seen, Kept]):
    pass


def contents(pixels: np.ndarray) -> dict[str, Any]:
    return {
        "pixels": pixels,
        "tiles": [Tile(image=np.arange(6, dtype=np.uint8).reshape(2, 3)), Tile(image=np.zeros((0, 3), np.uint8))][:1],
        "raw": b"\xfe\xff",
        "colour": Colour.RED,
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "lasts": timedelta(days=1, microseconds=3),
        "price": Decimal("1.10"),
        "id": UUID(int=7),
        "either": Tile(image=np.ones((1, 1), np.uint8)),
        "codes": (b"a", b"\x80"),
        "names": frozenset({"a", "b"}),
    }


def kept(pixels: np.ndarray) -> Kept:
    return Kept(**contents(pixels))


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, BaseModel):
        return type(one) is type(other) and all(alike(value, getattr(other, name)) for name, value in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and bool(one == other)


def app_of(environment: Any) -> Any:
    return create_app(environment, Sent, Seen, state_cls=Kept, max_concurrent_envs=2)


@pytest.fixture(params=["openenv.v2.msgpack", "openenv.v2.json", None], ids=str)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    return request.param


@pytest.mark.parametrize("environment", [InlineMirror, Mirror, ProcessMirror])
async def test_all_that_an_action_holds_comes_back_as_it_was(wire: Any, environment: Any) -> None:
    pixels = np.arange(12.0).reshape(3, 4)[:, ::2]
    app = app_of(environment)
    try:
        async with MirrorEnv(app=app) as env:
            await env.reset()
            seen = (await env.step(Sent(**contents(pixels)))).observation
            state = await env.state()
    finally:
        await app.state.openenv.aclose()

    for name, value in contents(pixels).items():
        assert alike(value, getattr(seen, name)), name
        assert alike(value, getattr(state, name)), name


async def test_arguments_of_a_reset_may_be_arrays(wire: Any) -> None:
    async with MirrorEnv(app=app_of(InlineMirror)) as env:
        result = await env.reset(mask=np.eye(2))
        with pytest.raises(InvalidArgument, match="an argument cannot be written"):
            await env.reset(mask=object())
    assert np.array_equal((result.metadata or {})["given"], np.eye(2))


async def test_an_action_that_cannot_be_sent_names_why_and_the_session_goes_on(wire: Any) -> None:
    async with MirrorEnv(app=app_of(InlineMirror)) as env:
        await env.reset()
        with pytest.raises(InvalidArgument, match="the action cannot be written .* an array of .* cannot be sent"):
            await env.step(Sent(**contents(np.zeros(2, [("a", "i4")]))))
        assert (await env.step(Sent(**contents(np.zeros(2))))).reward == 1


async def test_an_untyped_client_sends_arrays_and_bytes_as_they_are(wire: Any) -> None:
    async with GenericEnvClient(app=app_of(InlineMirror)) as env:
        await env.reset()
        result = await env.step({**contents(np.arange(3)), "metadata": {}})
        assert np.array_equal(result.observation["pixels"], np.arange(3))
        with pytest.raises(InvalidAction, match="pixels"):
            await env.step({**contents(np.arange(3)), "pixels": "none"})


def test_over_http_arrays_are_lists() -> None:
    with TestClient(app_of(InlineMirror)) as http:
        action = {
            "pixels": [[1, 2]],
            "tiles": [{"image": [[0, 255]], "raw": "text"}],
            "raw": {"$bytes": "/v8="},
            "colour": "red",
            "at": "2026-01-02T00:00:00Z",
            "lasts": "PT1S",
            "price": "1.10",
            "id": str(UUID(int=7)),
        }
        reply = http.post("/step", json={"action": action})
        assert reply.status_code == 200, reply.text
        seen = reply.json()["observation"]
        assert (seen["pixels"], seen["tiles"], seen["raw"]) == (action["pixels"], action["tiles"], action["raw"])

        wrong = http.post("/step", json={"action": {**action, "pixels": "none"}})
        assert wrong.status_code == 422
