"""A connection that is lost: how a session comes back on another one, and what becomes of its calls."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import (
    CapacityError,
    ConnectionFailed,
    ConnectionLost,
    Draining,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyFailures,
    Unauthorized,
)

from ..asynchronous import until
from .returning import GONE, OPENED, SHORT_S, WINDOW_S
from .scripted import ScriptedApp, fault, outcome

pytestmark = pytest.mark.usefixtures("hurry")


async def playing(app, **options):
    """A client whose episode has begun, and the server's end of its connection: two requests were made."""
    env = GenericEnvClient(app=app, **options)
    reset = asyncio.create_task(env.reset())
    peer = await app.peer()
    await peer.asked(2)
    peer.reply(peer.requests[0], OPENED)
    peer.reply(peer.requests[1], outcome())
    await reset
    return env, peer


async def returning(app, number, seq=None, **facts):
    """The connection of that number, on which the session has been attached; without `seq`, it was asked for."""
    peer = await app.peer(number)
    attach = await peer.asked(1)
    opening = app.peers[0].requests[0]
    assert attach == {"id": 1, "op": "attach", "session": opening["session"], "token": opening["token"]}
    if seq is not None:
        peer.reply(attach, {"ok": True, "session": attach["session"], "state": "live", "seq": seq, **facts})
    return peer


def nothing_left():
    return asyncio.all_tasks() == {asyncio.current_task()}


# Calls that have no reply.


async def test_a_step_without_a_reply_is_repeated_under_its_number():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({"by": 3}))
    asked = await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=1)
    again = await second.asked(2)
    assert (again["op"], again["seq"], again["action"]) == ("step", 2, {"by": 3})
    assert 0 < again["deadline_s"] < asked["deadline_s"]
    second.reply(again, outcome(2.0))
    assert (await step).reward == 2.0
    step = asyncio.create_task(env.step({}))
    request = await second.asked(3)
    assert request["seq"] == 3
    second.reply(request, outcome(3.0))
    assert (await step).reward == 3.0
    await env.close()
    assert second.requests[3:] == [{"id": 4, "op": "close", "session": request["session"]}]


async def test_a_reply_that_was_lost_comes_with_the_session():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=2, last=outcome(7.0, done=True))
    result = await step
    assert (result.reward, result.done) == (7.0, True)
    assert len(second.requests) == 1
    await env.close()


async def test_an_error_that_was_lost_comes_with_the_session():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=2, last=fault("StepFailed", "no more levels"))
    with pytest.raises(StepFailed, match="no more levels"):
        await step
    step = asyncio.create_task(env.step({}))
    assert (await second.asked(2))["seq"] == 3
    second.reply(second.requests[1], outcome(1.0))
    assert (await step).reward == 1.0
    await env.close()


async def test_the_last_reply_of_before_is_not_taken_for_another_one():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=1, last=outcome(99.0))
    request = await second.asked(2)
    second.reply(request, outcome(2.0))
    assert (await step).reward == 2.0
    await env.close()


async def test_a_state_is_simply_asked_for_again():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    state = asyncio.create_task(env.state())
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=1, last=outcome(99.0))
    request = await second.asked(2)
    assert request["op"] == "state"
    second.reply(request, {"ok": True, "state": {"step_count": 5}})
    assert await state == {"step_count": 5}
    await env.close()


async def test_calls_that_wait_for_their_turn_follow():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    calls = [asyncio.create_task(env.step({"n": number})) for number in range(3)]
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1, seq=1)
    second.reflex = lambda request: second.reply(request, outcome(float(request["seq"])))
    second.reflex(await second.asked(2))
    assert [(await call).reward for call in calls] == [2.0, 3.0, 4.0]
    assert [request["action"] for request in second.requests[1:]] == [{"n": 0}, {"n": 1}, {"n": 2}]
    await env.close()


async def test_two_lost_connections_in_a_row():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1)
    second.hang_up()  # before it has answered
    third = await returning(app, 2, seq=1)
    assert (await third.asked(2))["seq"] == 2
    third.hang_up()  # after that
    fourth = await returning(app, 3, seq=1)
    again = await fourth.asked(2)
    assert again["seq"] == 2
    fourth.reply(again, outcome(2.0))
    assert (await step).reward == 2.0
    await env.close()


async def test_a_session_comes_back_though_nobody_asks():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    peer.hang_up()
    second = await returning(app, 1, seq=1)
    step = asyncio.create_task(env.step({}))
    request = await second.asked(2)
    assert request["seq"] == 2
    second.reply(request, outcome(2.0))
    assert (await step).reward == 2.0
    await env.close()


async def test_a_call_made_meanwhile_waits():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app)
    app.hello, hello = None, app.hello
    peer.hang_up()
    step = asyncio.create_task(env.step({}))
    second = await app.peer(1)
    second.say(hello)
    second = await returning(app, 1, seq=1)
    second.reply(await second.asked(2), outcome(2.0))
    assert (await step).reward == 2.0
    await env.close()


# Openings.


async def test_the_connection_ends_before_anything_was_answered():
    app = ScriptedApp(WINDOW_S)
    env = GenericEnvClient(app=app, wait_s=30)
    reset = asyncio.create_task(env.reset(seed=3))
    peer = await app.peer()
    await peer.asked(2)
    opening = peer.requests[0]
    peer.hang_up()
    second = await returning(app, 1)
    second.reply(second.requests[0], GONE)
    await second.asked(3)
    assert second.requests[1] == {**opening, "id": 2}
    assert opening["wait_s"] == 30
    again = second.requests[2]
    assert (again["op"], again["seq"], again["kwargs"]) == ("reset", 1, {"seed": 3})
    second.reply(second.requests[1], OPENED)
    second.reply(again, outcome(x=1))
    assert (await reset).observation == {"x": 1}
    await env.close()


async def test_the_connection_ends_before_its_hello():
    app = ScriptedApp(WINDOW_S)
    app.hello, hello = None, app.hello
    env = GenericEnvClient(app=app)
    reset = asyncio.create_task(env.reset())
    peer = await app.peer()
    await peer.asked(2)
    app.hello = hello
    peer.hang_up()
    second = await returning(app, 1, seq=0)  # its `open` has arrived all the same
    again = await second.asked(2)
    assert (again["op"], again["seq"]) == ("reset", 1)
    second.reply(again, outcome(x=1))
    assert (await reset).observation == {"x": 1}
    await env.close()


async def test_a_session_that_was_there_and_is_not_any_more_is_lost_at_once():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1)
    second.reply(second.requests[0], GONE)
    with pytest.raises(SessionLost, match=r"reset\(\).*connection was lost.*no such session"):
        await step
    assert second.closed
    with pytest.raises(SessionLost):
        await env.step({})
    assert len(app.peers) == 2
    assert nothing_left()


async def test_a_refusal_is_told_also_on_the_second_connection():
    app = ScriptedApp(WINDOW_S)
    env = GenericEnvClient(app=app)
    reset = asyncio.create_task(env.reset())
    await (await app.peer()).asked(2)
    app.peers[0].hang_up()
    second = await returning(app, 1)
    second.reply(second.requests[0], GONE)
    await second.asked(3)
    second.reply(second.requests[1], fault("ServerFull", "no room", "CAPACITY_REACHED"))
    with pytest.raises(CapacityError, match="^no room$"):
        await reset
    await env.close()


# How long it tries.


@pytest.mark.parametrize(
    "reason", [ConnectionFailed("refused"), Draining("stopping"), TooManyFailures("a neighbour")]
)
async def test_it_tries_until_the_server_is_there(reason):
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    app.refusals += [reason] * 4
    peer.hang_up()
    await returning(app, 1, seq=1)
    assert app.refusals == []
    await env.close()


async def test_a_server_that_cannot_take_it_now_is_asked_again():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    peer.hang_up()
    second = await returning(app, 1)
    second.reply(second.requests[0], fault("Draining", "not here", "CAPACITY_REACHED"))
    await returning(app, 2, seq=1)
    assert second.closed
    await env.close()


async def test_the_window_ends():
    app = ScriptedApp(SHORT_S)
    env, peer = await playing(app)
    app.refusals += [ConnectionFailed("refused")] * 1000
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    started = asyncio.get_running_loop().time()
    peer.hang_up()
    with pytest.raises(
        SessionLost, match=r"reset\(\).*1001.*within 0\.2 s \(resume_window_s of the server\): refused"
    ):
        await step
    assert asyncio.get_running_loop().time() - started < 10 * SHORT_S
    with pytest.raises(SessionLost):
        await env.step({})
    app.refusals.clear()
    reset = asyncio.create_task(env.reset())
    second = await app.peer(1)
    second.reply(await second.asked(2), outcome())
    assert second.requests[0]["op"] == "open"
    await reset
    await env.close()


async def test_the_window_ends_while_a_server_says_nothing():
    app = ScriptedApp(SHORT_S)
    env, peer = await playing(app)
    app.hello = None
    peer.hang_up()
    with pytest.raises(SessionLost, match="resume_window_s"):
        await env.step({})
    assert app.peers[1].closed
    assert nothing_left()


async def test_a_server_that_says_nothing_is_left_for_another_connection():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app, connect_timeout_s=SHORT_S)
    hello, app.hello = app.hello, None
    peer.hang_up()
    await app.peer(1)
    app.hello = hello
    silent = await returning(app, 2)  # says hello, and does not answer
    await returning(app, 3, seq=1)
    assert app.peers[1].closed
    assert silent.closed
    await env.close()


async def test_a_call_does_not_wait_longer_than_it_may():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app, message_timeout_s=SHORT_S)
    hello, app.hello = app.hello, None
    peer.hang_up()
    with pytest.raises(
        StepTimeout, match=r"within 0\.2 s \(message_timeout_s\): the connection is lost .*1001"
    ) as caught:
        await env.step({"by": 1})
    assert (caught.value.blame, caught.value.retryable) == ("infrastructure", False)
    second = await app.peer(1)
    second.say(hello)
    second = await returning(app, 1, seq=1)
    step = asyncio.create_task(env.step({"by": 2}))
    asked = await second.asked(2)
    assert (asked["seq"], asked["action"]) == (2, {"by": 2})  # what was not sent in time is not done
    second.reply(asked, outcome())
    await step
    await env.close()


@pytest.mark.parametrize("error", [Unauthorized("another key"), SessionLost("closed")])
async def test_what_another_attempt_does_not_mend_ends_it(error):
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    app.refusals.append(error)
    peer.hang_up()
    with pytest.raises(SessionLost, match=error.message):
        await env.step({})
    assert nothing_left()


async def test_without_a_window_nothing_is_made_again():
    env, peer = await playing(app := ScriptedApp(0))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    with pytest.raises(ConnectionLost):
        await step
    with pytest.raises(SessionLost):
        await env.step({})
    assert len(app.peers) == 1


async def test_a_connection_that_the_client_has_ended_is_not_made_again():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    peer.say_raw(b"\xc1")
    with pytest.raises(SessionLost):
        await env.step({})
    assert len(app.peers) == 1


async def test_the_server_s_own_end_of_the_session_is_one():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    session = peer.requests[0]["session"]
    peer.say({"event": "session_lost", "session": session, "reason": "idle", **fault("SessionLost", "idle")})
    peer.hang_up()
    with pytest.raises(SessionLost, match="idle"):
        await env.step({})
    assert len(app.peers) == 1


async def test_the_server_ends_the_session_while_it_comes_back():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await returning(app, 1)
    session = peer.requests[0]["session"]
    second.say({"event": "session_lost", "session": session, "reason": "idle", **fault("SessionLost", "idle")})
    with pytest.raises(SessionLost, match="idle"):
        await step
    await until(nothing_left)
    assert second.closed


# Callers that leave.


async def test_a_step_that_is_cancelled_while_it_comes_back_is_cancelled_there():
    """It may be running: its number is used, so it is asked for, and stopped."""
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app)
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    app.hello, hello = None, app.hello
    peer.hang_up()
    second = await app.peer(1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    second.say(hello)
    second = await returning(app, 1, seq=1)
    await second.asked(3)
    again, cancel = second.requests[1:]
    assert (again["op"], again["seq"]) == ("step", 2)
    assert (cancel["op"], cancel["target"]) == ("cancel", again["id"])
    later = asyncio.create_task(env.step({"later": True}))
    await asyncio.sleep(0)
    assert len(second.requests) == 3
    second.reply(again, fault("Cancelled", "as asked"))
    request = await second.asked(4)
    assert (request["seq"], request["action"]) == (3, {"later": True})
    second.reply(request, outcome(3.0))
    assert (await later).reward == 3.0
    await env.close()


async def test_a_call_that_is_cancelled_before_it_was_sent_is_not_made():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app)
    app.hello, hello = None, app.hello
    peer.hang_up()
    second = await app.peer(1)
    step = asyncio.create_task(env.step({"first": True}))
    await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    later = asyncio.create_task(env.step({}))
    await asyncio.sleep(0)
    second.say(hello)
    second = await returning(app, 1, seq=1)
    request = await second.asked(2)
    assert (request["seq"], request["action"]) == (2, {})
    second.reply(request, outcome(2.0))
    assert (await later).reward == 2.0
    await env.close()


@pytest.mark.parametrize("kind", ["reset", "step", "state"])
async def test_a_cancelled_call_of_any_kind_is_cancelled_on_the_server(kind):
    env, peer = await playing(ScriptedApp(WINDOW_S))
    call = asyncio.create_task(env.step({}) if kind == "step" else getattr(env, kind)())
    request = await peer.asked(3)
    assert request["op"] == kind
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await peer.asked(4) == {"id": 4, "op": "cancel", "target": request["id"]}
    peer.reply(request, fault("Cancelled", "as asked"))
    await env.close()


async def test_closing_is_no_loss():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    await env.close()
    assert peer.closed
    assert nothing_left()
    assert len(app.peers) == 1


async def test_closing_while_it_comes_back():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app)
    app.hello = None
    step = asyncio.create_task(env.step({}))
    await peer.asked(3)
    peer.hang_up()
    second = await app.peer(1)
    await env.close()
    with pytest.raises(ConnectionLost, match="closed"):
        await step
    assert second.closed
    assert nothing_left()
    with pytest.raises(SessionLost, match="closed"):
        await env.step({})


async def test_closing_between_two_attempts():
    app = ScriptedApp(WINDOW_S)
    env, peer = await playing(app)
    app.refusals += [ConnectionFailed("refused")] * 1000
    peer.hang_up()
    await until(lambda: len(app.refusals) < 998)
    await env.close()
    assert nothing_left()


async def test_closing_while_it_is_attached_ends_the_session_too():
    env, peer = await playing(app := ScriptedApp(WINDOW_S))
    peer.hang_up()
    second = await returning(app, 1)
    await env.close()
    assert second.requests[1:] == [{"id": 2, "op": "close", "session": peer.requests[0]["session"]}]
    assert second.closed
    assert nothing_left()


@pytest.mark.parametrize("attached", [False, True])
def test_the_event_loop_ends_while_it_comes_back(attached):
    app = ScriptedApp(WINDOW_S)

    async def begin():
        env, peer = await playing(app)
        if not attached:
            app.hello = None
        peer.hang_up()
        second = await app.peer(1)
        if attached:
            await second.asked(1)
        return env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = asyncio.run(begin())
        gc.collect()
    assert app.peers[1].closed

    async def go_on():
        with pytest.raises(SessionLost):
            await env.step({})

    asyncio.run(go_on())


async def test_a_timeout_of_the_server_is_an_answer():
    env, peer = await playing(ScriptedApp(WINDOW_S), message_timeout_s=SHORT_S)
    step = asyncio.create_task(env.step({}))
    request = await peer.asked(3)
    assert request["deadline_s"] == pytest.approx(SHORT_S, abs=0.02)
    await asyncio.sleep(SHORT_S + 0.05)
    assert not step.done()
    peer.reply(request, fault("StepTimeout", "stopped"))
    with pytest.raises(StepTimeout, match="stopped"):
        await step
    await env.close()


async def test_who_may_wait_for_a_slot_has_that_time_on_top():
    env = GenericEnvClient(app=(app := ScriptedApp(WINDOW_S)), message_timeout_s=5, wait_s=300)
    reset = asyncio.create_task(env.reset())
    peer = await app.peer()
    await peer.asked(2)
    assert peer.requests[0]["wait_s"] == 300
    assert peer.requests[1]["deadline_s"] == pytest.approx(305, abs=0.5)
    peer.reply(peer.requests[0], OPENED)
    peer.reply(peer.requests[1], outcome())
    await reset
    step = asyncio.create_task(env.step({}))
    assert (await peer.asked(3))["deadline_s"] == pytest.approx(5, abs=0.5)
    await env.close()
    with pytest.raises(ConnectionFailed):
        await step
