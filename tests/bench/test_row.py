"""Lines of raw.jsonl."""

import io
import json

from openenv.bench.batch import RequestRow, write_rows
from openenv.errors import ServerFull

from .rows import failed, good, play

KEYS = [
    "request_id",
    "mode",
    "timestamp",
    "wait_requested",
    "batch_size",
    "connect_latency",
    "reset_latency",
    "step_latency",
    "total_latency",
    "waited_seconds",
    "pid",
    "session_hash",
    "host_url",
    "success",
    "error_type",
    "error_message",
]


def lines(*rows):
    file = io.StringIO()
    write_rows(file, rows)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_a_line_has_these_keys_in_this_order():
    assert RequestRow.columns() == KEYS
    assert [list(line) for line in lines(good(), failed())] == [KEYS, KEYS]


def test_the_server_that_was_reached_is_not_written():
    row = good()
    row.server = "10.0.0.1"
    assert list(lines(row)[0]) == KEYS
    assert row.host == "10.0.0.1"
    assert good().host == "here"


def test_a_request_that_went_well():
    (line,) = lines(good(3, total=0.6000001))
    assert line["mode"] == "ws"
    assert line["success"] is True
    assert line["error_type"] is None
    assert line["error_message"] is None
    assert line["total_latency"] == 0.6


def test_a_request_that_failed_says_why_and_has_no_latency_for_what_it_did_not_reach():
    (line,) = lines(failed(error=ServerFull(4, 4)))
    assert line["success"] is False
    assert line["error_type"] == "ServerFull"
    assert "4 of 4" in line["error_message"]
    assert line["connect_latency"] == 9.0
    assert (line["reset_latency"], line["step_latency"], line["total_latency"]) == (None, None, None)


def test_an_error_without_words_is_named():
    row = good()
    row.fail(TimeoutError())
    assert (row.success, row.error_type, row.error_message) == (False, "TimeoutError", "TimeoutError")


def test_an_episode_has_further_keys_behind_those():
    (line,) = lines(play(rewards=(1.0, 0.5)))
    assert list(line) == [*KEYS, "workload", "session", "seed", "steps", "episode_return", "step_latencies"]
    assert line["episode_return"] == 1.5
    assert line["step_latencies"] == [0.003, 0.003]
