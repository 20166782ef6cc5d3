"""The client without a socket: what a user gets from the calls, and what is left when they end."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from functools import partial
from typing import Any, Generic

import pytest

from openenv.client import EnvClient, GenericEnvClient, SyncEnvClient, memory
from openenv.errors import (
    ConnectionFailed,
    Draining,
    FactoryFailed,
    InvalidAction,
    OpenEnvError,
    ProtocolViolation,
    SchemaMismatch,
    ServerFull,
    SessionCapacityError,
    SessionLost,
    StepFailed,
    UsageError,
)
from openenv.types import ActT, Observation, ObsT, State, StateT, StepResult

from ..asynchronous import Gate, until
from ..environments import Gated, Plain
from .environments import (
    CounterAction,
    CounterEnv,
    CounterObservation,
    CounterState,
    HesitantEnv,
    ThreadCounter,
    app_of,
    plain_app,
)

ONE = CounterAction(by=1)


@pytest.fixture(autouse=True, params=[None, "openenv.v2.json", "openenv.v2.msgpack"])
def version(request, monkeypatch):
    """What client and server speak."""
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    return request.param


def end_sessions(app, error):
    """The server ends every session it has, and tells their users why."""
    for session in app.state.openenv.manager.sessions:
        session.end(error)


# Types.


async def test_a_client_returns_the_types_it_is_made_for():
    async with CounterEnv(app=app_of()) as env:
        first = await env.reset(start=5, episode_id="e")
        assert first == StepResult(observation=CounterObservation(total=5))
        second = await env.step(CounterAction(by=2, mood="done"))
        assert second.observation == CounterObservation(total=7, reward=1.0, done=True)
        assert (second.reward, second.done, second.metadata) == (1.0, True, None)
        state = await env.state()
        assert state == CounterState(episode_id="e", step_count=1, total=7)
        assert type(state) is CounterState


class Renamed(CounterEnv):
    pass


class Base(EnvClient[ActT, ObsT, StateT]):
    """A generic client between ours and the user's."""


class ThroughBase(Base[CounterAction, CounterObservation, CounterState]):
    pass


class HalfFilled(EnvClient[CounterAction, CounterObservation, StateT]):
    pass


class Filled(HalfFilled[CounterState]):
    pass


class Reordered(EnvClient[ActT, ObsT, StateT], Generic[StateT, ActT, ObsT]):
    pass


class InOrder(Reordered[CounterState, CounterAction, CounterObservation]):
    pass


class Mixed(CounterEnv, dict):
    pass


@pytest.mark.parametrize("cls", [Renamed, ThroughBase, Filled, InOrder, Mixed])
async def test_types_are_found_however_they_were_given(cls):
    async with cls(app=app_of()) as env:
        assert (await env.reset(start=1)).observation == CounterObservation(total=1)
        assert await env.state() == CounterState(total=1)


class TypeOnly(EnvClient[CounterAction, CounterObservation, dict]):
    pass


async def test_dict_as_a_type_says_leave_it_as_it_came():
    async with TypeOnly(app=app_of()) as env:
        assert type((await env.reset()).observation) is CounterObservation
        assert await env.state() == {"episode_id": None, "step_count": 0, "total": 0}


@pytest.mark.parametrize("cls", [EnvClient, GenericEnvClient])
async def test_a_client_without_types_returns_dicts(cls):
    async with cls(app=app_of()) as env:
        assert (await env.reset(start=2)).observation == {"total": 2, "metadata": {}}
        assert (await env.step({"by": 3})).observation["total"] == 5
        assert (await env.step(CounterAction(by=3))).reward == 2.0
        assert (await env.state())["total"] == 8


class Handwritten(EnvClient[CounterAction, CounterObservation, State]):
    """As existing clients are written: all three hooks."""

    def _step_payload(self, action):
        return {"by": action.by * 10}

    def _parse_result(self, payload):
        return StepResult(
            observation=Observation(metadata={"seen": payload["observation"]["total"]}),
            reward=payload["reward"],
            done=payload["done"],
        )

    def _parse_state(self, payload):
        return State(step_count=payload["step_count"] + 100)


async def test_hooks_that_a_subclass_overrides_are_used():
    async with Handwritten(app=app_of()) as env:
        await env.reset()
        result = await env.step(CounterAction(by=4))
        assert result.observation.metadata == {"seen": 40}
        assert (await env.state()).step_count == 101


class OfAnotherServer(Handwritten):
    """Reads what this server never says."""

    def _parse_result(self, payload):
        return StepResult(observation=CounterObservation(**payload["observation"], colour="red"), done=False)

    def _parse_state(self, payload):
        return State(step_count=payload["moves"])


async def test_replies_that_a_clients_own_parsing_cannot_read_say_so_in_a_typed_error():
    async with OfAnotherServer(app=app_of()) as env:
        with pytest.raises(ProtocolViolation, match=r"(?s)Server\._parse_result .*belong to that server.*colour"):
            await env.reset()
        with pytest.raises(ProtocolViolation, match=r"_parse_state .*KeyError: 'moves'"):
            await env.state()


class Crowded(CounterEnv):
    """As existing clients may be: with private names of their own, which are those that come to mind first."""

    def __init__(self, base_url: str | None = None, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._state = self._session = self._mode = self._step = self._reset = self._tools = "mine"

    def _call(self, what: str) -> str:
        return f"{what}!"

    def _connect(self) -> str:
        return "mine"


async def test_private_names_that_existing_clients_have_are_theirs():
    async with Crowded(app=app_of()) as env:
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0
        assert (await env.state()).step_count == 1
        assert (env._state, env._session, env._mode, env._call("hey"), env._connect()) == (
            "mine",
            "mine",
            "mine",
            "hey!",
            "mine",
        )
        other = await env.new_session()
        assert (await other.reset()).observation.total == 0


async def test_arguments_of_reset_reach_the_environment():
    async with CounterEnv(app=app_of()) as env:
        result = await env.reset(seed=7, episode_id="e7", start=3, level="hard")
        assert result.metadata == {"seed": 7, "level": "hard"}
        assert result.observation.metadata == result.metadata
        assert (await env.state()).episode_id == "e7"


async def test_a_server_of_other_types_is_noticed(version):
    class Other(EnvClient[CounterAction, Observation, State]):
        pass

    noticed = pytest.warns(SchemaMismatch, match=r"observation\.total: not known here, integer on the server")
    with noticed if version else nullcontext():
        client = await Other(app=app_of()).connect()
    async with client as env:
        with pytest.raises(ConnectionFailed, match="total"):
            await env.reset()


# Errors.


async def test_an_action_the_server_does_not_take():
    async with GenericEnvClient(app=app_of()) as env:
        await env.reset()
        with pytest.raises(InvalidAction) as caught:
            await env.step({"by": "much", "how": 1})
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.blame == "client"
        faults = {tuple(fault["loc"]): fault["type"] for fault in caught.value.data["errors"]}
        assert faults == {("by",): "int_parsing", ("how",): "extra_forbidden"}
        assert (await env.step({"by": 1})).reward == 1.0


async def test_a_step_that_raises():
    async with CounterEnv(app=app_of()) as env:
        await env.reset()
        with pytest.raises(StepFailed, match="a bad mood") as caught:
            await env.step(CounterAction(by=1, mood="bad"))
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.blame == "environment"
        assert (await env.step(ONE)).reward == 1.0


async def test_a_reward_that_is_no_number_is_an_error_and_not_null():
    async with CounterEnv(app=app_of()) as env:
        await env.reset()
        with pytest.raises(StepFailed, match="reward is nan"):
            await env.step(CounterAction(by=1, mood="lost"))
        assert (await env.step(ONE)).reward == 2.0


class Unmakeable(Plain):
    def __init__(self):
        raise OSError("no display")


async def test_an_environment_that_cannot_be_made():
    env = GenericEnvClient(app=plain_app(Unmakeable))
    with pytest.raises(FactoryFailed, match="no display") as caught:
        await env.reset()
    assert caught.value.factory_name == "Unmakeable"
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(FactoryFailed):
        await env.reset()
    await env.close()


async def test_a_full_server_says_how_full_and_may_be_asked_again():
    app = app_of(sessions=1)
    async with CounterEnv(app=app) as first:
        await first.reset()
        second = CounterEnv(app=app)
        with pytest.raises(ServerFull) as caught:
            await second.reset()
        assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)
        assert caught.value.retryable
        assert isinstance(caught.value, SessionCapacityError)
        assert isinstance(caught.value, RuntimeError)
    await second.reset()
    assert (await second.step(ONE)).reward == 1.0
    await second.close()


async def test_a_refused_client_that_steps_is_refused_again():
    app = app_of(sessions=1)
    async with CounterEnv(app=app) as first, CounterEnv(app=app) as second:
        await first.reset()
        with pytest.raises(ServerFull):
            await second.step(ONE)
        with pytest.raises(ServerFull):
            await second.state()


async def test_what_is_no_action_is_said_before_anything_is_sent():
    async with CounterEnv(app=app_of()) as env:
        await env.reset()
        with pytest.raises(TypeError, match="a model or a mapping"):
            await env.step("left")
        assert (await env.step(ONE)).reward == 1.0


class Unwritable:
    """What JSON cannot say."""


async def test_an_action_that_cannot_be_written_leaves_the_conversation_in_order():
    async with GenericEnvClient(app=app_of()) as env:
        await env.reset()
        with pytest.raises((OpenEnvError, ValueError), match="Unwritable"):
            await env.step({"by": Unwritable()})
        assert (await env.step({"by": 1})).reward == 1.0


@pytest.mark.parametrize("arguments", [{}, {"base_url": "localhost:1", "app": object()}])
def test_a_client_needs_one_server(arguments):
    with pytest.raises(UsageError, match="CounterEnv needs one of base_url"):
        CounterEnv(**arguments)


def test_a_bad_address_is_refused_by_the_constructor():
    with pytest.raises(UsageError, match="host:port"):
        CounterEnv("ftp://localhost")


async def test_only_an_app_of_ours_has_an_environment():
    with pytest.raises(TypeError, match="create_app"):
        await CounterEnv(app=object()).connect()


# Sessions that end.


async def test_after_the_session_was_lost_step_says_so_and_reset_starts_another():
    app = app_of()
    async with CounterEnv(app=app) as env:
        await env.reset()
        await env.step(ONE)
        end_sessions(app, SessionLost("idle for too long"))
        for _ in range(2):
            with pytest.raises(SessionLost, match="idle for too long") as caught:
                await env.step(ONE)
            assert isinstance(caught.value, ConnectionError)
            assert not caught.value.retryable
        with pytest.raises(SessionLost, match="reset"):
            await env.state()
        await env.reset()
        assert (await env.step(ONE)).reward == 1.0
        assert app.state.openenv.active_sessions == 1


async def test_a_session_lost_to_a_stopping_server_is_lost():
    """`Draining` may be tried again, and a step of an episode that is gone may not."""
    app = app_of()
    async with CounterEnv(app=app) as env:
        await env.reset()
        end_sessions(app, Draining("the server is stopping"))
        with pytest.raises(SessionLost, match="stopping"):
            await env.step(ONE)


async def test_connect_after_the_session_was_lost_starts_another():
    app = app_of()
    async with CounterEnv(app=app) as env:
        await env.reset()
        end_sessions(app, SessionLost("gone"))
        assert await env.connect() is env
        await env.reset()


async def test_close_may_be_repeated_and_reset_connects_anew():
    app = app_of()
    env = CounterEnv(app=app)
    await env.close()
    await env.reset()
    await env.step(ONE)
    await env.close()
    assert app.state.openenv.active_sessions == 0
    await env.close()
    await env.reset()
    assert (await env.step(ONE)).reward == 1.0
    await env.close()


async def test_connecting_takes_the_slot_and_leaving_gives_it_back():
    app = app_of()
    env = CounterEnv(app=app)
    assert app.state.openenv.active_sessions == 0
    assert await env.connect() is env
    assert await env.connect() is env
    assert app.state.openenv.active_sessions == 1
    await env.close()
    assert app.state.openenv.active_sessions == 0


async def test_an_error_inside_the_block_closes_too():
    app = app_of()
    with pytest.raises(LookupError):
        async with CounterEnv(app=app) as env:
            await env.reset()
            raise LookupError
    assert app.state.openenv.active_sessions == 0


async def test_after_close_nothing_is_left(no_threads_left):
    app = app_of(ThreadCounter)
    env = CounterEnv(app=app)
    await env.reset()
    await env.close()
    assert app.state.openenv.active_sessions == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_close_ends_a_call_that_is_running(no_threads_left):
    gate = Gate()
    env = GenericEnvClient(app=plain_app(partial(Gated, stepping=gate)))
    await env.reset()
    step = asyncio.create_task(env.step({}))
    await gate.reached()
    closing = asyncio.create_task(env.close())
    await asyncio.sleep(0)
    gate.open()
    await closing
    with pytest.raises(ConnectionFailed):
        await step


async def test_closing_while_it_connects_leaves_no_session():
    app = app_of()
    env = HesitantEnv(app=app)
    calls = [asyncio.create_task(env.reset()) for _ in range(2)]
    await until(lambda: env.connecting)
    await env.close()
    env.ready.set()
    for call in calls:
        with pytest.raises(SessionLost, match=r"closed while it was connecting.*reset\(\)"):
            await call
    assert app.state.openenv.active_sessions == 0
    assert (await env.reset(start=3)).observation.total == 3
    await env.close()


async def test_a_client_that_was_closed_while_it_connected_begins_anew():
    app = app_of()
    env = HesitantEnv(app=app)
    first = asyncio.create_task(env.reset(start=1))
    await until(lambda: env.connecting)
    await env.close()
    second = asyncio.create_task(env.reset(start=2))
    await until(lambda: env.connecting == 2)
    env.ready.set()
    with pytest.raises(SessionLost):
        await first
    assert (await second).observation.total == 2
    assert (await env.step(ONE)).observation.total == 3
    assert app.state.openenv.active_sessions == 1
    await env.close()


# Calls made at the same time.


@pytest.mark.parametrize("factory", [ThreadCounter, partial(ThreadCounter)])
async def test_calls_made_at_the_same_time_are_queued(factory):
    async with CounterEnv(app=app_of(factory, sessions=1)) as env:
        await env.reset()
        results = await asyncio.gather(*(env.step(ONE) for _ in range(20)))
    assert [result.reward for result in results] == [float(n) for n in range(1, 21)]


async def test_the_first_calls_at_the_same_time_share_one_connection():
    app = app_of(ThreadCounter)
    env = CounterEnv(app=app)
    reset, *steps = await asyncio.gather(env.reset(), *(env.step(ONE) for _ in range(5)))
    assert reset.reward is None
    assert [step.reward for step in steps] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert app.state.openenv.active_sessions == 1
    await env.close()


async def test_clients_do_not_share_a_session():
    app = app_of()
    async with CounterEnv(app=app) as one, CounterEnv(app=app) as other:
        await one.reset(start=1)
        await other.reset(start=100)
        assert (await one.step(ONE)).observation.total == 2
        assert (await other.step(ONE)).observation.total == 101


# The synchronous client has the methods of the asynchronous one.


@pytest.mark.parametrize("method", ["connect", "reset", "step", "state", "close"])
def test_both_clients_take_the_same_arguments(method):
    signatures = [inspect.signature(getattr(cls, method)) for cls in (EnvClient, SyncEnvClient)]
    assert list(signatures[0].parameters) == list(signatures[1].parameters)
