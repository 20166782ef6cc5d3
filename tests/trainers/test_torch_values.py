"""Tensors arrive as tensors where they are declared, and as arrays where nobody says what they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import TypeAdapter
from pydantic_core import from_json

from openenv.client import EnvClient, memory
from openenv.client.payloads import dump_action, parse_observation, parse_state
from openenv.environment import Environment
from openenv.errors import StepFailed
from openenv.protocol.arrays import pack_array, unpack_array
from openenv.protocol.client import ClientProtocol
from openenv.protocol.codecs import codec_of
from openenv.protocol.encoding import encode_observation, encode_outcome, encode_state, encode_state_fields
from openenv.protocol.server import ActionReader, ServerProtocol
from openenv.server import create_app
from openenv.types import Action, Observation, State

V1 = None
WIRES = [V1, "openenv.v2.json", "openenv.v2.msgpack"]
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(SHAPES)
    values = draw(arrays.arrays(np.int8, shape))
    return torch.from_numpy(values.copy()).to(draw(st.sampled_from(DTYPES)))


class Sent(Action):
    weights: torch.Tensor
    parts: list[torch.Tensor] = []
    more: Any = None


class Seen(Observation):
    weights: torch.Tensor
    parts: dict[str, torch.Tensor] = {}
    more: Any = None


class Kept(State):
    weights: torch.Tensor | None = None


def acted(wire: str | None, action: Sent) -> Sent:
    if wire is V1:
        frame, _ = ClientProtocol().send("step", dump_action(action))
        received: Any = ServerProtocol(Sent).receive(frame)
        return received["data"]
    codec = codec_of(wire)
    return ActionReader(Sent, codec)(codec.encode(dump_action(action)))


def observed(wire: str | None, observation: Seen) -> Seen:
    if wire is V1:
        payload = from_json(encode_observation(observation))
    else:
        codec = codec_of(wire)
        payload = codec.decode(codec.reply(1, encode_outcome(observation, codec)))
    return parse_observation(TypeAdapter(Seen), payload).observation


def told(wire: str | None, state: Kept) -> Kept:
    if wire is V1:
        payload = from_json(encode_state(state))
    else:
        codec = codec_of(wire)
        payload = codec.decode(codec.reply(1, encode_state_fields(state, codec)))["state"]
    return parse_state(TypeAdapter(Kept), payload)


def same(one: Any, other: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and torch.equal(one, other)
    )


@pytest.mark.parametrize("wire", WIRES[1:])
@settings(max_examples=50)
@given(tensor=tensors())
def test_tensors_arrive_as_they_were_sent(wire: str, tensor: torch.Tensor) -> None:
    action = acted(wire, Sent(weights=tensor, parts=[tensor]))
    assert same(action.weights, tensor)
    assert same(action.parts[0], tensor)
    seen = observed(wire, Seen(weights=tensor, parts={"a": tensor}))
    assert same(seen.weights, tensor)
    assert same(seen.parts["a"], tensor)
    assert same(told(wire, Kept(weights=tensor)).weights, tensor)


@pytest.mark.parametrize(
    "tensor", [torch.arange(6).reshape(2, 3), torch.tensor([0.5, -1.0]), torch.tensor(True)], ids=str
)
def test_over_v1_tensors_arrive_with_the_types_that_torch_gives_lists(tensor: torch.Tensor) -> None:
    assert same(acted(V1, Sent(weights=tensor)).weights, tensor)
    assert same(observed(V1, Seen(weights=tensor)).weights, tensor)
    assert same(told(V1, Kept(weights=tensor)).weights, tensor)


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_no_matter_how_a_tensor_lies_in_memory_and_whether_it_has_a_gradient(wire: str | None) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    views = [whole.T if whole.dim() == 2 else whole.permute(2, 0, 1), whole[:, ::2], whole[0].expand(2, 3, 4)]
    for tensor in (*views, whole.clone().requires_grad_(), torch.nn.Parameter(whole), whole.to_sparse().to_dense()):
        arrived = acted(wire, Sent(weights=tensor)).weights
        assert torch.equal(arrived, tensor)
        assert not arrived.requires_grad
        arrived.zero_()  # it is the receiver's own
    assert bool(whole.any())


@pytest.mark.parametrize("wire", WIRES[1:])
def test_where_no_tensor_is_declared_one_arrives_as_an_array(wire: str) -> None:
    tensor = torch.eye(2)
    for more in (
        acted(wire, Sent(weights=tensor, more={"a": tensor})),
        observed(wire, Seen(weights=tensor, more={"a": tensor})),
    ):
        assert isinstance(more.more["a"], np.ndarray)
        assert np.array_equal(more.more["a"], np.eye(2))


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.zeros(2).to(torch.float8_e4m3fn)],
    ids=["sparse", "meta", "float8"],
)
@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_a_tensor_that_cannot_be_sent_is_refused_where_it_is(wire: str | None, tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"a tensor of .* cannot be sent"):
        acted(wire, Sent(weights=tensor))
    with pytest.raises(StepFailed, match=r"'weights'.* cannot be sent"):
        observed(wire, Seen(weights=tensor))


def test_what_is_no_tensor_is_refused_where_it_is() -> None:
    codec = codec_of("openenv.v2.msgpack")
    for values in ("abc", [[1], [2, 3]], None, np.array([1]).astype("u2").tobytes()):
        with pytest.raises(Exception, match="weights"):
            ActionReader(Sent, codec)(codec.encode({"weights": values}))


def test_who_has_no_torch_gets_bfloat16_as_a_mapping() -> None:
    packed = pack_array(torch.ones(2, dtype=torch.bfloat16))
    program = (
        "import sys; from openenv.protocol.arrays import unpack_array;"
        f"print(unpack_array({packed!r})); assert 'torch' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == str({"dtype": "bfloat16", "shape": [2], "data": b"\x80?\x80?"})
    assert same(unpack_array(packed), torch.ones(2, dtype=torch.bfloat16))


class Mirror(Environment[Sent, Seen, Kept]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = Kept()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        return Seen(weights=torch.zeros(0))

    def step(self, action: Sent, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        self._state = Kept(weights=action.weights * 2)
        return Seen(weights=action.weights * 2, reward=float(action.weights.sum()))

    @property
    def state(self) -> Kept:
        return self._state


class MirrorEnv(EnvClient[Sent, Seen, Kept]):
    pass


@pytest.mark.parametrize("wire", WIRES, ids=str)
async def test_an_environment_of_tensors_is_stepped(wire: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SUBPROTOCOL", wire)
    async with MirrorEnv(app=create_app(Mirror, Sent, Seen, state_cls=Kept)) as env:
        await env.reset()
        result = await env.step(Sent(weights=torch.ones(2, 2, requires_grad=True)))
        assert same(result.observation.weights, torch.full((2, 2), 2.0))
        assert result.reward == 4
        state = await env.state()
        assert same(state.weights, torch.full((2, 2), 2.0))
