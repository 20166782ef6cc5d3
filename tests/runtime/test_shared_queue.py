"""One queue for several processes: managers that share a table, and messages that take their time."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openenv.errors import QueueTimeout, ServerFull
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import Session, SessionState
from openenv.server import HTTPEnvServer
from openenv.server.workers.table import HELD, SharedSlots, WorkerLoad, WorkerTable
from openenv.settings import ServerSettings
from openenv.types import Action, Observation

from ..asynchronous import Gate, Witness, open_session, until
from ..environments import Gated, InlinePlain

pytestmark = pytest.mark.usefixtures("no_threads_left")

WORKERS = 3
LONG_S = 1000.0


class Server:
    """Workers on one table. What they tell one another waits in `messages` until it is delivered."""

    def __init__(self, most: int, per_key: int | None = None):
        self.table = WorkerTable(WORKERS, holders=3)
        self.per_key = per_key
        self.messages: list[int] = []
        self.dead: set[int] = set()
        self.workers: list[SessionManager] = []
        self.slots: list[SharedSlots] = []
        self.came: list[tuple[int, Session]] = []
        self.admitted: list[int] = []
        limits = Limits(most, queue_timeout_s=LONG_S, max_sessions_per_key=per_key)
        for row in map(self.table.row, range(WORKERS)):
            manager = SessionManager(InlinePlain, limits)
            load = WorkerLoad(row)
            slots = SharedSlots(self.table, row, most, load, self.messages.extend, per_key)
            manager.share(slots)
            self.slots.append(slots)
            self.workers.append(manager)

    def arrive(self, place: int, holder: int = 0) -> Session:
        manager, number = self.workers[place], len(self.came)
        session = manager.create(lambda error: self._heard(number, error), holder=holder)
        self.came.append((place, session))
        manager.open(session)
        return session

    def deliver(self, which: int = 0) -> None:
        self.slots[self.messages.pop(which)].on_free()

    def deliver_all(self) -> None:
        while self.messages:
            self.deliver()

    def die(self, place: int) -> None:
        """A worker is killed; its parent clears its row and wakes all."""
        self.table.row(place).clear()
        self.dead.add(place)
        self.messages[:] = [row for row in [*self.messages, *range(WORKERS)] if row not in self.dead]

    def alive(self, state: SessionState) -> list[Session]:
        return [session for place, session in self.came if place not in self.dead and session.state is state]

    def waiting(self) -> list[int]:
        return [number for number, (_, session) in enumerate(self.came) if session.state is SessionState.STARTING]

    # What a day is made of, each with a number to choose by.

    def on_arrive(self, number: int) -> None:
        if number % WORKERS not in self.dead:
            self.arrive(number % WORKERS, holder=0 if self.per_key is None else number % 3)

    def on_close(self, number: int, state: SessionState = SessionState.LIVE) -> None:
        there = self.alive(state)
        if there:
            there[number % len(there)].close()

    def on_quit(self, number: int) -> None:
        self.on_close(number, SessionState.STARTING)

    def on_deliver(self, number: int) -> None:
        if self.messages:
            self.deliver(number % len(self.messages))

    def on_die(self, number: int) -> None:
        if len(self.dead) < WORKERS - 1 and number % WORKERS not in self.dead:
            self.die(number % WORKERS)

    def _heard(self, number: int, error: object) -> None:
        assert error is None
        self.admitted.append(number)


@pytest.fixture
def server():
    made = []

    def make(*arguments, **options):
        made.append(Server(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.table.close()


async def test_newcomers_get_slots_in_their_order_whichever_worker_they_came_to(server):
    here = server(2)
    holders = [here.arrive(0), here.arrive(1)]
    for place in (2, 1, 0, 1, 2, 0):
        here.arrive(place)
    assert here.waiting() == [2, 3, 4, 5, 6, 7]
    for _ in range(6):
        holders.pop(0).close()
        here.deliver_all()
        holders.append(here.came[here.admitted[-1]][1])
    assert here.admitted == list(range(8))
    for session in holders:
        session.close()


async def test_a_newcomer_does_not_overtake_those_of_other_workers(server):
    here = server(1)
    holder = here.arrive(0)
    waiting = here.arrive(1)
    holder.close()
    # The slot is free and the message that says so is on its way.
    late = here.arrive(0)
    assert (waiting.state, late.state) == (SessionState.STARTING, SessionState.STARTING)
    here.deliver_all()
    assert here.admitted == [0, 1]
    waiting.close()
    here.deliver_all()
    assert here.admitted == [0, 1, 2]
    late.close()


async def test_a_newcomer_that_does_not_wait_is_refused_a_slot_that_somebody_waits_for(server):
    here = server(1)
    holder = here.arrive(0)
    waiting = here.arrive(1)
    holder.close()
    witness = Witness()
    here.workers[0].open(here.workers[0].create(witness.opened), wait_s=0)
    assert [type(error) for error in witness.errors] == [ServerFull]
    here.deliver_all()
    assert waiting.state is SessionState.LIVE
    waiting.close()


async def test_the_next_one_is_served_when_the_first_dies_with_its_worker(server):
    here = server(1)
    holder = here.arrive(0)
    here.arrive(1)
    third = here.arrive(2)
    holder.close()
    here.die(1)  # before it has read that there is a slot
    here.deliver_all()
    assert here.admitted == [0, 2]
    third.close()


async def test_the_next_one_is_served_when_the_first_gives_up(server):
    here = server(1)
    holder = here.arrive(0)
    first, second = here.arrive(1), here.arrive(2)
    holder.close()
    first.close()  # before its worker has read that there is a slot
    here.deliver_all()
    assert here.admitted == [0, 2]
    second.close()


class TestKeys:
    async def test_a_key_that_has_its_share_keeps_nobody_else_waiting(self, server):
        here = server(3, per_key=1)
        greedy = here.arrive(0, holder=1)
        more, other = here.arrive(1, holder=1), here.arrive(1, holder=2)
        assert here.admitted == [0, 2]
        assert more.state is SessionState.STARTING
        greedy.close()
        here.deliver_all()
        assert here.admitted == [0, 2, 1]
        more.close()
        other.close()

    async def test_those_of_one_key_keep_their_order(self, server):
        here = server(9, per_key=1)
        sessions = [here.arrive(place, holder=1) for place in (0, 1, 1, 1)]
        for session in sessions:
            assert session.state is SessionState.LIVE
            session.close()
            here.deliver_all()
        assert here.admitted == [0, 1, 2, 3]

    async def test_the_error_names_the_setting_and_the_share(self):
        manager = SessionManager(InlinePlain, Limits(9, max_sessions_per_key=2))
        for _ in range(2):
            manager.open(manager.create(lambda error: None, holder=5))
        refused = Witness()
        manager.open(manager.create(refused.opened, holder=5))
        (error,) = refused.errors
        assert type(error) is ServerFull
        assert "this API key has 2 open sessions" in error.message
        assert "max_sessions_per_key, OPENENV_MAX_SESSIONS_PER_KEY" in error.message
        assert error.retry_after_s > 0
        other = Witness()
        manager.open(manager.create(other.opened, holder=6))
        assert other.verdicts == [None]
        await manager.aclose()

    async def test_one_that_closes_and_opens_again_at_its_limit_finds_its_own_slot(self):
        closing = Gate()
        manager = SessionManager(partial(Gated, closing=closing), Limits(9, max_sessions_per_key=1))
        first = Witness()
        session = manager.create(first.opened, holder=1)
        manager.open(session)
        await first.heard()
        session.close()
        await closing.reached()
        second = Witness()
        manager.open(manager.create(second.opened, holder=1))
        assert second.verdicts == []
        closing.open()
        await second.heard()
        assert second.verdicts == [None]
        await manager.aclose()


class TestRefusals:
    async def test_a_full_queue(self):
        manager = SessionManager(InlinePlain, Limits(1, queue_timeout_s=LONG_S, queue_limit=2))
        await open_session(manager)
        waiting = [Witness() for _ in range(3)]
        for witness in waiting:
            witness.asks(manager)
        assert [witness.verdicts for witness in waiting[:2]] == [[], []]
        (error,) = waiting[2].errors
        assert type(error) is ServerFull
        assert "2 new sessions wait for a slot (queue_limit, OPENENV_QUEUE_LIMIT)" in error.message
        assert error.retry_after_s > 0
        await manager.aclose()

    def test_the_limits_of_a_server_are_those_of_its_settings(self):
        chosen = {"queue_limit": 7, "max_sessions_per_key": 5, "max_executing": 3, "max_constructing": 2}
        server = HTTPEnvServer(InlinePlain, Action, Observation, settings=ServerSettings(**chosen))
        limits = server.manager.limits
        assert {name: getattr(limits, name) for name in chosen} == chosen

    async def test_it_says_when_to_come_back(self):
        manager = SessionManager(InlinePlain, Limits(1))
        for _ in range(40):  # slots come free all the time
            session, _ = await open_session(manager)
            session.close()
        await open_session(manager)
        quick = Witness()
        quick.asks(manager)
        assert quick.errors[0].retry_after_s < 1.0
        late = Witness()
        manager.open(manager.create(late.opened), wait_s=0.01)
        await late.heard()
        assert type(late.errors[0]) is QueueTimeout
        assert 0 < late.errors[0].retry_after_s <= 60.0
        await manager.aclose()


KINDS = ["arrive", "arrive", "close", "quit", "deliver", "die"]
events = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.sampled_from([None, 1, 2]), events)
def test_nobody_overtakes_and_nobody_is_forgotten(most, per_key, events):
    """Whatever happens in whichever order, and however long messages take."""

    async def day() -> None:
        server = Server(most, per_key)
        for event, number in events:
            getattr(server, f"on_{event}")(number)
            assert len(server.alive(SessionState.LIVE)) == server.table.total(HELD) <= most
            if per_key is None:
                assert server.admitted == sorted(server.admitted)
        server.deliver_all()
        waiting = server.alive(SessionState.STARTING)
        for session in waiting:
            mine = server.table.held_by(session.holder) if session.holder else 0
            assert server.table.total(HELD) == most or (per_key is not None and mine == per_key)
        for session in waiting:
            session.close()
        for manager in server.workers:
            for session in manager.sessions:
                session.close()
        server.table.close()

    asyncio.run(day())


class TestMaking:
    """`max_constructing`: how many environments are made at one time."""

    async def test_further_ones_wait_in_their_order_with_their_slot(self):
        gates = [Gate() for _ in range(4)]
        order = iter(gates)
        manager = SessionManager(lambda: Gated(making=next(order)), Limits(9, max_constructing=2))
        witnesses = [Witness() for _ in range(4)]
        sessions = [witness.asks(manager) for witness in witnesses]
        await gates[0].reached()
        await gates[1].reached()
        assert manager.active == 4
        assert [session.state for session in sessions] == [SessionState.STARTING] * 4
        assert [session.executor is None for session in sessions] == [False, False, True, True]
        gates[1].open()  # whoever of the first two stands there
        await until(lambda: [None] in [witness.verdicts for witness in witnesses[:2]])
        await gates[2].reached()
        assert [session.executor is None for session in sessions[2:]] == [False, True]
        for gate in gates:
            gate.open()
        await until(lambda: [witness.verdicts for witness in witnesses] == [[None]] * 4)
        await manager.aclose()

    async def test_one_that_is_closed_while_it_waits_gives_its_slot_back_and_is_not_made(self):
        gate, made = Gate(), []

        def make():
            made.append(1)
            return Gated(making=gate)

        manager = SessionManager(make, Limits(9, max_constructing=1))
        first, second, third = Witness(), Witness(), Witness()
        first.asks(manager)
        quitter = second.asks(manager)
        third.asks(manager)
        await gate.reached()
        quitter.close()
        assert (quitter.state, manager.active) == (SessionState.GONE, 2)
        gate.open()
        await third.heard()
        assert (len(made), second.verdicts) == (2, [])
        await manager.aclose()

    async def test_constructors_that_fail_let_the_next_one_in(self):
        def broken():
            raise LookupError("the disk is full")

        manager = SessionManager(broken, Limits(9, max_constructing=1))
        witnesses = [Witness() for _ in range(5)]
        for witness in witnesses:
            witness.asks(manager)
        for witness in witnesses:
            await witness.heard()
        await until(lambda: manager.active == 0)


class TestExecuting:
    """`max_executing`: how many calls run at one time."""

    async def test_further_calls_wait_and_count_as_in_flight(self):
        gates = [Gate() for _ in range(3)]
        order = iter(gates)
        manager = SessionManager(lambda: Gated(stepping=next(order)), Limits(9, max_executing=1))
        sessions = [(await open_session(manager))[0] for _ in range(3)]
        answers: list[int] = []
        for number, session in enumerate(sessions):
            session.call(lambda environment, _: environment.step(None), None, partial(self._note, answers, number))
        assert [session.state for session in sessions] == [SessionState.EXECUTING] * 3
        assert [session.idle_since for session in sessions] == [None] * 3
        await gates[0].reached()
        for gate in gates:
            gate.open()
        await until(lambda: len(answers) == 3)
        assert answers == [0, 1, 2]
        await manager.aclose()

    @staticmethod
    def _note(answers, number, result, error):
        answers.append(number)

    async def test_one_that_is_cancelled_while_it_waits_is_never_run(self):
        gate, ran = Gate(), []
        manager = SessionManager(lambda: Gated(stepping=gate), Limits(9, max_executing=1))
        (first, _), (second, _) = await open_session(manager), await open_session(manager)
        answers: list[int] = []
        first.call(lambda environment, _: environment.step(None), None, partial(self._note, answers, 0))
        second.call(lambda environment, _: ran.append(1), None, partial(self._note, answers, 1))
        await gate.reached()
        assert second.cancel()
        assert (answers, second.state) == ([1], SessionState.LIVE)
        gate.open()
        await until(lambda: len(answers) == 2)
        assert ran == []
        await manager.aclose()

    async def test_a_call_that_hangs_gives_its_place_back_when_it_is_given_up(self):
        gate = Gate()
        manager = SessionManager(lambda: Gated(stepping=gate), Limits(9, max_executing=1))
        (first, _), (second, _) = await open_session(manager), await open_session(manager)
        answers: list[int] = []
        first.call(lambda environment, _: environment.step(None), None, partial(self._note, answers, 0))
        second.call(lambda environment, _: None, None, partial(self._note, answers, 1))
        await gate.reached()
        assert not first.stop()
        await until(lambda: answers == [1])
        gate.open()
        await until(lambda: first.executor is None)  # its thread ends; what returns after the loop's end is not heard
        assert (manager.active, manager.gate.inside) == (1, 0)
        await manager.aclose()
