from __future__ import annotations

import pytest

from openenv.environment import Environment, Transform
from openenv.types import Action, Observation, State

from .environments import AsyncPlain, Plain


class Uninitialised(Environment):
    """Never calls the constructor of its base."""

    def __init__(self):
        self.episodes = 0

    def reset(self):
        self.episodes += 1
        return Observation()

    def step(self, action):
        return Observation(reward=1)

    @property
    def state(self):
        return State()


class Praise(Transform):
    def __call__(self, observation):
        return observation.model_copy(update={"reward": 9.0})


class Judge:
    """A rubric as environments use it: callable, and perhaps with a reset."""

    def __init__(self, score):
        self.score = score
        self.resets = 0

    def __call__(self, action, observation):
        return self.score

    def reset(self):
        self.resets += 1


class AsyncJudge(Judge):
    async def __call__(self, action, observation):
        return self.score

    async def reset(self):
        self.resets += 1


@pytest.mark.parametrize("missing", ["reset", "step", "state"])
def test_reset_step_and_state_must_be_written(missing):
    body = {name: getattr(Plain, name) for name in ("reset", "step") if name != missing}
    if missing != "state":
        body["state"] = property(lambda self: State())
    cls = type("Unfinished", (Environment,), body)
    with pytest.raises(TypeError, match=missing):
        cls()


def test_flags_are_cautious():
    assert Environment.SUPPORTS_CONCURRENT_SESSIONS is False
    assert Environment.REQUIRES_SINGLE_THREAD_EXECUTOR is False
    assert Environment.execution is None


async def test_without_the_base_constructor_every_hook_works():
    environment = Uninitialised()
    observation = environment.reset()
    assert (environment.transform, environment.rubric) == (None, None)
    assert environment._apply_transform(observation) is observation
    assert environment._apply_rubric(Action(), observation) == 0.0
    assert await environment._apply_rubric_async(Action(), observation) == 0.0
    environment._reset_rubric()
    await environment._reset_rubric_async()
    environment.close()
    assert environment.render_web(observation) is None
    assert list(environment.web_actions(observation)) == []
    assert environment.get_metadata().name == "Uninitialised"


def test_the_transform_is_applied():
    class Praised(Plain):
        def __init__(self):
            Environment.__init__(self, transform=Praise())

    assert Praised()._apply_transform(Observation()).reward == 9.0


def test_a_transform_must_be_written():
    with pytest.raises(TypeError):
        Transform()


class Judged(Plain):
    def __init__(self, rubric):
        Environment.__init__(self, rubric=rubric)


@pytest.mark.parametrize("score", [0.25, 1, True])
def test_the_rubric_gives_a_float(score):
    given = Judged(Judge(score))._apply_rubric(Action(), Observation())
    assert given == float(score)
    assert type(given) is float


@pytest.mark.parametrize("judge", [Judge, AsyncJudge])
async def test_the_asynchronous_form_takes_both_kinds_of_rubric(judge):
    rubric = judge(1)
    environment = Judged(rubric)
    given = await environment._apply_rubric_async(Action(), Observation())
    assert given == 1.0
    assert type(given) is float
    await environment._reset_rubric_async()
    assert rubric.resets == 1


def test_the_rubric_is_reset():
    rubric = Judge(0)
    Judged(rubric)._reset_rubric()
    assert rubric.resets == 1


async def test_a_rubric_without_a_reset_is_left_alone():
    environment = Judged(lambda action, observation: 0.5)
    environment._reset_rubric()
    await environment._reset_rubric_async()
    assert environment._apply_rubric(None, None) == 0.5


async def test_the_asynchronous_forms_of_a_synchronous_environment():
    environment = Plain()
    observation = await environment.reset_async(seed=3, episode_id="e", level="hard")
    assert observation.metadata == {"seed": 3, "episode_id": "e", "level": "hard"}
    observation = await environment.step_async(Action(), timeout_s=2.0, hint="x")
    assert observation.reward == 1.0
    assert observation.metadata == {"timeout_s": 2.0, "hint": "x"}


async def test_the_asynchronous_forms_ask_for_nothing_the_environment_does_not_take():
    environment = Uninitialised()
    await environment.reset_async()
    assert (await environment.step_async(Action())).reward == 1


async def test_overridden_asynchronous_forms():
    environment = AsyncPlain()
    await environment.reset_async()
    assert (await environment.step_async(Action())).reward == 1.0


def test_metadata_is_the_name_and_the_docstring():
    metadata = Plain().get_metadata()
    assert metadata.name == "Plain"
    assert metadata.description == "Counts its steps, and gives the count as reward."


def test_metadata_of_a_class_without_a_docstring_tells_nothing_of_ours():
    cls = type("Silent", (Uninitialised,), {"__doc__": None})
    bare = type(
        "Bare",
        (Environment,),
        {name: getattr(Uninitialised, name) for name in ("__init__", "reset", "step", "state")},
    )
    assert bare().get_metadata().description == "Bare environment"
    assert cls().get_metadata().name == "Silent"


def test_actions_and_observations_may_be_named_as_type_arguments():
    class Typed(Environment[Action, Observation, State]):
        def reset(self, seed=None, episode_id=None, **kwargs):
            return Observation()

        def step(self, action, timeout_s=None, **kwargs):
            return Observation()

        @property
        def state(self):
            return State()

    assert isinstance(Typed().reset(), Observation)
