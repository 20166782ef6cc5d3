"""What existing programs count on: how clients are made, copied, sent to other processes, and refused."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from functools import partial
from typing import Any

import pytest

from openenv.client import EnvClient, GenericEnvClient, SyncEnvClient
from openenv.errors import ConnectionFailed, SessionLost, StepTimeout, UsageError
from openenv.types import Observation, State, StepResult

from ..asynchronous import Gate, until
from ..environments import Gated
from .environments import CounterAction, CounterEnv, HesitantEnv, ThreadCounter, app_of, plain_app
from .peers import Peer, observation, serving

ONE = CounterAction(by=1)
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def app() -> Any:
    return app_of()


# The constructor.


def test_the_arguments_and_their_order() -> None:
    parameters = inspect.signature(EnvClient).parameters
    positional = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert positional == [
        "base_url",
        "connect_timeout_s",
        "message_timeout_s",
        "max_message_size_mb",
        "websocket_ping_interval_s",
        "websocket_ping_timeout_s",
        "provider",
        "mode",
        "headers",
    ]
    defaults = [parameters[name].default for name in positional]
    assert defaults == [None, 10.0, 60.0, 100.0, 20.0, 20.0, None, None, None]


def test_every_argument_may_stand_at_its_place() -> None:
    env = GenericEnvClient(NOBODY, 1.0, 2.0, 3.0, 4.0, 5.0, None, "simulation", {"X-Team": "a"})
    assert env._message_timeout_s == 2.0
    options = env._options
    assert (options.connect_timeout_s, options.max_message_bytes) == (1.0, 3 * 1024 * 1024)
    assert (options.ping_interval_s, options.ping_timeout_s) == (4.0, 5.0)
    assert options.headers == (("X-Team", "a"),)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("https://envs.example/team/echo/", "https://envs.example/team/echo"),
        ("ws://localhost:8000", "ws://localhost:8000"),
        ("localhost:8000", "localhost:8000"),
    ],
)
def test_the_address_as_it_was_given(given: str, told: str) -> None:
    env = GenericEnvClient(given)
    assert env.base_url == told
    assert env.sync().base_url == told


def test_an_app_has_no_address(app: Any) -> None:
    assert CounterEnv(app=app).base_url is None


class Named(CounterEnv):
    """As subclasses add an argument of their own."""

    def __init__(self, base_url: str, name: str = "nobody", **options: Any):
        self.name = name
        super().__init__(base_url=base_url, **options)


class Strict(CounterEnv):
    """As subclasses take one argument and no more."""

    def __init__(self, base_url: str):
        super().__init__(base_url)


def test_subclasses_with_constructors_of_their_own() -> None:
    assert (Named(NOBODY, "a", message_timeout_s=3).name, Strict(NOBODY).base_url) == ("a", NOBODY)


class Bare(EnvClient):
    """As existing clients are written: no type arguments, results built by keyword, some keys taken for granted."""

    def _step_payload(self, action: Any) -> dict[str, Any]:
        return {"by": action.by}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Observation]:
        seen = Observation(metadata={"total": payload["observation"]["total"]})
        return StepResult(observation=seen, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(episode_id=payload.get("episode_id"), step_count=payload.get("step_count", 0))


async def test_a_client_that_parses_by_itself(app: Any) -> None:
    async with Bare(app=app) as env:
        await env.reset(episode_id="e")
        result = await env.step(CounterAction(by=3))
        assert (result.observation.metadata, result.reward, result.done) == ({"total": 3}, 1.0, False)
        assert await env.state() == State(episode_id="e", step_count=1)


# Modes.


@pytest.mark.parametrize("call", ["reset", "step", "state"])
async def test_in_production_there_is_nothing_to_control(app: Any, call: str) -> None:
    env = CounterEnv(app=app, mode="production")
    with pytest.raises(UsageError, match="MCPToolClient"):
        await getattr(env, call)(*([ONE] if call == "step" else []))
    assert app.state.openenv.active_sessions == 0
    await env.close()


async def test_the_mode_is_a_setting(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_CLIENT_MODE", "production")
    with pytest.raises(UsageError, match="OPENENV_CLIENT_MODE"):
        await CounterEnv(app=app).reset()
    async with CounterEnv(app=app, mode="simulation") as env:
        await env.reset()


@pytest.mark.parametrize("mode", ["prod", "", 3])
def test_a_mode_that_there_is_not(mode: Any) -> None:
    with pytest.raises(UsageError, match="'simulation' or 'production'"):
        GenericEnvClient(NOBODY, mode=mode)
    with pytest.raises(ValueError, match="OPENENV_CLIENT_MODE"):
        GenericEnvClient(NOBODY, mode=mode)


# Calls.


def test_a_step_with_a_time_of_its_own() -> None:
    gate = Gate()
    env = GenericEnvClient(app=plain_app(partial(Gated, stepping=gate)))
    env.reset()
    with pytest.raises(StepTimeout):
        env.step({}, timeout_s=0.05)
    gate.open()
    env.close()


@pytest.mark.slow
def test_a_step_may_take_longer_than_others() -> None:
    async def patient(peer: Peer) -> None:
        await peer.accept()
        for _ in range(2):
            await peer.message()
            peer.reply(observation(1.0))
        await peer.ended()

    async def play() -> None:
        async with serving(patient) as place:
            env = GenericEnvClient(place.url, message_timeout_s=None)
            await env.reset()
            assert (await env.step({"a": 1}, timeout_s=30.0, mood="ignored")).reward == 1.0
            await env.close()

    asyncio.run(play())


@pytest.mark.slow
async def test_what_a_step_is_given_beside_its_action_stays_here() -> None:
    """As with existing clients: the action is all that a step sends."""
    said = []

    async def listen(peer: Peer) -> None:
        await peer.accept()
        said.append(await peer.message())
        peer.reply(observation())
        await peer.ended()

    async with serving(listen) as place:
        env = GenericEnvClient(place.url)
        await env.step({"a": 1}, timeout_s=30.0, request_id="r")
        await env.close()
    assert said == [{"type": "step", "data": {"a": 1}}]


async def test_disconnecting_ends_the_session_and_reset_begins_another(app: Any) -> None:
    env = CounterEnv(app=app)
    await env.reset()
    await env.disconnect()
    assert app.state.openenv.active_sessions == 0
    with pytest.raises(SessionLost, match=r"reset\(\)"):
        await env.step(ONE)
    await env.reset()
    assert (await env.step(ONE)).reward == 1.0
    await env.close()


def test_disconnecting_without_an_event_loop(app: Any) -> None:
    env = CounterEnv(app=app)
    env.reset()
    env.disconnect()
    env.sync().disconnect()
    assert app.state.openenv.active_sessions == 0


def test_a_block_around_a_client_that_was_used_before(app: Any) -> None:
    env = CounterEnv(app=app)
    env.reset(start=3)
    with env:
        assert env.step(ONE).observation.total == 4
    assert app.state.openenv.active_sessions == 0


async def test_awaiting_a_client_connects_it(app: Any) -> None:
    env = await CounterEnv(app=app)
    assert type(env) is CounterEnv
    assert app.state.openenv.active_sessions == 1
    await env.close()


# Further sessions.


async def test_another_session_of_the_same_server(app: Any) -> None:
    async with CounterEnv(app=app, message_timeout_s=7) as env:
        await env.reset(start=1)
        other = await env.new_session()
        assert type(other) is CounterEnv
        assert other._message_timeout_s == 7
        assert app.state.openenv.active_sessions == 2
        await other.reset(start=100)
        assert (await env.step(ONE)).observation.total == 2
        assert (await other.step(ONE)).observation.total == 101
        await other.close()
        assert (await env.step(ONE)).observation.total == 3
    assert app.state.openenv.active_sessions == 0


async def test_further_sessions_are_closed_with_the_first(app: Any) -> None:
    env = CounterEnv(app=app)
    await env.reset()
    others = [await env.new_session() for _ in range(3)]
    assert app.state.openenv.active_sessions == 4
    await env.close()
    assert app.state.openenv.active_sessions == 0
    with pytest.raises(SessionLost):
        await others[0].step(ONE)


def test_further_sessions_without_an_event_loop(app: Any) -> None:
    with CounterEnv(app=app).sync() as env, env.new_session() as other:
        assert type(other) is SyncEnvClient
        env.reset(start=1)
        other.reset(start=100)
        assert (env.step(ONE).observation.total, other.step(ONE).observation.total) == (2, 101)
    assert app.state.openenv.active_sessions == 0


def test_what_a_subclass_keeps_is_in_its_further_sessions() -> None:
    env = Named(NOBODY, "a")
    with pytest.raises(ConnectionFailed):
        env.new_session()
    other = type(env).__new__(type(env))
    other.__setstate__(env.__getstate__())
    assert (other.name, other.base_url) == ("a", NOBODY)


# Other processes.


@pytest.mark.parametrize("factory", [CounterEnv, partial(CounterEnv, base_url=NOBODY), Named])
def test_classes_and_factories_can_be_pickled(factory: Any) -> None:
    again = pickle.loads(pickle.dumps(factory))
    made = again(**({} if isinstance(factory, partial) else {"base_url": NOBODY}))
    assert isinstance(made, CounterEnv)


def test_a_client_that_is_not_connected_can_be_pickled() -> None:
    env = Named("localhost:1/team/", "a", message_timeout_s=3, headers={"X": "y"}, api_key="k" * 16, strict=True)
    again = pickle.loads(pickle.dumps(env))
    assert (type(again), again.name, again.base_url) == (Named, "a", "localhost:1/team")
    assert again._options == env._options
    assert (again._message_timeout_s, again._strict) == (3, True)
    with pytest.raises(ConnectionFailed):
        again.reset()


def test_a_copy_has_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    env = GenericEnvClient(NOBODY)
    for made in (copy.copy(env), copy.deepcopy(env)):
        assert made.base_url == NOBODY
        assert made._connecting is not env._connecting


@pytest.mark.slow
async def test_a_connected_client_stays_where_it_is() -> None:
    async def listen(peer: Peer) -> None:
        await peer.accept()
        await peer.ended()

    async with serving(listen) as place:
        env = GenericEnvClient(place.url)
        await env.connect()
        with pytest.raises(UsageError, match=r"connected.*close\(\)"):
            pickle.dumps(env)
        await env.close()
        assert pickle.loads(pickle.dumps(env)).base_url == place.url


def test_a_client_of_an_app_stays_where_it_is(app: Any) -> None:
    with pytest.raises(UsageError, match="belongs to this process.*partial"):
        pickle.dumps(CounterEnv(app=app))


# Threads and loops, as trainers use them.


async def test_made_in_a_running_loop_and_used_by_threads_without_one() -> None:
    app = app_of(ThreadCounter)
    envs = [CounterEnv(app=app) for _ in range(8)]

    def play(env: Any) -> float:
        env.reset()
        reward: float = env.step(ONE).reward
        env.close()
        return reward

    assert await asyncio.gather(*(asyncio.to_thread(play, env) for env in envs)) == [1.0] * 8
    assert app.state.openenv.active_sessions == 0


async def test_the_synchronous_client_inside_a_running_loop_as_in_a_notebook(app: Any) -> None:
    env = CounterEnv(app=app).sync()
    assert env.reset().observation.total == 0
    assert env.step(ONE, timeout_s=30.0).reward == 1.0
    assert env.state().step_count == 1
    env.close()


# Errors that meet.


class Unclosable(CounterEnv):
    """Cannot be closed."""

    async def _disconnect_async(self) -> None:
        await super()._disconnect_async()
        raise OSError("no way to close")


def test_closing_never_hides_the_error_of_the_block(app: Any) -> None:
    for env in (Unclosable(app=app), Unclosable(app=app).sync()):
        with pytest.raises(LookupError) as caught, env:
            raise LookupError
        assert "no way to close" in caught.value.__notes__[0]


async def test_closing_never_hides_the_error_of_the_asynchronous_block(app: Any) -> None:
    with pytest.raises(LookupError) as caught:
        async with Unclosable(app=app):
            raise LookupError
    assert "no way to close" in caught.value.__notes__[0]


async def test_a_client_that_cannot_be_closed_says_so(app: Any) -> None:
    env = Unclosable(app=app)
    await env.reset()
    with pytest.raises(OSError, match="no way"):
        await env.close()


async def test_a_further_session_that_is_cancelled_leaves_nothing(app: Any) -> None:
    env = HesitantEnv(app=app)
    env.ready.set()
    await env.reset()
    env.ready.clear()
    opening = asyncio.ensure_future(env.new_session())
    await until(lambda: len(env._others) == 1)
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    env.ready.set()
    assert app.state.openenv.active_sessions == 1
    await env.close()
    assert app.state.openenv.active_sessions == 0
