"""Many environments stepped together: order, failures as values, and what follows the end of an episode."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from functools import partial
from types import SimpleNamespace

import pytest

from openenv.client import EnvClient, Finished, GenericEnvClient, SyncVectorEnvClient, VectorEnvClient, memory
from openenv.client import vector as vector_module
from openenv.errors import (
    ConnectionFailed,
    ConnectionLost,
    InvalidAction,
    MessageTooLarge,
    ProtocolViolation,
    ResetRequired,
    ServerFull,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyCalls,
    UsageError,
)
from openenv.server import timers
from openenv.server import v2 as batch
from openenv.server import v2_session as slot
from openenv.types import Observation, State, StepResult

from ..asynchronous import until
from .environments import (
    Bell,
    Counter,
    CounterAction,
    CounterEnv,
    CounterObservation,
    HesitantEnv,
    RingingCounter,
    ThreadCounter,
    app_of,
)
from .scripted import HELLO, ScriptedApp, fault, outcome

ONE = CounterAction(by=1)
DONE = CounterAction(by=1, mood="done")
BAD = CounterAction(by=1, mood="bad")
SHORT_S = 0.2


@pytest.fixture(params=[None, "openenv.v2.json", "openenv.v2.msgpack"])
def version(request, monkeypatch):
    """What client and server speak."""
    monkeypatch.setattr(memory, "SUBPROTOCOL", request.param)
    return request.param


def vector(app, num_envs=3, env_cls=CounterEnv, **options):
    return VectorEnvClient(env_cls, app=app, num_envs=num_envs, **options)


def rewards(results):
    return [result.reward for result in results]


def errors(results):
    """The class of each error."""
    return [result.error and type(result.error) for result in results]


def end_session(app, number, error):
    """The server ends a session, by the order in which they were opened."""
    list(app.state.openenv.manager.sessions)[number].end(error)


# All at once.


@pytest.mark.parametrize("connections", [1, 2, 3])
@pytest.mark.parametrize("factory", [ThreadCounter, Counter])
async def test_results_come_in_the_order_of_the_environments(version, factory, connections, no_threads_left):
    app = app_of(factory, sessions=7)
    async with vector(app, 7, connections=connections) as envs:
        first = await envs.reset(seeds=range(1, 8), start=10)
        assert [result.metadata for result in first] == [{"seed": seed} for seed in range(1, 8)]
        assert [result.observation for result in first] == [
            CounterObservation(total=10, metadata={"seed": seed}) for seed in range(1, 8)
        ]
        for number in range(1, 4):
            results = await envs.step([CounterAction(by=by) for by in range(7)])
            assert [result.observation.total for result in results] == [10 + number * by for by in range(7)]
            assert rewards(results) == [float(number)] * 7
        assert app.state.openenv.active_sessions == 7
    assert app.state.openenv.active_sessions == 0


async def test_a_client_without_types_gets_dicts(version):
    async with vector(app_of(), env_cls=GenericEnvClient) as envs:
        assert (await envs.reset(start=4))[2] == StepResult(observation={"total": 4, "metadata": {}})
        results = await envs.step([{"by": 1}, {"by": 2}, CounterAction(by=3)])
        assert [result.observation["total"] for result in results] == [5, 6, 7]


class Handwritten(EnvClient[CounterAction, CounterObservation, State]):
    def _step_payload(self, action):
        return {"by": action.by * 10}

    def _parse_result(self, payload):
        seen = {"seen": payload["observation"]["total"]}
        return StepResult(observation=Observation(metadata=seen), reward=payload["reward"], done=payload["done"])


async def test_hooks_that_a_subclass_overrides_are_used(version):
    async with vector(app_of(), env_cls=Handwritten) as envs:
        await envs.reset()
        assert (await envs.step([ONE] * 3))[0].observation.metadata == {"seen": 10}


class Picky(EnvClient[CounterAction, CounterObservation, State]):
    def _parse_result(self, payload):
        if payload["observation"]["total"] == 2:
            raise KeyError("two")
        return StepResult(observation=payload["observation"]["total"])


async def test_a_hook_that_fails_fails_for_one_environment():
    async with vector(app_of(), env_cls=Picky) as envs:
        await envs.reset()
        results = await envs.step([CounterAction(by=by) for by in (1, 2, 3)])
        assert [result.observation for result in results] == [1, None, 3]
        assert errors(results) == [None, ProtocolViolation, None]
        assert isinstance(results[1].error.__cause__, KeyError)


async def test_some_environments_are_reset_and_the_others_go_on(version):
    async with vector(app_of()) as envs:
        await envs.reset()
        await envs.step([ONE] * 3)
        results = await envs.reset(env_ids=[2, 0], seeds=[5, 6])
        assert [result.metadata for result in results] == [{"seed": 5}, {"seed": 6}]
        assert rewards(await envs.step([ONE] * 3)) == [1.0, 2.0, 1.0]


async def test_a_vector_larger_than_a_batch_is_sent_in_several():
    async with vector(app_of(sessions=20, max_batch=6), 20) as envs:
        await envs.reset()
        results = await envs.step([CounterAction(by=by) for by in range(20)])
        assert [result.observation.total for result in results] == list(range(20))


async def test_no_more_sessions_are_opened_at_a_time_than_the_server_opens():
    async with vector(app_of(ThreadCounter, sessions=20, max_batch=6), 20) as envs:
        assert errors(await envs.reset()) == [None] * 20
        assert rewards(await envs.step([ONE] * 20)) == [1.0] * 20


async def test_who_waits_for_its_opening_hears_of_the_end_of_the_connection():
    app = ScriptedApp(max_batch=2)
    envs = vector(app, 5, env_cls=GenericEnvClient, message_timeout_s=None)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    await peer.asked(2)
    assert len(peer.requests) == 2
    peer.results(peer.requests[0], {0: {"ok": True}, 1: outcome()})
    await peer.asked(3)
    peer.hang_up()
    assert errors(await reset) == [None] + [SessionLost] * 4
    await envs.close()


async def test_seeds_may_be_numbers_of_another_kind(version):
    class Number:
        def __index__(self):
            return 7

    async with vector(app_of()) as envs:
        results = await envs.reset(seeds=[Number(), None, 8])
        assert [result.metadata for result in results] == [{"seed": 7}, None, {"seed": 8}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        ({"num_envs": 2, "connections": 3}, "connections=3"),
        ({"connections": 0}, "connections=0"),
        ({"autoreset_mode": "sometimes"}, "disabled, next_step, same_step"),
    ],
)
def test_numbers_and_modes_that_make_no_sense(options, said):
    with pytest.raises(UsageError, match=said):
        VectorEnvClient(CounterEnv, app=app_of(), **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda envs: envs.step([ONE]), "1 actions for 3"),
        (lambda envs: envs.send([ONE, ONE], [0]), "2 actions for 1"),
        (lambda envs: envs.reset(seeds=[1]), "1 seeds for 3"),
        (lambda envs: envs.send_reset([1, 2], [0]), "2 seeds for 1"),
        (lambda envs: envs.reset(env_ids=[0, 0]), "each environment once"),
        (lambda envs: envs.send([ONE], [3]), "from 0 to 2"),
        (lambda envs: envs.recv(), "send"),
    ],
)
async def test_what_does_not_fit_is_refused_before_anything_is_sent(call, said):
    async with vector(app_of()) as envs:
        await envs.reset()
        with pytest.raises(UsageError, match=said):
            await call(envs)
        assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3


async def test_what_is_no_action_is_a_mistake_of_the_caller():
    async with vector(app_of()) as envs:
        await envs.reset()
        with pytest.raises(TypeError, match="a model or a mapping"):
            await envs.step([ONE, "left", ONE])
        assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3


# First finished.


async def test_the_first_finished_are_taken_first(version):
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.reset()
        await envs.send([ONE] * 3)
        await until(lambda: len(bell.waiting) == 3)
        bell.waiting[2].set_result(None)
        assert [done.env_id for done in await envs.recv()] == [2]
        await envs.send([ONE], env_ids=[2])
        await until(lambda: len(bell.waiting) == 4)
        both = asyncio.create_task(envs.recv(min_ready=2))
        bell.waiting[3].set_result(None)
        bell.waiting[0].set_result(None)
        finished = await both
        assert {(done.env_id, done.result.reward) for done in finished} == {(0, 1.0), (2, 2.0)}
        bell.waiting[1].set_result(None)
        (last,) = await envs.recv()
        assert isinstance(last, Finished)
        assert (last.env_id, last.result.observation.total) == (1, 1)


async def test_resets_that_are_sent_are_taken_with_the_steps(version):
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.send_reset(seeds=[5, 6], env_ids=[2, 0], start=4)
        begun = {done.env_id: done.result for done in await envs.recv(min_ready=2)}
        assert {index: result.metadata for index, result in begun.items()} == {2: {"seed": 5}, 0: {"seed": 6}}
        assert [result.observation.total for result in begun.values()] == [4, 4]
        await envs.send([ONE], env_ids=[2])
        await until(lambda: len(bell.waiting) == 1)
        with pytest.raises(UsageError, match=r"\[2\].*recv"):
            await envs.send_reset(env_ids=[1, 2])
        await envs.send_reset(env_ids=[1])
        assert [done.env_id for done in await envs.recv()] == [1]
        bell.waiting[0].set_result(None)
        ((env_id, result),) = await envs.recv()
        assert (env_id, result.observation.total) == (2, 5)


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
async def test_a_reset_that_is_sent_ends_the_episode_in_each_mode(version, mode):
    async with vector(app_of(), 2, autoreset_mode=mode) as envs:
        await envs.reset()
        await envs.step([ONE] * 2)
        await envs.send_reset(start=7)
        assert {done.result.observation.total for done in await envs.recv(min_ready=2)} == {7}
        assert rewards(await envs.step([ONE] * 2)) == [1.0] * 2


async def test_a_receiver_does_not_wait_longer_than_it_likes():
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.reset()
        await envs.send([ONE] * 3)
        assert await envs.recv(timeout_s=SHORT_S) == []
        bell.waiting[1].set_result(None)
        (done,) = await envs.recv(min_ready=2, timeout_s=SHORT_S)
        assert done.env_id == 1
        for ring in (0, 2):
            bell.waiting[ring].set_result(None)
        assert len(await envs.recv(min_ready=2)) == 2


async def test_a_call_on_its_way_keeps_its_environment_busy():
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.reset()
        await envs.send([ONE], env_ids=[1])
        for call in (envs.step([ONE] * 3), envs.reset(), envs.send([ONE], [1])):
            with pytest.raises(UsageError, match=r"\[1\].*recv"):
                await call
        await until(lambda: len(bell.waiting) == 1)
        bell.waiting[0].set_result(None)
        with pytest.raises(UsageError, match=r"min_ready=2.*1 are on"):
            await envs.recv(min_ready=2)
        await until(lambda: envs._state.ready)
        with pytest.raises(UsageError, match="recv"):
            await envs.step([ONE] * 3)
        assert rewards([done.result for done in await envs.recv()]) == [1.0]


async def test_a_receiver_hears_of_who_has_no_episode():
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell)), message_timeout_s=None) as envs:
        await envs.reset(env_ids=[0, 1])
        await envs.send([ONE, ONE], env_ids=[0, 1])
        receiver = asyncio.create_task(envs.recv())
        await asyncio.sleep(0)
        await envs.send([ONE], env_ids=[2])
        ((env_id, result),) = await receiver
        assert (env_id, type(result.error)) == (2, ResetRequired)


async def test_who_receives_while_it_is_closed_hears_of_that(version):
    bell = Bell()
    envs = vector(app_of(partial(RingingCounter, bell)))
    await envs.reset()
    await envs.send([ONE] * 2, env_ids=[0, 2])
    receiver = asyncio.create_task(envs.recv(min_ready=2))
    await until(lambda: len(bell.waiting) == 2)
    await envs.close()
    finished = await receiver
    assert [done.env_id for done in finished] == [0, 2]
    assert errors([done.result for done in finished]) == [SessionLost] * 2


async def test_one_receiver_at_a_time():
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.reset()
        await envs.send([ONE] * 3)
        first = asyncio.create_task(envs.recv())
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="one receiver"):
            await envs.recv()
        await until(lambda: len(bell.waiting) == 3)
        bell.waiting[0].set_result(None)
        assert len(await first) == 1


# Failures.


async def test_each_failure_is_told_to_its_own_environment(version):
    async with vector(app_of(sessions=5), 5, env_cls=GenericEnvClient) as envs:
        await envs.reset()
        actions = [{"by": 1}, {"by": 1, "mood": "bad"}, {"by": "much"}, {"by": 1, "mood": "lost"}, {"by": object()}]
        results = await envs.step(actions)
        assert errors(results) == [None, StepFailed, InvalidAction, StepFailed, InvalidAction]
        assert [(result.observation, result.reward) for result in results[1:]] == [(None, None)] * 4
        assert results[2].error.data["errors"][0]["loc"] == ["by"]
        assert rewards(await envs.step([{"by": 1}] * 5)) == [2.0, 1.0, 1.0, 2.0, 1.0]


async def test_a_full_server_refuses_the_surplus_and_takes_it_later(version):
    app = app_of(sessions=3)
    async with CounterEnv(app=app) as other, vector(app) as envs:
        await other.reset()
        results = await envs.reset()
        assert sorted(map(str, errors(results))) == sorted(map(str, [None, None, ServerFull]))
        refused = errors(results).index(ServerFull)
        results = await envs.step([ONE] * 3)
        assert [index for index, result in enumerate(results) if result.error] == [refused]
        assert isinstance(results[refused].error, ResetRequired)
        await other.close()
        assert errors(await envs.reset(env_ids=[refused])) == [None]
        assert errors(await envs.step([ONE] * 3)) == [None] * 3


async def test_without_an_episode_a_step_is_refused(version):
    async with vector(app_of()) as envs:
        results = await envs.step([ONE] * 3)
        assert errors(results) == [ResetRequired] * 3
        assert "reset(env_ids=[1])" in str(results[1].error)
        await envs.reset(env_ids=[1])
        assert errors(await envs.step([ONE] * 3)) == [ResetRequired, None, ResetRequired]


async def test_a_lost_session_is_told_once_and_refilled_by_the_next_reset(version):
    app = app_of()
    async with vector(app) as envs:
        await envs.reset()
        await envs.step([ONE] * 3)
        end_session(app, 1, SessionLost("idle for too long"))
        results = await envs.step([ONE] * 3)
        assert rewards(results) == [2.0, None, 2.0]
        assert isinstance(results[1].error, SessionLost)
        assert "idle for too long" in str(results[1].error)
        results = await envs.step([ONE] * 3)
        assert errors(results) == [None, ResetRequired, None]
        assert errors(await envs.reset(env_ids=[1])) == [None]
        assert rewards(await envs.step([ONE] * 3)) == [4.0, 1.0, 4.0]
        assert app.state.openenv.active_sessions == 3


async def test_a_session_lost_during_a_step(version):
    bell = Bell()
    app = app_of(partial(RingingCounter, bell))
    async with vector(app) as envs:
        await envs.reset()
        step = asyncio.create_task(envs.step([ONE] * 3))
        await until(lambda: len(bell.waiting) == 3)
        end_session(app, 0, SessionLost("gone"))
        for ring in bell.waiting[1:]:
            ring.set_result(None)
        results = await step
        assert errors(results) == [SessionLost, None, None]


async def test_a_reset_makes_old_losses_of_no_interest(version):
    app = app_of()
    async with vector(app) as envs:
        await envs.reset()
        end_session(app, 2, SessionLost("gone"))
        assert errors(await envs.reset()) == [None] * 3
        assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
async def test_with_autoreset_a_lost_session_is_refilled_by_the_next_step(version, mode):
    app = app_of()
    async with vector(app, autoreset_mode=mode) as envs:
        await envs.reset()
        end_session(app, 0, SessionLost("gone"))
        assert errors(await envs.step([ONE] * 3)) == [SessionLost, None, None]
        results = await envs.step([ONE] * 3)
        assert rewards(results) == [None, 2.0, 2.0]
        assert results[0].observation.total == 0
        assert rewards(await envs.step([ONE] * 3)) == [1.0, 3.0, 3.0]


async def test_a_step_that_is_late_is_stopped_and_the_next_one_gets_its_own_reply(version, monkeypatch):
    for module in (batch, timers, slot):  # by the clock of the loop, which no stall of the machine puts forward
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell)), message_timeout_s=SHORT_S) as envs:
        await envs.reset()
        step = asyncio.create_task(envs.step([ONE] * 3))
        await until(lambda: len(bell.waiting) == 3)
        for ring in (0, 2):
            bell.waiting[ring].set_result(None)
        results = await step
        assert errors(results) == [None, StepTimeout, None]
        if version is None:  # nobody else knows of the time
            assert "environment 1: no reply to step within 0.2 s (message_timeout_s)" in str(results[1].error)
            bell.waiting[1].set_result(None)
        else:
            assert bell.waiting[1].cancelled()
        envs._state._timeout_s = None
        step = asyncio.create_task(envs.step([ONE] * 3))
        await until(lambda: len(bell.waiting) == 6)
        for ring in bell.waiting[3:]:
            ring.set_result(None)
        assert rewards(await step) == [2.0, 2.0 if version is None else 1.0, 2.0]


async def test_a_late_reply_is_dropped_and_the_next_step_waits_for_it():
    envs, peer = await begun(ScriptedApp(), message_timeout_s=SHORT_S)
    step = asyncio.create_task(envs.step([{}, {}]))
    late = await peer.asked(2)
    peer.results(late, {0: outcome(1.0)}, more=True)
    results = await step
    assert errors(results) == [None, StepTimeout]
    assert "environment 1: no reply to step within 0.2 s (message_timeout_s)" in str(results[1].error)
    envs._state._timeout_s = None
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(3)
    assert [call["seq"] for call in batch["calls"]] == [3]
    peer.results(batch, {0: outcome(2.0)})
    peer.results(late, {1: outcome(9.0)})
    batch = await peer.asked(4)
    assert [call["seq"] for call in batch["calls"]] == [3]
    peer.results(batch, {0: outcome(3.0)})
    assert rewards(await step) == [2.0, 3.0]
    await envs.close()


async def test_what_was_taken_is_no_longer_on_its_way():
    async with vector(app_of()) as envs:
        await envs.reset()
        await envs.send([ONE] * 3)
        assert len(await envs.recv(min_ready=3)) == 3
        with pytest.raises(UsageError, match="0 results are ready and 0 are on"):
            await envs.recv()


async def test_a_late_reply_that_ends_the_episode_is_remembered():
    envs, peer = await begun(ScriptedApp(), message_timeout_s=SHORT_S)
    assert errors(await envs.step([{}, {}])) == [StepTimeout] * 2
    late = await peer.asked(2)
    peer.results(late, {0: outcome(1.0), 1: outcome(1.0, done=True)})
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(3)
    peer.results(batch, {0: outcome(2.0)})
    assert errors(await step) == [None, ResetRequired]
    await envs.close()


async def test_a_cancelled_step_leaves_nothing_behind():
    bell = Bell()
    async with vector(app_of(partial(RingingCounter, bell))) as envs:
        await envs.reset()
        step = asyncio.create_task(envs.step([ONE] * 3))
        await until(lambda: len(bell.waiting) == 3)
        bell.waiting[0].set_result(None)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await until(lambda: all(ring.done() for ring in bell.waiting))
        step = asyncio.create_task(envs.step([ONE] * 3))
        await until(lambda: len(bell.waiting) == 6)
        for ring in bell.waiting[3:]:
            ring.set_result(None)
        assert errors(await step) == [None] * 3


async def test_a_reset_that_was_cancelled_during_the_opening_is_followed_by_another():
    app = ScriptedApp()
    envs = vector(app, 2, env_cls=GenericEnvClient)
    first = asyncio.create_task(envs.reset())
    peer = await app.peer()
    opened = (await peer.asked(1))["calls"]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert peer.requests[1] == {"id": 2, "op": "cancel", "target": 1}
    second = asyncio.create_task(envs.reset())
    batch = await peer.asked(3)
    assert [call["op"] for call in batch["calls"]] == ["open", "reset"] * 2
    assert not {call["session"] for call in batch["calls"]} & {call["session"] for call in opened}
    cancelled = fault("Cancelled", "as asked")
    peer.results(peer.requests[0], {0: cancelled, 1: cancelled, 2: {"ok": True}, 3: outcome()})
    # What was opened all the same is of no use to anybody.
    assert peer.requests[3:] == [{"id": 4, "op": "close", "session": opened[2]["session"]}]
    peer.results(batch, {place: outcome(x=place) if place % 2 else {"ok": True} for place in range(4)})
    assert [result.observation for result in await second] == [{"x": 1}, {"x": 3}]
    await envs.close()


async def test_a_message_that_is_too_large_is_the_failure_of_who_sent_it():
    async with vector(app_of(max_message_mb=0.002), env_cls=GenericEnvClient) as envs:
        await envs.reset()
        results = await envs.step([{"by": 1, "mood": "x" * size} for size in (900, 5000, 900)])
        assert errors(results) == [None, MessageTooLarge, None]
        assert "max_message_mb" in str(results[1].error)
        assert rewards(await envs.step([{"by": 1}] * 3)) == [2.0, 1.0, 2.0]


# Autoreset.


async def test_disabled_a_finished_environment_waits_for_its_reset(version):
    async with vector(app_of()) as envs:
        await envs.reset()
        assert [result.done for result in await envs.step([ONE, DONE, ONE])] == [False, True, False]
        assert errors(await envs.step([ONE] * 3)) == [None, ResetRequired, None]
        await envs.reset(env_ids=[1])
        assert rewards(await envs.step([ONE] * 3)) == [3.0, 1.0, 3.0]


async def test_next_step_the_step_after_the_last_one_resets(version):
    async with vector(app_of(), autoreset_mode="next_step") as envs:
        await envs.reset(start=5)
        last = await envs.step([ONE, DONE, ONE])
        assert (last[1].done, last[1].observation.total, last[1].reward) == (True, 6, 1.0)
        results = await envs.step([ONE, BAD, ONE])
        assert (results[1].done, results[1].observation.total, results[1].reward) == (False, 0, None)
        assert rewards(results) == [2.0, None, 2.0]
        assert rewards(await envs.step([ONE] * 3)) == [3.0, 1.0, 3.0]


async def test_same_step_the_last_step_brings_the_next_episode(version):
    async with vector(app_of(), autoreset_mode="same_step") as envs:
        await envs.reset(start=5)
        results = await envs.step([ONE, DONE, DONE])
        assert [result.observation.total for result in results] == [6, 0, 0]
        assert rewards(results) == [1.0, 1.0, 1.0]
        assert [result.done for result in results] == [False, True, True]
        assert results[0].metadata is None
        assert results[1].metadata == {
            "final_observation": CounterObservation(total=6, reward=1.0, done=True),
            "final_metadata": None,
        }
        assert rewards(await envs.step([ONE] * 3)) == [2.0, 1.0, 1.0]


async def test_same_step_with_send_and_recv(version):
    async with vector(app_of(), autoreset_mode="same_step") as envs:
        await envs.reset()
        await envs.send([DONE, ONE], env_ids=[2, 0])
        finished = dict(await envs.recv(min_ready=2))
        assert (finished[2].done, finished[2].observation.total) == (True, 0)
        assert (finished[0].done, finished[0].observation.total) == (False, 1)


async def test_same_step_a_reset_that_fails_is_told_by_the_next_step():
    """The last reward is not lost with it."""
    app = ScriptedApp()
    envs = vector(app, 1, env_cls=GenericEnvClient, autoreset_mode="same_step")
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    peer.results(await peer.asked(1), {0: {"ok": True, "token": "t", "seq": 0}, 1: outcome()})
    await reset
    step = asyncio.create_task(envs.step([{}]))
    peer.results(await peer.asked(2), {0: outcome(9.0, done=True, x=1)})
    request = await peer.asked(3)
    assert [(call["op"], call["seq"]) for call in request["calls"]] == [("reset", 3)]
    peer.results(request, {0: fault("StepFailed", "no more levels")})
    (result,) = await step
    assert (result.reward, result.done, result.observation, result.error) == (9.0, True, {"x": 1}, None)
    (result,) = await envs.step([{}])
    assert isinstance(result.error, StepFailed)
    step = asyncio.create_task(envs.step([{}]))
    request = await peer.asked(4)
    assert [call["op"] for call in request["calls"]] == ["reset"]
    peer.results(request, {0: outcome(x=2)})
    assert (await step)[0].observation == {"x": 2}
    await envs.close()


async def test_same_step_an_episode_that_is_over_at_once_is_told_as_it_is():
    app = ScriptedApp()
    envs = vector(app, 1, env_cls=GenericEnvClient, autoreset_mode="same_step")
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    peer.results(await peer.asked(1), {0: {"ok": True, "token": "t", "seq": 0}, 1: outcome(done=True)})
    assert [result.done for result in await reset] == [True]
    assert len(peer.requests) == 1
    await envs.close()


# What goes over the connection.


async def begun(app, num_envs=2, **options):
    """A vector whose episodes have begun, and the server's end of its connection."""
    envs = vector(app, num_envs, env_cls=GenericEnvClient, **options)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    batch = await peer.asked(1)
    opened = {"ok": True, "token": "t", "seq": 0}
    replies = {place: opened if call["op"] == "open" else outcome() for place, call in enumerate(batch["calls"])}
    peer.results(batch, replies)
    assert errors(await reset) == [None] * num_envs
    return envs, peer


async def test_a_session_is_opened_in_the_batch_that_resets_it():
    envs, peer = await begun(ScriptedApp(), message_timeout_s=None)
    (batch,) = peer.requests
    first, second = batch["calls"][0]["session"], batch["calls"][2]["session"]
    tokens = [batch["calls"][place]["token"] for place in (0, 2)]
    assert len({first, second, *tokens}) == 4
    assert batch == {
        "id": 1,
        "op": "batch",
        "calls": [
            {"op": "open", "session": first, "token": tokens[0]},
            {"op": "reset", "session": first, "seq": 1, "kwargs": {}},
            {"op": "open", "session": second, "token": tokens[1]},
            {"op": "reset", "session": second, "seq": 1, "kwargs": {}},
        ],
    }
    step = asyncio.create_task(envs.step([{"a": 1}, {"a": 2}]))
    batch = await peer.asked(2)
    assert batch["calls"] == [
        {"op": "step", "session": first, "seq": 2, "action": {"a": 1}},
        {"op": "step", "session": second, "seq": 2, "action": {"a": 2}},
    ]
    peer.results(batch, {1: outcome(2.0)}, more=True)
    peer.results(batch, {0: outcome(1.0)})
    assert rewards(await step) == [1.0, 2.0]
    await envs.close()


async def test_the_first_finished_are_asked_for_and_timeouts_are_passed_on():
    envs, peer = await begun(ScriptedApp(), message_timeout_s=60.0)
    assert peer.requests[0]["wait_s"] == pytest.approx(59.5, abs=0.5)
    assert peer.requests[0]["deadline_s"] == pytest.approx(60, abs=0.5)
    await envs.send([{}, {}])
    batch = await peer.asked(2)
    assert batch["min_ready"] == 1
    assert "wait_s" not in batch
    assert batch["deadline_s"] == pytest.approx(60, abs=0.5)
    await envs.close()


async def test_a_timeout_that_is_longer_than_the_protocol_allows_is_no_reason_to_refuse():
    async with vector(app_of(), message_timeout_s=1e6) as envs:
        assert errors(await envs.reset()) == [None] * 3


async def test_the_reset_of_same_step_has_what_is_left_of_the_time():
    envs, peer = await begun(ScriptedApp(), 1, autoreset_mode="same_step", message_timeout_s=60.0)
    step = asyncio.create_task(envs.step([{}]))
    batch = await peer.asked(2)
    (pending,) = {slot.pending for slot in envs._state.slots}
    pending.send_by -= 40
    pending.due -= 40
    peer.results(batch, {0: outcome(1.0, done=True)})
    reset = await peer.asked(3)
    assert batch["wait_s"] - reset["wait_s"] >= 40
    assert batch["deadline_s"] - reset["deadline_s"] >= 40
    peer.results(reset, {0: outcome()})
    assert errors(await step) == [None]
    await envs.close()


async def test_a_session_whose_calls_are_out_of_order_is_closed():
    envs, peer = await begun(ScriptedApp())
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(2)
    peer.results(batch, {0: fault("SequenceError", "7?", "SESSION_ERROR"), 1: outcome(1.0)})
    assert errors(await step) == [SessionLost, None]
    assert peer.requests[2] == {"id": 3, "op": "close", "session": batch["calls"][0]["session"]}
    await envs.close()


async def test_a_batch_that_is_refused_whole_used_no_numbers():
    envs, peer = await begun(ScriptedApp())
    step = asyncio.create_task(envs.step([{}, {}]))
    peer.reply(await peer.asked(2), fault("TooManyCalls", "no"))
    assert errors(await step) == [TooManyCalls] * 2
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(3)
    assert [call["seq"] for call in batch["calls"]] == [2, 2]
    peer.results(batch, {0: outcome(1.0), 1: fault("TooManyCalls", "not now")})
    assert errors(await step) == [None, TooManyCalls]
    step = asyncio.create_task(envs.step([{}, {}]))
    assert [call["seq"] for call in (await peer.asked(4))["calls"]] == [3, 2]
    await envs.close()
    assert errors(await step) == [SessionLost] * 2


@pytest.mark.parametrize(
    "results",
    [
        None,
        [5],
        [{"call": 7, "session": "s", "ok": True}],
        [{"call": -1, "session": "s", **outcome(9.0)}],
        [{"session": "s", "ok": True}],
        [{"call": 0, "session": "s", "error": 5}],
    ],
)
async def test_a_batch_that_is_none_ends_the_connection(results):
    app = ScriptedApp()
    envs, peer = await begun(app)
    step = asyncio.create_task(envs.step([{}, {}]))
    peer.reply(await peer.asked(2), {"ok": True, "results": results, "more": False})
    assert errors(await step) == [SessionLost] * 2
    assert peer.closed
    await envs.close()


async def test_a_call_that_a_batch_leaves_out_is_told_at_once():
    """Nobody will ever answer it; it could only time out."""
    app = ScriptedApp()
    envs, peer = await begun(app, message_timeout_s=None)
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(2)
    peer.results(batch, {0: outcome(1.0)}, more=True)
    peer.results(batch, {})
    results = await step
    assert errors(results) == [None, ProtocolViolation]
    assert "left out the replies to 1 of the 2 calls" in str(results[1].error)
    assert peer.closed
    assert errors(await envs.step([{}, {}])) == [SessionLost] * 2
    await envs.close()


async def test_an_opening_that_a_batch_leaves_out_ends_the_connection():
    envs = vector(app := ScriptedApp(), 1, env_cls=GenericEnvClient)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    peer.results(await peer.asked(1), {1: outcome()})
    assert errors(await reset) == [None]
    assert peer.closed
    assert errors(await envs.step([{}])) == [SessionLost]
    await envs.close()


async def test_a_reply_that_comes_twice_is_not_that_of_the_next_call():
    """With `same_step` it would be taken for the reply to the reset."""
    app = ScriptedApp()
    envs, peer = await begun(app, 1, autoreset_mode="same_step")
    step = asyncio.create_task(envs.step([{}]))
    batch = await peer.asked(2)
    peer.results(batch, {0: outcome(1.0, done=True, x=1)}, more=True)
    peer.results(batch, {0: outcome(1.0, done=True, x=1)})
    (result,) = await step
    assert (result.reward, result.done, result.observation) == (1.0, True, {"x": 1})
    assert errors(await envs.step([{}])) == [SessionLost]
    assert peer.closed
    await envs.close()


async def test_an_answer_of_a_session_that_is_gone_says_nothing_of_the_next_one():
    envs, peer = await begun(ScriptedApp(), 1, message_timeout_s=SHORT_S)
    session = peer.requests[0]["calls"][0]["session"]
    assert errors(await envs.step([{}])) == [StepTimeout]
    envs._state._timeout_s = None
    peer.say({"event": "session_lost", "session": session, "reason": "bye", **fault("SessionLost", "bye")})
    reset = asyncio.create_task(envs.reset())
    batch = await peer.asked(3)
    peer.results(peer.requests[1], {0: fault("SessionLost", "bye")})
    peer.results(batch, {0: {"ok": True}, 1: outcome()})
    assert errors(await reset) == [None]
    step = asyncio.create_task(envs.step([{}]))
    (call,) = (await peer.asked(4))["calls"]
    assert call["session"] == batch["calls"][0]["session"] != session
    peer.results(peer.requests[3], {0: outcome(1.0)})
    assert rewards(await step) == [1.0]
    await envs.close()


async def test_a_reply_that_is_none_is_the_failure_of_one():
    envs, peer = await begun(ScriptedApp())
    step = asyncio.create_task(envs.step([{}, {}]))
    peer.results(await peer.asked(2), {0: {"ok": True}, 1: outcome(1.0)})
    assert errors(await step) == [ProtocolViolation, None]
    await envs.close()


async def test_who_gave_up_before_there_was_a_connection_is_not_asked_for():
    app = ScriptedApp()
    envs, peer = await begun(app, message_timeout_s=SHORT_S)
    hello, app.hello = app.hello, None
    peer.hang_up()
    assert errors(await envs.reset()) == [StepTimeout] * 2
    envs._state._timeout_s = None
    reset = asyncio.create_task(envs.reset(env_ids=[1]))
    second = await app.peer(1)
    second.say(hello)
    batch = await second.asked(1)
    assert [call["op"] for call in batch["calls"]] == ["open", "reset"]
    second.results(batch, {0: {"ok": True}, 1: outcome(x=1)})
    assert (await reset)[0].observation == {"x": 1}
    assert len(second.requests) == 1
    await envs.close()


async def test_a_dead_connection_loses_its_sessions_and_the_next_reset_makes_another():
    app = ScriptedApp()
    envs, peer = await begun(app)
    step = asyncio.create_task(envs.step([{}, {}]))
    await peer.asked(2)
    peer.hang_up()
    results = await step
    assert errors(results) == [SessionLost] * 2
    assert "1001" in str(results[0].error)
    assert errors(await envs.step([{}, {}])) == [ResetRequired] * 2
    reset = asyncio.create_task(envs.reset())
    second = await app.peer(1)
    batch = await second.asked(1)
    assert [call["op"] for call in batch["calls"]] == ["open", "reset"] * 2
    sessions = {call["session"] for call in (*batch["calls"], *peer.requests[0]["calls"])}
    assert len(sessions) == 4
    second.results(batch, {0: {"ok": True}, 1: outcome(), 2: {"ok": True}, 3: outcome()})
    assert errors(await reset) == [None] * 2
    await envs.close()


async def test_a_connection_that_dies_between_calls_is_told_by_the_next_step():
    app = ScriptedApp()
    envs, peer = await begun(app)
    peer.hang_up()
    assert errors(await envs.step([{}, {}])) == [SessionLost] * 2
    await envs.close()


async def test_a_server_that_stops_keeps_its_sessions_and_new_ones_go_elsewhere():
    app = ScriptedApp()
    envs, peer = await begun(app)
    first, second = peer.requests[0]["calls"][0]["session"], peer.requests[0]["calls"][2]["session"]
    peer.say({"event": "draining", "grace_s": 30})
    peer.say({"event": "session_lost", "session": first, "reason": "bye", **fault("SessionLost", "bye")})
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(2)
    assert [call["session"] for call in batch["calls"]] == [second]
    peer.results(batch, {0: outcome(1.0)})
    assert errors(await step) == [SessionLost, None]
    reset = asyncio.create_task(envs.reset(env_ids=[0]))
    other = await app.peer(1)
    other.results(await other.asked(1), {0: {"ok": True}, 1: outcome()})
    await reset
    assert not peer.closed
    step = asyncio.create_task(envs.step([{}, {}]))
    peer.results(await peer.asked(3), {0: outcome(3.0)})
    other.results(await other.asked(2), {0: outcome(4.0)})
    assert rewards(await step) == [4.0, 3.0]
    await envs.close()
    assert peer.closed
    assert other.closed


async def test_an_opening_that_is_answered_too_late_and_refused_is_remembered():
    app = ScriptedApp()
    envs = vector(app, 1, env_cls=GenericEnvClient, message_timeout_s=SHORT_S)
    assert errors(await envs.reset()) == [StepTimeout]
    peer = await app.peer()
    full = fault("ServerFull", "no room", "CAPACITY_REACHED")
    peer.results(peer.requests[0], {0: full, 1: full})
    envs._state._timeout_s = None
    reset = asyncio.create_task(envs.reset())
    batch = await peer.asked(2)
    assert [call["op"] for call in batch["calls"]] == ["open", "reset"]
    peer.results(batch, {0: {"ok": True}, 1: outcome(x=1)})
    assert (await reset)[0].observation == {"x": 1}
    await envs.close()


async def test_a_server_that_says_no_hello_is_left():
    app = ScriptedApp()
    app.hello = None
    with pytest.raises(ProtocolViolation, match=r"no hello within 0\.2 s"):
        await vector(app, connect_timeout_s=SHORT_S).connect()
    assert app.peers[0].closed


async def test_a_connection_that_ends_while_a_step_is_being_sent():
    app = ScriptedApp(max_batch=2)
    envs = vector(app, 2, env_cls=GenericEnvClient)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    for number in (1, 2):
        peer.results(await peer.asked(number), {0: {"ok": True, "token": "t", "seq": 0}, 1: outcome()})
    await reset
    peer.reflex = lambda request: peer.hang_up()
    assert errors(await envs.step([{}, {}])) == [SessionLost] * 2
    app.hello["limits"]["max_batch"] = 1
    connect = app.connect

    def hasty(channel, subprotocol):
        peer = connect(channel, subprotocol)
        peer.reflex = lambda request: peer.hang_up()
        return peer

    app.connect = hasty
    assert errors(await envs.reset()) == [SessionLost] * 2
    assert len(app.peers[1].requests) == 1
    await envs.close()


@pytest.mark.parametrize("versions", [("openenv.v2.json", None), (None, "openenv.v2.json")])
async def test_a_server_that_changes_its_version_is_noticed(monkeypatch, versions):
    before, after = versions
    monkeypatch.setattr(memory, "SUBPROTOCOL", before)
    app = app_of()
    async with vector(app, 1) as envs:
        await envs.reset()
        for session in app.state.openenv.manager.sessions:
            session.end(SessionLost("gone"))
        if before is not None:
            envs._state.carrier._connections[0]._current.link.end(ConnectionLost("cut"))
        monkeypatch.setattr(memory, "SUBPROTOCOL", after)
        (result,) = await envs.reset()
        assert isinstance(result.error, ProtocolViolation)
        assert "close() and begin anew" in str(result.error)
        await envs.close()
        assert errors(await envs.reset()) == [None]


# Servers of protocol v1.


async def test_a_server_without_v2_is_mentioned_once(monkeypatch, caplog):
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)
    monkeypatch.setattr(vector_module, "_mentioned", set())
    for _ in range(2):
        async with vector(app_of()) as envs:
            await envs.reset()
    (record,) = [record for record in caplog.records if record.name == "openenv.client"]
    assert record.levelno == logging.WARNING
    assert "does not speak protocol v2: 3 environments take a connection each" in record.getMessage()


# Its life.


async def test_close_may_be_repeated_and_reset_begins_anew(version):
    app = app_of()
    envs = vector(app)
    await envs.close()
    await envs.reset()
    await envs.step([ONE] * 3)
    await envs.close()
    await envs.close()
    assert app.state.openenv.active_sessions == 0
    assert errors(await envs.step([ONE] * 3)) == [SessionLost] * 3
    assert errors(await envs.step([ONE] * 3)) == [ResetRequired] * 3
    await envs.reset()
    assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3
    await envs.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
async def test_an_episode_that_close_ended_is_not_replaced_in_silence(version, mode):
    envs = vector(app_of(), autoreset_mode=mode)
    await envs.reset()
    await envs.close()
    assert errors(await envs.step([ONE] * 3)) == [SessionLost] * 3
    assert rewards(await envs.step([ONE] * 3)) == [None] * 3
    assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3
    await envs.close()


async def test_close_ends_its_sessions_before_the_connections():
    envs, peer = await begun(ScriptedApp(), 3)
    sessions = [call["session"] for request in peer.requests for call in request["calls"] if call["op"] == "open"]
    await envs.close()
    calls = [{"op": "close", "session": session} for session in sessions]
    assert peer.requests[-1] == {"id": len(peer.requests), "op": "batch", "calls": calls}
    assert peer.closed


async def test_a_step_leaves_nothing_for_the_garbage_collector(version):
    async with vector(app_of()) as envs:
        await envs.reset()
        left = []
        for _ in range(5):
            gc.collect()
            for _ in range(10):
                await envs.step([ONE] * 3)
            left.append(gc.collect())
        assert 0 in left  # what threads of earlier tests leave behind comes once; that of a step, each time


async def test_close_does_not_wait_behind_a_call_that_is_running():
    envs, peer = await begun(ScriptedApp(), 2)
    await envs.send([{}], env_ids=[1])
    await peer.asked(2)
    await envs.close()
    assert [call["op"] for call in peer.requests[2]["calls"]] == ["close", "close"]
    assert len(peer.requests) == 3
    assert peer.closed


async def test_closing_while_it_connects_leaves_no_connection():
    app = ScriptedApp()
    app.hello = None
    envs = vector(app, 2, connections=2)
    connecting = [asyncio.create_task(envs.connect()) for _ in range(2)]
    peers = [await app.peer(number) for number in range(2)]
    await envs.close()
    app.hello = HELLO
    for peer in peers:
        peer.say(HELLO)
    for task in connecting:
        with pytest.raises(ConnectionLost, match=r"closed while it was connecting.*reset\(\)"):
            await task
    assert [peer.closed for peer in app.peers] == [True, True]
    await envs.connect()
    assert len(app.peers) == 4
    await envs.close()


async def test_closing_while_a_v1_connection_is_made_leaves_no_session(monkeypatch):
    monkeypatch.setattr(memory, "SUBPROTOCOL", None)
    app = app_of()
    envs = vector(app, 2, env_cls=HesitantEnv)
    envs._client.ready.set()
    await envs.connect()
    envs._client.ready.clear()
    reset = asyncio.create_task(envs.reset(env_ids=[1]))
    await until(lambda: envs._client.connecting == 2)
    envs._client.ready.set()
    await envs.close()
    assert errors(await reset) == [SessionLost]
    assert app.state.openenv.active_sessions == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_call_made_while_it_is_closed_begins_anew():
    app = ScriptedApp()
    envs, peer = await begun(app, 1)
    leave = asyncio.Event()
    peer.aclose = leave.wait
    closing = asyncio.create_task(envs.close())
    await asyncio.sleep(0)
    reset = asyncio.create_task(envs.reset())
    other = await app.peer(1)
    other.results(await other.asked(1), {0: {"ok": True}, 1: outcome(x=2)})
    assert [result.observation for result in await reset] == [{"x": 2}]
    leave.set()
    await closing
    step = asyncio.create_task(envs.step([{}]))
    other.results(await other.asked(2), {0: outcome(1.0)})
    assert rewards(await step) == [1.0]
    await envs.close()
    assert other.closed


async def test_closing_during_a_step_does_not_wait_for_it(version):
    bell = Bell()
    envs = vector(app_of(partial(RingingCounter, bell)))
    await envs.reset()
    step = asyncio.create_task(envs.step([ONE] * 3))
    await until(lambda: len(bell.waiting) == 3)
    await envs.close()
    assert errors(await step) == [SessionLost] * 3


async def test_closing_while_a_lost_connection_is_replaced():
    app = ScriptedApp()
    envs, peer = await begun(app)
    app.hello = None
    peer.hang_up()
    reset = asyncio.create_task(envs.reset())
    await app.peer(1)
    await envs.close()
    assert errors(await reset) == [SessionLost] * 2
    assert app.peers[1].closed
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_one_connection_that_cannot_be_made_leaves_none():
    app = ScriptedApp()
    connect = app.connect

    def once(channel, subprotocol):
        if len(app.peers) == 2:
            raise ConnectionFailed("enough")
        return connect(channel, subprotocol)

    app.connect = once
    with pytest.raises(ConnectionFailed, match="enough"):
        await vector(app, 3, connections=3).connect()
    assert [peer.closed for peer in app.peers] == [True, True]


async def test_connecting_is_cancelled():
    app = ScriptedApp()
    app.hello = None
    connecting = asyncio.create_task(vector(app, 2, connections=2).connect())
    await app.peer(1)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert [peer.closed for peer in app.peers] == [True, True]


async def test_connecting_is_cancelled_before_its_lanes_have_begun():
    app = ScriptedApp()
    connecting = asyncio.create_task(vector(app, 2, connections=2).connect())
    await asyncio.sleep(0)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert [peer.closed for peer in app.peers] == [True]


async def test_no_server_is_an_exception_for_who_connects_first():
    with pytest.raises(ConnectionFailed):
        await VectorEnvClient(GenericEnvClient, "127.0.0.1:1", num_envs=2).reset()


def test_it_lives_on_one_event_loop(version):
    app = app_of()
    envs = vector(app)

    async def elsewhere():
        with pytest.raises(UsageError, match="another event loop"):
            await envs.step([ONE] * 3)

    async def use():
        await envs.reset()
        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        await envs.close()

    asyncio.run(use())
    asyncio.run(use())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_event_loop_that_is_gone_takes_the_sessions_along(version):
    app = app_of()
    envs = vector(app, autoreset_mode="disabled")

    async def begin():
        await envs.reset()
        await envs.step([ONE, DONE, ONE])

    async def go_on():
        assert errors(await envs.step([ONE] * 3)) == [SessionLost, ResetRequired, SessionLost]
        await envs.reset()
        assert rewards(await envs.step([ONE] * 3)) == [1.0] * 3
        await envs.close()

    asyncio.run(begin())
    app.state.openenv = app_of().state.openenv  # that of before has sessions on the other loop
    asyncio.run(go_on())
    gc.collect()


def test_an_event_loop_that_ended_in_the_middle_of_a_call():
    app = ScriptedApp()
    loop = asyncio.new_event_loop()
    envs, _ = loop.run_until_complete(begun(app))
    loop.run_until_complete(envs.send([{}], env_ids=[0]))
    left = [loop.create_task(envs.recv())]
    loop.run_until_complete(asyncio.sleep(0))
    left[0]._log_destroy_pending = False
    loop.close()

    async def go_on():
        await envs.connect()
        assert errors([done.result for done in await envs.recv()]) == [SessionLost]
        assert errors(await envs.step([{}, {}])) == [ResetRequired, SessionLost]
        reset = asyncio.create_task(envs.reset(env_ids=[1]))
        peer = await app.peer(1)
        peer.results(await peer.asked(1), {0: {"ok": True}, 1: outcome()})
        await reset
        await envs.send([{}], env_ids=[1])
        receiver = asyncio.create_task(envs.recv())
        await asyncio.sleep(0)
        batch = await peer.asked(2)
        left.clear()
        gc.collect()
        peer.results(batch, {0: outcome(5.0)})
        assert rewards([done.result for done in await receiver]) == [5.0]
        await envs.close()

    asyncio.run(go_on())


def test_the_sync_facade(version):
    app = app_of(ThreadCounter)
    with vector(app).sync() as envs:
        assert envs.num_envs == 3
        assert envs.async_client.sync().async_client is envs.async_client
        assert [result.observation.total for result in envs.reset(seeds=[1, 2, 3], start=2)] == [2, 2, 2]
        assert rewards(envs.step([ONE] * 3)) == [1.0] * 3
        envs.send([ONE], env_ids=[1])
        ((env_id, result),) = envs.recv(timeout_s=10)
        assert (env_id, result.reward) == (1, 2.0)
        envs.send_reset(env_ids=[1], start=3)
        ((env_id, result),) = envs.recv(timeout_s=10)
        assert (env_id, result.observation.total) == (1, 3)
        assert errors(envs.reset(env_ids=[0])) == [None]
    assert app.state.openenv.active_sessions == 0


async def test_the_sync_facade_of_a_client_that_lives_on_another_loop():
    async with vector(app_of()) as envs:
        await envs.reset()
        results = await asyncio.to_thread(envs.sync().step, [ONE] * 3)
        assert rewards(results) == [1.0] * 3
        with pytest.raises(UsageError, match="await the asynchronous client"):
            envs.sync().step([ONE] * 3)


def test_a_synchronous_client_of_its_own():
    app = app_of()
    with SyncVectorEnvClient(CounterEnv, app=app, num_envs=3) as envs:
        assert rewards(envs.reset()) == [None] * 3
        assert rewards(envs.step([ONE] * 3)) == [1.0] * 3
        given = SyncVectorEnvClient(client=envs.async_client)
        assert rewards(given.step([ONE] * 3)) == [2.0] * 3
        with pytest.raises(UsageError, match="num_envs: the client that is given has arguments of its own"):
            SyncVectorEnvClient(envs.async_client, num_envs=4)
    assert app.state.openenv.active_sessions == 0


def test_a_block_gives_the_synchronous_client():
    app = app_of()
    with VectorEnvClient(CounterEnv, app=app, num_envs=3) as envs:
        assert type(envs) is SyncVectorEnvClient
        assert rewards(envs.reset()) == [None] * 3
    assert app.state.openenv.active_sessions == 0


@pytest.mark.parametrize("method", ["connect", "reset", "step", "send_reset", "send", "recv", "close"])
def test_both_forms_take_the_same_arguments(method):
    signatures = [inspect.signature(getattr(cls, method)) for cls in (VectorEnvClient, SyncVectorEnvClient)]
    assert list(signatures[0].parameters.values()) == list(signatures[1].parameters.values())
