"""A session outlives its connection, and its client goes on with it: every call is executed once."""

from __future__ import annotations

import pytest

from .probe import AsyncProbe, InlineProbe, ProbeEnvironment
from .talk import LINES, error_of
from .wires import eventually

# The in-memory line of the tests has nothing that could be cut.
pytestmark = pytest.mark.parametrize(
    "line", [line for line in LINES if line[0] != "memory"], ids=lambda line: "-".join(line), indirect=True
)
TOKEN = "a-token-that-nobody-guesses"


def cut(talk):
    """Ends the connection without a word about its sessions."""
    if hasattr(talk.wire, "socket"):
        talk.wire.socket.socket.close()
    talk.wire.close()


@pytest.mark.parametrize("environment", [ProbeEnvironment, InlineProbe, AsyncProbe], ids=["thread", "inline", "loop"])
def test_a_lost_reply_is_sent_again_and_the_step_is_not_done_again(line, environment):
    with line(environment) as open_talk:
        first = open_talk()
        token = first.open("one", token=TOKEN)["token"]
        assert token == TOKEN
        reply = first.step("one", number=4)
        cut(first)
        second = open_talk()
        attached = second.ask("attach", session="one", token=TOKEN)
        assert (attached["state"], attached["seq"]) == ("live", 1)
        assert {**attached["last"], "id": reply["id"]} == reply
        second.seq["one"] = 0
        again = second.step("one", number=4)
        assert {**again, "id": reply["id"]} == reply
        assert second.step("one")["observation"]["step_count"] == 2


def test_a_call_that_runs_while_the_connection_is_lost_gives_its_reply_to_who_asks_again(line):
    with line() as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        first.tell_step("one", "wait", 5)
        first.tell_step("one", number=6)  # waits behind it, and is forgotten
        assert ProbeEnvironment.waiting.wait(20)
        cut(first)
        second = open_talk()
        attached = second.ask("attach", session="one", token=TOKEN)
        assert (attached["state"], attached["seq"]) == ("executing", 0)
        second.seq["one"] = 0
        repeated = second.tell_step("one", "wait", 5)
        ProbeEnvironment.gate.set()
        reply = second.receive()
        assert (reply["id"], reply["observation"]["value"], reply["observation"]["step_count"]) == (repeated, 5, 1)
        assert second.step("one", number=6)["observation"]["step_count"] == 2


def test_a_call_that_ends_while_nobody_is_there_keeps_its_reply(line):
    with line(max_in_flight=8) as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        first.tell_step("one", "wait", 5)
        assert ProbeEnvironment.waiting.wait(20)
        cut(first)
        second = open_talk()
        eventually(lambda: second.ask("attach", session="one", token="wrong")["error"]["error"] == "Unauthorized")
        ProbeEnvironment.gate.set()

        def reached():
            attached = second.ask("attach", session="one", token=TOKEN)
            return attached["seq"] == 1 and attached["last"]["observation"]["value"] == 5

        eventually(reached)


def test_a_session_whose_client_does_not_come_back_is_closed(line):
    with line(ProbeEnvironment, 1, resume_window_s=0.3, queue_timeout_s=20) as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        cut(first)
        second = open_talk()
        second.open("two")  # there is a slot only after the window
        assert ProbeEnvironment.closed.is_set()
        assert error_of(second.ask("attach", session="one", token=TOKEN))["error"] == "UnknownSession"


def test_a_call_with_a_deadline_is_never_cut_short_by_the_window(line):
    with line(ProbeEnvironment, 1, resume_window_s=0.1, queue_timeout_s=20) as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        first.tell(**first.step_call("one", "wait"), deadline_s=20)
        assert ProbeEnvironment.waiting.wait(20)
        cut(first)
        second = open_talk()
        refused = error_of(second.ask("open", session="two", wait_s=0.5))
        assert refused["error"] == "QueueTimeout"  # the window is over, the call is not
        assert not ProbeEnvironment.closed.is_set()
        ProbeEnvironment.gate.set()
        second.open("two")


def test_a_call_without_a_deadline_whose_client_is_gone_is_stopped_with_the_window(line):
    with line(AsyncProbe, 1, resume_window_s=0.1, queue_timeout_s=20) as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        first.tell_step("one", "hang")
        assert ProbeEnvironment.waiting.wait(20)
        cut(first)
        assert ProbeEnvironment.stopped.wait(20)
        open_talk().open("two")


def test_opening_again_with_the_token_is_attaching(line):
    with line() as open_talk:
        first = open_talk()
        first.open("one", token=TOKEN)
        reply = first.step("one", number=3)
        cut(first)
        second = open_talk()
        stranger = error_of(second.ask("open", session="one", token="another-token-of-its-own"))
        assert stranger["error"] == "Unauthorized"
        opened = second.open("one", token=TOKEN)
        assert (opened["seq"], opened["token"]) == (1, TOKEN)
        second.seq["one"] = 0
        assert {**second.step("one"), "id": reply["id"]} == reply


def test_a_session_that_was_still_opening_is_there_when_its_client_comes_back(line):
    with line(ProbeEnvironment, 1, queue_timeout_s=20) as open_talk:
        holder, first = open_talk(), open_talk()
        holder.open("held")
        first.tell("open", session="one", token=TOKEN)
        assert first.ask("heartbeat")["ok"] is True
        cut(first)
        second = open_talk()

        def attached():
            return second.ask("attach", session="one", token=TOKEN).get("state") == "starting"

        eventually(attached)
        second.seq["one"] = 0
        step = second.tell_step("one", number=9)
        holder.ask("close", session="held")
        reply = second.receive()
        assert (reply["id"], reply["observation"]["value"]) == (step, 9)


def test_an_attach_takes_over_from_a_connection_that_only_seems_to_be_there(line):
    with line() as open_talk:
        first, second = open_talk(), open_talk()
        first.open("one", token=TOKEN)
        assert second.ask("attach", session="one", token=TOKEN)["ok"] is True
        second.seq["one"] = 0
        second.step("one")
        cut(first)
        second.assert_lives("one")
