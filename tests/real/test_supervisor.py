"""`openenv serve --workers N`: sessions over several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ..cli.process import Serving, serving
from ..server.workers.whereabouts import Caller, eventually, open_files, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return whereabouts(tmp_path)


def place_of_one(url):
    """Where a session of a caller that hangs up at once was."""
    with Caller(url) as caller:
        return caller.pid()


def refusal(reply):
    return reply["data"].get("error") if reply["type"] == "error" else None


@pytest.mark.parametrize("workers", [2, 3])
def test_a_full_server_refuses_exactly_the_surplus(target, workers):
    with serving(target, "--workers", str(workers), "--max-sessions", "20") as server, ExitStack() as calls:
        assert f"{workers} workers" in server.announcement
        assert "up to 20 sessions ·" in server.announcement
        callers = [calls.enter_context(Caller(server.url)) for _ in range(31)]
        verdicts = Counter(refusal(caller.hear()) for caller in callers)
        assert verdicts == {None: 20, "ServerFull": 11}
        # What is given back can be had again, and no more than that.
        calls.close()
        callers = [calls.enter_context(Caller(server.url)) for _ in range(21)]
        verdicts = Counter(refusal(caller.hear()) for caller in callers)
        # One that came while sessions were closing has waited for their slots.
        assert (verdicts[None], verdicts["ServerFull"] + verdicts["QueueTimeout"]) == (20, 1)


def test_one_session_for_the_whole_server(target):
    with serving(target, "--workers", "2", "--max-sessions", "1") as server:
        assert "up to 1 session ·" in server.announcement
        with Caller(server.url) as first:
            first.pid()
            with Caller(server.url) as second:
                assert refusal(second.hear()) == "ServerFull"


def test_a_newcomer_waits_for_a_slot_of_another_worker(target):
    with serving(target, "--workers", "2", "--max-sessions", "2", "--queue-timeout", "25") as server:
        with Caller(server.url) as first, Caller(server.url) as second:
            places = {first.pid(), second.pid()}
            assert len(places) == 2
            with Caller(server.url) as third, Caller(server.url) as fourth:
                # Equal loads: each worker got one of the two, whoever's slot it is that comes free.
                first.hang_up()
                second.hang_up()
                assert {third.pid(), fourth.pid()} <= places


def test_everybody_who_waits_gets_a_turn(target):
    with (
        serving(target, "--workers", "3", "--max-sessions", "2", "--queue-timeout", "25") as server,
        ThreadPoolExecutor(100) as threads,
    ):
        places = list(threads.map(place_of_one, [server.url] * 100))
        assert set(places) == set(workers_of(server.pid))


def test_a_storm_is_spread_evenly(target):
    with serving(target, "--workers", "3") as server, ExitStack() as calls:
        callers = [calls.enter_context(Caller(server.url)) for _ in range(200)]
        counts = Counter(caller.pid() for caller in callers)
        assert sorted(counts) == workers_of(server.pid)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_newcomers_go_where_others_have_left(target):
    with serving(target, "--workers", "2") as server, ExitStack() as calls:
        callers = [calls.enter_context(Caller(server.url)) for _ in range(20)]
        places = [caller.pid() for caller in callers]
        left = places[0]
        for caller, place in zip(callers, places, strict=True):
            if place == left:
                caller.say({"type": "close"})
                assert caller.hear() is None
        eventually(lambda: len(server.get("/sessions")) == 10)
        eventually(lambda: connections_of(server.url) == 10)
        assert [calls.enter_context(Caller(server.url)).pid() for _ in range(10)] == [left] * 10


def test_connections_that_come_to_nothing_weigh_nothing(target):
    with serving(target, "--workers", "2") as server, ExitStack() as calls:
        for _ in range(5):
            assert server.get("/health") == {"status": "healthy"}
            Caller(server.url, reset=False).hang_up()
        eventually(lambda: connections_of(server.url) == 0)
        counts = Counter(calls.enter_context(Caller(server.url)).pid() for _ in range(20))
        assert set(counts.values()) == {10}


def connections_of(url):
    """How many connections a server has not closed on its side. A client that has hung up learns nothing of that."""
    port = f":{int(url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] in {"01", "08"} for row in rows)  # open, or only by this side


def key_of(url, query=""):
    with Caller(url, query, "openenv.v2.json", reset=False) as caller:
        hello = caller.hear()
    assert hello["event"] == "hello"
    return hello["worker"]


def test_a_connection_reaches_the_worker_that_its_url_names(target):
    with serving(target, "--workers", "3") as server:
        keys = {key_of(server.url) for _ in range(3)}
        assert len(keys) == 3
        for key in keys:
            assert [key_of(server.url, f"worker={key}") for _ in range(4)] == [key] * 4
        for nobody in ("7", "0", "-1", "x", "f" * 40):
            assert key_of(server.url, f"worker={nobody}") in keys
        for key in keys:
            assert {key_of(server.url, f"worker={other}") for other in (f"00{key}", f"0x{key}", f"+{key}")} <= keys


def test_a_session_that_names_its_worker_is_counted_there(target):
    with serving(target, "--workers", "2") as server, ExitStack() as calls:
        key = key_of(server.url)
        places = [calls.enter_context(Caller(server.url, f"worker={key}")).pid() for _ in range(10)]
        assert len(set(places)) == 1
        others = [calls.enter_context(Caller(server.url)).pid() for _ in range(10)]
        assert set(others) == set(workers_of(server.pid)) - set(places)


def test_a_worker_that_is_killed_takes_only_its_own_sessions_with_it(target):
    with (
        serving(target, "--workers", "2", "--max-sessions", "8", "--queue-timeout", "25") as server,
        ExitStack() as calls,
    ):
        callers = [calls.enter_context(Caller(server.url)) for _ in range(8)]
        places = [caller.pid() for caller in callers]
        victim = places[0]
        os.kill(victim, signal.SIGKILL)
        for caller, place in zip(callers, places, strict=True):
            if place == victim:
                assert caller.hear() is None
            else:
                caller.step()
                assert caller.pid() == place
        # Its slots are free again, and its place is taken by another process.
        assert all(calls.enter_context(Caller(server.url)).pid() != victim for _ in range(4))
        replaced = eventually(lambda: victim not in (now := workers_of(server.pid)) and len(now) == 2 and now)
        for caller in callers:
            caller.hang_up()
        new = (set(replaced) - set(places)).pop()
        eventually(lambda: place_of_one(server.url) == new)


def test_connections_that_a_dead_worker_had_not_taken_in_go_to_others(target):
    with serving(target, "--workers", "2") as server, ExitStack() as calls:
        victim, _ = workers_of(server.pid)
        os.kill(victim, signal.SIGSTOP)
        callers = [calls.enter_context(Caller(server.url)) for _ in range(20)]
        spared = eventually(lambda: waiting_in(server.pid) == 0)
        assert spared
        os.kill(victim, signal.SIGKILL)
        assert victim not in {caller.pid() for caller in callers}


def waiting_in(pid):
    """Connections that wait in the backlog of the one listening socket of a server."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(str(entry.readlink()).removeprefix("socket:[").rstrip("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (queue,) = [row[4].split(":")[1] for row in rows if row[3] == "0A" and row[9] in inodes]
    return int(queue, 16)


def test_a_worker_whose_event_loop_stands_still_is_replaced(tmp_path, target):
    whereabouts(tmp_path, "inline")
    with (
        serving(target, "--workers", "2", OPENENV_WORKER_SILENCE_S="4") as server,
        Caller(server.url) as stuck,
        Caller(server.url) as other,
    ):
        place, elsewhere = stuck.pid(), other.pid()
        stuck.step(gate=str(tmp_path / "never"))
        assert stuck.hear() is None
        eventually(lambda: place not in (now := workers_of(server.pid)) and len(now) == 2)
        other.step()
        assert other.pid() == elsewhere
        _, complaints = server.end(signal.SIGINT)
        assert f"worker {place} was silent for more than 4 s (worker_silence_s)" in complaints


def test_a_server_whose_workers_die_again_and_again_gives_up(target):
    with serving(target, "--workers", "2", OPENENV_WORKER_RESTARTS="2") as server:
        for _ in range(3):
            victim = place_of_one(server.url)
            os.kill(victim, signal.SIGKILL)
            eventually(lambda victim=victim: victim not in workers_of(server.pid))
        code, complaints = server.end(signal.SIGCONT)
        assert code == 1
        assert "error: worker processes died more than 2 times within a minute (worker_restarts)" in complaints
        assert server.group() == []


def test_nothing_is_left_in_the_parent(target):
    with serving(target, "--workers", "2") as server:
        before = open_files(server.pid)
        with ExitStack() as calls:
            for caller in [calls.enter_context(Caller(server.url)) for _ in range(50)]:
                caller.pid()
            # A worker may answer before the parent has closed its copy.
            eventually(lambda: open_files(server.pid) == before)
            victim, _ = workers_of(server.pid)
            os.kill(victim, signal.SIGKILL)
            eventually(lambda: victim not in (now := workers_of(server.pid)) and len(now) == 2)
        with Caller(server.url) as caller:
            caller.pid()
        eventually(lambda: open_files(server.pid) == before)


def test_without_a_parent_there_are_no_workers(target):
    with serving(target, "--workers", "3") as server, Caller(server.url) as caller:
        caller.pid()
        os.kill(server.pid, signal.SIGKILL)
        assert caller.hear()["data"]["error"] == "SessionLost"
        assert caller.hear() is None
        server.end(signal.SIGKILL)
        assert server.group() == []


def test_connections_wait_where_a_process_may_not_open_more_files(target):
    limited = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-m", "openenv"]
    process = subprocess.Popen(
        [*limited, "serve", target, "--workers", "2", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    server = Serving(process)
    callers = [Caller(server.url) for _ in range(250)]
    for caller in callers:
        with caller:
            caller.pid()
    eventually(lambda: server.get("/sessions") == [])
    eventually(lambda: connections_of(server.url) == 0)
    with ExitStack() as calls:
        counts = Counter(calls.enter_context(Caller(server.url)).pid() for _ in range(40))
        assert set(counts.values()) == {20}
    code, complaints = server.end(signal.SIGTERM)
    assert code == 0
    # Either a worker has said so or the parent, whichever ran out first.
    assert "ulimit -n" in complaints
