"""Games of many agents over a real socket, by the name that `openenv serve` takes."""

from __future__ import annotations

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import InvalidAction, ResetRequired
from openenv.project.target import load

from ...server.wires import served
from . import games

GAMES = games.__name__


async def test_a_race_is_run_from_a_client() -> None:
    with served(load(f"pettingzoo:{GAMES}?length=3")) as address:
        async with GenericEnvClient(f"http://{address}") as client:
            result = await client.reset(seed=1)
            assert result.observation["to_act"] == ["ann", "bob"]
            with pytest.raises(InvalidAction):
                await client.step({"actions": {"ann": 3, "bob": [1]}})
            with pytest.raises(InvalidAction, match="needs actions of ann, bob"):
                await client.step({"actions": {"ann": 1}})
            result = await client.step({"actions": {"ann": 2, "bob": [1]}})
            assert (result.reward, result.done) == (3.0, False)
            result = await client.step({"actions": {"ann": 2, "bob": [2]}})
            assert result.observation["rewards"] == {"ann": 2.0, "bob": 2.0}
            assert (result.done, result.terminated, result.truncated) == (True, True, False)
            with pytest.raises(ResetRequired):
                await client.step({"actions": {}})
            state = await client.state()
            assert (state["step_count"], state["seed"], state["agents"]) == (2, 1, [])


async def test_a_game_in_turns_is_played_from_a_client() -> None:
    with served(load(f"pettingzoo:{GAMES}:env?heap=4")) as address:
        async with GenericEnvClient(f"http://{address}") as client:
            result = await client.reset()
            turns = []
            while not result.done:
                (agent,) = result.observation["to_act"]
                turns.append(agent)
                result = await client.step({"actions": {agent: 1}})
            assert turns == ["0", "1", "0", "1"]
            assert result.observation["rewards"] == {"0": -1.0, "1": 1.0}
