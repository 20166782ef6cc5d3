"""`GET /metrics` and logs of `openenv serve`, whatever becomes of its workers."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request

import pytest

from ..cli.process import LIMIT_S, serving
from ..server.test_prometheus import parsed
from ..server.workers.whereabouts import Caller, eventually, whereabouts, workers_of

pytestmark = [pytest.mark.real, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"), pytest.mark.slow]

STEPS = ("openenv_phase_seconds_count", "step")
RESTARTS = ("openenv_worker_restarts_total",)
WORKERS = ("openenv_workers",)
LIVE = ("openenv_sessions", "live")


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return whereabouts(tmp_path)


def scrape(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=LIMIT_S) as answer:
        return parsed(answer.read().decode())


def step(caller):
    caller.step()
    return caller.pid()


def test_any_worker_tells_what_all_have_counted_and_a_dead_one_is_not_forgotten(target):
    with serving(target, "--workers", "2") as server:
        callers = [Caller(server.url) for _ in range(6)]
        places = [caller.pid() for caller in callers]
        for caller in callers:
            for _ in range(5):
                step(caller)
        # Each connection goes to the worker with the least to do, so some scrapes are answered by either.
        found = [scrape(server) for _ in range(4)]
        assert [one[STEPS] for one in found] == [30] * 4
        assert [one[WORKERS] for one in found] == [2] * 4
        eventually(lambda: scrape(server)[LIVE] == 6)
        assert scrape(server)["openenv_slots_held",] == 6
        assert {int(key[1]) for key in scrape(server) if key[0] == "openenv_event_loop_lag_seconds"} == set(
            workers_of(server.pid)
        )
        victim = places[0]
        os.kill(victim, signal.SIGKILL)
        steps = []

        def replaced():
            found = scrape(server)
            steps.append(found[STEPS])
            return found[RESTARTS] == 1 and found[WORKERS] == 2

        eventually(replaced)
        assert set(steps) == {30}
        eventually(lambda: scrape(server)[LIVE] == 6 - places.count(victim))
        survivor = next(caller for caller, place in zip(callers, places, strict=True) if place != victim)
        step(survivor)
        assert scrape(server)[STEPS] == 31
        for caller in callers:
            caller.hang_up()


def test_workers_that_are_replaced_in_order_take_their_counts_along(target):
    with serving(target, "--workers", "2", "--grace", "0.1") as server:
        with Caller(server.url) as caller:
            caller.pid()
            step(caller)
        before = workers_of(server.pid)
        os.kill(server.pid, signal.SIGHUP)
        eventually(lambda: not set(before) & set(workers_of(server.pid)))
        eventually(lambda: scrape(server)[WORKERS] == 2)  # the parent buries them a moment after their end
        found = scrape(server)
        assert (found[STEPS], found[RESTARTS], found[WORKERS]) == (1, 0, 2)


def test_a_server_without_metrics_has_none(target):
    with serving(target, "--no-metrics") as server:
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(server)
        assert refused.value.code == 404
        refused.value.close()


BROKEN = """
import logging
import warnings

from openenv import Action, Environment, Observation, State


class Broken(Environment[Action, Observation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        logging.getLogger("broken").warning("of the\\nenvironment's own")
        warnings.warn("of a library")
        return Observation()

    def step(self, action, timeout_s=None, **kwargs):
        raise ValueError("two\\nlines")

    @property
    def state(self):
        return State()
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_json_logs_are_json_on_every_line(tmp_path, workers):
    (tmp_path / "broken.py").write_text(BROKEN)
    arguments = ("broken:Broken", "--workers", workers, "--log-format", "json", "--max-sessions", "4")
    with serving(*arguments, cwd=tmp_path, OPENENV_GRACE_S="0.1") as server:
        with Caller(server.url, reset=False) as caller:
            caller.say({"type": "reset", "data": {"episode_id": "e1"}})
            caller.hear()
            caller.step()
            caller.hear()
        if workers == "2":
            for pid in workers_of(server.pid)[:1]:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: scrape(server)[RESTARTS] == 1)
        _, complaints = server.end(signal.SIGTERM)
    records = [json.loads(line) for line in [server.announcement, *complaints.splitlines()]]
    assert all({"time", "level", "logger", "message", "pid"} <= set(record) for record in records)
    failed = [record for record in records if "StepFailed" in record["message"]]
    assert [(record["episode"], record["request"]) for record in failed] == [("e1", 2)]
    assert failed[0]["session"] in failed[0]["message"]
    assert "ValueError: two\nlines" in failed[0]["exception"]
    assert "of the\nenvironment's own" in [record["message"] for record in records]
    loggers = {record["logger"] for record in records}
    assert loggers >= {"openenv.cli", "openenv.server", "broken", "py.warnings"}
    assert ("openenv.supervisor" in loggers) is (workers == "2")
