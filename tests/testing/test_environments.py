"""The conformance tests of environments: good ones pass, and faults are found by the test of that name."""

from __future__ import annotations

import asyncio
import unittest
import warnings
from collections.abc import Callable
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
import pytest
from pydantic import ConfigDict

from openenv.arrays import Array
from openenv.environment import Environment
from openenv.errors import ResetRequired
from openenv.project.checks.examination import CODE_CHECKS
from openenv.server import create_app
from openenv.testing import BatchedEnvironmentConformance, EnvironmentConformance
from openenv.testing.check import CheckFailure, CheckSkip, CheckWarning
from openenv.testing.environments import CHECKS
from openenv.types import Action, Observation, State

pytestmark = pytest.mark.filterwarnings("default::openenv.testing.check.CheckWarning")


class Up(Action):
    by: int = 1


class At(Observation):
    at: int


class Stairs(Environment[Up, At, State]):
    """Ten steps up."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.steps = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> At:
        self.at = 0
        self.steps = State(episode_id=episode_id or uuid4().hex)
        return At(at=self.at)

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> At:
        if self.at >= 10:
            raise ResetRequired("at the top: reset first")
        self.steps.step_count += 1
        self.at += max(1, min(action.by, 3))
        return At(at=self.at, reward=1.0, done=self.at >= 10)

    @property
    def state(self) -> State:
        return self.steps


class TestStairs(EnvironmentConformance):
    def app(self) -> Any:
        return Stairs


class TestStairsOfAnApp(EnvironmentConformance):
    episodes = 50
    sessions = 4

    def app(self) -> Any:
        return create_app(Stairs, Up, At)

    def actions(self) -> list[dict[str, Any]]:
        return [{"by": 2}]


def suite(cls: type[Any], **attributes: Any) -> EnvironmentConformance:
    return type("Suite", (EnvironmentConformance,), {"app": lambda self: cls, **attributes})()


def outcome(test: Callable[[], None]) -> str:
    """What pytest would say, and with which words."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CheckWarning)
            test()
    except CheckFailure as fault:
        return f"failed: {fault}"
    except unittest.SkipTest as reason:
        return f"skipped: {reason}"
    return f"warned: {caught[0].message}" if caught else "passed"


class Loud(Stairs):
    """Sends a field that nobody has declared."""

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return {"at": "here", "done": False, "reward": 1.0}


class Photo(Observation):
    pixels: Annotated[np.ndarray, Array("float32", (2, 2))]


class Camera(Stairs):
    """Takes pictures."""

    pixels: Any = np.ones((2, 2), np.float32)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        super().reset(seed, episode_id)
        return Photo(pixels=self.pixels)

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return Photo(pixels=self.pixels, reward=1.0, done=super().step(action).done)


class Dark(Camera):
    """Takes no picture."""

    pixels = np.array([[0, np.nan], [0, 0]], np.float32)


class Small(Camera):
    """Takes pictures of another size."""

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return Photo.model_construct(pixels=np.ones((1, 2), np.float32), reward=1.0)


class Open(At):
    model_config = ConfigDict(extra="allow")


class Chatty(Stairs):
    """Sends a field that is allowed, and not declared."""

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> Any:
        return Open(at=1, mood="glad")


class Nameless(Stairs):
    """Gives episodes no names."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> At:
        seen = super().reset()
        self.steps = State()
        return seen


class Steep(Stairs):
    """Takes so long for a step that deadlines stop it, and every step fails."""

    execution = None

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> At:
        return self.reset(seed, episode_id)

    async def step_async(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> At:
        await asyncio.sleep(0.06)
        return self.step(action).model_copy(update={"reward": float("-inf")})


class Forgetful(Stairs):
    """Keeps its lock when it is stopped for the sixth time."""

    execution = None
    stops = 0

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> At:
        return self.reset(seed, episode_id)

    async def step_async(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> At:
        await self.lock.acquire()
        try:
            await asyncio.sleep(0.06)
        except asyncio.CancelledError:
            Forgetful.stops += 1
            if Forgetful.stops != 6:
                self.lock.release()
            raise
        self.lock.release()
        return self.step(action)


class Endless(Stairs):
    """Has no end."""

    def step(self, action: Up, timeout_s: float | None = None, **kwargs: Any) -> At:
        self.at = 0
        return super().step(action).model_copy(update={"done": False})


def test_steps_that_fail_anyway_are_not_laid_to_a_deadline() -> None:
    said = outcome(suite(Steep).test_the_next_episode_works_after_a_deadline)
    assert said.startswith("skipped: a step also fails without a deadline: StepFailed: the reward is -inf"), said


@pytest.mark.slow
def test_a_lock_that_is_not_kept_at_every_deadline_is_found() -> None:
    said = outcome(suite(Forgetful, call_s=2.0).test_the_next_episode_works_after_a_deadline)
    assert said.startswith("failed: a step had"), said


def test_a_wrong_type_fails_the_test_of_schemas_with_what_to_do() -> None:
    said = outcome(suite(Loud).test_observations_are_what_their_schema_says)
    assert said.startswith("failed: step 1")
    assert 'observation.at is "here" (string), but the type must be integer' in said
    assert "To fix it:" in said


def test_arrays_are_checked_as_the_lists_that_their_schema_describes() -> None:
    def app(cls: type[Any]) -> Any:
        return suite(cls, app=lambda self: create_app(cls, Up, Photo))

    for test in ("test_observations_are_what_their_schema_says", "test_numbers_are_finite"):
        assert outcome(getattr(app(Camera), test)) == "passed"
    said = outcome(app(Dark).test_numbers_are_finite)
    assert "observation.pixels[0][1] is nan" in said
    assert outcome(app(Small).test_observations_are_what_their_schema_says).startswith("failed: step 1")


def test_what_is_worth_a_word_is_a_warning() -> None:
    assert "no" not in outcome(suite(Nameless).test_reset_works_with_and_without_a_seed_and_again)
    said = outcome(suite(Nameless).test_state_counts_steps_and_names_episodes)
    assert said.startswith("warned:")
    assert "episode_id is None" in said
    said = outcome(
        suite(Chatty, app=lambda self: create_app(Chatty, Up, Open)).test_observations_are_what_their_schema_says
    )
    assert said.startswith("warned:")
    assert "not declared: mood" in said


def test_what_cannot_be_asked_is_skipped_and_says_why() -> None:
    said = outcome(suite(Endless).test_a_step_after_the_end_does_no_harm)
    assert said.startswith("skipped: no episode ended within")

    class Alone(Stairs):
        SUPPORTS_CONCURRENT_SESSIONS = False

    asked = suite(Alone)
    assert outcome(asked.test_sessions_do_not_see_each_other).startswith("skipped:")
    assert outcome(asked.test_many_sessions_at_once_play_as_each_alone).startswith("skipped:")
    assert outcome(asked.test_reset_leaves_nothing_behind) == "passed"


def test_an_app_of_somebody_else_cannot_be_asked() -> None:
    with pytest.raises(CheckSkip, match="not made by create_app"):
        suite(Stairs, app=lambda self: object()).test_a_session_opens()


def test_a_class_without_an_app_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match=r"implement app\(\)"):
        EnvironmentConformance().test_a_session_opens()


def test_actions_that_nobody_can_make_up_are_skipped() -> None:
    class Odd(Action):
        word: str

        @classmethod
        def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
            return {"type": "object", "properties": {"word": {"type": "riddle"}}, "required": ["word"]}

    class Sphinx(Stairs):
        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> At:
            return Stairs.step(self, Up())

    served = {"app": lambda self: create_app(Sphinx, Odd, At)}
    said = outcome(suite(Sphinx, **served).test_step_takes_actions)
    assert said.startswith("skipped: no action can be generated")
    assert "web_actions" in said
    assert (
        outcome(suite(Sphinx, **served, actions=lambda self: [{"word": "man"}]).test_step_takes_actions) == "passed"
    )


def test_every_check_is_one_test() -> None:
    ids = [check.id for check in CHECKS]
    tests = [name for name in dir(BatchedEnvironmentConformance) if name.startswith("test_")]
    assert len(set(ids)) == len(ids) == len(tests)
    assert {check.id for check in CODE_CHECKS} >= set(ids)
