from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from openenv.errors import LaunchFailed
from openenv.server.workers import Supervisor
from openenv.server.workers.pipe import EXHAUSTED_S
from openenv.server.workers.pool import WorkerPool
from openenv.server.workers.process import WorkerPhase
from openenv.settings import ServerSettings

from .whereabouts import eventually, opened

pytestmark = pytest.mark.real


def wait_for_a_signal(*_):
    signal.pause()


def run(main, **settings):
    """A server with workers that never serve; returns what ends it."""
    announced = []
    listener = socket.create_server(("127.0.0.1", 0))
    before = opened(os.getpid())
    supervisor = Supervisor(listener, ServerSettings(workers=2, **settings), main, announced.append)
    with pytest.raises(LaunchFailed) as caught:
        supervisor.run()
    assert announced == []
    assert listener.fileno() == -1
    del supervisor
    assert not opened(os.getpid()) - before
    return caught.value.message


def test_a_worker_for_which_there_is_no_file_left():
    pool = WorkerPool(ServerSettings(workers=2, worker_restarts=1), wait_for_a_signal, print, print)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        pool.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        pool.close()
    assert pool.failure is not None
    assert "worker processes died more than 1 times within a minute (worker_restarts)" in pool.failure.message
    assert "could not be started: Too many open files" in pool.failure.message


def test_a_worker_that_ends_before_it_is_ready():
    message = run(lambda *_: sys.exit(7))
    assert message == "a worker process ended with exit code 7 before it was ready: see its output"


def test_a_worker_that_raises_before_it_is_ready():
    message = run(lambda *_: divmod(1, 0))
    assert message == "a worker process ended with exit code 1 before it was ready: see its output"


def test_a_worker_that_is_killed_before_it_is_ready():
    message = run(lambda *_: os.kill(os.getpid(), signal.SIGKILL), worker_restarts=1)
    assert "worker processes died more than 1 times within a minute (worker_restarts)" in message
    assert "was killed by signal 9, before it was ready" in message


def test_a_worker_that_crashes_before_it_is_ready():
    message = run(lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    assert message == f"a worker process was killed by signal {signal.SIGSEGV:d} before it was ready: see its output"


def test_a_worker_that_does_not_become_ready():
    message = run(wait_for_a_signal, worker_start_s=0.2)
    assert message.startswith("a worker process was not ready in time (worker_start_s)")


def test_without_room_for_files_the_door_is_left_alone_for_a_while():
    listener = socket.create_server(("127.0.0.1", 0))
    supervisor = Supervisor(listener, ServerSettings(workers=1), wait_for_a_signal, print)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.getsockname()):
        supervisor._listen(True)
        begun = time.monotonic()
        supervisor._look_at = begun + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            eventually(lambda: supervisor._turn() or not supervisor._listening)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not supervisor._listening
        assert supervisor._accept_at >= begun + EXHAUSTED_S
    supervisor._pool.close()
    supervisor._acceptor.close()
    supervisor._selector.close()


@pytest.fixture
def pool_and_started():
    """Two workers that are ready, which do nothing, and all that are ever started."""
    started = []
    pool = WorkerPool(
        ServerSettings(workers=2),
        wait_for_a_signal,
        started.append,
        lambda worker: worker.unread_messages(),
    )
    try:
        pool.start()
        for worker in started:
            pool.ready(worker)
        yield pool, started
    finally:
        pool.close()


def test_who_is_to_be_replaced_already_is_replaced_once(pool_and_started):
    pool, started = pool_and_started
    for _ in range(3):
        pool.replace_all()
    for _ in range(6):
        pool.turn(time.monotonic())
        for worker in pool.workers:
            if worker.phase is WorkerPhase.STARTING:
                pool.ready(worker)
        for worker in pool.workers:
            if worker.phase is WorkerPhase.LEAVING:
                os.kill(worker.pid, signal.SIGKILL)
                os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        pool.reap()
    assert len(started) == 4
    assert pool.taking == started[2:]


def test_nobody_is_replaced_by_a_server_that_ends(pool_and_started):
    pool, started = pool_and_started
    pool.leave(10.0)
    pool.replace_all()
    pool.turn(time.monotonic())
    assert len(started) == 2


def test_what_workers_have_from_their_parent_draws_no_random_numbers_that_are_the_same_in_all():
    """Python seeds its generator anew in a fork; numpy does not."""
    modules = (
        "openenv.cli.serve, openenv.server.app, openenv.server.workers.supervisor, openenv.server.workers.worker"
    )
    program = f"import sys, {modules}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
