"""A session that goes on from where another one is: forked from it, or restored to it."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.runtime.session import SessionState

from .forkable import (
    AsyncSaving,
    AsyncWalk,
    BrokenLoad,
    BrokenSave,
    Duck,
    InlineWalk,
    Judged,
    JudgedSaving,
    Locked,
    Refusing,
    Saving,
    Walk,
)
from .talk import Talk, error_of
from .wires import eventually

TOKEN, OTHER_TOKEN = "a-token-that-nobody-guesses", "another-token-of-somebody"
one_line = pytest.mark.parametrize(
    "line", [("memory", "openenv.v2.msgpack"), ("fast", "openenv.v2.json")], ids=["memory", "fast"], indirect=True
)
pytestmark = one_line


def fork(talk: Talk, source: str, new: str, **fields: Any) -> Any:
    reply = talk.ask("fork", session=source, new=new, **fields)
    assert reply.get("ok") is True, reply
    talk.seq[new] = reply["seq"]
    return reply


def restore(talk: Talk, session: str, source: str, **fields: Any) -> Any:
    return talk.ask(**talk.call("restore", session, source=source, **fields))


def begin(talk: Talk, name: str, seed: int = 3) -> None:
    talk.open(name)
    talk.ask(**talk.call("reset", name, kwargs={"seed": seed}))


def walked(talk: Talk, name: str, number: int = 0) -> Any:
    return talk.step(name, number=number)["observation"]["value"]


every_kind = pytest.mark.parametrize(
    "environment", [Walk, InlineWalk, AsyncWalk, Saving, AsyncSaving], ids=lambda cls: cls.__name__
)


@every_kind
def test_a_fork_goes_on_exactly_as_the_original_would(line, environment):
    with line(environment) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        walked(talk, "one", 1)
        before = walked(talk, "one", 2)
        told = fork(talk, "one", "two")
        assert (told["session"], told["seq"], told["slot"]["active_sessions"]) == ("two", 0, 2)
        # The same actions give the same observations, random numbers included, whoever goes first.
        onward = [walked(talk, "two", number) for number in (5, 6, 7)]
        assert onward == [walked(talk, "one", number) for number in (5, 6, 7)]
        assert onward[0][:2] == before
        assert talk.ask("state", session="two")["state"] == talk.ask("state", session="one")["state"]
        # Each has its own from there on.
        assert walked(talk, "one", 1000) != walked(talk, "two", 1)
        assert len(walked(talk, "two", 1)) == 7


@every_kind
def test_a_restore_goes_back_to_where_another_session_is(line, environment):
    with line(environment) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        walked(talk, "one", 1)
        fork(talk, "one", "kept")
        tried = [walked(talk, "one", 2), walked(talk, "one", 3)]
        assert set(restore(talk, "one", "kept")) == {"id", "ok"}
        assert [walked(talk, "one", 2), walked(talk, "one", 3)] == tried
        restore(talk, "one", "kept")
        assert walked(talk, "one", 999) != tried[0]
        assert len(walked(talk, "kept")) == 2


def test_a_class_that_is_no_environment_is_copied_whole(line):
    with line(Duck) as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.ask(**talk.call("reset", "one"))
        assert walked(talk, "one", 5) == [5]
        fork(talk, "one", "two")
        assert (walked(talk, "two", 1), walked(talk, "one", 2)) == ([6], [7])
        restore(talk, "two", "one")
        assert walked(talk, "two", 1) == [8]


@pytest.mark.parametrize("environment", [Judged, JudgedSaving])
def test_what_a_rubric_remembers_of_the_episode_is_part_of_the_state(line, environment):
    with line(environment) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        talk.step("one")
        fork(talk, "one", "two")
        talk.step("two")
        assert talk.step("two", "end")["reward"] == 3.0
        assert talk.step("one", "end")["reward"] == 2.0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Locked, "its attribute '_lock', of type lock, cannot be copied"),
        (Refusing, "a game server that nobody can copy"),
        (BrokenSave, "save_state() of BrokenSave raised LookupError: no such state"),
        (BrokenLoad, "load_state() of BrokenLoad raised LookupError: no such state"),
    ],
)
def test_an_environment_that_cannot_be_forked_says_why_and_goes_on(line, environment, said):
    with line(environment) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "other")
        talk.step("one")
        error = error_of(talk.ask("fork", session="one", new="two"))
        assert (error["error"], error["blame"], error["retryable"]) == ("NotForkable", "environment", False)
        assert said in error["message"]
        assert error_of(restore(talk, "other", "one"))["error"] == "NotForkable"
        assert talk.step("one")["observation"]["step_count"] == 2
        assert error_of(talk.ask("state", session="two"))["error"] == "UnknownSession"
        eventually(lambda: fork_slots(talk) == 2)


def fork_slots(talk: Talk) -> int:
    return int(talk.ask("open", session="one")["slot"]["active_sessions"])


def test_a_fork_waits_for_the_running_step_and_later_calls_wait_for_the_fork(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        talk.tell_step("one", "wait", 1)
        assert Walk.waiting.wait(20)
        forking = talk.tell("fork", session="one", new="two")
        stepping = talk.tell_step("one", number=2)
        Walk.gate.set()
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        assert replies[forking]["session"] == "two"
        talk.seq["two"] = 0
        assert len(replies[stepping]["observation"]["value"]) == 2
        assert walked(talk, "two", 2) == replies[stepping]["observation"]["value"]


def test_repeating_a_fork_gives_the_same_session(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        first = fork(talk, "one", "two", token=TOKEN)
        walked(talk, "two")
        again = talk.ask("fork", session="one", new="two", token=TOKEN)
        assert (again["session"], again["token"], again["seq"]) == ("two", first["token"], 1)
        # Sent twice before any answer, too.
        ids = [talk.tell("fork", session="one", new="three") for _ in range(2)]
        told = [talk.receive() for _ in ids]
        assert [reply["session"] for reply in told] == ["three", "three"]
        assert told[0]["token"] == told[1]["token"]


def test_a_fork_cannot_take_the_name_of_another_session(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "other")
        for name in ("other", "one"):
            error = error_of(talk.ask("fork", session="one", new=name))
            assert error["error"] == "UsageError"
            assert "choose another id" in error["message"]
        assert len(walked(talk, "one")) == 1


def test_the_server_finds_a_name_for_a_fork_without_one(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        told = [talk.ask("fork", session="one") for _ in range(2)]
        assert len({reply["session"] for reply in told} | {"one"}) == 3


def test_a_fork_takes_a_slot_and_is_refused_without_one(line):
    with line(Walk, 1) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        assert error_of(talk.ask("fork", session="one", new="two"))["error"] == "ServerFull"
        late = error_of(talk.ask("fork", session="one", new="two", wait_s=0.01))
        assert late["error"] == "QueueTimeout"
        assert len(walked(talk, "one")) == 1


def test_a_fork_that_waits_for_a_slot_gets_the_next_one(line):
    with line(Walk, 2) as open_talk:
        talk, other = open_talk(), open_talk()
        begin(talk, "one")
        other.open("there")
        waiting = talk.tell("fork", session="one", new="two", wait_s=20)
        behind = talk.tell_step("one", number=1)
        other.ask("close", session="there")
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert replies[waiting]["session"] == "two"
        assert len(replies[behind]["observation"]["value"]) == 1


def test_a_fork_that_waits_can_be_cancelled_and_lets_the_session_go_on(line):
    with line(Walk, 1) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        waiting = talk.tell("fork", session="one", new="two", wait_s=60)
        behind = talk.tell_step("one", number=1)
        cancelling = talk.tell("cancel", target=waiting)
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        assert error_of(replies[waiting])["error"] == "Cancelled"
        assert replies[cancelling]["cancelled"] is True
        assert len(replies[behind]["observation"]["value"]) == 1


def test_closing_the_session_while_its_fork_waits_leaves_nothing(line):
    with line(Walk, 1) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        waiting = talk.tell("fork", session="one", new="two", wait_s=60)
        closing = talk.tell("close", session="one")
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert replies[closing]["ok"] is True
        assert error_of(replies[waiting])["error"] == "SessionLost"
        assert talk.open("three")["slot"]["active_sessions"] == 1


def test_forks_live_on_when_the_session_they_come_from_is_closed(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        walked(talk, "one")
        fork(talk, "one", "two")
        fork(talk, "two", "three")
        talk.ask("close", session="one")
        talk.ask("close", session="two")
        assert len(walked(talk, "three")) == 2


def test_forks_and_restores_go_in_a_batch(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        walked(talk, "one")
        names = ["a", "b", "c"]
        frames = talk.batch(*({"op": "fork", "session": "one", "new": name} for name in names))
        assert sorted(item["session"] for frame in frames for item in frame["results"]) == names
        talk.seq |= dict.fromkeys(names, 0)
        paths = [walked(talk, name, number) for number, name in enumerate(names)]
        assert len({tuple(path) for path in paths}) == 3
        talk.batch(*(talk.call("restore", name, source="c") for name in ("one", "a", "b")))
        assert len({tuple(walked(talk, name, 1)) for name in ("one", "a", "b", "c")}) == 1


def test_a_restore_is_counted_and_executes_once(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        fork(talk, "one", "kept")
        restore(talk, "one", "kept")
        walked(talk, "kept")
        talk.seq["one"] -= 1
        assert restore(talk, "one", "kept")["ok"] is True  # the stored reply
        assert len(walked(talk, "one")) == 1
        gap = error_of(talk.ask("restore", session="one", seq=99, source="kept"))
        assert gap["error"] == "SequenceError"


def test_sessions_cannot_wait_for_each_other(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "two", 4)
        walked(talk, "two")
        assert "waits for it in turn" in error_of(restore(talk, "one", "one"))["message"]
        talk.tell_step("two", "wait")
        assert Walk.waiting.wait(20)
        there = talk.tell(**talk.call("restore", "one", source="two"))
        back = talk.tell(**talk.call("restore", "two", source="one"))
        Walk.gate.set()
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        assert replies[there]["ok"] is True or replies[back]["ok"] is True
        assert len(walked(talk, "one")) in (3, 1)


def test_a_circle_of_restores_is_refused_where_it_would_close(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        for name in ("a", "b"):
            begin(talk, name)
        talk.tell_step("a", "wait")
        assert Walk.waiting.wait(20)
        # b waits for a, which is to wait for b when its step has ended.
        first = talk.tell(**talk.call("restore", "a", source="b"))
        second = talk.tell(**talk.call("restore", "b", source="a"))
        talk.ask("heartbeat")  # both have arrived
        Walk.gate.set()
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        assert [replies[number].get("ok") for number in (first, second)].count(True) == 1
        refused = next(replies[number] for number in (first, second) if "error" in replies[number])
        assert "restore one after the other" in error_of(refused)["message"]


def test_a_restore_from_what_is_not_there_says_so_and_the_session_lives(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        error = error_of(restore(talk, "one", "nobody"))
        assert error["error"] == "UsageError"
        assert "worker process" in error["message"]
        assert len(walked(talk, "one")) == 1


def test_a_source_that_is_closed_meanwhile_fails_the_restore_alone(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "two")
        stepping = talk.tell_step("two", "wait")
        assert Walk.waiting.wait(20)
        restoring = talk.tell(**talk.call("restore", "one", source="two"))
        closing = talk.tell("close", session="two")
        replies = {reply["id"]: reply for reply in (talk.receive() for _ in range(3))}
        Walk.gate.set()
        assert error_of(replies[stepping])["error"] == "SessionLost"
        assert error_of(replies[restoring])["error"] == "UsageError"
        assert replies[closing]["ok"] is True
        assert len(walked(talk, "one")) == 1


def test_a_restore_can_be_late_and_cancelled_while_it_waits_for_its_source(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "two")
        stepping = talk.tell_step("two", "wait")
        assert Walk.waiting.wait(20)
        late = talk.tell(**talk.call("restore", "one", source="two", deadline_s=0.01))
        reply = talk.receive()
        assert (reply["id"], error_of(reply)["error"]) == (late, "StepTimeout")
        cancelled = talk.tell(**talk.call("restore", "one", source="two"))
        talk.tell("cancel", target=cancelled)
        answers = [talk.receive(), talk.receive()]
        assert error_of(next(each for each in answers if each["id"] == cancelled))["error"] == "Cancelled"
        Walk.gate.set()
        assert talk.receive()["id"] == stepping
        assert len(walked(talk, "one")) == 1


def test_a_session_of_another_connection_is_restored_from_with_its_token_alone(line):
    with line(Walk) as open_talk:
        talk, other = open_talk(), open_talk()
        begin(talk, "one")
        other.open("two", token=OTHER_TOKEN)
        other.ask(**other.call("reset", "two", kwargs={"seed": 9}))
        path = walked(other, "two", 7)
        for token in (None, TOKEN):
            assert error_of(restore(talk, "one", "two", token=token))["error"] == "Forbidden"
        assert restore(talk, "one", "two", token=OTHER_TOKEN)["ok"] is True
        assert walked(talk, "one")[:1] == path


def test_a_fork_is_attached_to_like_any_session(line):
    with line(Walk) as open_talk:
        talk, other = open_talk(), open_talk()
        begin(talk, "one")
        fork(talk, "one", "two", token=TOKEN)
        attached = other.ask("attach", session="two", token=TOKEN)
        assert (attached["state"], attached["seq"]) == ("live", 0)
        assert talk.receive()["event"] == "session_lost"
        other.seq["two"] = 0
        assert len(walked(other, "two")) == 1
        assert len(walked(talk, "one")) == 1


def test_bad_requests_are_refused_and_harm_nothing(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        for fields in ({"new": "no such name"}, {"new": "x", "token": "short"}, {"wait_s": -1}, {"seq": 1}):
            assert error_of(talk.ask("fork", session="one", **fields))["error"] == "InvalidAction"
        assert error_of(talk.ask("fork", session="nobody"))["error"] == "UnknownSession"
        assert error_of(talk.ask("restore", session="one", source="one"))["error"] == "InvalidAction"
        assert len(walked(talk, "one")) == 1


def test_the_state_of_a_fork_counts_as_its_source(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.ask(**talk.call("reset", "one", kwargs={"seed": 1, "episode_id": "an episode"}))
        walked(talk, "one")
        fork(talk, "one", "two")
        assert SessionState.LIVE.value == talk.ask("attach", session="two", token=token_of(talk, "two"))["state"]


def token_of(talk: Talk, name: str) -> str:
    return str(talk.ask("fork", session="one", new=name)["token"])


class Resetting(Saving):
    """Begins anew before it loads, as many do."""

    def load_state(self, state: Any) -> None:
        self.reset()
        self.rng.random()
        super().load_state(state)


def test_what_load_state_does_itself_leaves_the_random_numbers_as_they_were_saved(line):
    with line(Resetting) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        fork(talk, "one", "two")
        assert walked(talk, "two") == walked(talk, "one")


@pytest.mark.parametrize("environment", [Walk, Saving])
def test_without_a_seed_the_random_numbers_go_on_too(line, environment):
    with line(environment) as open_talk:
        talk = open_talk()
        talk.open("one")
        talk.ask(**talk.call("reset", "one"))
        fork(talk, "one", "two")
        assert walked(talk, "two") == walked(talk, "one")


class Slotted(Walk):
    __slots__ = ("place",)

    def do_ok(self, action: Any) -> Any:
        self.place = getattr(self, "place", 0) + 1
        observation = super().do_ok(action)
        return observation.model_copy(update={"value": [self.place]})


def test_slots_are_part_of_the_state(line):
    with line(Slotted) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        walked(talk, "one")
        fork(talk, "one", "two")
        assert walked(talk, "two") == [2]
        restore(talk, "two", "one")
        assert walked(talk, "two") == [2]


def test_a_late_restore_leaves_its_session_free_though_the_source_is_busy(line):
    with line(Walk) as open_talk:
        talk = open_talk()
        begin(talk, "one")
        begin(talk, "two")
        stepping = talk.tell_step("two", "wait")
        assert Walk.waiting.wait(20)
        late = error_of(restore(talk, "one", "two", deadline_s=0.01))
        assert late["error"] == "StepTimeout"
        assert len(walked(talk, "one")) == 1
        restoring = talk.tell(**talk.call("restore", "one", source="two"))
        Walk.gate.set()
        replies = {reply["id"]: reply for reply in (talk.receive(), talk.receive())}
        assert set(replies) == {stepping, restoring}
        assert replies[restoring]["ok"] is True
        assert len(walked(talk, "one")) == 2
