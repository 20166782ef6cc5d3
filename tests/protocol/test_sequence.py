"""Numbered calls in any order of requests, ends and losses: a number executes once, a request is answered once."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openenv.protocol.codecs import Body
from openenv.protocol.sequence import NumberedCall, Sequence


def reply(text: str) -> Body:
    return Body(1, text.encode())


class Calls(RuleBasedStateMachine):
    """A session by hand: the first of `open` executes, the others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = Sequence()
        self.running: NumberedCall | None = None
        self.waiting: list[NumberedCall] = []
        self.requests = 0
        self.unanswered: set[int] = set()
        self.replies: dict[int, tuple[int, Body]] = {}  # by request, with the number of the call
        self.executed: list[int] = []

    @property
    def open(self) -> list[NumberedCall]:
        return [*self.waiting] if self.running is None else [self.running, *self.waiting]

    @rule(ahead=st.sampled_from([-2, -1, 0, 1, 1, 1, 1, 2]))
    def ask(self, ahead):
        seq = self.sequence.accepted + ahead
        self.requests += 1
        asker = (self.requests, None)
        if ahead == 1:
            self.sequence.accepted = seq
            self.waiting.append(NumberedCall(None, seq, asker))
            self.unanswered.add(self.requests)
            return
        found = self.sequence.find(seq, self.open)
        if isinstance(found, Body):
            self.replies[self.requests] = seq, found
        elif found is None:
            assert seq > self.sequence.accepted or seq < self.sequence.completed or self.sequence.last is None
        else:
            assert found.seq == seq
            if found.early_reply is not None:
                self.replies[self.requests] = seq, found.early_reply
            else:
                found.join(asker)
                self.unanswered.add(self.requests)

    @rule()
    def ask_uncounted(self):
        self.requests += 1
        self.waiting.append(NumberedCall(None, 0, (self.requests, None)))
        self.unanswered.add(self.requests)

    @precondition(lambda self: self.running is None and self.waiting)
    @rule()
    def begin(self):
        self.running = self.waiting.pop(0)
        if self.running.early_reply is not None:
            self.conclude(self.running.early_reply)
        elif self.running.seq:
            self.executed.append(self.running.seq)

    @precondition(lambda self: self.running is not None)
    @rule()
    def end(self):
        assert self.running is not None
        self.conclude(self.running.early_reply or reply(f"result of {self.running.seq}"))

    @precondition(lambda self: self.open)
    @rule(place=st.integers(0, 9))
    def give_up(self, place):
        call = self.open[place % len(self.open)]
        if call.early_reply is None:
            call.early_reply = reply(f"{call.seq} was cancelled")
            self.answer(call, call.early_reply)

    @rule()
    def lose_the_connection(self):
        """Those who wait have gone; the running call goes on, for it to be repeated."""
        before = {call.seq for call in self.waiting}
        self.waiting = self.sequence.rewind(self.running, self.waiting)
        assert all(call.early_reply is not None for call in self.waiting)
        assert {call.seq for call in self.waiting} <= before
        if self.running is not None:
            self.running.take_askers()
        self.unanswered.clear()
        # A number that was taken back may have another reply when it is used again.
        self.replies = {n: found for n, found in self.replies.items() if found[0] <= self.sequence.accepted}

    @invariant()
    def numbers_are_consecutive(self):
        numbers = [call.seq for call in self.open if call.seq]
        assert numbers == list(range(self.sequence.completed + 1, self.sequence.accepted + 1))

    @invariant()
    def a_number_executes_once_and_in_order(self):
        assert self.executed == sorted(set(self.executed))

    @invariant()
    def a_number_has_one_reply(self):
        contents: dict[int, Body] = {}
        for seq, body in self.replies.values():
            assert not seq or contents.setdefault(seq, body) == body

    @invariant()
    def who_waits_waits_for_an_open_call(self):
        assert {n for n in self.unanswered if any(call.waits_for(n) for call in self.open)} == self.unanswered

    def conclude(self, body: Body) -> None:
        call, self.running = self.running, None
        assert call is not None
        if call.seq:
            self.sequence.completed, self.sequence.last = call.seq, body
        self.answer(call, body)

    def answer(self, call: NumberedCall, body: Body) -> None:
        for number, _ in call.take_askers():
            self.unanswered.remove(number)
            self.replies[number] = call.seq, body
        assert call.take_askers() == ()


TestCalls = Calls.TestCase


def test_what_was_answered_before_its_turn_keeps_its_number_unless_one_before_it_is_taken_back():
    sequence = Sequence()
    sequence.accepted = 4
    running, cancelled = NumberedCall(None, 1, None), NumberedCall(None, 2, None, early_reply=reply("cancelled"))
    state, fresh = NumberedCall(None, 0, (5, None)), NumberedCall(None, 3, (6, 0))
    late = NumberedCall(None, 4, None, early_reply=reply("late"))

    assert sequence.rewind(running, [cancelled, state, fresh, late]) == [cancelled]
    assert sequence.accepted == 2
