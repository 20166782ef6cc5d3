from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager

import pytest

from openenv.server.workers.pipe import MessageKind
from openenv.server.workers.process import WorkerPhase, WorkerProcess
from openenv.server.workers.table import BEAT, DRIFT, KEY, SharedMetrics, WorkerTable
from openenv.settings import ServerSettings
from openenv.telemetry.metrics import METER, Count

from .whereabouts import eventually, opened

pytestmark = pytest.mark.real
LIMIT_S = 10.0


def idle(pipe, *_):
    """Says that it is there, and reads nothing."""
    pipe.send(MessageKind.READY, b"{}")
    while True:
        signal.pause()


@pytest.fixture
def table():
    table = WorkerTable(1)
    yield table
    table.close()


@contextmanager
def started(main, table):
    settings = ServerSettings(worker_start_s=60.0, worker_silence_s=1.0)
    metrics = SharedMetrics(1)
    worker = WorkerProcess(main, table, metrics, table.row(0), settings)
    try:
        yield worker
    finally:
        worker.kill("is not needed any more")
        if worker.pipe.fileno() != -1:
            worker.wait()
        metrics.close()


@pytest.fixture
def worker(table):
    with started(idle, table) as worker:
        yield worker


@pytest.fixture
def connection():
    here, there = socket.socketpair()
    with here, there:
        yield here.fileno()


def ready(worker):
    message = eventually(worker.pipe.receive)
    assert message.kind is MessageKind.READY
    worker.became_ready(time.monotonic())


def test_its_row_tells_its_key(table, worker):
    assert table.row(0).get(KEY) == worker.key
    assert table.has(worker.key)


def test_it_holds_no_file_of_its_parent(table):
    here, there = socket.socketpair()
    stdin = os.dup(0)
    os.dup2(there.fileno(), 0)
    with here, there, started(idle, table) as worker:
        ready(worker)
        os.dup2(stdin, 0)
        os.close(stdin)
        there.close()
        here.settimeout(LIMIT_S)
        assert here.recv(1) == b""


def test_it_counts_nothing_that_its_parent_has_counted(table):
    def tell(pipe, *_):
        pipe.send(MessageKind.READY, str(METER.reading().value(Count.WORKER_RESTARTS)).encode())

    METER.add(Count.WORKER_RESTARTS)
    with started(tell, table) as worker:
        assert eventually(worker.pipe.receive).payload == b"0"


def test_what_its_code_wants_done_at_the_end_is_done(table):
    def leave(pipe, *_):
        atexit.register(pipe.send, MessageKind.READY)
        sys.exit(3)

    with started(leave, table) as worker:
        assert eventually(worker.pipe.receive).kind is MessageKind.READY
        eventually(lambda: worker.exit_code is not None)
        assert worker.exit_code == 3


def test_what_was_handed_over_is_a_load_until_it_is_said_to_be_none(table, worker, connection):
    assert worker.load == 0
    assert worker.hand([connection, connection])
    assert worker.load == 2
    table.row(0).set(DRIFT, -1)
    assert worker.load == 1


def test_what_it_left_unread_can_be_given_to_others(worker, connection):
    files = opened(os.getpid())
    ready(worker)
    while worker.hand([connection]):
        pass
    handed = worker.load
    # Among these, what did not even fit into its pipe.
    worker.pipe.post(MessageKind.ROUTED, b"12345678GET", [os.dup(connection)])
    worker.kill("is the victim")
    eventually(lambda: worker.exit_code is not None)
    messages = worker.unread_messages()
    assert [message.kind for message in messages] == [MessageKind.CONNECTIONS] * handed + [MessageKind.ROUTED]
    assert messages[-1].payload == b"12345678GET"
    for message in messages:
        for descriptor in message.sockets:
            assert os.fstat(descriptor).st_ino == os.fstat(connection).st_ino
            os.close(descriptor)
    assert not opened(os.getpid()) - files


def test_signals_for_the_group_are_left_to_its_parent(worker):
    ready(worker)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(worker.pid, number)
    os.kill(worker.pid, signal.SIGUSR1)
    eventually(lambda: worker.exit_code is not None)
    assert worker.cause == f"was killed by signal {signal.SIGUSR1.value}"


def test_it_has_its_time_to_become_ready(worker):
    now = time.monotonic()
    assert worker.overdue(now) is None
    assert worker.overdue(now + 61) == "was not ready in time (worker_start_s)"


def test_it_must_show_that_it_lives(table, worker):
    ready(worker)
    now = time.monotonic()
    for tenth in range(30):
        table.row(0).add(BEAT, 1)
        assert worker.overdue(now + tenth / 10) is None
    verdicts = [worker.overdue(now + 3 + tenth / 10) for tenth in range(12)]
    assert verdicts[:10] == [None] * 10
    assert verdicts[-1] == "was silent for more than 1 s (worker_silence_s)"


def test_it_has_its_time_to_leave(worker):
    ready(worker)
    now = time.monotonic()
    worker.leave(MessageKind.DRAIN, 5.0, now + 7)
    assert worker.phase is WorkerPhase.LEAVING
    assert worker.overdue(now + 6) is None
    assert worker.overdue(now + 8) == "did not end in time (grace_s)"


def test_one_that_is_still_starting_need_not_say_goodbye(worker):
    worker.leave(MessageKind.DRAIN, 60.0, time.monotonic() + 60)
    eventually(lambda: worker.exit_code is not None)
    assert worker.exit_code == -signal.SIGKILL
