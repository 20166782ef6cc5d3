from __future__ import annotations

import dataclasses
import math

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from openenv import types
from openenv.messages import HealthResponse, ResetRequest, ResetResponse, SchemaResponse, StepRequest, StepResponse
from openenv.types import (
    Action,
    CodeExecResult,
    ConcurrencyConfig,
    EnvironmentMetadata,
    Observation,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    State,
    StepResult,
)


class Opaque:
    """A type that pydantic knows nothing about."""


@pytest.mark.parametrize("name", types.__all__)
def test_every_public_name_is_there(name):
    assert hasattr(types, name)


@pytest.mark.parametrize("base", [Action, Observation])
class TestActionAndObservation:
    def test_unknown_fields_are_refused(self, base):
        with pytest.raises(ValidationError, match="extra_forbidden"):
            base(surprise=1)

    def test_assignment_is_validated(self, base):
        model = base()
        with pytest.raises(ValidationError):
            model.metadata = "none"
        with pytest.raises(ValidationError):
            model.surprise = 1

    def test_fields_may_have_any_type(self, base):
        class Model(base):
            thing: Opaque

        thing = Opaque()
        assert Model(thing=thing).thing is thing
        with pytest.raises(ValidationError):
            Model(thing="thing")

    def test_metadata_is_empty_and_not_shared(self, base):
        one, other = base(), base()
        one.metadata["seen"] = True
        assert other.metadata == {}


def test_an_observation_by_itself():
    observation = Observation()
    assert (observation.done, observation.reward) == (False, None)


@pytest.mark.parametrize("reward", [True, False, 0, 3, -1.5, 0.0, None, math.inf])
def test_a_reward_keeps_its_type(reward):
    kept = Observation(reward=reward).reward
    assert kept == reward
    assert type(kept) is type(reward)


def test_a_reward_is_a_number():
    with pytest.raises(ValidationError):
        Observation(reward="high")


def test_numbers_that_are_none_travel_as_themselves():
    class Measured(Observation):
        distance: float

    assert '"distance":NaN' in Measured(distance=math.nan).model_dump_json()
    assert '"height":-Infinity' in State(height=-math.inf).model_dump_json()


def test_a_state_takes_further_fields():
    state = State(episode_id="e-1", step_count=2, board=["x", "o"])
    assert state.board == ["x", "o"]
    assert state.model_dump() == {"episode_id": "e-1", "step_count": 2, "board": ["x", "o"]}


def test_a_state_counts_from_zero():
    state = State()
    assert (state.episode_id, state.step_count) == (None, 0)
    with pytest.raises(ValidationError):
        State(step_count=-1)
    with pytest.raises(ValidationError):
        state.step_count = -1


def test_a_step_result_needs_an_observation_only():
    result = StepResult(observation="seen")
    assert (result.observation, result.reward, result.done, result.metadata) == ("seen", None, False, None)
    assert result.truncated is False


@pytest.mark.parametrize(
    ("done", "truncated", "terminated"),
    [(False, False, False), (True, False, True), (True, True, False), (False, True, False)],
)
def test_terminated_is_done_but_not_cut_short(done, truncated, terminated):
    assert StepResult(observation=0, done=done, truncated=truncated).terminated is terminated


def test_terminated_is_what_was_said_if_it_was():
    both = StepResult(observation=0, done=True, truncated=True, terminated=True)
    assert (both.terminated, both.truncated) == (True, True)
    assert dataclasses.replace(both, observation=1).terminated is True
    assert StepResult(observation=0, done=True, terminated=False).terminated is False


def test_a_step_result_is_generic_and_comparable():
    assert StepResult[int](observation=1) == StepResult(observation=1)


def test_environment_metadata():
    metadata = EnvironmentMetadata(name="chess", description="Chess")
    assert metadata.model_dump() == {
        "name": "chess",
        "description": "Chess",
        "readme_content": None,
        "version": None,
        "author": None,
        "documentation_url": None,
    }
    with pytest.raises(ValidationError):
        EnvironmentMetadata(name="chess", description="Chess", rating=5)


def test_the_outcome_of_code():
    assert CodeExecResult().model_dump() == {"stdout": "", "stderr": "", "exit_code": 0}


def test_modes_and_health_are_strings():
    assert ServerMode("production") is ServerMode.PRODUCTION
    assert f"{ServerMode.SIMULATION}" == "simulation"
    assert HealthResponse().model_dump_json() == '{"status":"healthy"}'


def test_concurrency_config():
    config = ConcurrencyConfig()
    assert (config.max_concurrent_envs, config.session_timeout) == (1, None)
    for bad in ({"max_concurrent_envs": 0}, {"session_timeout": 0}, {"session_timeot": 5}):
        with pytest.raises(ValidationError):
            ConcurrencyConfig(**bad)


@pytest.mark.parametrize(("active", "available", "full"), [(0, 2, False), (1, 1, False), (2, 0, True)])
def test_capacity_status(active, available, full):
    status = ServerCapacityStatus(active_sessions=active, max_sessions=2)
    assert (status.available_slots, status.is_at_capacity) == (available, full)


def test_session_info():
    info = SessionInfo(session_id="s", created_at=1.0, last_activity_at=2.0, environment_type="Chess")
    assert info.step_count == 0


def test_http_requests():
    reset = ResetRequest(seed=3, level="hard")
    assert (reset.seed, reset.episode_id, reset.model_extra) == (3, None, {"level": "hard"})
    step = StepRequest(action={"move": "e4"}, timeout_s=2, tag="x")
    assert (step.action, step.timeout_s, step.request_id, step.model_extra) == ({"move": "e4"}, 2, None, {"tag": "x"})
    for bad in ({}, {"action": "e4"}, {"action": {}, "timeout_s": 0}, {"action": {}, "request_id": "x" * 256}):
        with pytest.raises(ValidationError):
            StepRequest(**bad)
    for bad in ({"seed": -1}, {"episode_id": "x" * 256}):
        with pytest.raises(ValidationError):
            ResetRequest(**bad)


@pytest.mark.parametrize("response", [StepResponse, ResetResponse])
def test_http_responses(response):
    answer = response(observation={"board": []})
    assert answer.model_dump() == {
        "observation": {"board": []},
        "reward": None,
        "done": False,
        "metadata": None,
        "truncated": False,
    }
    with pytest.raises(ValidationError):
        response(observation={}, bord=[])


def test_schema_response_needs_three_and_sends_no_fourth_that_there_is_not():
    with pytest.raises(ValidationError):
        SchemaResponse(action={}, observation={})
    three = {"action": {}, "observation": {}, "state": {}}
    assert SchemaResponse(**three).model_dump() == three
    assert SchemaResponse(**three, reset_observation={"title": "R"}).model_dump()["reset_observation"] == {
        "title": "R"
    }


def test_a_server_has_no_more_sessions_than_it_can_have():
    status = ServerCapacityStatus.from_counts(2, 4)
    assert (status.available_slots, status.is_at_capacity) == (2, False)
    assert ServerCapacityStatus.from_counts(active=4, max_sessions=4).is_at_capacity
    for active, most in ((5, 4), (-1, 4), (0, 0)):
        with pytest.raises(ValidationError):
            ServerCapacityStatus.from_counts(active, most)


class TestStateCount:
    """Counting steps is made cheap; it must not be made lax."""

    @pytest.mark.parametrize("bad", [-1, "many", 1.5, None])
    def test_a_count_that_is_none_is_refused(self, bad):
        class Further(State):
            score: float = 0.0

        for state in (State(), Further()):
            with pytest.raises(ValidationError):
                state.step_count = bad
            assert state.step_count == 0

    def test_a_count_is_set_and_known_to_be(self):
        class Further(State):
            score: float = 0.0

        state = Further()
        state.step_count += 1
        assert (state.step_count, state.model_fields_set) == (1, {"step_count"})
        assert state.model_dump()["step_count"] == 1

    def test_rules_of_a_subclass_are_heard(self):
        class Short(State):
            step_count: int = Field(default=0, ge=0, le=3)

        class Even(State):
            @field_validator("step_count")
            @classmethod
            def _even(cls, count):
                if count % 2:
                    raise ValueError("odd")
                return count

        class Whole(State):
            limit: int = 3

            @model_validator(mode="after")
            def _within(self):
                if self.step_count > self.limit:
                    raise ValueError("beyond the limit")
                return self

        with pytest.raises(ValidationError):
            Short().step_count = 4
        with pytest.raises(ValidationError):
            Even().step_count = 1
        with pytest.raises(ValidationError):
            Whole().step_count = 4
