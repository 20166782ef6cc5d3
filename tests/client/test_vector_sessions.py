"""The connection of a vector is lost: all its sessions come back, and each call is executed once."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from openenv.client import GenericEnvClient, VectorEnvClient
from openenv.errors import ConnectionFailed, ResetRequired, SessionLost, StepFailed, StepTimeout

from .returning import GONE, OPENED, SHORT_S, WINDOW_S
from .scripted import ScriptedApp, fault, outcome

pytestmark = pytest.mark.usefixtures("hurry")


def errors(results):
    return [result.error and type(result.error) for result in results]


def rewards(results):
    return [result.reward for result in results]


async def playing(app, num_envs=3, **options):
    """A vector whose episodes have begun, the server's end of its connection, and the openings."""
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=num_envs, **options)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    batch = await peer.asked(1)
    answer(peer, batch)
    assert errors(await reset) == [None] * num_envs
    return envs, peer, [call for call in batch["calls"] if call["op"] == "open"]


def answer(peer, batch):
    """Answers all calls of a batch; the reward is the number of the call."""
    calls = enumerate(batch["calls"])
    peer.results(
        batch, {place: OPENED if call["op"] == "open" else outcome(float(call["seq"])) for place, call in calls}
    )


async def returning(app, number, openings, *verdicts):
    """The connection of that number, on which the sessions are attached. A verdict is `(seq, last)` or a reply."""
    peer = await app.peer(number)
    await peer.asked(len(openings))
    attaches = peer.requests[: len(openings)]
    known = {(opening["session"], opening["token"]) for opening in openings}
    assert {(attach["session"], attach["token"]) for attach in attaches} == known
    assert {attach["op"] for attach in attaches} == {"attach"}
    by_session = {attach["session"]: attach for attach in attaches}
    for opening, verdict in zip(openings, verdicts, strict=False):
        attach = by_session[opening["session"]]
        reply = verdict
        if isinstance(verdict, tuple):
            seq, last = verdict
            reply = {"ok": True, "session": attach["session"], "state": "live", "seq": seq}
            if last is not None:
                reply["last"] = last
        peer.reply(attach, reply)
    return peer


def nothing_left():
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_batch_of_which_some_replies_were_taken():
    """One reply has come, one was lost, one call was not executed: each is told once."""
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(envs.step([{"n": 0}, {"n": 1}, {"n": 2}]))
    batch = await peer.asked(2)
    peer.results(batch, {0: outcome(10.0)}, more=True)
    peer.hang_up()
    second = await returning(app, 1, openings, (2, outcome(10.0)), (2, outcome(20.0)), (1, outcome(1.0)))
    again = await second.asked(4)
    assert again["calls"] == [batch["calls"][2]]
    assert again["deadline_s"] <= batch["deadline_s"]
    second.results(again, {0: outcome(30.0)})
    assert rewards(await step) == [10.0, 20.0, 30.0]
    step = asyncio.create_task(envs.step([{}] * 3))
    batch = await second.asked(5)
    assert [call["seq"] for call in batch["calls"]] == [3, 3, 3]
    answer(second, batch)
    assert rewards(await step) == [3.0] * 3
    await envs.close()
    assert {call["session"] for call in second.requests[5]["calls"]} == {opening["session"] for opening in openings}


async def test_an_error_that_was_lost_is_told():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 2)
    step = asyncio.create_task(envs.step([{}, {}]))
    await peer.asked(2)
    peer.hang_up()
    await returning(app, 1, openings, (2, fault("StepFailed")), (2, outcome(5.0)))
    results = await step
    assert errors(results) == [StepFailed, None]
    assert results[1].reward == 5.0
    await envs.close()


async def test_the_connection_ends_during_the_opening():
    app = ScriptedApp(WINDOW_S)
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=3, wait_s=20)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    batch = await peer.asked(1)
    openings = batch["calls"][::2]
    assert {opening["wait_s"] for opening in openings} == {20}
    assert batch["deadline_s"] == pytest.approx(60 + 20, abs=0.5)
    peer.results(batch, {2: OPENED}, more=True)
    peer.hang_up()
    second = await returning(app, 1, openings, GONE, (0, None), (1, outcome(9.0)))
    again = await second.asked(4)
    assert [(call["op"], call["session"]) for call in again["calls"]] == [
        ("open", openings[0]["session"]),
        ("reset", openings[0]["session"]),
        ("reset", openings[1]["session"]),
    ]
    assert again["calls"][0] == openings[0]
    answer(second, again)
    assert rewards(await reset) == [1.0, 1.0, 9.0]
    await envs.close()


async def test_the_connection_ends_before_its_hello():
    app = ScriptedApp(WINDOW_S)
    hello, app.hello = app.hello, None
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=2)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    app.hello = hello
    peer.hang_up()
    second = await app.peer(1)
    answer(second, await second.asked(1))
    assert errors(await reset) == [None] * 2
    await envs.close()


async def test_openings_that_wait_for_others_go_on():
    app = ScriptedApp(WINDOW_S, max_batch=2)
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=5)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    await peer.asked(2)
    openings = [request["calls"][0] for request in peer.requests]
    peer.hang_up()
    second = await returning(app, 1, openings, GONE, GONE)
    second.reflex = lambda request: request["op"] == "batch" and answer(second, request)
    for request in list(second.requests[2:]):
        second.reflex(request)
    assert errors(await reset) == [None] * 5
    await envs.close()


async def test_those_that_are_not_there_any_more_are_lost_and_the_others_go_on():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(envs.step([{}] * 3))
    await peer.asked(2)
    peer.hang_up()
    second = await returning(app, 1, openings, (1, None), GONE, (1, None))
    batch = await second.asked(4)
    assert len(batch["calls"]) == 2
    answer(second, batch)
    results = await step
    assert errors(results) == [None, SessionLost, None]
    assert "connection was lost" in str(results[1].error)
    step = asyncio.create_task(envs.step([{}] * 3))
    answer(second, await second.asked(5))
    assert errors(await step) == [None, ResetRequired, None]
    await envs.close()


async def test_sessions_come_back_though_nobody_asks():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 2)
    peer.hang_up()
    second = await returning(app, 1, openings, (1, None), GONE)
    step = asyncio.create_task(envs.step([{}, {}]))
    answer(second, await second.asked(3))
    assert errors(await step) == [None, SessionLost]
    await envs.close()


async def test_steps_that_are_asked_for_meanwhile_wait():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2)
    hello, app.hello = app.hello, None
    peer.hang_up()
    second = await app.peer(1)
    await envs.send([{}], env_ids=[1])
    second.say(hello)
    second = await returning(app, 1, openings, (1, None), (1, None))
    batch = await second.asked(3)
    assert batch["min_ready"] == 1
    answer(second, batch)
    ((env_id, result),) = await envs.recv()
    assert (env_id, result.reward) == (1, 2.0)
    await envs.close()


async def test_two_lost_connections_in_a_row():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 2)
    step = asyncio.create_task(envs.step([{}, {}]))
    await peer.asked(2)
    peer.hang_up()
    second = await returning(app, 1, openings, (1, None))  # the other has no answer
    second.hang_up()
    third = await returning(app, 2, openings, (1, None), (2, outcome(8.0)))
    batch = await third.asked(3)
    assert len(batch["calls"]) == 1
    third.hang_up()
    fourth = await returning(app, 3, openings, (1, None), (2, outcome(8.0)))
    answer(fourth, await fourth.asked(3))
    assert rewards(await step) == [2.0, 8.0]
    await envs.close()


async def test_it_tries_until_the_server_is_there():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 2)
    app.refusals += [ConnectionFailed("refused")] * 4
    peer.hang_up()
    await returning(app, 1, openings, (1, None), (1, None))
    assert app.refusals == []
    await envs.close()


async def test_the_window_ends():
    app = ScriptedApp(SHORT_S)
    envs, peer, _ = await playing(app, 2)
    app.refusals += [ConnectionFailed("refused")] * 1000
    step = asyncio.create_task(envs.step([{}, {}]))
    await peer.asked(2)
    peer.hang_up()
    results = await step
    assert errors(results) == [SessionLost] * 2
    assert "within 0.2 s (resume_window_s of the server): refused" in str(results[0].error)
    app.refusals.clear()
    reset = asyncio.create_task(envs.reset())
    second = await app.peer(1)
    answer(second, await second.asked(1))
    assert errors(await reset) == [None] * 2
    await envs.close()
    assert nothing_left()


async def test_a_step_does_not_wait_longer_than_it_may_and_its_session_goes_on():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2, message_timeout_s=SHORT_S)
    hello, app.hello = app.hello, None
    peer.hang_up()
    await envs.send([{}], env_ids=[0])
    ((_, result),) = await envs.recv()
    assert isinstance(result.error, StepTimeout)
    assert result.error.blame == "infrastructure"
    assert "within 0.2 s (message_timeout_s)" in str(result.error)
    second = await app.peer(1)
    second.say(hello)
    second = await returning(app, 1, openings, (1, None), (1, None))
    envs._state._timeout_s = None
    step = asyncio.create_task(envs.step([{}, {}]))
    asked = await second.asked(3)
    assert [call["seq"] for call in asked["calls"]] == [2, 2]
    answer(second, asked)
    assert errors(await step) == [None, None]
    await envs.close()


async def test_an_episode_that_begins_while_the_server_drains_begins_on_another_connection():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2)
    peer.say({"event": "draining", "grace_s": 30})
    step = asyncio.create_task(envs.step([{}, {}]))  # those that run go on where they are
    answer(peer, await peer.asked(len(peer.requests) + 1))
    assert errors(await step) == [None, None]
    reset = asyncio.create_task(envs.reset(env_ids=[1]))
    second = await app.peer(1)
    answer(second, await second.asked(1))
    assert errors(await reset) == [None]
    assert peer.requests[-1] == {**peer.requests[-1], "op": "close", "session": openings[1]["session"]}
    await envs.close()


async def test_where_no_other_server_is_an_episode_begins_on_the_one_that_drains():
    app = ScriptedApp(WINDOW_S)
    envs, peer, _ = await playing(app, 2)
    peer.say({"event": "draining", "grace_s": 30})
    app.refusals += [ConnectionFailed("refused")] * 10
    before = len(peer.requests)
    reset = asyncio.create_task(envs.reset())
    answer(peer, await peer.asked(before + 1))
    assert errors(await reset) == [None, None]
    await envs.close()


async def test_a_reset_without_a_session_takes_another_connection_meanwhile():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2)
    session = openings[0]["session"]
    peer.say({"event": "session_lost", "session": session, "reason": "bye", **fault("SessionLost", "bye")})
    hello, app.hello = app.hello, None
    peer.hang_up()
    second = await app.peer(1)
    app.hello = hello
    reset = asyncio.create_task(envs.reset(env_ids=[0]))
    third = await app.peer(2)
    answer(third, await third.asked(1))
    assert errors(await reset) == [None]
    second.say(hello)
    second = await returning(app, 1, openings[1:], (1, None))
    step = asyncio.create_task(envs.step([{}, {}]))
    answer(third, await third.asked(2))
    answer(second, await second.asked(2))
    assert errors(await step) == [None, None]
    await envs.close()
    assert [peer.closed for peer in app.peers[1:]] == [True, True]


async def test_a_step_that_is_cancelled_while_it_comes_back_is_cancelled_there():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2)
    step = asyncio.create_task(envs.step([{"first": True}] * 2))
    await peer.asked(2)
    hello, app.hello = app.hello, None
    peer.hang_up()
    second = await app.peer(1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    second.say(hello)
    second = await returning(app, 1, openings, (1, None), (2, outcome(5.0)))
    await second.asked(4)
    again, cancel = second.requests[2:]
    assert [(call["seq"], call["action"]) for call in again["calls"]] == [(2, {"first": True})]
    assert (cancel["op"], cancel["target"]) == ("cancel", again["id"])
    later = asyncio.create_task(envs.step([{}, {}]))
    ready = await second.asked(5)
    assert len(ready["calls"]) == 1
    answer(second, ready)
    second.results(again, {0: fault("Cancelled", "as asked")})
    answer(second, await second.asked(6))
    assert rewards(await later) == [3.0, 3.0]
    await envs.close()


async def test_a_cancellation_never_means_a_request_of_the_next_connection():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 1)
    step = asyncio.create_task(envs.step([{}]))
    await peer.asked(2)
    peer.hang_up()
    second = await returning(app, 1, openings, (1, None))
    again = await second.asked(2)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await second.asked(3)
    assert [request["target"] for request in second.requests[2:]] == [again["id"]]
    await envs.close()


async def test_a_reset_that_is_cancelled_while_it_comes_back_leaves_no_session():
    app = ScriptedApp(WINDOW_S)
    envs = VectorEnvClient(GenericEnvClient, app=app, num_envs=2)
    reset = asyncio.create_task(envs.reset())
    peer = await app.peer()
    openings = (await peer.asked(1))["calls"][::2]
    peer.results(peer.requests[0], {0: OPENED, 1: outcome()}, more=True)
    hello, app.hello = app.hello, None
    peer.hang_up()
    second = await app.peer(1)
    reset.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reset
    second.say(hello)
    second = await returning(app, 1, openings, (1, None), (1, None))
    assert (await second.asked(3)) == {"id": 3, "op": "close", "session": openings[1]["session"]}
    await envs.close()


async def test_a_step_that_is_cancelled_before_it_was_sent_is_not_made():
    app = ScriptedApp(WINDOW_S)
    envs, peer, openings = await playing(app, 2)
    hello, app.hello = app.hello, None
    peer.hang_up()
    second = await app.peer(1)
    step = asyncio.create_task(envs.step([{"first": True}] * 2))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    second.say(hello)
    second = await returning(app, 1, openings, (1, None), (1, None))
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await second.asked(3)
    assert [(call["seq"], call["action"]) for call in batch["calls"]] == [(2, {}), (2, {})]
    answer(second, batch)
    assert rewards(await step) == [2.0, 2.0]
    await envs.close()


async def test_a_step_whose_time_is_over_before_it_was_sent_is_not_made():
    envs, peer, _ = await playing(ScriptedApp(WINDOW_S), 1, message_timeout_s=0.02)
    assert errors(await envs.step([{"first": True}])) == [StepTimeout]
    assert errors(await envs.step([{"second": True}])) == [StepTimeout]
    peer.results(await peer.asked(2), {0: outcome(9.0)})
    envs._state._timeout_s = None
    step = asyncio.create_task(envs.step([{"third": True}]))
    batch = await peer.asked(3)
    assert [(call["seq"], call["action"]) for call in batch["calls"]] == [(3, {"third": True})]
    answer(peer, batch)
    assert rewards(await step) == [3.0]
    await envs.close()


async def test_closing_is_no_loss():
    envs, peer, _ = await playing(app := ScriptedApp(WINDOW_S))
    await envs.close()
    assert peer.closed
    assert nothing_left()
    assert len(app.peers) == 1


async def test_closing_while_it_comes_back():
    app = ScriptedApp(WINDOW_S)
    envs, peer, _ = await playing(app)
    app.hello = None
    step = asyncio.create_task(envs.step([{}] * 3))
    await peer.asked(2)
    peer.hang_up()
    second = await app.peer(1)
    await envs.close()
    assert errors(await step) == [SessionLost] * 3
    assert second.closed
    assert nothing_left()


async def test_closing_while_it_is_attached_ends_the_sessions_too():
    envs, peer, openings = await playing(app := ScriptedApp(WINDOW_S), 2)
    peer.hang_up()
    second = await returning(app, 1, openings)
    await envs.close()
    closed = {call["session"] for call in second.requests[-1]["calls"]}
    assert closed == {opening["session"] for opening in openings}
    assert second.closed
    assert nothing_left()


def test_the_event_loop_ends_while_it_comes_back():
    app = ScriptedApp(WINDOW_S)

    async def begin():
        envs, peer, openings = await playing(app)
        peer.hang_up()
        await returning(app, 1, openings)
        return envs

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        envs = asyncio.run(begin())
        gc.collect()
    assert app.peers[1].closed

    async def go_on():
        assert errors(await envs.step([{}] * 3)) == [SessionLost] * 3
        await envs.close()

    asyncio.run(go_on())


async def test_a_call_that_waits_for_a_late_reply_hears_of_the_end_of_its_session():
    envs, peer, openings = await playing(ScriptedApp(WINDOW_S), 2, message_timeout_s=SHORT_S)
    assert errors(await envs.step([{}, {}])) == [StepTimeout] * 2
    envs._state._timeout_s = None
    step = asyncio.create_task(envs.step([{}, {}]))
    await asyncio.sleep(0)
    batch = await peer.asked(2)
    lost = fault("SessionLost", "its thread is stuck", "SESSION_ERROR")
    peer.results(batch, {0: lost}, more=True)
    peer.say({"event": "session_lost", "session": openings[1]["session"], "reason": "stuck", **lost})
    results = await step
    assert errors(results) == [SessionLost] * 2
    assert "stuck" in str(results[0].error)
    await envs.close()


async def test_an_environment_that_needs_a_reset_gets_one_from_its_next_step():
    envs, peer, _ = await playing(ScriptedApp(WINDOW_S), 2, autoreset_mode="next_step")
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(2)
    peer.results(batch, {0: outcome(1.0), 1: fault("EnvironmentCrashed", "signal 11")})
    await step
    step = asyncio.create_task(envs.step([{}, {}]))
    batch = await peer.asked(3)
    assert [call["op"] for call in batch["calls"]] == ["step", "reset"]
    answer(peer, batch)
    assert errors(await step) == [None, None]
    await envs.close()
