"""What v2 keeps of a session whose calls are given up, and which changes its connection meanwhile."""

from __future__ import annotations

import gc
import time

import pytest

from openenv.runtime.session import SessionState
from openenv.server.session_table import SessionTable

from ..asynchronous import until
from .probe import AsyncProbe, InlineProbe, ProbeEnvironment, app_of
from .scripted import TOKEN, End

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(autouse=True)
def _forget():
    ProbeEnvironment.forget()
    yield
    ProbeEnvironment.gate.set()


def server_of(environment=AsyncProbe, max_sessions=4, **settings):
    return app_of(environment, max_sessions, **settings).state.openenv


async def opened(end, session="one"):
    number = end.tell("open", session=session, token=TOKEN)
    await until(lambda: end.replies.get(number))
    assert end.replies[number][0]["ok"] is True


async def answered(end, number):
    await until(lambda: end.replies.get(number))
    (reply,) = end.replies[number]
    return reply


async def ending(server):
    ProbeEnvironment.gate.set()
    await server.aclose()


def seatings(server):
    for _ in range(5):  # one collection may fall into another, and what it frees may free more
        gc.collect()
    return sum(type(item) is SessionTable and item.manager is server.manager for item in gc.get_objects())


def cut(first):
    first.cut()


def takes_over(first):
    """Nothing: the attach comes while the connection is there."""


class TestAnsweredWhileWaiting:
    """A call that was answered before its turn has used its number, whatever becomes of its connection."""

    @pytest.mark.parametrize("leave", [cut, takes_over])
    @pytest.mark.parametrize("early", ["Cancelled", "StepTimeout"])
    async def test_its_number_stays_used(self, leave, early):
        server = server_of(ProbeEnvironment)
        first = End(server)
        await opened(first)
        first.step(1, "wait")
        given_up = first.step(2, deadline_s=0.01 if early == "StepTimeout" else 60)
        if early == "Cancelled":
            first.now("cancel", target=given_up)
        await answered(first, given_up)
        assert first.error(given_up) == early
        first.step(3)  # waits behind both, and is forgotten
        leave(first)

        second = End(server)
        attached = second.now("attach", session="one", token=TOKEN)
        assert (attached["state"], attached["seq"]) == ("executing", 0)
        again, third = second.step(2), second.step(3)
        assert second.error(again) == early
        ProbeEnvironment.gate.set()
        reply = await answered(second, third)
        assert (reply["observation"]["value"], reply["observation"]["step_count"]) == (3, 2)
        await ending(server)

    async def test_with_all_that_comes_before_it_and_not_after_what_is_forgotten(self):
        server = server_of(ProbeEnvironment)
        first = End(server)
        await opened(first)
        first.step(1, "wait")
        given_up = [first.step(seq) for seq in (2, 3, 4)]
        first.now("cancel", target=given_up[0])
        first.now("cancel", target=given_up[2])
        first.cut()
        second = End(server)
        second.now("attach", session="one", token=TOKEN)
        calls = [second.step(seq) for seq in (3, 4)]
        ProbeEnvironment.gate.set()
        replies = [await answered(second, number) for number in calls]
        assert [reply["observation"]["step_count"] for reply in replies] == [2, 3]
        await ending(server)


@pytest.mark.parametrize("leave", [cut, takes_over])
async def test_what_a_running_call_was_answered_is_told_in_the_words_of_the_new_connection(leave):
    server = server_of(ProbeEnvironment)
    first = End(server)
    await opened(first)
    running = first.step(1, "wait")
    first.now("cancel", target=running)
    leave(first)
    second = End(server, "openenv.v2.msgpack")
    second.now("attach", session="one", token=TOKEN)
    assert second.error(second.step(1)) == "Cancelled"
    waiting = second.step(2)
    ProbeEnvironment.gate.set()
    await answered(second, waiting)
    assert second.now("attach", session="one", token=TOKEN)["last"]["observation"]["value"] == 2
    await ending(server)


@pytest.mark.parametrize("leave", [cut, takes_over])
async def test_a_deadline_holds_though_the_session_has_moved(leave):
    server = server_of()
    first = End(server)
    await opened(first)
    first.step(1, "hang", deadline_s=0.2)
    leave(first)
    second = End(server)
    second.now("attach", session="one", token=TOKEN)
    again = second.step(1)
    await answered(second, again)
    assert second.error(again) == "StepTimeout"
    reply = await answered(second, second.step(2))
    assert reply["observation"]["step_count"] == 1
    await ending(server)


async def test_a_call_whose_time_was_over_before_its_turn_came_is_not_executed():
    server = server_of(ProbeEnvironment)
    end = End(server)
    await opened(end)
    end.step(1, "wait")
    late = end.step(2, deadline_s=0.05)
    await until(ProbeEnvironment.waiting.is_set)
    ProbeEnvironment.gate.set()
    time.sleep(0.2)  # noqa: ASYNC251 - the loop is busy: the end of the first and the deadline of the second come together
    await answered(end, late)
    assert end.error(late) == "StepTimeout"
    assert (await answered(end, end.tell("state", session="one")))["state"]["step_count"] == 1
    await ending(server)


async def test_the_deadline_of_a_batch_is_none_of_its_states():
    server = server_of(ProbeEnvironment)
    end = End(server)
    await opened(end)
    end.step(1, "wait")
    step = {"op": "step", "session": "one", "seq": 2, "action": {}}
    state = {"op": "state", "session": "one"}
    number = end.tell("batch", calls=[state, step], deadline_s=0.05, min_ready=1)
    await until(lambda: end.replies.get(number))
    (late,) = end.replies[number][0]["results"]
    assert (late["call"], late["error"]["error"]) == (1, "StepTimeout")
    ProbeEnvironment.gate.set()
    await until(lambda: len(end.replies[number]) == 2)
    assert end.replies[number][1]["results"][0]["state"]["step_count"] == 1
    await ending(server)


class TestTheConnectionsLimit:
    async def test_what_makes_room_and_signs_of_life_are_always_taken(self):
        server = server_of(ProbeEnvironment, max_connection_in_flight=2)
        end = End(server)
        await opened(end)
        running, waiting = end.step(1, "wait"), end.step(2)
        assert end.error(end.step(3)) == "TooManyCalls"
        assert end.now("heartbeat")["ok"] is True
        assert end.now("cancel", target=waiting)["cancelled"] is True
        assert end.error(waiting) == "Cancelled"
        end.step(3)
        assert end.error(end.step(4)) == "TooManyCalls"
        assert end.now("close", session="one")["ok"] is True
        assert end.error(running) == "SessionLost"
        await ending(server)

    async def test_the_results_that_a_batch_has_sent_do_not_count_any_more(self):
        server = server_of(ProbeEnvironment, max_connection_in_flight=3)
        end = End(server)
        for session in ("one", "two", "three"):
            await opened(end, session)
        kinds = {"one": "wait", "two": "ok", "three": "ok"}
        calls = [{"op": "step", "session": s, "seq": 1, "action": {"kind": k}} for s, k in kinds.items()]
        number = end.tell("batch", calls=calls, min_ready=2)
        await until(lambda: end.replies.get(number))
        assert len(end.replies[number][0]["results"]) == 2
        more = [end.step(2, session="two"), end.step(2, session="three")]
        for call in more:
            assert (await answered(end, call))["ok"] is True
        ProbeEnvironment.gate.set()
        await until(lambda: len(end.replies[number]) == 2)
        assert end.connection._replies.unanswered == 0
        await ending(server)

    async def test_it_never_drifts(self):
        server = server_of(InlineProbe, max_connection_in_flight=3)
        end = End(server)
        await opened(end)
        steps = [{"op": "step", "session": "one", "seq": 1, "action": {}}, {"op": "nonsense"}]
        for fields in [
            {"op": "step", "session": "one", "seq": 7, "action": {}},
            {"op": "step", "session": "other", "seq": 1, "action": {}},
            {"op": "heartbeat"},
            {"op": "cancel", "target": 1},
            {"op": "nonsense"},
            {"op": "attach", "session": "one", "token": "wrong"},
            {"op": "batch", "calls": steps},
            {"op": "batch", "calls": steps * 2},
            {"op": "batch", "calls": []},
        ]:
            end.tell(**fields)
            assert end.connection._replies.unanswered == 0, fields
        await ending(server)


class TestTheWindow:
    async def test_nothing_of_it_is_left_when_the_server_has_ended(self):
        server = server_of(InlineProbe)
        end = End(server)
        await opened(end)
        end.cut()
        (session,) = server.manager.sessions
        assert session.state is SessionState.DETACHED
        await ending(server)
        del end, session
        assert seatings(server) == 0

    async def test_nor_when_its_connection_was_ended_for_good(self):
        server = server_of(InlineProbe)
        end = End(server)
        await opened(end)
        await end.connection.aclose()
        assert server.manager.active == 0
        del end
        assert seatings(server) == 0

    async def test_nor_when_another_connection_has_its_sessions(self):
        server = server_of(InlineProbe)
        first, second = End(server), End(server)
        await opened(first)
        first.cut()
        second.now("attach", session="one", token=TOKEN)
        del first
        assert seatings(server) == 1
        await ending(server)

    async def test_who_comes_back_in_time_stays(self):
        server = server_of(ProbeEnvironment, resume_window_s=0.05)
        first = End(server)
        await opened(first)
        await opened(first, "gone")
        first.cut()
        second = End(server)
        assert second.now("attach", session="one", token=TOKEN)["ok"] is True
        await until(lambda: server.manager.find("gone") is None)
        assert (await answered(second, second.step(1)))["ok"] is True
        await ending(server)

    async def test_an_idle_limit_does_not_end_what_waits_for_its_client(self):
        server = server_of(InlineProbe, idle_timeout_s=0.05)
        first, second = End(server), End(server)
        assert first.now("open", session="one", token=TOKEN)["ok"] is True
        first.cut()
        assert second.now("open", session="later")["ok"] is True
        await until(lambda: second.events[-1]["event"] == "session_lost")
        assert (second.events[-1]["session"], server.manager.active) == ("later", 1)
        assert second.now("attach", session="one", token=TOKEN)["state"] == "live"
        await ending(server)

    async def test_what_comes_back_while_a_call_runs_on_after_it_stays(self):
        server = server_of(ProbeEnvironment, resume_window_s=0.05)
        first = End(server)
        await opened(first)
        first.step(1, "wait", deadline_s=60)
        first.cut()
        (session,) = server.manager.sessions
        await until(lambda: session.user._ends_after_call)
        second = End(server)
        second.now("attach", session="one", token=TOKEN)
        again = second.step(1)
        ProbeEnvironment.gate.set()
        assert (await answered(second, again))["ok"] is True
        assert (await answered(second, second.step(2)))["observation"]["step_count"] == 2
        await ending(server)

    @pytest.mark.parametrize("end_it", ["late", "ended"])
    async def test_a_call_that_it_waited_for_ends_the_session(self, end_it):
        environment = AsyncProbe if end_it == "late" else ProbeEnvironment
        server = server_of(environment, resume_window_s=0.05)
        first = End(server)
        await opened(first)
        if end_it == "late":
            first.step(1, "hang", deadline_s=0.3)
        else:
            first.step(1, "wait", deadline_s=60)
        first.cut()
        (session,) = server.manager.sessions
        v2_session = session.user
        await until(lambda: v2_session._ends_after_call)
        ProbeEnvironment.gate.set()
        await until(lambda: session.state is SessionState.GONE)
        assert server.manager.active == server.manager.held == 0
        await ending(server)


async def test_a_call_that_is_late_at_the_gate_leaves_it_and_those_behind_pass():
    server = server_of(ProbeEnvironment, max_executing=1)
    end = End(server)
    await opened(end)
    await opened(end, "two")
    end.step(1, "wait")
    late = end.step(1, session="two", deadline_s=0.05)
    await answered(end, late)
    assert end.error(late) == "StepTimeout"
    behind = end.step(2, session="two")
    ProbeEnvironment.gate.set()
    assert (await answered(end, behind))["observation"]["step_count"] == 1
    assert server.manager.gate.inside == 0
    await ending(server)


async def test_a_call_that_hangs_in_a_closed_session_keeps_nobody_out():
    server = server_of(ProbeEnvironment, max_executing=1)
    end = End(server)
    await opened(end)
    await opened(end, "two")
    end.step(1, "wait")
    await until(ProbeEnvironment.waiting.is_set)
    end.now("close", session="one")
    assert (await answered(end, end.step(1, session="two")))["ok"] is True
    ProbeEnvironment.gate.set()
    await until(lambda: server.manager.active == 1)
    assert server.manager.gate.inside == 0
    await ending(server)
