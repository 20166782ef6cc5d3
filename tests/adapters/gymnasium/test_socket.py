"""Spaces of spaces over a real socket: what the environment gives arrives, what it takes is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from openenv.adapters.farama import plain
from openenv.adapters.gymnasium import gymnasium_app
from openenv.adapters.gymnasium.codec import codec_of
from openenv.client import GenericEnvClient
from openenv.errors import InvalidAction

from ...server.wires import served

SPACES: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict(image=spaces.Box(0, 255, (2, 2), np.uint8), text=spaces.Text(5)),
    "tuple": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (2,))),
    "stack": spaces.Sequence(spaces.Dict(a=spaces.Discrete(4), b=spaces.Box(-1, 1, (1,))), stack=True),
    "one_of": spaces.OneOf([spaces.Discrete(2), spaces.Tuple([spaces.Text(3)])]),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "bare": spaces.Graph(spaces.Discrete(3), None),
}


class Mirror(gymnasium.Env[Any, Any]):
    """Shows the action that it got; the info tells whether it was in the space."""

    def __init__(self, kind: str):
        self.action_space = self.observation_space = SPACES[kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return action, 1.0, False, True, {"inside": self.action_space.contains(action)}


gymnasium.register("openenv-tests/Mirror-v0", entry_point=Mirror)


@pytest.fixture(scope="module", params=SPACES)
def mirror(request: pytest.FixtureRequest) -> Iterator[tuple[spaces.Space[Any], str]]:
    with served(gymnasium_app("openenv-tests/Mirror-v0", kind=request.param)) as address:
        yield SPACES[request.param], f"http://{address}"


async def test_members_travel_both_ways(mirror: tuple[spaces.Space[Any], str]) -> None:
    space, url = mirror
    codec = codec_of(space)
    async with GenericEnvClient(url) as client:
        for seed in range(3):
            first = await client.reset(seed=seed, options={"level": seed})
            space.seed(seed)
            assert as_json(first.observation["observation"]) == as_json(codec.encode(space.sample()))
            assert first.observation["metadata"]["options"] == {"level": seed}
            action = codec.encode(space.sample())
            result = await client.step({"action": action})
            assert as_json(result.observation["observation"]) == as_json(action)
            assert result.observation["metadata"] == {"inside": True}
            assert (result.terminated, result.truncated, result.done) == (False, True, True)


async def test_what_is_outside_is_refused_and_the_session_goes_on(mirror: tuple[spaces.Space[Any], str]) -> None:
    space, url = mirror
    async with GenericEnvClient(url) as client:
        await client.reset(seed=1)
        for wrong in ("nothing", [[]], {"nodes": "all"}, 1.5, None):
            with pytest.raises(InvalidAction):
                await client.step({"action": wrong})
        result = await client.step({"action": codec_of(space).encode(space.sample())})
        assert result.observation["metadata"] == {"inside": True}


def as_json(value: Any) -> Any:
    """Tuples and arrays as lists."""
    value = plain(value)
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, list | tuple) else value
