from __future__ import annotations

import abc
import functools
import inspect
import weakref

import pytest

from openenv.environment import Environment
from openenv.errors import UsageError
from openenv.runtime.profile import Execution, class_of, profile_of
from openenv.types import Action, Observation, State

from ..asynchronous import forgotten
from ..environments import AsyncPlain, Exclusive, InlinePlain, MixedPlain, Plain


class ResetAlone(Plain):
    """Asynchronous in the other method."""

    async def reset_async(self, **kwargs):
        return self.reset(**kwargs)


class DeclaredThread(Plain):
    execution = "thread"


class AsyncOnThread(AsyncPlain):
    execution = "thread"


class AsyncInline(AsyncPlain):
    execution = "inline"


class ChildOfInline(InlinePlain):
    pass


class PlainAgain(InlinePlain):
    execution = None


class Native:
    """No subclass of Environment, and asynchronous by plain `async def`."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    state = {"turn": 1}

    async def reset(self):
        return Observation()

    async def step(self, action):
        return Observation(reward=1)


class TestExecution:
    @pytest.mark.parametrize(
        ("cls", "execution"),
        [
            (Plain, Execution.THREAD),
            (InlinePlain, Execution.INLINE),
            (AsyncPlain, Execution.LOOP),
            (MixedPlain, Execution.THREAD),
            (ResetAlone, Execution.THREAD),
            (DeclaredThread, Execution.THREAD),
            (AsyncOnThread, Execution.THREAD),
            (AsyncInline, Execution.LOOP),
            (ChildOfInline, Execution.INLINE),
            (PlainAgain, Execution.THREAD),
            (Native, Execution.THREAD),
        ],
    )
    def test_where_a_class_runs(self, cls, execution):
        assert profile_of(cls).execution is execution

    @pytest.mark.parametrize("declared", ["fibre", "loop", "", 3, "INLINE"])
    def test_an_unknown_place_is_refused_and_named(self, declared):
        cls = type("Strange", (Plain,), {"execution": declared})
        with pytest.raises(UsageError) as caught:
            profile_of(cls)
        for word in ("Strange.execution", repr(declared), "'inline'", "'thread'"):
            assert word in str(caught.value)

    def test_the_rest_of_a_profile(self):
        profile = profile_of(Plain)
        assert (profile.name, profile.concurrent) == ("Plain", True)
        assert profile_of(Exclusive).concurrent is False
        assert profile_of(Native).concurrent is True

    def test_it_is_found_out_once(self):
        assert profile_of(Plain) is profile_of(Plain)

    def test_it_does_not_keep_a_class_alive(self):
        cls = type("Passing", (Plain,), {})
        profile_of(cls)
        gone = weakref.ref(cls)
        del cls
        assert forgotten(gone)


def environment_with(reset=None, step=None):
    """An instance whose methods are given; they return what they were called with."""
    body: dict = {"state": property(lambda self: State())}
    body["reset"] = reset or (lambda self: "reset")
    body["step"] = step or (lambda self, action: "step")
    return type("Odd", (Environment,), body)()


class TestReset:
    @pytest.mark.parametrize(
        ("reset", "taken"),
        [
            (lambda self: {}, {}),
            (lambda self, seed: {"seed": seed}, {"seed": 1}),
            (lambda self, seed=None, **kwargs: {"seed": seed, **kwargs}, {"seed": 1, "episode_id": "e", "level": 2}),
            (lambda self, **anything: anything, {"seed": 1, "episode_id": "e", "level": 2}),
            (lambda self, *, level=0: {"level": level}, {"level": 2}),
            (
                lambda self, *rest, episode_id=None: {"episode_id": episode_id, "rest": rest},
                {"episode_id": "e", "rest": ()},
            ),
            (lambda self, seed=7, /, level=0: {"seed": seed, "level": level}, {"seed": 7, "level": 2}),
        ],
        ids=["nothing", "one", "open", "anything", "keyword only", "variadic", "positional only"],
    )
    def test_it_gets_the_arguments_it_takes(self, reset, taken):
        environment = environment_with(reset=reset)
        arguments = {"seed": 1, "episode_id": "e", "level": 2}
        assert profile_of(type(environment)).reset(environment, arguments) == taken
        assert arguments == {"seed": 1, "episode_id": "e", "level": 2}

    def test_without_arguments(self):
        environment = environment_with(reset=lambda self, seed=None: seed)
        assert profile_of(type(environment)).reset(environment, {}) is None

    def test_an_argument_that_is_missing_is_the_callers_to_hear_of(self):
        environment = environment_with(reset=lambda self, level: level)
        with pytest.raises(TypeError, match="level"):
            profile_of(type(environment)).reset(environment, {"seed": 1})

    def test_self_is_not_an_argument(self):
        environment = environment_with(reset=lambda self, seed=None: seed)
        assert profile_of(type(environment)).reset(environment, {"self": 3, "seed": 1}) == 1

    def test_a_decorated_reset_shows_its_own_signature(self):
        def decorate(method):
            @functools.wraps(method)
            def wrapper(*args, **kwargs):
                return method(*args, **kwargs)

            return wrapper

        environment = environment_with(reset=decorate(lambda self, seed=None: seed))
        assert profile_of(type(environment)).reset(environment, {"seed": 1, "level": 2}) == 1

    async def test_the_asynchronous_form_is_used_when_overridden(self):
        environment = AsyncPlain()
        observation = await profile_of(AsyncPlain).reset(environment, {"seed": 3})
        assert observation.metadata["seed"] == 3

    async def test_the_asynchronous_form_gets_what_it_takes(self):
        class Narrow(AsyncPlain):
            async def reset_async(self, level=0):
                return level

        assert await profile_of(Narrow).reset(Narrow(), {"seed": 1, "level": 2}) == 2


class TestStep:
    def test_it_may_take_the_action_only(self):
        environment = environment_with(step=lambda self, action: action)
        assert profile_of(type(environment)).step(environment, "a") == "a"

    def test_the_action_may_have_any_name(self):
        environment = environment_with(step=lambda self, move, /: move)
        assert profile_of(type(environment)).step(environment, "a") == "a"

    @pytest.mark.parametrize(
        ("step", "taken"),
        [
            (lambda self, action: {"action": action}, {"action": "a"}),
            (
                lambda self, move, timeout_s=None: {"move": move, "timeout_s": timeout_s},
                {"move": "a", "timeout_s": 2},
            ),
            (lambda self, action, **rest: {"action": action, **rest}, {"action": "a", "timeout_s": 2, "hint": 3}),
            (lambda self, action, *, hint=0: {"action": action, "hint": hint}, {"action": "a", "hint": 3}),
        ],
        ids=["action only", "with time", "anything", "keyword only"],
    )
    def test_with_further_arguments(self, step, taken):
        environment = environment_with(step=step)
        profile = profile_of(type(environment))
        assert profile.step_with(environment, ("a", {"timeout_s": 2, "hint": 3})) == taken

    @pytest.mark.parametrize("name", ["action", "move"])
    def test_no_further_argument_can_take_the_place_of_the_action(self, name):
        def step(self, action, timeout_s=None):
            return action

        def move(self, move, timeout_s=None):
            return move

        environment = environment_with(step=step if name == "action" else move)
        assert profile_of(type(environment)).step_with(environment, ("a", {name: "forged"})) == "a"

    async def test_the_asynchronous_form_is_used_when_overridden(self):
        environment = MixedPlain()
        profile = profile_of(MixedPlain)
        assert (await profile.step(environment, Action())).reward == 1.0
        observation = await profile.step_with(environment, (Action(), {"timeout_s": 2}))
        assert observation.metadata["timeout_s"] == 2
        assert not inspect.iscoroutine(profile.reset(environment, {}))


class TestState:
    def test_a_property(self):
        assert profile_of(Plain).state(Plain(), None) == State()

    def test_an_attribute(self):
        assert profile_of(Native).state(Native(), None) == {"turn": 1}

    def test_a_method(self):
        class Method(Native):
            def state(self):
                return {"turn": 2}

        assert profile_of(Method).state(Method(), None) == {"turn": 2}

    def test_an_environment_that_keeps_no_state_has_an_empty_one(self):
        class Forgetful(Native):
            state = None

        assert profile_of(Forgetful).state(Forgetful(), None) == {}


class TestClassOf:
    def test_a_class(self):
        assert class_of(Plain) is Plain

    def test_a_partial(self):
        assert class_of(functools.partial(Plain)) is Plain
        assert class_of(functools.partial(functools.partial(Plain), 1)) is Plain

    def test_a_partial_of_a_function_that_says_what_it_makes(self):
        assert class_of(functools.partial(annotated(InlinePlain), 1)) is InlinePlain

    def test_a_function_that_says_what_it_makes(self):
        assert class_of(annotated(InlinePlain)) is InlinePlain

    def test_a_method_that_says_what_it_makes(self):
        class Maker:
            make = annotated(InlinePlain)

        assert class_of(Maker().make) is InlinePlain

    def test_a_function_that_does_not(self):
        def make():
            return Plain()

        assert class_of(make) is None

    def test_an_object_that_is_called(self):
        class Maker:
            def __call__(self):
                return Plain()

        assert class_of(Maker()) is None

    def test_an_annotation_that_is_too_general_says_nothing(self):
        class Half(Plain, abc.ABC):
            @abc.abstractmethod
            def rules(self):
                """Left open."""

        for general in (Environment, Half, int, Plain | None, object, "Environment", "Unheard", "]"):
            assert class_of(annotated(general)) is None

    def test_an_annotation_may_be_text_as_postponed_ones_are(self):
        def make() -> Plain:
            return Plain()

        assert make.__annotations__ == {"return": "Plain"}
        assert class_of(make) is Plain
        assert class_of(functools.partial(make)) is Plain

    def test_a_class_of_somebody_elses(self):
        assert class_of(Native) is Native


def annotated(cls):
    """A factory that says what it makes."""

    def make(*args):
        return cls()

    make.__annotations__["return"] = cls
    return make


class _Unseeded(Plain):
    def reset(self, episode_id=None):
        return Observation()


def test_whether_a_seed_is_taken_is_read_from_reset():
    assert profile_of(Plain).seedable
    assert profile_of(AsyncPlain).seedable
    assert not profile_of(_Unseeded).seedable


def test_a_seed_starts_the_random_numbers_of_the_session_anew():
    environment = Plain()
    reset = profile_of(Plain).reset
    drawn = []
    for seed in (7, 7, 8):
        reset(environment, {"seed": seed})
        drawn.append(environment.rng.random())
    assert drawn[0] == drawn[1] != drawn[2]
    reset(environment, {"seed": None})
    other = Plain()
    reset(other, {"seed": 7})
    assert other.rng.random() == drawn[0]


def test_an_environment_keeps_random_numbers_of_its_own():
    environment = Plain()
    environment.rng = "its own"
    profile_of(Plain).reset(environment, {"seed": 7})
    assert environment.rng == "its own"
