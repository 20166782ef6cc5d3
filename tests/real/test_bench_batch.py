"""Requests that go well, and every way in which they do not."""

import socket
from pathlib import Path

import pytest

from openenv.bench.batch import Mode, RequestBatch, run_batch
from openenv.bench.served import ServedTarget
from openenv.errors import LaunchFailed, UsageError

from .bench_environments import CRASH, FORGET, LIE, RAISE

pytestmark = pytest.mark.real
HERE = Path(__file__).parent
PHASES = ("connect_latency", "reset_latency", "step_latency", "total_latency")


@pytest.fixture(scope="module")
def benchmark():
    with ServedTarget("benchmark", max_sessions=64) as server:
        yield server


@pytest.fixture(scope="module")
def moody():
    with ServedTarget("bench_environments:Moody", max_sessions=4, cwd=HERE) as server:
        yield server


def reached(row):
    return [phase.removesuffix("_latency") for phase in PHASES if getattr(row, phase) is not None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Mode))
def test_all_requests_of_a_batch_succeed(benchmark, mode):
    seen = []
    done = run_batch(RequestBatch(benchmark.url, mode, 8, 0.1, 20.0), processes=2, progress=seen.append)
    assert [row.request_id for row in done.rows] == list(range(8))
    for row in done.rows:
        assert (row.success, row.error_type, row.error_message) == (True, None, None)
        assert (row.mode, row.batch_size, row.wait_requested, row.waited_seconds) == (mode, 8, 0.1, 0.1)
        assert row.step_latency >= 0.1
        parts = row.connect_latency + row.reset_latency + row.step_latency
        assert row.total_latency == pytest.approx(parts, abs=0.02)
        assert row.total_latency <= done.wall_s
        assert row.pid in benchmark.pids()
    assert len({row.session_hash for row in done.rows}) == 8
    assert seen[-1] == (8, 8, 8, 8, 0, 8)


@pytest.mark.parametrize("mode", list(Mode))
def test_where_nobody_listens_connecting_fails(mode):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    if mode is Mode.HTTP:
        # Its first request is made before the storm, and there is no storm without it.
        with pytest.raises(LaunchFailed):
            run_batch(RequestBatch(f"127.0.0.1:{port}", mode, 2, 0.0, 5.0))
        return
    done = run_batch(RequestBatch(f"127.0.0.1:{port}", mode, 2, 0.0, 5.0))
    assert [(row.success, row.error_type, reached(row)) for row in done.rows] == [(False, "ConnectionFailed", [])] * 2


def test_a_server_that_never_answers_fails_by_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run_batch(RequestBatch(f"127.0.0.1:{listener.getsockname()[1]}", Mode.WS, 1, 0.0, 0.3))
    assert [(row.error_type, reached(row)) for row in done.rows] == [("ConnectTimeout", [])]


@pytest.mark.slow
def test_what_a_full_server_refuses_is_told(moody):
    done = run_batch(RequestBatch(moody.url, Mode.WS, 12, 0.0, 10.0))
    refused = [row for row in done.rows if not row.success]
    assert len(done.rows) == 12
    assert {row.error_type for row in refused} == {"ServerFull"}
    assert all(reached(row) == ["connect"] for row in refused)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_step_that_raises_is_a_failure_after_the_reset(moody, mode):
    (row,) = run_batch(RequestBatch(moody.url, mode, 1, RAISE, 10.0)).rows
    assert (row.success, row.error_type, reached(row)) == (False, "StepFailed", ["connect", "reset"])
    assert "not in the mood" in row.error_message


def test_a_step_that_did_not_wait_is_a_failure(moody):
    (row,) = run_batch(RequestBatch(moody.url, Mode.WS, 1, LIE, 10.0)).rows
    assert (row.success, row.error_type) == (False, "ProtocolViolation")
    assert row.error_message == "the step waited 0 s instead of 0.001 s"


def test_an_answer_of_another_session_is_a_failure(moody):
    (row,) = run_batch(RequestBatch(moody.url, Mode.WS, 1, FORGET, 10.0)).rows
    assert (row.success, row.error_type) == (False, "ProtocolViolation")
    assert "step by session somebody else" in row.error_message


@pytest.mark.slow
def test_a_server_that_dies_fails_the_request():
    with ServedTarget("bench_environments:Moody", cwd=HERE) as server:
        (row,) = run_batch(RequestBatch(server.url, Mode.WS, 1, CRASH, 10.0)).rows
        assert not row.success
        assert row.error_type in {"ConnectionLost", "SessionLost"}
        with pytest.raises(LaunchFailed, match="exit code 3"):
            server.pids()


def test_too_many_sessions_are_refused(benchmark):
    with pytest.raises(UsageError, match="--processes"):
        run_batch(RequestBatch(benchmark.url, Mode.WS, 10_000_000, 0.0, 1.0))
