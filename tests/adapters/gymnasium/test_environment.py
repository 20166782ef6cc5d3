"""Gymnasium environments as ours: episodes are the same, errors have their names, and the v1 wire carries both."""

import copy
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from openenv._introspection import type_arguments
from openenv.adapters.farama import plain
from openenv.adapters.gymnasium import (
    GymnasiumObservation,
    GymnasiumState,
    gymnasium_app,
    gymnasium_environment,
    parse_target,
)
from openenv.client import EnvClient, GenericEnvClient
from openenv.environment import Environment
from openenv.errors import InvalidAction, ResetRequired, UsageError
from openenv.types import State

CartPole = gymnasium_environment("CartPole-v1")
Blackjack = gymnasium_environment("Blackjack-v1", sab=True)


class Scripted(gymnasium.Env):
    """Returns what a test wrote into its arguments, in forms that environments out there use."""

    observation_space = spaces.Dict(image=spaces.Box(0, 255, (2, 2), np.uint8), text=spaces.Text(9))
    action_space = spaces.MultiDiscrete([2, 3])
    opened = 0

    def __init__(self, reward=1, info=None, shared=None, fail=None):
        self.reward, self.info, self.shared, self.fail = reward, info or {}, shared, fail
        if fail == "make":
            raise OSError("no such rom")
        type(self).opened += 1

    def observe(self):
        return {"image": np.array([[0, 1], [2, 255]], np.uint8), "text": "go"}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.shared is not None:
            self.shared.append(seed)
        if self.fail == "reset":
            raise OSError("no such level")
        return self.observe(), {"options": options, "shared": self.shared}

    def step(self, action):
        assert isinstance(action, np.ndarray)
        assert action.dtype == np.int64
        return self.observe(), self.reward, False, bool(action[0]), self.info

    def close(self):
        type(self).opened -= 1


gymnasium.register("openenv-tests/Scripted-v0", entry_point=Scripted, max_episode_steps=3)
SCRIPTED = "openenv-tests/Scripted-v0"


def play(env, actions):
    """Everything that an episode of Gymnasium's own API gives."""
    observation, info = env.reset(seed=7)
    seen = [(observation, None, False, False, info)]
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("Blackjack-v1", {"sab": True}),
        ("FrozenLake-v1", {"map_name": "8x8"}),
        ("Pendulum-v1", {"max_episode_steps": 5}),
        ("MountainCarContinuous-v0", {}),
        ("Acrobot-v1", {}),
    ],
)
def test_an_episode_is_the_one_that_gymnasium_plays(env_id, kwargs):
    cls = gymnasium_environment(env_id, **kwargs)
    theirs, ours = gymnasium.make(env_id, **kwargs), cls()
    theirs.action_space.seed(1)
    actions = [theirs.action_space.sample() for _ in range(30)]
    expected = play(theirs, actions)
    seen = [ours.reset(seed=7)]
    for action, _ in zip(actions, expected[1:], strict=False):
        seen.append(ours.step(cls.action_cls(action=np.asarray(action).tolist())))
    for observation, (theirs_observation, reward, terminated, truncated, info) in zip(seen, expected, strict=True):
        assert type(observation) is cls.observation_cls
        np.testing.assert_array_equal(np.asarray(observation.observation), np.asarray(theirs_observation))
        assert observation.reward == reward
        assert (observation.terminated, observation.truncated) == (terminated, truncated)
        assert observation.done == (terminated or truncated)
        assert observation.metadata == info
        # What was built without a validation is what a validation would have built.
        assert cls.observation_cls.model_validate_json(observation.model_dump_json()) == observation
    assert ours.state.step_count == len(seen) - 1
    ours.close()
    theirs.close()


@given(st.integers(0, 2**32))
def test_a_seed_repeats_an_episode(seed):
    episodes = []
    for _ in range(2):
        environment = CartPole()
        episodes.append(
            [environment.reset(seed=seed)] + [environment.step(CartPole.action_cls(action=1)) for _ in range(5)]
        )
    assert episodes[0] == episodes[1]
    assert environment.state.seed == seed


def test_a_class_is_named_and_described_after_its_environment():
    assert CartPole.__name__ == "CartPole_v1"
    assert gymnasium_environment(SCRIPTED).__name__ == "openenv_tests_Scripted_v0"
    assert CartPole.__doc__.startswith("CartPole-v1: ")
    assert CartPole.SUPPORTS_CONCURRENT_SESSIONS
    gymnasium.register("7up-v0", entry_point=Scripted)
    assert gymnasium_environment("7up-v0").__name__ == "Gymnasium_7up_v0"


def test_the_state_tells_the_episode():
    environment = CartPole()
    assert environment.state == GymnasiumState(env_id="CartPole-v1")
    environment.reset(seed=5, episode_id="mine")
    environment.step(CartPole.action_cls(action=0))
    assert environment.state == GymnasiumState(env_id="CartPole-v1", seed=5, episode_id="mine", step_count=1)
    environment.reset()
    assert (environment.state.seed, environment.state.step_count) == (None, 0)
    assert environment.state.episode_id not in (None, "mine")


def test_a_step_needs_a_reset_before_it():
    with pytest.raises(ResetRequired, match=r"call reset\(\) before the first step\(\)"):
        CartPole().step(CartPole.action_cls(action=0))


@pytest.mark.parametrize(
    ("kwargs", "action", "how"), [({}, [1, 0], "was truncated at step 1"), ({}, [0, 0], "at step 3")]
)
def test_an_episode_that_is_over_needs_a_reset(kwargs, action, how):
    cls = gymnasium_environment(SCRIPTED, **kwargs)
    environment = cls()
    for _ in range(2):
        environment.reset()
        while not (seen := environment.step(cls.action_cls(action=action))).done:
            pass
        assert (seen.truncated, seen.terminated) == (True, False)
        with pytest.raises(ResetRequired, match=how):
            environment.step(cls.action_cls(action=action))


def test_a_terminated_episode_says_so():
    environment = Blackjack()
    environment.reset(seed=1)
    assert environment.step(Blackjack.action_cls(action=0)).terminated
    with pytest.raises(ResetRequired, match="the episode terminated at step 1"):
        environment.step(Blackjack.action_cls(action=0))


def test_a_failed_reset_leaves_no_episode_to_go_on_with():
    cls = gymnasium_environment(SCRIPTED, fail="reset")
    environment = cls()
    with pytest.raises(OSError, match="no such level"):
        environment.reset()
    with pytest.raises(ResetRequired):
        environment.step(cls.action_cls(action=[0, 0]))


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, [1]])
def test_a_seed_is_an_integer(seed):
    with pytest.raises(InvalidAction, match="seed is"):
        CartPole().reset(seed=seed)


def test_options_reach_the_environment():
    environment = gymnasium_environment(SCRIPTED)()
    assert environment.reset(options={"level": 3}).metadata == {"options": {"level": 3}, "shared": None}
    with pytest.raises(InvalidAction, match="options is 3"):
        environment.reset(options=3)


def test_numbers_of_numpy_leave_as_numbers_of_python():
    cls = gymnasium_environment(SCRIPTED, reward=np.float32(0.5), info={"at": np.int64(3), "map": np.eye(2)})
    environment = cls()
    environment.reset()
    seen = environment.step(cls.action_cls(action=[0, 1]))
    assert type(seen.reward) is float
    assert seen.metadata == {"at": 3, "map": [[1.0, 0.0], [0.0, 1.0]]}
    assert plain(seen.observation) == {"image": [[0, 1], [2, 255]], "text": "go"}
    assert "at" in seen.model_dump_json()


def test_an_observation_can_be_changed_and_copied_like_any_other():
    environment = CartPole()
    one, other = environment.reset(), environment.reset()
    one.reward = 2.0
    assert other.reward is None
    assert one.model_copy(update={"done": True}).done
    assert one.model_fields_set == set(CartPole.observation_cls.model_fields)
    with pytest.raises(ValidationError):
        one.observation = [1.0]


def test_instances_share_no_argument():
    cls = gymnasium_environment(SCRIPTED, shared=[])
    one, other = cls(), cls()
    one.reset(seed=1)
    assert other.reset(seed=2).metadata["shared"] == [2]


def test_close_closes_the_environment():
    cls = gymnasium_environment(SCRIPTED)
    before = Scripted.opened
    environment = cls()
    assert Scripted.opened == before + 1
    environment.close()
    assert Scripted.opened == before


class Drawn(Scripted):
    """Renders what a test wants."""

    metadata = {"render_modes": ["rgb_array", "ansi", "rgb_array_list"]}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        frame = np.full((4, 6, 3), 255, np.uint8)
        return {"rgb_array": frame, "ansi": "<S>F", "rgb_array_list": [frame]}[self.render_mode]

    def get_action_meanings(self):
        return ["NOOP", "FIRE"]


gymnasium.register("openenv-tests/Drawn-v0", entry_point=Drawn)


@pytest.mark.parametrize(
    ("mode", "shown"),
    [(None, None), ("rgb_array", 'src="data:image/png;base64,'), ("ansi", "<pre>&lt;S&gt;F</pre>")],
)
def test_what_is_rendered_is_shown_on_the_page(mode, shown):
    environment = gymnasium_environment("openenv-tests/Drawn-v0", render_mode=mode)()
    assert environment.render_web({}) is None  # Gymnasium renders nothing before the first reset
    environment.reset()
    drawn = environment.render_web({})
    assert drawn is None if shown is None else shown in drawn


class Meant(Drawn):
    action_space = spaces.Discrete(2)


gymnasium.register("openenv-tests/Meant-v0", entry_point=Meant)


def test_few_actions_have_buttons_with_their_names():
    environment = gymnasium_environment("openenv-tests/Meant-v0")()
    assert environment.web_actions({}) == []
    environment.reset()
    assert environment.web_actions({}) == [("NOOP", {"action": 0}), ("FIRE", {"action": 1})]
    playing = CartPole()
    playing.reset()
    assert playing.web_actions({}) == [("0", {"action": 0}), ("1", {"action": 1})]
    drawn = gymnasium_environment("openenv-tests/Drawn-v0")()
    drawn.reset()
    assert drawn.web_actions({}) == []


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1", "Pendulum-v1"])
def test_a_copy_goes_on_from_where_its_original_is(env_id):
    cls = gymnasium_environment(env_id)
    original = cls()
    original.reset(seed=3, episode_id="one")
    copied = copy.deepcopy(original)
    assert copied.state == original.state
    actions = original._env.action_space
    actions.seed(1)
    for _ in range(3):
        if not original._playing:
            break
        action = cls.action_cls(action=np.asarray(actions.sample()).tolist())
        assert copied.step(action) == original.step(action)
    # The random numbers of the next episode too.
    assert copied.reset() == original.reset()


def test_a_copy_and_its_original_share_nothing():
    original = CartPole()
    original.reset(seed=3)
    copied = copy.deepcopy(original)
    for _ in range(3):
        copied.step(CartPole.action_cls(action=1))
    assert (original.state.step_count, copied.state.step_count) == (0, 3)
    before = original._env.unwrapped.state
    copied.close()
    assert before is original._env.unwrapped.state
    assert not original.step(CartPole.action_cls(action=0)).done


@pytest.mark.parametrize("action", [2, -1, "left", None])
def test_an_action_outside_of_the_space_does_not_validate(action):
    with pytest.raises(ValidationError):
        CartPole.action_cls(action=action)


def test_an_observation_outside_of_the_space_does_not_validate():
    with pytest.raises(ValidationError):
        CartPole.observation_cls(observation=[0.0] * 3)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "words"),
    [
        ("NoSuch-v0", {}, "NameNotFound"),
        ("CartPole-v999", {}, "VersionNotFound"),
        ("no_such_module:CartPole-v1", {}, "ModuleNotFoundError"),
        ("CartPole-v1", {"colour": "red"}, "colour"),
        (SCRIPTED, {"fail": "make"}, "OSError: no such rom"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(env_id, kwargs, words):
    with pytest.raises(UsageError, match="Gymnasium cannot make") as caught:
        gymnasium_environment(env_id, **kwargs)
    assert env_id in caught.value.message
    assert words in caught.value.message


class Unheard(spaces.Space):
    """A kind of space that nobody has heard of."""


class Unservable(Scripted):
    action_space = spaces.Sequence(Unheard())


def test_an_environment_whose_space_cannot_be_served_is_closed_again():
    gymnasium.register("Unservable-v0", entry_point=Unservable)
    with pytest.raises(UsageError, match="kind Unheard cannot be served"):
        gymnasium_environment("Unservable-v0")
    assert Unservable.opened == Scripted.opened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CartPole-v1", ("CartPole-v1", {})),
        ("CartPole-v1?", ("CartPole-v1", {})),
        ("Blackjack-v1?sab=true", ("Blackjack-v1", {"sab": True})),
        ("ALE/Pong-v5?frameskip=4&mode=null", ("ALE/Pong-v5", {"frameskip": 4, "mode": None})),
        (
            "FrozenLake-v1?map_name=8x8&is_slippery=false",
            ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}),
        ),
        ("FrozenLake-v1?desc=[%22SF%22,%22HG%22]", ("FrozenLake-v1", {"desc": ["SF", "HG"]})),
        ("my.module:Thing-v0?gravity=9.8&name=", ("my.module:Thing-v0", {"gravity": 9.8, "name": ""})),
        ("Thing-v0?text=%22true%22&a=b%26c", ("Thing-v0", {"text": "true", "a": "b&c"})),
        ("Thing-v0?limit=Infinity", ("Thing-v0", {"limit": float("inf")})),
    ],
)
def test_a_target_is_a_name_with_arguments(text, expected):
    assert parse_target(text) == expected


@pytest.mark.parametrize("text", ["", "?a=1", "CartPole-v1?a", "CartPole-v1?a=1&&b=2", "CartPole-v1?a=1&a=2"])
def test_a_target_of_another_form_is_refused(text):
    with pytest.raises(UsageError):
        parse_target(text)


def test_without_gymnasium_the_extra_is_named():
    code = """
import sys
sys.modules["gymnasium"] = None
from openenv.errors import MissingExtra
try:
    import openenv.adapters.gymnasium
except MissingExtra as error:
    print(error)
"""
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "gymnasium is not installed: pip install 'openenv[gymnasium]'\n"


# Over the wire.


@pytest.fixture(scope="module")
def cartpole():
    with TestClient(gymnasium_app("CartPole-v1")) as client:
        yield client


def ask(socket, kind, **data):
    socket.send_json({"type": kind, "data": data} if data else {"type": kind})
    reply = socket.receive_json()
    return reply["type"], reply["data"]


def test_an_episode_over_the_v1_wire(cartpole):
    with cartpole.websocket_connect("/ws") as socket:
        kind, ready = ask(socket, "reset", seed=3, episode_id="wire")
        assert kind == "observation"
        assert ready["observation"].keys() == {"observation", "terminated", "truncated", "metadata"}
        assert len(ready["observation"]["observation"]) == 4
        assert (ready["reward"], ready["done"]) == (None, False)
        rewards, seen = 0.0, ready
        while not seen["done"]:
            _, seen = ask(socket, "step", action=1)
            rewards += seen["reward"]
        assert seen["observation"]["terminated"]
        assert "truncated" not in seen
        assert ask(socket, "state") == (
            "state",
            {"episode_id": "wire", "step_count": rewards, "env_id": "CartPole-v1", "seed": 3},
        )


def test_an_episode_that_is_cut_short_says_so_beside_the_observation():
    with (
        TestClient(gymnasium_app("CartPole-v1", max_episode_steps=1)) as client,
        client.websocket_connect("/ws") as socket,
    ):
        ask(socket, "reset", seed=3)
        _, seen = ask(socket, "step", action=1)
        assert (seen["done"], seen["truncated"], seen["observation"]["truncated"]) == (True, True, True)


@pytest.mark.parametrize("data", [{"action": 2}, {"action": "left"}, {"act": 1}, {"action": 1, "force": 9}])
def test_a_bad_action_is_refused_and_the_session_goes_on(cartpole, data):
    with cartpole.websocket_connect("/ws") as socket:
        ask(socket, "reset")
        kind, refusal = ask(socket, "step", **data)
        assert (kind, refusal["code"], refusal["error"]) == ("error", "VALIDATION_ERROR", "InvalidAction")
        assert refusal["errors"]
        assert ask(socket, "step", action=1)[0] == "observation"


def test_an_array_action_out_of_bounds_is_refused_with_its_place():
    with TestClient(gymnasium_app("openenv-tests/Scripted-v0")) as client, client.websocket_connect("/ws") as socket:
        ask(socket, "reset")
        _, refusal = ask(socket, "step", action=[0, 7])
        assert (refusal["code"], refusal["errors"][0]["loc"]) == ("VALIDATION_ERROR", ["action", 1])
        _, refusal = ask(socket, "step", action=[2, 0])
        assert "2 at [0] is not between 0 and 1 (int64)" in refusal["errors"][0]["msg"]
        assert ask(socket, "step", action=[0, 2])[0] == "observation"


def test_a_step_without_a_reset_is_refused_and_the_session_goes_on(cartpole):
    with cartpole.websocket_connect("/ws") as socket:
        kind, refusal = ask(socket, "step", action=1)
        assert (kind, refusal["error"], refusal["blame"]) == ("error", "ResetRequired", "client")
        assert ask(socket, "reset")[0] == "observation"


def test_a_bad_seed_is_the_callers_mistake(cartpole):
    with cartpole.websocket_connect("/ws") as socket:
        _, refusal = ask(socket, "reset", seed="seven")
        assert (refusal["error"], refusal["blame"]) == ("InvalidAction", "client")


def test_the_server_tells_what_it_serves(cartpole):
    schema = cartpole.get("/schema").json()
    assert schema["action"]["properties"]["action"]["maximum"] == 1
    assert len(schema["observation"]["properties"]["observation"]["prefixItems"]) == 4
    assert "seed" in schema["state"]["properties"]
    metadata = cartpole.get("/metadata").json()
    assert metadata["name"] == "CartPole_v1"
    assert metadata["description"].startswith("CartPole-v1: ")


def test_a_step_over_http_has_no_episode(cartpole):
    response = cartpole.post("/step", json={"action": {"action": 1}})
    assert (response.status_code, response.json()["error"]) == (400, "ResetRequired")


@pytest.mark.parametrize(("env_id", "action"), [("Blackjack-v1", {"action": 0}), (SCRIPTED, {"action": [1, 2]})])
async def test_many_sessions_play_side_by_side_and_leave_nothing(no_threads_left, env_id, action):
    app = gymnasium_app(env_id)
    clients = [GenericEnvClient(app=app) for _ in range(8)]
    for seed, client in enumerate(clients):
        result = await client.reset(seed=seed)
        while not result.done:
            result = await client.step(action)
        assert result.reward in (-1.0, 0.0, 1.0, 1.5)
        assert result.terminated or result.truncated
    assert app.state.openenv.active_sessions == 8
    for client in clients:
        await client.close()
    await app.state.openenv.aclose()
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize(
    ("env_id", "kwargs", "execution"),
    [
        ("CartPole-v1", {}, "inline"),
        ("FrozenLake-v1", {}, "inline"),
        ("CartPole-v1", {"render_mode": "rgb_array"}, "inline"),
        (SCRIPTED, {}, None),
    ],
)
def test_only_what_is_quick_runs_on_the_event_loop(env_id, kwargs, execution):
    assert gymnasium_environment(env_id, **kwargs).execution == execution


def test_what_opens_a_window_keeps_its_thread(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert gymnasium_environment("CartPole-v1", render_mode="human").execution is None


async def test_a_typed_client_can_be_made_of_the_types():
    class TypedEnv(EnvClient[CartPole.action_cls, CartPole.observation_cls, GymnasiumState]):
        pass

    async with TypedEnv(app=gymnasium_app("CartPole-v1", max_episode_steps=2)) as env:
        assert isinstance((await env.reset(seed=1)).observation, GymnasiumObservation)
        await env.step(CartPole.action_cls(action=1))
        result = await env.step(CartPole.action_cls(action=1))
        assert (result.done, result.truncated, result.terminated) == (True, True, False)
        state = await env.state()
        assert isinstance(state, State)
        assert (state.env_id, state.seed) == ("CartPole-v1", 1)


def test_a_class_says_what_it_was_made_for_as_one_that_is_written_down():
    assert type_arguments(CartPole, Environment) == (CartPole.action_cls, CartPole.observation_cls, GymnasiumState)
    with GenericEnvClient(env=CartPole).sync() as env:
        env.reset(seed=1)
        with pytest.raises(InvalidAction):
            env.step({"action": 2})


class Inline(gymnasium.Wrapper):
    execution = "inline"


gymnasium.register("openenv-tests/Inline-v0", entry_point=lambda: Inline(Scripted()))


def test_an_environment_or_a_wrapper_declares_where_it_runs():
    assert gymnasium_environment("openenv-tests/Inline-v0").execution == "inline"
    assert gymnasium_environment(SCRIPTED).execution is None
    assert CartPole.execution == "inline"
