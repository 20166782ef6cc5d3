"""Batches of members of any space: in a message, in the columns that a batch declares, and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from pydantic import TypeAdapter, create_model

from openenv.adapters.gymnasium.batch_codec import batch_codec_of, host_array, member_at
from openenv.adapters.gymnasium.codec import codec_of
from openenv.protocol.codecs import codec_of as message_codec_of
from openenv.runtime.columns import BatchSpec
from openenv.types import Action, Observation

from .strategies import any_space

COUNT = 3


def batch_of(space: spaces.Space[Any]) -> tuple[list[Any], Any]:
    """Members, and a batch of them."""
    space.seed(1)
    members = [space.sample() for _ in range(COUNT)]
    return members, concatenate(space, members, create_empty_array(space, n=COUNT, fn=np.zeros))


@given(any_space)
def test_a_batch_comes_back_from_a_message(space: spaces.Space[Any]) -> None:
    members, batch = batch_of(space)
    codec, message = batch_codec_of(space, COUNT), message_codec_of("openenv.v2.msgpack")
    received = message.decode(message.encode({"it": codec.encode(copy.deepcopy(batch))}))["it"]
    found = codec.decode(received)
    assert data_equivalence(found, batch)
    for index, member in enumerate(members):
        assert data_equivalence(
            codec_of(space).encode(member_at(space, found, index)), codec_of(space).encode(member)
        )


@given(any_space)
def test_it_is_the_columns_that_its_space_declares(space: spaces.Space[Any]) -> None:
    _, batch = batch_of(space)
    kind = (codec_of(space).type, ...)
    actions, observations = (create_model("Made", __base__=base, it=kind) for base in (Action, Observation))
    spec = BatchSpec("Made", COUNT, "next_step", actions, observations, owned_only=True)
    columns = {"it": batch_codec_of(space, COUNT).encode(batch)}
    assert data_equivalence(spec.observation_columns(columns, "step"), columns)
    action = TypeAdapter(spec.action_type).validate_python(columns)["it"]
    assert data_equivalence(batch_codec_of(space, COUNT).decode(action), batch)


@pytest.mark.parametrize(
    ("space", "value", "said"),
    [
        (spaces.Box(0, 1, (2,)), np.zeros((COUNT, 3)), r"shape \(3, 3\) in place of \(3, 2\)"),
        (spaces.Discrete(2), np.zeros(COUNT), "float64 in place of int64"),
        (spaces.Discrete(2), np.array(["a"] * COUNT), "in place of int64"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": np.zeros(COUNT, int)}, "an object of a, and is b"),
        (spaces.Tuple((spaces.Discrete(2),)), [np.zeros(COUNT, int)], "an object of 0, and is list"),
        (spaces.Text(2), ["a"], "one for each episode, and got 1"),
        (spaces.Text(2), "abc", "one for each episode, and got str"),
    ],
)
def test_a_value_of_another_form_is_refused(space: spaces.Space[Any], value: Any, said: str) -> None:
    with pytest.raises((LookupError, TypeError, ValueError), match=said):
        batch_codec_of(space, COUNT).decode(value)


def test_what_is_decoded_may_be_written_to() -> None:
    space = spaces.Box(0, 255, (2,), np.uint8)
    given_array = np.zeros((COUNT, 2), np.uint8)
    given_array.flags.writeable = False
    batch_codec_of(space, COUNT).decode(given_array)[:] = 1
    assert batch_space(space, COUNT).contains(given_array)
    assert host_array(given_array) is given_array
