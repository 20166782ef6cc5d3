"""One connection, many requests: each gets its own reply, in whatever order they come."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openenv.client import memory
from openenv.client.connection import Callbacks, ClientConnectionV1, ClientConnectionV2, dial
from openenv.errors import ConnectionLost, MessageTooLarge, OpenEnvError, ProtocolViolation, StepFailed

from .environments import app_of
from .scripted import HELLO, ScriptedApp, fault

SHORT_S = 0.02


async def linked(app=None, max_message_bytes=1 << 20):
    """A link, and the server's end of it."""
    app = app or ScriptedApp()
    link = await dial(lambda receiver: memory.connect(app, receiver), max_message_bytes)
    return link, app.peers[-1]


@pytest.mark.parametrize(
    ("subprotocol", "kind"),
    [(None, ClientConnectionV1), ("openenv.v2.json", ClientConnectionV2), ("openenv.v2.msgpack", ClientConnectionV2)],
)
async def test_dialling_gives_what_both_sides_speak(monkeypatch, subprotocol, kind):
    monkeypatch.setattr(memory, "SUBPROTOCOL", subprotocol)
    app = app_of()
    end = await dial(lambda receiver: memory.connect(app, receiver), 1 << 20)
    assert type(end) is kind
    await end.aclose()


async def test_replies_find_their_requests_in_any_order():
    link, peer = await linked()
    calls = [link.request("state", {"session": str(number)}) for number in range(3)]
    for number in (2, 0, 1):
        peer.reply(peer.requests[number], {"ok": True, "state": number})
    assert [(await call)["state"] for call in calls] == [0, 1, 2]
    assert link._protocol.outstanding == 0
    await link.aclose()


async def test_a_stream_hears_every_frame_and_then_no_more():
    link, peer = await linked()
    frames, failures = [], []
    link.ask(
        "batch",
        {"calls": []},
        Callbacks(lambda frame, more: frames.append((frame["results"], more)), failures.append),
    )
    peer.say({"id": 1, "ok": True, "results": [1], "more": True})
    assert link._protocol.outstanding == 1
    peer.say({"id": 1, "ok": True, "results": [2], "more": False})
    assert frames == [([1], True), ([2], False)]
    assert (link._protocol.outstanding, failures) == (0, [])
    link.ask("batch", {"calls": []}, Callbacks(lambda frame, more: None, failures.append))
    peer.say({"id": 2, **fault()})
    assert isinstance(failures[0], StepFailed)
    await link.aclose()


async def test_a_stream_that_is_cancelled_hears_nothing_more():
    link, peer = await linked()
    frames = []
    request = link.ask("batch", {"calls": []}, Callbacks(frames.append, frames.append))
    link.cancel(request)
    peer.say({"id": 1, "ok": True, "results": [1], "more": True})
    peer.say({"id": 1, **fault("Cancelled")})
    peer.hang_up()
    assert frames == []


async def test_the_end_is_told_to_every_request_and_then_to_the_owner():
    link, peer = await linked()
    told: list[OpenEnvError] = []
    link.on_end = told.append
    call = link.request("state", {})
    link.ask("batch", {}, Callbacks(told.append, lambda error: told.append(error)))
    cancelled = link.request("state", {})
    cancelled.cancel()
    peer.hang_up()
    with pytest.raises(ConnectionLost, match="1001") as caught:
        await call
    assert told == [caught.value, caught.value]
    assert link.error is caught.value
    with pytest.raises(ConnectionLost):
        link.request("state", {})
    link.post("heartbeat", {})
    assert len(peer.requests) == 4  # the last is the cancellation


async def test_ending_it_closes_the_connection_for_the_reason_given():
    link, peer = await linked()
    call = link.request("state", {})
    link.end(ProtocolViolation("enough"))
    link.end(ProtocolViolation("again"))
    with pytest.raises(ProtocolViolation, match="enough"):
        await call
    assert peer.closed
    peer.say({"id": 1, "ok": True})


async def test_a_cancelled_request_is_cancelled_on_the_server_once():
    link, peer = await linked()
    call = link.request("step", {"session": "s"})
    call.cancel()
    call.cancel()
    assert peer.requests[1:] == [{"id": 2, "op": "cancel", "target": 1}]
    peer.reply(peer.requests[0], {"ok": True})
    peer.reply(peer.requests[1], {"ok": True, "cancelled": False})
    assert link._protocol.outstanding == 0
    await link.aclose()


async def test_a_request_over_the_limit_is_not_sent():
    link, peer = await linked(max_message_bytes=100)
    with pytest.raises(MessageTooLarge, match=r"over the limit of 100 \(max_message_size_mb\)"):
        link.request("step", {"text": "x" * 100})
    assert (link._protocol.outstanding, peer.requests) == (0, [])
    await link.aclose()


async def test_the_greeting_names_the_limits():
    link, _ = await linked()
    assert link.limit("max_batch") is None
    assert (await link.greeting(1))["environment"] == "scripted"
    assert link.limit("max_batch") == 1024
    assert link.limit("nothing") is None
    await link.aclose()


@pytest.mark.parametrize("limits", [None, 5, {"max_batch": "many"}, {"max_batch": 0}, {"max_batch": -1}])
async def test_limits_that_are_none_are_unknown(limits):
    app = ScriptedApp()
    app.hello = {**HELLO, "limits": limits}
    link, _ = await linked(app)
    await link.greeting(1)
    assert link.limit("max_batch") is None
    await link.aclose()


async def test_no_greeting_ends_the_link():
    app = ScriptedApp()
    app.hello = None
    link, peer = await linked(app)
    with pytest.raises(ProtocolViolation, match="no hello"):
        await link.greeting(SHORT_S)
    assert peer.closed


async def test_who_waits_for_the_greeting_hears_of_the_end():
    app = ScriptedApp()
    app.hello = None
    link, peer = await linked(app)
    greeting = asyncio.create_task(link.greeting(10))
    await asyncio.sleep(0)
    peer.hang_up()
    with pytest.raises(ConnectionLost):
        await greeting


async def test_draining_is_remembered_and_events_of_sessions_are_passed_on():
    link, peer = await linked()
    heard = []
    link.on_event = lambda name, fields: heard.append((name, fields))
    peer.say({"event": "draining", "grace_s": 3})
    assert link.draining
    peer.say({"event": "session_lost", "session": "s", "reason": "r"})
    assert heard == [("session_lost", {"session": "s", "reason": "r"})]
    await link.aclose()


@pytest.mark.parametrize("period", [float("inf"), float("nan"), -1.0, 0, "often", None])
async def test_a_heartbeat_that_is_none_is_not_kept(period):
    app = ScriptedApp()
    app.hello = {**HELLO, "heartbeat_s": period}
    link, _ = await linked(app)
    await link.greeting(1)
    assert link._beat is None
    await link.aclose()


async def test_a_second_greeting_adds_no_second_heartbeat():
    app = ScriptedApp()
    app.hello = {**HELLO, "heartbeat_s": 10.0}
    link, peer = await linked(app)
    await link.greeting(1)
    beat = link._beat
    peer.say(app.hello)
    assert link._beat is beat
    await link.aclose()
    assert beat.cancelled()


async def test_sessions_are_ended_before_the_connection_in_as_few_messages_as_can_be():
    link, peer = await linked(ScriptedApp(max_batch=2))
    await link.greeting(1)
    await link.aclose(["a", "b", "c"])
    closes = [{"op": "close", "session": session} for session in "ab"]
    assert peer.requests == [{"id": 1, "op": "batch", "calls": closes}, {"id": 2, "op": "close", "session": "c"}]
    assert peer.closed


async def test_sessions_that_are_too_many_for_a_message_are_ended_in_several():
    """The end of the connection alone would leave them waiting for it to come back."""
    link, peer = await linked(max_message_bytes=100)
    await link.greeting(1)
    names = [str(number) for number in range(20)]
    await link.aclose(names)
    calls = [call for request in peer.requests for call in request.get("calls", [request])]
    assert [call["session"] for call in calls] == names
    assert {call["op"] for call in calls} == {"close"}
    assert peer.closed


async def test_sessions_are_ended_though_calls_are_on_their_way():
    link, peer = await linked()
    call = link.request("step", {"session": "a"})
    await link.aclose(["a"])
    assert peer.requests[1] == {"id": 2, "op": "close", "session": "a"}
    with pytest.raises(ConnectionLost):
        await call


async def test_something_is_said_in_every_period_though_words_come_only_one_way():
    """Also when the last word was said just after the last look; what the server says does not count."""
    app = ScriptedApp()
    period = 0.2
    app.hello = {**HELLO, "heartbeat_s": period}
    link, peer = await linked(app)
    await link.greeting(1)
    said: list[float] = []
    peer.reflex = lambda request: said.append(link.loop.time())
    for step in (0.02, 0.13):  # at once after a look, and long before one
        await asyncio.sleep(step)
        link.post("state", {"session": "s"})
    while len(said) < 6:
        peer.say({"event": "eclipse"})
        await asyncio.sleep(0.005)
    pauses = [later - earlier for earlier, later in itertools.pairwise(said)]
    assert max(pauses) <= period + 0.05
    assert min(pauses[2:]) >= period / 2 - 0.05
    await link.aclose()
