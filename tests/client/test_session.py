"""One session over protocol v2: which requests it makes, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import gc
import re
from functools import partial

import pytest

from openenv.client import GenericEnvClient
from openenv.errors import (
    Cancelled,
    ConnectionFailed,
    ConnectionLost,
    MessageTooLarge,
    ProtocolViolation,
    SequenceError,
    ServerFull,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyCalls,
)

from ..asynchronous import until
from .environments import Bell, CounterAction, CounterEnv, RingingCounter, app_of
from .scripted import ScriptedApp, fault, outcome

ONE = CounterAction(by=1)
SHORT_S = 0.02


async def opened(app, **options):
    """A client whose session is open, and the server's end of its connection."""
    env = GenericEnvClient(app=app, **options)
    await env.connect()
    peer = await app.peer()
    request = await peer.asked(1)
    peer.reply(request, {"ok": True, "session": request["session"], "token": "t", "seq": 0})
    return env, peer


async def test_the_first_call_follows_without_waiting_for_anything():
    app = ScriptedApp()
    app.hello = None
    env = GenericEnvClient(app=app)
    reset = asyncio.create_task(env.reset(seed=3))
    peer = await app.peer()
    call = await peer.asked(2)
    opening = peer.requests[0]
    session, token = opening["session"], opening["token"]
    assert opening == {"id": 1, "op": "open", "session": session, "token": token}
    for secret in (session, token):
        assert re.fullmatch(r"[A-Za-z0-9_.-]{16,64}", secret)
    assert session != token
    assert call.pop("deadline_s") == pytest.approx(60, abs=1)
    assert call == {"id": 2, "op": "reset", "session": session, "seq": 1, "kwargs": {"seed": 3}}
    peer.reply(opening, {"ok": True, "session": opening["session"], "token": "t", "seq": 0})
    peer.reply(call, outcome(2.0, x=1))
    assert (await reset).observation == {"x": 1}
    await env.close()


async def test_resets_and_steps_are_counted_and_state_is_not():
    env, peer = await opened(ScriptedApp())
    for number, (call, reply) in enumerate(
        [
            (env.reset, outcome()),
            (partial(env.step, {"a": 1}), outcome(1.0)),
            (env.state, {"ok": True, "state": {"step_count": 7}}),
            (partial(env.step, {"a": 2}), outcome(2.0)),
        ]
    ):
        task = asyncio.ensure_future(call())
        peer.reply(await peer.asked(number + 2), reply)
        result = await task
        if call == env.state:
            assert result == {"step_count": 7}
    assert [request.get("seq") for request in peer.requests[1:]] == [1, 2, None, 3]
    assert peer.requests[4]["action"] == {"a": 2}
    await env.close()


async def test_a_result_carries_how_the_episode_ended():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(2), outcome(1.0, done=True, truncated=True))
    result = await step
    assert (result.done, result.truncated, result.terminated) == (True, True, False)
    await env.close()


async def test_a_session_that_is_refused_is_refused_to_every_call():
    app = ScriptedApp()
    env = GenericEnvClient(app=app)
    calls = [asyncio.create_task(env.reset()), asyncio.create_task(env.step({}))]
    peer = await app.peer()
    await peer.asked(2)
    peer.reply(peer.requests[0], fault("ServerFull", "no room", "CAPACITY_REACHED"))
    for call in calls:
        with pytest.raises(ServerFull, match="^no room$"):
            await call
    with pytest.raises(ServerFull):
        await env.step({})
    assert peer.closed
    again = asyncio.create_task(env.reset())
    second = await app.peer(1)
    await second.asked(2)
    second.reply(second.requests[0], {"ok": True})
    second.reply(second.requests[1], outcome(5.0))
    assert (await again).reward == 5.0
    await env.close()


async def test_a_late_reply_is_dropped_and_its_number_stays_used():
    env, peer = await opened(ScriptedApp(), message_timeout_s=SHORT_S)
    with pytest.raises(StepTimeout, match=r"no reply to step within 0\.02 s \(message_timeout_s\)"):
        await env.step({})
    env._message_timeout_s = None
    second = asyncio.create_task(env.step({}))
    late = await peer.asked(2)
    await asyncio.sleep(0)
    assert len(peer.requests) == 2  # one call at a time has no reply
    assert (late["seq"], late["deadline_s"]) == (1, pytest.approx(SHORT_S, abs=0.005))
    peer.reply(late, outcome(1.0))
    call = await peer.asked(3)
    assert call["seq"] == 2
    assert "deadline_s" not in call
    peer.reply(call, outcome(2.0))
    assert (await second).reward == 2.0
    assert [request["op"] for request in peer.requests] == ["open", "step", "step"]
    await env.close()


async def test_a_cancelled_call_is_cancelled_on_the_server():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    call = await peer.asked(2)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert (await peer.asked(3)) == {"id": 3, "op": "cancel", "target": call["id"]}
    peer.reply(call, fault("Cancelled", "as asked"))
    peer.reply(peer.requests[2], {"ok": True, "cancelled": True})
    second = asyncio.create_task(env.step({}))
    request = await peer.asked(4)
    assert request["seq"] == 2
    peer.reply(request, outcome(3.0))
    assert (await second).reward == 3.0
    await env.close()


async def test_cancelling_stops_the_work_of_an_asynchronous_environment():
    bell = Bell()
    async with CounterEnv(app=app_of(partial(RingingCounter, bell))) as env:
        await env.reset()
        first, second = asyncio.create_task(env.step(ONE)), asyncio.create_task(env.step(ONE))
        await until(lambda: len(bell.waiting) == 1)
        first.cancel()
        await until(lambda: len(bell.waiting) == 2)
        assert bell.waiting[0].cancelled()
        bell.waiting[1].set_result(None)
        assert (await second).reward == 1.0
        assert first.cancelled()


async def test_a_call_that_waits_for_its_turn_times_out_and_leaves_its_place():
    env, _ = await opened(ScriptedApp(max_in_flight=1), message_timeout_s=SHORT_S)
    results = await asyncio.gather(env.step({}), env.step({}), return_exceptions=True)
    assert [type(result) for result in results] == [StepTimeout, StepTimeout]
    await env.close()


async def test_one_call_at_a_time_has_no_reply():
    env, peer = await opened(ScriptedApp())
    calls = [asyncio.create_task(env.step({"n": 1})), asyncio.create_task(env.state())]
    calls.append(asyncio.create_task(env.step({"n": 2})))
    replies = [outcome(1.0), {"ok": True, "state": {}}, outcome(2.0)]
    for number, reply in enumerate(replies):
        request = await peer.asked(number + 2)
        await asyncio.sleep(0)
        assert len(peer.requests) == number + 2
        peer.reply(request, reply)
    assert [request["op"] for request in peer.requests[1:]] == ["step", "state", "step"]
    first, _, last = await asyncio.gather(*calls)
    assert (first.reward, last.reward) == (1.0, 2.0)
    await env.close()


async def test_a_queue_that_is_answered_at_once_takes_no_room_on_the_stack():
    env, peer = await opened(ScriptedApp())
    steps = [asyncio.create_task(env.step({})) for _ in range(2000)]
    first = await peer.asked(2)
    await until(lambda: len(env._held._calls_waiting) == 2000)
    peer.reflex = lambda request: peer.reply(request, outcome(float(request.get("seq", 0))))
    peer.reply(first, outcome(1.0))
    results = await asyncio.gather(*steps)
    assert [result.reward for result in results] == [float(number) for number in range(1, 2001)]
    await env.close()


async def test_a_call_that_was_not_counted_gives_its_number_to_the_next():
    env, peer = await opened(ScriptedApp())
    for error, seq in ((fault("TooManyCalls", "wait"), 1), (fault("InvalidAction", "no", "VALIDATION_ERROR"), 1)):
        step = asyncio.create_task(env.step({}))
        request = await peer.asked(len(peer.requests) + 1)
        assert request["seq"] == seq
        peer.reply(request, error)
        with pytest.raises((TooManyCalls, RuntimeError)):
            await step
    step = asyncio.create_task(env.step({}))
    assert (await peer.asked(4))["seq"] == 2
    step.cancel()
    await env.close()


@pytest.mark.parametrize("error", ["SessionLost", "UnknownSession"])
async def test_a_reply_that_says_the_session_is_gone(error):
    app = ScriptedApp()
    env, peer = await opened(app)
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(2), fault(error, "who?", "SESSION_ERROR"))
    with pytest.raises(SessionLost, match="who?"):
        await step
    with pytest.raises(SessionLost, match="reset"):
        await env.step({})
    assert peer.closed


async def test_a_session_whose_calls_are_out_of_order_is_of_no_further_use():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(2), fault("SequenceError", "7?", "SESSION_ERROR"))
    with pytest.raises(SequenceError):
        await step
    with pytest.raises(SessionLost):
        await env.step({})


@pytest.mark.parametrize("waiting", [True, False])
async def test_the_server_ends_the_session(waiting):
    app = ScriptedApp()
    env, peer = await opened(app)
    session = peer.requests[0]["session"]
    step = asyncio.create_task(env.step({})) if waiting else None
    if waiting:
        await peer.asked(2)
    lost = fault("SessionLost", "idle for too long", "SESSION_ERROR")
    peer.say({"event": "session_lost", "session": "another", "reason": "not ours", **lost})
    peer.say({"event": "session_lost", "session": session, "reason": "idle for too long", **lost})
    if step is not None:
        with pytest.raises(SessionLost, match="idle"):
            await step
    with pytest.raises(SessionLost, match=r"reset\(\).*idle"):
        await env.step({})
    assert peer.closed


async def test_an_event_of_a_later_version_is_ignored():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    request = await peer.asked(2)
    peer.say({"event": "eclipse", "at": 5})
    peer.say({"event": "draining", "grace_s": 30})
    peer.reply(request, outcome(1.0))
    assert (await step).reward == 1.0
    await env.close()


async def test_the_connection_ends_during_calls():
    env, peer = await opened(ScriptedApp())
    calls = [asyncio.create_task(env.step({})) for _ in range(3)]
    await peer.asked(2)
    await asyncio.sleep(0)
    peer.hang_up()
    await asyncio.wait(calls)
    assert [type(call.exception()) for call in calls] == [ConnectionLost] * 3
    with pytest.raises(SessionLost) as caught:
        await env.state()
    assert isinstance(caught.value.__cause__, ConnectionLost)


@pytest.mark.parametrize(
    "frame", [b"\xc1", b"\x93\x01\x02\x03", b"\x80", b"\x82\xa2id\x63\xa2ok\xc3", b"\x82\xa2id\x02\xa5error\x05"]
)
async def test_what_is_no_message_ends_the_connection(frame):
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    await peer.asked(2)
    peer.say_raw(frame)
    with pytest.raises(ProtocolViolation):
        await step
    assert peer.closed


async def test_an_error_that_answers_nothing_in_particular_ends_the_connection():
    """One of the client's messages could not be read; whoever sent it would wait forever."""
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    await peer.asked(2)
    peer.say({"id": None, **fault("MessageTooLarge", "17 is over the limit", "SESSION_ERROR")})
    with pytest.raises(MessageTooLarge, match="17"):
        await step
    with pytest.raises(SessionLost):
        await env.step({})


async def test_the_server_s_limit_is_kept_once_it_is_known():
    env, peer = await opened(ScriptedApp(max_message_bytes=300))
    await until(lambda: env._held.link.hello)
    with pytest.raises(MessageTooLarge, match=r"over the limit of 300 .*max_message_mb, OPENENV_MAX_MESSAGE_MB"):
        await env.step({"text": "x" * 300})
    step = asyncio.create_task(env.step({}))
    assert (await peer.asked(2))["seq"] == 1
    step.cancel()
    await env.close()


async def test_an_action_that_cannot_be_written_uses_no_number():
    env, peer = await opened(ScriptedApp())
    with pytest.raises(ValueError, match="object"):
        await env.step({"by": object()})
    step = asyncio.create_task(env.step({}))
    assert (await peer.asked(2))["seq"] == 1
    peer.reply(peer.requests[1], fault())
    with pytest.raises(StepFailed, match="a fault"):
        await step
    await env.close()


@pytest.mark.parametrize("state", [{}, {"state": 5}])
async def test_a_reply_without_a_state(state):
    env, peer = await opened(ScriptedApp())
    call = asyncio.create_task(env.state())
    peer.reply(await peer.asked(2), {"ok": True, **state})
    with pytest.raises(ProtocolViolation, match="without 'state'"):
        await call
    await env.close()


async def test_a_refusal_that_is_told_again_and_again_does_not_grow():
    env, peer = await opened(app := ScriptedApp())
    await env.close()
    reset = asyncio.create_task(env.reset())
    peer = await app.peer(1)
    await peer.asked(2)
    peer.reply(peer.requests[0], fault("ServerFull", "no room", "CAPACITY_REACHED"))
    with pytest.raises(ServerFull):
        await reset
    lengths = set()
    for _ in range(3):
        with pytest.raises(ServerFull) as caught:
            await env.step({})
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1


async def test_a_step_leaves_nothing_for_the_garbage_collector():
    async with GenericEnvClient(app=app_of()) as env:
        await env.reset()
        left = []
        for _ in range(5):
            gc.collect()
            for _ in range(10):
                await env.step({"by": 1})
            left.append(gc.collect())
        assert 0 in left  # what threads of earlier tests leave behind comes once; that of a step, each time


async def test_closing_ends_the_session_and_then_the_connection():
    env, peer = await opened(ScriptedApp())
    await env.close()
    assert peer.requests[1:] == [{"id": 2, "op": "close", "session": peer.requests[0]["session"]}]
    assert peer.closed


async def test_closing_ends_a_call_that_is_running():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    await peer.asked(2)
    await env.close()
    assert peer.closed
    assert peer.requests[2:] == [{"id": 3, "op": "close", "session": peer.requests[0]["session"]}]
    with pytest.raises(ConnectionFailed):
        await step
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_quiet_client_says_something_once_in_a_period():
    app = ScriptedApp()
    app.hello = {**app.hello, "heartbeat_s": SHORT_S}
    env, peer = await opened(app)
    for number in (2, 3):
        request = await peer.asked(number)
        assert request == {"id": number, "op": "heartbeat"}
        peer.reply(request, {"ok": True})
    await env.close()


async def test_cancelled_by_the_server_is_an_error_of_its_own():
    env, peer = await opened(ScriptedApp())
    step = asyncio.create_task(env.step({}))
    peer.reply(await peer.asked(2), fault("Cancelled", "stopped"))
    with pytest.raises(Cancelled, match="stopped"):
        await step
    await env.close()


async def test_an_episode_that_begins_while_the_server_drains_begins_on_another_connection():
    app = ScriptedApp()
    env, peer = await opened(app)
    peer.say({"event": "draining", "grace_s": 30})
    step = asyncio.create_task(env.step({}))  # the one that runs goes on where it is
    peer.reply(await peer.asked(2), outcome(1.0))
    assert (await step).reward == 1.0
    reset = asyncio.create_task(env.reset())
    other = await app.peer(1)
    other.reply(await other.asked(1), {"ok": True, "seq": 0})
    other.reply(await other.asked(2), outcome())
    await reset
    assert peer.requests[-1]["op"] == "close"
    assert peer.closed
    await env.close()


async def test_where_no_other_server_is_an_episode_begins_on_the_one_that_drains():
    app = ScriptedApp()
    env, peer = await opened(app)
    peer.say({"event": "draining", "grace_s": 30})
    app.refusals.append(ConnectionFailed("refused"))
    reset = asyncio.create_task(env.reset())
    asked = await peer.asked(2)
    assert asked["op"] == "reset"
    peer.reply(asked, outcome())
    await reset
    await env.close()
