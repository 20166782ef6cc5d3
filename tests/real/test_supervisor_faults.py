"""`openenv serve --workers N` whose processes are killed, stand still, or are asked about one another."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ..cli.process import serving
from ..server.workers.whereabouts import Caller, eventually, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

# What the machine of a test may take longer than the rule says.
BUSY_S = 10.0


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return whereabouts(tmp_path)


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


class Seat:
    """A v2 caller with one open session."""

    def __init__(self, url, session, query=""):
        self.caller = Caller(url, query, "openenv.v2.json", reset=False)
        self.hello = self.caller.hear()
        assert self.hello["event"] == "hello"
        self.session, self.last = session, 0

    def ask(self, op, **fields):
        self.last += 1
        self.caller.say({"id": self.last, "op": op, "session": self.session, **fields})

    def do(self, op, **fields):
        self.ask(op, **fields)
        return self.caller.hear()


@pytest.fixture
def sit():
    """Makes seats, whose callers hang up in the end."""
    with ExitStack() as stack:

        def make(*arguments):
            seat = Seat(*arguments)
            stack.callback(seat.caller.hang_up)
            return seat

        yield make


def stand_at(gate, caller):
    """Begins a step that does not come back."""
    caller.pid()
    caller.step(gate=str(gate))
    eventually(Path(f"{gate}.reached").exists)


def gone(*pids):
    """Whether these processes have ended; one that nobody has reaped has."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                return False
    return True


def port_of(url):
    return int(re.search(r":(\d+)$", url)[1])


class TestParent:
    @pytest.mark.parametrize("execution", ["thread", "inline"])
    def test_workers_end_with_their_parent_whatever_their_environments_do(self, tmp_path, target, gate, execution):
        whereabouts(tmp_path, execution)
        with serving(target, "--workers", "2") as server, Caller(server.url) as stuck, Caller(server.url) as idle:
            idle.pid()
            stand_at(gate, stuck)
            workers = workers_of(server.pid)
            os.kill(server.pid, signal.SIGKILL)
            killed = time.monotonic()
            eventually(lambda: gone(*workers))
            assert time.monotonic() - killed < 2.0 + BUSY_S
            socket.create_server(("127.0.0.1", port_of(server.url))).close()
            server.end(signal.SIGKILL)
            assert server.group() == []

    def test_a_worker_that_is_still_starting_ends_too(self, tmp_path, target):
        module = (tmp_path / "whereabouts.py").read_text()
        with serving(target, "--workers", "2") as server:
            here = tmp_path / "starting"
            slow = f"import pathlib, time\npathlib.Path({str(here)!r}).touch()\ntime.sleep(600)\n"
            (tmp_path / "whereabouts.py").write_text(slow + module)
            os.kill(server.pid, signal.SIGHUP)
            eventually(here.exists)
            workers = workers_of(server.pid)
            assert len(workers) == 3
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: gone(*workers))
            server.end(signal.SIGKILL)


class TestWorker:
    def test_it_is_replaced_soon_and_its_connections_end_at_once(self, target, sit):
        with serving(target, "--workers", "2") as server, ExitStack() as calls:
            callers = [calls.enter_context(Caller(server.url)) for _ in range(10)]
            places = [caller.pid() for caller in callers]
            before, victim = workers_of(server.pid), places[0]
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            for caller, place in zip(callers, places, strict=True):
                if place == victim:
                    assert caller.hear() is None
            assert time.monotonic() - killed < BUSY_S
            eventually(lambda: set(workers_of(server.pid)) - set(before))
            for caller, place in zip(callers, places, strict=True):
                if place != victim:
                    caller.step()
                    assert caller.pid() == place

    def test_a_connection_to_one_that_has_just_died_is_answered_by_another(self, target, sit):
        with serving(target, "--workers", "2") as server:
            first, second = (sit(server.url, name) for name in "ab")
            for seat in (first, second):
                seat.do("open")
            victim = first.do("reset", seq=1)["observation"]["pid"]
            # The parent learns of the death and of the connections in one turn.
            os.kill(server.pid, signal.SIGSTOP)
            os.kill(victim, signal.SIGKILL)
            with ExitStack() as calls:
                query, proto = f"worker={first.hello['worker']}", "openenv.v2.json"
                callers = [calls.enter_context(Caller(server.url, query, proto, reset=False)) for _ in range(8)]
                os.kill(server.pid, signal.SIGCONT)
                answers = [caller.hear() for caller in callers]
                assert {answer["worker"] for answer in answers} == {second.hello["worker"]}


class TestQueue:
    def test_newcomers_are_served_in_their_order_over_all_workers(self, target, sit):
        with serving(target, "--workers", "3", "--max-sessions", "1", "--queue-timeout", "25") as server:
            first = sit(server.url, "s0")
            assert first.do("open")["ok"]
            line = []
            for number in range(1, 10):
                line.append(sit(server.url, f"s{number}"))
                line[-1].ask("open")
                eventually(lambda number=number: queued(server.url) == number)
            assert len({seat.hello["worker"] for seat in line}) > 1
            for seat in line:
                assert first.do("close")["ok"]
                assert seat.caller.hear()["ok"]
                assert queued_behind(line, seat)
                first = seat

    def test_nobody_is_forgotten_when_the_worker_of_the_first_dies(self, target, sit):
        with serving(target, "--workers", "3", "--max-sessions", "1", "--queue-timeout", "25") as server:
            holder, doomed, last = seats = [sit(server.url, name) for name in "abc"]
            assert len({seat.hello["worker"] for seat in seats}) == 3
            pids = {}
            for seat in seats:
                assert seat.do("open")["ok"]
                pids[seat.session] = seat.do("reset", seq=1)["observation"]["pid"]
                assert seat.do("close")["ok"]
            assert holder.do("open")["ok"]
            doomed.ask("open")
            eventually(lambda: queued(server.url) == 1)
            last.ask("open")
            eventually(lambda: queued(server.url) == 2)
            os.kill(pids["b"], signal.SIGKILL)
            assert holder.do("close")["ok"]
            assert doomed.caller.hear() is None
            assert last.caller.hear()["ok"]


def queued(url):
    """New sessions that wait, of all workers."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = re.search(r"^openenv_queue_length (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(float(found[1]))


def queued_behind(line, seat):
    """Whether those after one in a line have heard nothing yet."""
    behind = [one.caller for one in line[line.index(seat) + 1 :]]
    return not select.select([one._socket for one in behind], [], [], 0)[0]


class TestStopping:
    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_a_call_that_runs_when_the_grace_is_over_is_answered(self, target, gate, workers, sit):
        # Longer than calls get after it, which must be counted from its end.
        with serving(target, "--workers", workers, OPENENV_GRACE_S="2.2") as server:
            seat = sit(server.url, "mine")
            seat.do("open")
            assert seat.do("reset", seq=1)["ok"]
            seat.ask("step", seq=2, action={"gate": str(gate)})
            eventually(Path(f"{gate}.reached").exists)
            os.kill(server.pid, signal.SIGTERM)
            assert seat.caller.hear()["event"] == "draining"
            over = time.monotonic() + 2.6
            eventually(lambda: time.monotonic() > over)
            gate.touch()
            reply = seat.caller.hear()
            assert (reply["id"], reply["reward"]) == (seat.last, 1.0)
            assert seat.caller.hear()["event"] == "session_lost"
            assert server.end(signal.SIGCONT)[0] == 0

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_sessions_whose_clients_cannot_come_back_do_not_hold_it_up(self, target, workers, sit):
        with serving(target, "--workers", workers, OPENENV_GRACE_S="60") as server:
            seat = sit(server.url, "mine")
            assert seat.do("open")["ok"]
            seat.caller.hang_up()
            eventually(lambda: [line["state"] for line in server.get("/sessions")] == ["detached"])
            assert server.end(signal.SIGTERM)[0] == 0

    def test_clients_come_back_to_a_worker_that_is_being_replaced(self, target, sit):
        with serving(target, "--workers", "2", OPENENV_GRACE_S="60") as server:
            before = workers_of(server.pid)
            seat = sit(server.url, "mine")
            token = seat.do("open")["token"]
            assert seat.do("reset", seq=1)["observation"]["pid"] in before
            os.kill(server.pid, signal.SIGHUP)
            assert seat.caller.hear()["event"] == "draining"
            seat.caller.hang_up()
            eventually(lambda: len(workers_of(server.pid)) == 3)
            again = sit(server.url, "mine", f"worker={seat.hello['worker']}")
            assert again.do("attach", token=token)["seq"] == 1
            assert again.do("step", seq=2, action={})["observation"]["pid"] in before
            assert again.do("close")["ok"]
            eventually(lambda: set(workers_of(server.pid)).isdisjoint(before))


class TestSessions:
    def test_those_of_all_workers_are_listed(self, target, sit):
        with serving(target, "--workers", "3") as server:
            seats = [sit(server.url, f"s{number}") for number in range(12)]
            for seat in seats:
                assert seat.do("open")["ok"]
                assert seat.do("reset", seq=1)["ok"]
            lines = server.get("/sessions")
            assert {line["id"]: line["worker"] for line in lines} == {
                seat.session: seat.hello["worker"] for seat in seats
            }
            assert {(line["state"], line["steps"]) for line in lines} == {("live", 0)}

    def test_a_worker_that_stands_still_is_named(self, target, sit):
        with serving(target, "--workers", "2") as server:
            seats = [sit(server.url, name) for name in "ab"]
            pids = {}
            for seat in seats:
                seat.do("open")
                pids[seat.session] = seat.do("reset", seq=1)["observation"]["pid"]
            os.kill(pids["a"], signal.SIGSTOP)
            try:
                key = seats[1].hello["worker"]
                lines = eventually(lambda: _listed(server.url, key))
            finally:
                os.kill(pids["a"], signal.SIGCONT)
            assert {line["id"]: line["state"] for line in lines} == {"b": "live", None: "unanswered"}
            assert {line["worker"] for line in lines} == {seat.hello["worker"] for seat in seats}


def _listed(url, key):
    """`GET /sessions` on a connection to a certain worker; None where another one got it."""
    import http.client
    import json

    connection = http.client.HTTPConnection("127.0.0.1", port_of(url), timeout=3.0)
    try:
        connection.request("GET", "/sessions")
        return json.loads(connection.getresponse().read())
    except TimeoutError:  # the one that stands still
        return None
    finally:
        connection.close()
