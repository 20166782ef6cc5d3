"""Games of PettingZoo as environments: who acts, who is told what, and when it is over."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from openenv._introspection import type_arguments
from openenv.adapters.farama import plain
from openenv.adapters.gymnasium.description import KEYWORD, rebuild
from openenv.adapters.pettingzoo import PettingZooEnvironment, pettingzoo_environment
from openenv.adapters.pettingzoo.environment import PettingZooState
from openenv.environment import Environment
from openenv.errors import ImportFailed, InvalidAction, ResetRequired, UsageError

from . import games

GAMES = games.__name__
Race = pettingzoo_environment(GAMES)
Take = pettingzoo_environment(f"{GAMES}:env")


def acts(environment: PettingZooEnvironment, **actions: Any) -> Any:
    cls = type(environment).action_cls
    return environment.step(cls.model_validate({"actions": {name.lstrip("_"): act for name, act in actions.items()}}))


def test_all_that_live_act_side_by_side() -> None:
    race = Race()
    seen = race.reset(seed=1, options={"wind": 3})
    assert (seen.agents, seen.to_act, seen.reward, seen.done) == (["ann", "bob"], ["ann", "bob"], None, False)
    assert seen.rewards == {}
    assert seen.infos == {"ann": {"options": {"wind": 3}}, "bob": {"options": {"wind": 3}}}
    assert plain(seen.observations["ann"]["at"]) == [0, 0]

    seen = acts(race, ann=2, bob=[1])
    assert (seen.rewards, seen.reward, seen.done) == ({"ann": 2.0, "bob": 1.0}, 3.0, False)
    assert plain(seen.observations["bob"]["at"]) == [2, 1]
    assert seen.infos == {"ann": {"step": 1}, "bob": {"step": 1}}

    seen = acts(race, ann=2, bob=[0])
    assert seen.terminations == {"ann": True, "bob": False}
    assert (seen.agents, seen.to_act, seen.done) == (["bob"], ["bob"], False)
    assert "ann" in seen.observations  # it is told how it ended

    with pytest.raises(InvalidAction, match="the step has actions of ann, bob: it needs actions of bob"):
        acts(race, ann=1, bob=[1])
    seen = acts(race, bob=[2])
    assert seen.rewards == {"bob": 2.0}
    seen = acts(race, bob=[2])
    assert (seen.done, seen.terminated, seen.truncated, seen.agents) == (True, True, False, [])
    assert race.state.step_count == 4
    with pytest.raises(ResetRequired, match="over since step 4"):
        acts(race, bob=[2])
    assert race.reset().to_act == ["ann", "bob"]


def test_an_episode_in_which_somebody_was_cut_short_is_truncated() -> None:
    race = pettingzoo_environment(GAMES, length=2, limit=2)()
    race.reset(seed=1)
    assert not acts(race, ann=2, bob=[0]).done
    seen = acts(race, bob=[0])
    assert (seen.terminations, seen.truncations) == ({"bob": False}, {"bob": True})
    assert (seen.done, seen.terminated, seen.truncated) == (True, False, True)
    race.reset(seed=1)
    seen = acts(race, ann=2, bob=[2])
    assert (seen.terminated, seen.truncated) == (True, False)


def test_one_acts_in_turns_and_the_dead_are_told() -> None:
    take = Take()
    seen = take.reset()
    assert (seen.agents, seen.to_act) == (["0", "1"], ["0"])
    assert plain(seen.observations) == {"0": {"left": 7, "action_mask": [1, 1, 1]}}
    assert seen.action_masks == {"0": [1, 1, 1]}

    seen = acts(take, _0=3)
    assert (seen.to_act, seen.rewards, seen.reward) == (["1"], {"1": 0.0}, 0.0)
    with pytest.raises(InvalidAction, match="actions of 0: it needs actions of 1, the agents in `to_act`"):
        acts(take, _0=1)
    with pytest.raises(InvalidAction, match="actions of no agent: it needs actions of 1"):
        acts(take)

    seen = acts(take, _1=2)
    assert seen.action_masks == {"0": [1, 1, 0]}
    seen = acts(take, _0=2)
    assert seen.rewards == {"0": 1.0, "1": -1.0}
    assert seen.terminations == {"0": True, "1": True}
    assert (seen.reward, seen.done, seen.terminated, seen.agents, seen.to_act) == (0.0, True, True, [], [])
    assert set(seen.observations) == {"0", "1"}


def test_options_and_arguments_reach_the_environment() -> None:
    take = pettingzoo_environment(f"{GAMES}:env", heap=9, forfeit=True)()
    assert take.reset().observations["0"]["left"] == 9
    assert take.reset(options={"heap": 2}).observations["0"]["left"] == 2
    seen = acts(take, _0=2)
    assert (seen.done, seen.terminated, seen.truncated) == (True, False, True)


@pytest.mark.parametrize("arguments", [{"seed": -1}, {"seed": "7"}, {"seed": True}, {"options": 3}])
def test_what_is_no_seed_and_no_options_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidAction):
        Race().reset(**arguments)


def test_a_step_needs_a_reset_before_it() -> None:
    with pytest.raises(ResetRequired, match="before the first step"):
        acts(Race(), ann=0, bob=[0])


@pytest.mark.parametrize(
    "actions",
    [
        {"ann": 3, "bob": [0]},
        {"ann": [0], "bob": [0]},
        {"ann": 0, "bob": 0},
        {"ann": 0, "bob": [0], "eve": 0},
        {"ann": None},
        [],
        None,
    ],
)
def test_actions_are_typed_by_the_space_of_their_agent(actions: Any) -> None:
    with pytest.raises(ValidationError):
        Race.action_cls.model_validate({"actions": actions})


def test_the_schema_tells_the_space_of_each_agent() -> None:
    schema = TypeAdapter(Race.action_cls).json_schema()
    agents = schema["$defs"]["Actions"]["properties"]
    game = games.Race()
    assert {agent: rebuild(told[KEYWORD]) for agent, told in agents.items()} == {
        agent: game.action_space(agent) for agent in game.possible_agents
    }


def test_what_was_built_without_a_validation_is_what_a_validation_would_have_built() -> None:
    race, take = Race(), Take()
    for seen in (race.reset(seed=1), acts(race, ann=1, bob=[0]), take.reset(), acts(take, _0=1)):
        assert type(seen).model_validate_json(seen.model_dump_json()) == seen


@pytest.mark.parametrize("cls", [Race, Take])
def test_a_copy_goes_on_from_where_its_original_is(cls: type[PettingZooEnvironment]) -> None:
    original = cls()
    original.reset(seed=3)
    first = {"ann": 1, "bob": [0]} if cls is Race else {"0": 1}
    then = {"ann": 2, "bob": [1]} if cls is Race else {"1": 2}
    original.step(cls.action_cls.model_validate({"actions": first}))
    copied = copy.deepcopy(original)
    for _ in range(2):
        assert copied.state == original.state
        seen = [each.step(cls.action_cls.model_validate({"actions": then})) for each in (original, copied)]
        assert seen[0] == seen[1]
        then = {agent: ([2] if agent == "bob" else 2) for agent in seen[0].to_act}
        assert copied.state.step_count == original.state.step_count
    copied.reset(seed=1)
    assert original.state.step_count == 3


def test_the_page_shows_what_is_rendered_and_offers_what_is_allowed() -> None:
    take = Take()
    seen = take.reset(options={"heap": 2}).model_dump()
    assert take.web_actions(seen) == [("0: 1", {"actions": {"0": 1}}), ("0: 2", {"actions": {"0": 2}})]
    assert take.render_web(seen) is None
    race = pettingzoo_environment(GAMES, render_mode="ansi")()
    seen = race.reset().model_dump()
    assert race.web_actions(seen) == []  # two act at a time
    assert race.render_web(seen) == "<pre>ann 0</pre>"
    drawn = pettingzoo_environment(GAMES, render_mode="rgb_array")()
    drawn.reset()
    assert "data:image/png" in str(drawn.render_web({}))


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("no.such.module", {}, "no module 'no'"),
        ("classic.nonsense_v1", {}, "no module 'classic'"),
        (f"{GAMES}:nobody", {}, "has no nobody: write MODULE:NAME"),
        ("json", {}, "has no parallel_env and no env"),
        (GAMES, {"colour": "red"}, "colour"),
        (f"{GAMES}:broken", {}, "OSError: no such arena"),
        (f"{GAMES}:other", {}, "makes a int: it must make an AECEnv or a ParallelEnv"),
        (f"{GAMES}:Nameless", {}, "no `possible_agents`"),
        (f"{GAMES}:Twins", {}, "names are equal as text"),
        (f"{GAMES}:Strange", {}, "a space of kind Space cannot be served"),
    ],
)
def test_what_cannot_be_served_says_why(module: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        pettingzoo_environment(module, **arguments)
    assert words in caught.value.message


def test_an_environment_of_pettingzoo_itself_is_found_by_its_short_name() -> None:
    """None of them can be made without a window's library; their modules are found, and say what they lack."""
    with pytest.raises((UsageError, ImportFailed)) as caught:
        pettingzoo_environment("test.example_envs.generated_agents_parallel_v0")
    assert "no `possible_agents`" in caught.value.message


def test_a_class_is_named_and_described_after_its_module() -> None:
    assert Take.__name__ == "games_env"
    assert Race.__doc__ is not None
    assert "Each runner goes" in Race.__doc__
    assert Race.__doc__.endswith("act side by side.")


def test_its_class_has_the_name_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openenv_race_v0", games)
    race = pettingzoo_environment("openenv_race_v0")
    assert race.__name__ == "openenv_race_v0"
    assert race.action_cls.__name__ == "openenv_race_v0_Action"


def test_numbers_of_numpy_leave_as_numbers_of_python() -> None:
    race = Race()
    race.reset(seed=1)
    seen = acts(race, ann=1, bob=[0])
    assert type(seen.infos["ann"]["step"]) is int
    assert type(seen.rewards["ann"]) is float
    assert not isinstance(seen.observations["ann"]["luck"], np.generic)


def test_without_pettingzoo_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["pettingzoo"] = None
from openenv.errors import MissingExtra
try:
    import openenv.adapters.pettingzoo
except MissingExtra as error:
    print(error)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "pettingzoo is not installed: pip install 'openenv[pettingzoo]'\n"


def test_a_class_says_what_it_was_made_for_as_one_that_is_written_down() -> None:
    assert type_arguments(Race, Environment) == (Race.action_cls, Race.observation_cls, PettingZooState)
