from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType

import pytest
from pydantic import BaseModel, TypeAdapter

from openenv.client.payloads import dump_action, parse_observation, parse_state
from openenv.errors import ProtocolViolation
from openenv.types import Action, Observation

from .environments import CounterAction, CounterObservation, CounterState

OBSERVATION, STATE = TypeAdapter(CounterObservation), TypeAdapter(CounterState)


class Colour(Enum):
    RED = "red"


class RichAction(Action):
    colour: Colour
    at: datetime
    parts: tuple[int, ...] = ()


class RichObservation(Observation):
    colour: Colour
    at: datetime
    parts: tuple[int, ...]


class Bare(BaseModel):
    word: str


def test_an_action_becomes_json_values():
    action = RichAction(colour=Colour.RED, at=datetime(2026, 1, 2, tzinfo=UTC), parts=(1, 2))
    assert dump_action(action) == {"colour": "red", "at": "2026-01-02T00:00:00Z", "parts": [1, 2]}


def test_an_empty_metadata_is_left_out_and_another_is_not():
    assert dump_action(CounterAction(by=1)) == {"by": 1, "mood": "fine"}
    assert dump_action(CounterAction(by=1, metadata={"why": 2}))["metadata"] == {"why": 2}


def test_any_model_and_any_mapping_is_an_action():
    assert dump_action(Bare(word="w")) == {"word": "w"}
    assert dump_action({"word": "w"}) == {"word": "w"}
    assert dump_action(MappingProxyType({"word": "w"})) == {"word": "w"}


def test_a_mapping_is_not_changed_by_what_is_sent():
    action = {"word": "w"}
    assert dump_action(action) is not action


@pytest.mark.parametrize("action", ["left", 3, None, ["left"], CounterAction])
def test_nothing_else_is_an_action(action):
    with pytest.raises(TypeError, match=f"a model or a mapping, not {type(action).__name__}"):
        dump_action(action)


def test_an_observation_with_its_type():
    result = parse_observation(OBSERVATION, {"observation": {"total": 3}, "reward": 0.5, "done": True})
    assert result.observation == CounterObservation(total=3, reward=0.5, done=True)
    assert (result.reward, result.done, result.metadata, result.truncated) == (0.5, True, None, False)


def test_an_observation_without_a_type_stays_a_dict():
    result = parse_observation(None, {"observation": {"total": 3, "more": 1}, "reward": None, "done": False})
    assert result.observation == {"total": 3, "more": 1}


def test_json_values_become_those_of_the_type():
    fields = {"colour": "red", "at": "2026-01-02T00:00:00Z", "parts": [1, 2]}
    result = parse_observation(TypeAdapter(RichObservation), {"observation": fields, "reward": None, "done": False})
    assert result.observation.colour is Colour.RED
    assert result.observation.at == datetime(2026, 1, 2, tzinfo=UTC)
    assert result.observation.parts == (1, 2)


@pytest.mark.parametrize("reward", [None, 0, 1, -1.5, True, False])
def test_a_reward_is_kept_as_it_came(reward):
    result = parse_observation(OBSERVATION, {"observation": {"total": 0}, "reward": reward, "done": False})
    assert result.reward is reward
    assert result.observation.reward is reward


def test_a_missing_reward_is_none_and_not_zero():
    result = parse_observation(OBSERVATION, {"observation": {"total": 0}, "done": False})
    assert result.reward is None
    assert result.done is False


@pytest.mark.parametrize(
    "payload",
    [
        {"observation": {"total": 0}, "metadata": {"a": 1}},
        {"observation": {"total": 0, "metadata": {"a": 1}}},
        {"observation": {"total": 0, "metadata": {"a": 2}}, "metadata": {"a": 1}},
    ],
)
def test_metadata_beside_the_observation_or_inside(payload):
    assert parse_observation(OBSERVATION, {**payload, "done": False}).metadata == {"a": 1}


def test_an_observation_alone_is_a_result():
    """As test suites of existing clients have it."""
    result = parse_observation(OBSERVATION, {"observation": {"total": 4}})
    assert (result.observation, result.done) == (CounterObservation(total=4), False)


def test_an_episode_that_is_said_to_be_neither_over_nor_going_on_is_refused():
    with pytest.raises(ProtocolViolation, match="whether the episode is done"):
        parse_observation(OBSERVATION, {"observation": {"total": 0}, "reward": 1.0, "done": None})


def test_an_episode_cut_short():
    payload = {"observation": {"total": 0}, "reward": 1.0, "done": True, "truncated": True}
    result = parse_observation(OBSERVATION, payload)
    assert (result.truncated, result.terminated) == (True, False)


@pytest.mark.parametrize(
    ("said", "terminated"),
    [
        ({}, True),
        ({"terminated": True, "truncated": True}, True),
        ({"terminated": False}, False),
        ({"terminated": 1}, True),
    ],
)
def test_an_end_of_its_own_is_what_the_server_says_it_is(said, terminated):
    result = parse_observation(OBSERVATION, {"observation": {"total": 0}, "reward": 1.0, "done": True, **said})
    assert result.terminated is terminated
    assert result.truncated is said.get("truncated", False)


@pytest.mark.parametrize("payload", [{}, {"observation": None}, {"observation": [1]}, {"total": 3}])
def test_a_reply_without_an_observation(payload):
    with pytest.raises(ProtocolViolation, match="without an observation"):
        parse_observation(None, payload)


@pytest.mark.parametrize("fields", [{}, {"total": "many"}, {"total": 1, "unheard_of": 2}])
def test_an_observation_of_another_version_says_where_it_does_not_fit(fields):
    with pytest.raises(ProtocolViolation, match="one version") as caught:
        parse_observation(OBSERVATION, {"observation": fields, "done": False})
    assert ("unheard_of" if "unheard_of" in fields else "total") in str(caught.value)


def test_a_state_with_its_type_and_without():
    values = {"episode_id": "e", "step_count": 2, "total": 5}
    assert parse_state(STATE, values) == CounterState(**values)
    assert parse_state(None, values) == values


def test_a_state_of_another_version():
    with pytest.raises(ProtocolViolation, match="step_count"):
        parse_state(STATE, {"step_count": -1, "total": 5})
