"""Spaces as JSON: what comes back is the same space."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from openenv.adapters.gymnasium import gymnasium_app, gymnasium_environment
from openenv.adapters.gymnasium.description import KEYWORD, describe, rebuild
from openenv.errors import UsageError
from openenv.protocol.contract import Contract, contract_of, first_difference

from .strategies import any_space


@given(any_space, st.integers(0, 2**31))
def test_a_description_makes_the_same_space_again(space: spaces.Space[Any], seed: int) -> None:
    written = json.dumps(describe(space), allow_nan=False, sort_keys=True)  # as writers of JSON Schemas sort
    again = rebuild(json.loads(written))
    assert again == space
    assert describe(again) == describe(space)
    space.seed(seed)
    again.seed(seed)
    assert repr(again.sample()) == repr(space.sample())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.int8),
        spaces.Box(np.array([-np.inf, 0]), np.array([3, np.inf]), dtype=np.int8),
        spaces.Box(np.array([-(2**63)]), np.array([2**63 - 1]), dtype=np.int64),
        spaces.Box(0, 1, (2, 2), np.bool_),
        spaces.Box(-1, 1, (0, 2)),
        spaces.Discrete(3, start=-1, dtype=np.int32),
        spaces.MultiDiscrete([[1, 2], [3, 4]], np.int16, start=[[0, -1], [2, 3]]),
        spaces.Text(3, charset="zyx"),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
    ],
    ids=str,
)
def test_corners_come_back(space: spaces.Space[Any]) -> None:
    again = rebuild(json.loads(json.dumps(describe(space), allow_nan=False)))
    assert again == space
    assert again.dtype == space.dtype
    if isinstance(space, spaces.Box):
        assert isinstance(again, spaces.Box)
        np.testing.assert_array_equal(again.bounded_below, space.bounded_below)
        np.testing.assert_array_equal(again.bounded_above, space.bounded_above)
    if isinstance(space, spaces.Dict):
        assert isinstance(again, spaces.Dict)
        assert list(again) == list(space)
    if isinstance(space, spaces.Text):
        assert isinstance(again, spaces.Text)
        assert again.character_list == space.character_list


def test_a_derived_space_is_described_as_what_it_derives_from() -> None:
    class Even(spaces.Discrete):
        """Even numbers."""

    assert rebuild(describe(Even(4))) == spaces.Discrete(4)


def box(**told: Any) -> dict[str, Any]:
    return {"kind": "Box", "shape": [2], "dtype": "float32", "low": 0, "high": 1, **told}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "kind"),
        ([], "describes no space"),
        (None, "describes no space"),
        ({"kind": "Quaternion"}, "the kind 'Quaternion' is not known, only Box, Dict"),
        ({"kind": ["Box"]}, "describes no space"),
        (box(shape=[10**9, 10**9]), "more than"),
        (box(shape=[-1]), "negative"),
        (box(shape="ab"), "describes no space"),
        (box(dtype="object"), "'object' of its numbers is not known"),
        (box(dtype=["float32"]), "describes no space"),
        (box(low="much"), "describes no space"),
        (box(low=[0]), "describes no space"),
        (box(low=None), "describes no space"),
        (box(low=2), "low"),
        ({"kind": "Discrete", "n": 0, "start": 0, "dtype": "int64"}, "positive"),
        ({"kind": "MultiBinary", "n": [10**6, 10**6]}, "more than"),
        ({"kind": "Dict", "spaces": {"a": {}}}, "describes no space"),
        ({"kind": "OneOf", "spaces": []}, "describes no space"),
        ({"kind": "Text", "min_length": 2, "max_length": 1, "charset": "a"}, "min_length"),
    ],
)
def test_what_describes_no_space_is_refused(told: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rebuild(told)


def test_a_description_that_is_nested_without_end_is_refused() -> None:
    told: dict[str, Any] = {"kind": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    for _ in range(200):
        told = {"kind": "Sequence", "space": told, "stack": False}
    with pytest.raises(UsageError, match="nested more than 64 deep"):
        rebuild(told)


def without(value: Any) -> Any:
    """A schema in which no space is told."""
    if isinstance(value, dict):
        return {key: without(part) for key, part in value.items() if key != KEYWORD}
    return [without(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def contract() -> Contract:
    cartpole = gymnasium_environment("CartPole-v1")
    return contract_of(cartpole.action_cls, cartpole.observation_cls, None)


def test_the_contract_hands_the_space_on(contract: Contract) -> None:
    env = gymnasium.make("CartPole-v1")
    for part, field, space in (
        ("action", "action", env.action_space),
        ("observation", "observation", env.observation_space),
    ):
        schema = contract.schemas[part]
        assert schema is not None
        assert rebuild(schema["properties"][field][KEYWORD]) == space
    env.close()


def test_the_space_counts_in_no_hash_and_is_no_difference(contract: Contract) -> None:
    bare = Contract(without(contract.schemas))
    assert bare.hashes == contract.hashes
    assert bare.schemas != contract.schemas
    assert first_difference(contract, bare) is None
    assert first_difference(bare, contract) is None


class Nested(gymnasium.Env[Any, Any]):
    """Has a space with a definition of its own in the schema."""

    observation_space = spaces.Dict(b=spaces.Tuple([spaces.Discrete(2)]), a=spaces.Box(0, 1, (2,)))
    action_space = spaces.OneOf([spaces.Discrete(2), spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)))])


gymnasium.register("openenv-tests/Nested-v0", entry_point=Nested)


def test_the_server_tells_spaces_over_http() -> None:
    with TestClient(gymnasium_app("openenv-tests/Nested-v0")) as client:
        told = client.get("/schema").json()
    assert rebuild(told["action"]["properties"]["action"][KEYWORD]) == Nested.action_space
    assert rebuild(told["observation"]["properties"]["observation"][KEYWORD]) == Nested.observation_space
