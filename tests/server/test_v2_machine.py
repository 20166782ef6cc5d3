"""Whatever connections do with a session, in any order: a number executes once, a request is answered once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openenv.environment import Environment
from openenv.runtime.session import SessionState
from openenv.server import create_app
from openenv.settings import ServerSettings
from openenv.types import Action, Observation, State

from .scripted import TOKEN, End

pytestmark = pytest.mark.slow

SUBPROTOCOLS = ("openenv.v2.json", "openenv.v2.msgpack")
MAX_CONNECTIONS = 4
MAX_SESSIONS = 2
PATIENCE_S = 20
# Such a reply says that the call was not taken, or that its session is not there for who asked.
NOT_TAKEN = {"SequenceError", "SessionLost", "TooManyCalls", "Unauthorized", "UnknownSession"}


class Move(Action):
    session: str
    seq: int
    wait: bool = False


class Seen(Observation):
    seq: int = 0
    count: int = 0


class Counting(Environment[Move, Seen, State]):
    """Counts its steps; one of them may wait to be let go on."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"
    executed: list[tuple[str, int]]
    gates: dict[str, Any]  # of the steps that wait, by their session

    def __init__(self) -> None:
        self._count = 0

    def reset(self, seed: int | None = None) -> Seen:
        return Seen()

    def step(self, action: Move) -> Seen:
        return self._counted(action)

    def _counted(self, action: Move) -> Seen:
        self._count += 1
        Counting.executed.append((action.session, action.seq))
        return Seen(seq=action.seq, count=self._count)

    @property
    def state(self) -> State:
        return State(step_count=self._count)


class CountingOnThread(Counting):
    execution = "thread"

    def step(self, action: Move) -> Seen:
        seen = self._counted(action)
        if action.wait:
            gate = Counting.gates[action.session] = threading.Event()
            gate.wait(PATIENCE_S)
        return seen


class CountingOnLoop(Counting):
    execution = None  # chosen: it is asynchronous

    async def reset_async(self, seed: int | None = None) -> Seen:
        return Seen()

    async def step_async(self, action: Move) -> Seen:
        seen = self._counted(action)
        if action.wait:
            gate = Counting.gates[action.session] = asyncio.Event()
            try:
                await gate.wait()
            finally:
                Counting.gates.pop(action.session, None)
        return seen


class Seats(RuleBasedStateMachine):
    """Some connections and sessions of one server.

    Times do not pass by themselves: that a deadline or a window is over is a step of the machine.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.ends: list[End] = []
        self.cut_off: list[End] = []
        # Of each connection, by id: the operation, and the calls in it as session and number (0 for none).
        self.asked: dict[End, dict[int, tuple[str, list[tuple[str, int]]]]] = {}
        self.names: list[str] = []
        self.timed: dict[str, bool] = {}

    @initialize(kind=st.sampled_from([Counting, CountingOnThread, CountingOnLoop]), gate=st.booleans())
    def start(self, kind, gate):
        Counting.executed, Counting.gates = [], {}
        limits = {"max_executing": 1} if gate else {}
        read = ServerSettings.read({}, resume_window_s=3600, max_in_flight=3, **limits)
        app = create_app(kind, Move, Seen, max_concurrent_envs=MAX_SESSIONS, settings=read)
        self.server = app.state.openenv
        self.manager = self.server.manager
        self.connect("openenv.v2.json")

    # What happens.

    @precondition(lambda self: len(self.ends) < MAX_CONNECTIONS)
    @rule(subprotocol=st.sampled_from(SUBPROTOCOLS))
    def connect(self, subprotocol):
        def connect() -> None:
            self.ends.append(End(self.server, subprotocol))

        self.do(connect)
        self.asked[self.ends[-1]] = {}

    @precondition(lambda self: len(self.ends) > 1)
    @rule(which=st.integers(0, 99))
    def cut(self, which):
        end = self.ends.pop(which % len(self.ends))
        self.cut_off.append(end)
        self.do(end.cut)

    @precondition(lambda self: len(self.manager.sessions) < MAX_SESSIONS)
    @rule(which=st.integers(0, 99), timed=st.booleans())
    def open(self, which, timed):
        name = f"s{len(self.names)}"
        self.names.append(name)
        self.timed[name] = timed
        self.tell(which, "open", [(name, 0)], session=name, token=TOKEN, wait_s=0)

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99), again=st.booleans())
    def attach(self, which, again):
        op = "open" if again and self.manager.find(self.names[-1]) else "attach"
        self.tell(which, op, [(self.names[-1], 0)], session=self.names[-1], token=TOKEN)

    @precondition(lambda self: self.names)
    @rule(
        which=st.integers(0, 99), older=st.booleans(), ahead=st.sampled_from([-1, 0, 1, 1, 1, 2]), wait=st.booleans()
    )
    def step(self, which, older, ahead, wait):
        name = self.name(older)
        call = self.call(name, self.accepted(name) + ahead, wait)
        self.tell(which, asked=[(name, call["seq"])], **call)

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99))
    def ask_state(self, which):
        self.tell(which, "state", [(self.names[-1], 0)], session=self.names[-1])

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99), wait=st.booleans(), min_ready=st.sampled_from([None, 1]))
    def batch(self, which, wait, min_ready):
        calls = []
        for name in self.names[-2:]:
            begin = self.accepted(name)
            calls += [self.call(name, begin + ahead, wait) for ahead in (1, 2, 0)]
        counted = [(call["session"], call["seq"]) for call in calls]
        self.tell(which, "batch", counted, calls=calls, min_ready=min_ready)

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99), waiting=st.booleans())
    def cancel(self, which, waiting):
        """Gives up the first call without a reply, or the one behind it: those that a client with care may."""
        end = self.ends[which % len(self.ends)]
        open_ones = [number for number in self.open_requests(end) if self.asked[end][number][0] == "step"]
        if waiting and len(open_ones) > 1:
            first, second = (self.asked[end][number][1][0] for number in open_ones[:2])
            if first[0] == second[0] and first in Counting.executed and second[1] == first[1] + 1:
                del open_ones[0]
        if open_ones:
            self.tell(which, "cancel", [], target=open_ones[0])

    @precondition(lambda self: Counting.gates)
    @rule(which=st.integers(0, 99))
    def let_go_on(self, which):
        names = sorted(Counting.gates)
        self.do(Counting.gates.pop(names[which % len(names)]).set)

    @precondition(lambda self: self.names)
    @rule(older=st.booleans())
    def deadlines_are_over(self, older):
        v2_session = self.v2_session(self.name(older))
        if v2_session is not None:
            self.do(lambda: v2_session.look(float("inf")))

    @precondition(lambda self: self.cut_off)
    @rule(which=st.integers(0, 99))
    def window_is_over(self, which):
        table = self.cut_off.pop(which % len(self.cut_off)).connection._table
        if table._leaving is not None:
            table._leaving.cancel()
            self.do(table._leave)
            assert all(v2_session._ends_after_call for v2_session in table.v2_sessions.values())

    @precondition(lambda self: self.names)
    @rule(which=st.integers(0, 99), older=st.booleans())
    def close(self, which, older):
        name = self.name(older)
        self.tell(which, "close", [(name, 0)], session=name)

    # What always holds.

    @invariant()
    def a_number_executes_once_and_in_order(self):
        assert all(times == 1 for times in Counter(Counting.executed).values()), Counting.executed
        for name in self.names:
            numbers = [seq for session, seq in Counting.executed if session == name]
            assert numbers == sorted(numbers)

    @invariant()
    def a_request_has_one_reply_and_a_number_one_content(self):
        contents: dict[tuple[str, int], Any] = {}
        for end, asked in self.asked.items():
            assert end.closed is None
            assert end.replies.keys() <= asked.keys()
            for number, replies in end.replies.items():
                op, calls = asked[number]
                for place, reply in self.results(op, replies):
                    if op in {"step", "batch"}:
                        self.check(calls[place], reply, contents)

    @invariant()
    def nothing_waits_where_nothing_runs(self):
        waited_for = {
            name for name in self.names if (v2_session := self.v2_session(name)) and v2_session.running is not None
        }
        for end in self.ends:
            calls = 0
            for number in self.open_requests(end):
                op, asked = self.asked[end][number]
                assert any(session in waited_for for session, _ in asked), (op, asked)
                calls += len(asked) - len(self.results(op, end.replies.get(number, [])))
            assert end.connection._replies.unanswered == calls

    @invariant()
    def permits_are_those_of_what_runs(self):
        if self.manager.gate is not None:
            executing = [s for s in self.manager.sessions if s.state is SessionState.EXECUTING]
            assert self.manager.gate.waiting == sum(s._held_back is not None for s in executing)
            assert self.manager.gate.inside == sum(s._held_back is None for s in executing) <= 1

    @invariant()
    def who_is_gone_is_detached(self):
        there = {end.connection._table for end in self.ends}
        for name in self.names:
            v2_session = self.v2_session(name)
            if v2_session is not None:
                assert v2_session.session.detached is (v2_session.table not in there)
                assert v2_session.sequence.completed <= v2_session.sequence.accepted

    def teardown(self):
        if hasattr(self, "server"):
            for end in self.ends[1:]:
                self.do(end.cut)
            self.runner.run(self.end())
            assert self.manager.active == self.manager.held == 0
            assert self.manager.gate is None or (self.manager.gate.inside, self.manager.gate.waiting) == (0, 0)
            assert self.server.deadlines._slots == {}
            assert all(end.connection._table._leaving is None for end in self.asked)
            assert all(end.connection._replies.unanswered == 0 for end in self.ends[:1])
            self.a_number_executes_once_and_in_order()
            self.a_request_has_one_reply_and_a_number_one_content()
        self.runner.close()

    # How it is done.

    def tell(self, which: int, op: str, asked: list[tuple[str, int]], **fields: Any) -> None:
        """Sends a request. `asked`: the calls in it."""
        end = self.ends[which % len(self.ends)]
        number = end._last_id + 1
        self.asked[end][number] = (op, asked)
        self.do(lambda: end.tell(op, **fields))

    def do(self, what: Any) -> None:
        async def done() -> None:
            what()
            limit = time.monotonic() + PATIENCE_S
            for _ in range(5):
                await asyncio.sleep(0)
            while not self.settled():
                assert time.monotonic() < limit, [(s.id, s.state) for s in self.manager.sessions]
                await asyncio.sleep(0.0002)

        self.runner.run(done())

    def settled(self) -> bool:
        """Nothing goes on but what waits for the machine."""
        for session in self.manager.sessions:
            busy = session.state not in (SessionState.LIVE, SessionState.DETACHED)
            if busy and session.id not in Counting.gates and session._held_back is None:
                return False
        return True

    async def end(self) -> None:
        closing = asyncio.ensure_future(self.server.aclose())
        while not closing.done():
            for name in list(Counting.gates):
                Counting.gates.pop(name).set()
            await asyncio.sleep(0.0005)
        await closing

    def name(self, older: bool) -> str:
        return self.names[-2 if older and len(self.names) > 1 else -1]

    def v2_session(self, name: str) -> Any:
        session = self.manager.find(name)
        ended = session is None or session.state in (SessionState.CLOSING, SessionState.GONE)
        return None if ended else session.user

    def accepted(self, name: str) -> int:
        v2_session = self.v2_session(name)
        return 0 if v2_session is None else v2_session.sequence.accepted

    def call(self, name: str, seq: int, wait: bool) -> dict[str, Any]:
        seq = max(seq, 1)
        deadline = {"deadline_s": 3600} if self.timed[name] else {}
        return {
            "op": "step",
            "session": name,
            "seq": seq,
            "action": {"session": name, "seq": seq, "wait": wait},
            **deadline,
        }

    def open_requests(self, end: End) -> list[int]:
        return [n for n in self.asked[end] if n not in end.replies or end.replies[n][-1].get("more")]

    def results(self, op: str, replies: list[Any]) -> list[tuple[int, Any]]:
        """Replies to calls, with the places of those; each has at most one."""
        if op != "batch" or any("error" in reply for reply in replies):
            assert len(replies) <= 1
            return [(0, reply) for reply in replies if op != "batch"]
        results = [(result["call"], result) for reply in replies for result in reply["results"]]
        assert len({place for place, _ in results}) == len(results)
        assert [reply["more"] for reply in replies[:-1]] == [True] * (len(replies) - 1)
        return results

    def check(self, call: tuple[str, int], reply: Any, contents: dict[tuple[str, int], Any]) -> None:
        error = reply.get("error", {}).get("error")
        if error in NOT_TAKEN:
            return
        assert error in {None, "Cancelled", "StepTimeout"}, reply
        content = {key: value for key, value in reply.items() if key not in ("id", "call", "session")}
        assert contents.setdefault(call, content) == content
        if error is None:
            done = [executed for executed in Counting.executed if executed[0] == call[0]]
            assert reply["observation"]["seq"] == call[1]
            assert reply["observation"]["count"] == done.index(call) + 1


Seats.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSeats = Seats.TestCase
