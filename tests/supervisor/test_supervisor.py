from __future__ import annotations

import os
import socket
import sys

import pytest

from openenv.errors import LaunchFailed
from openenv.settings import ServerSettings
from openenv.supervisor import Supervisor

from .whereabouts import open_files

pytestmark = pytest.mark.real


def run(command, **settings):
    """A server whose workers are any program; returns what ends it."""
    announced = []
    listener = socket.create_server(("127.0.0.1", 0))
    before = open_files(os.getpid()) - 1
    supervisor = Supervisor(listener, ServerSettings(workers=2, **settings), lambda *_: command, announced.append)
    with pytest.raises(LaunchFailed) as caught:
        supervisor.run()
    assert announced == []
    assert listener.fileno() == -1
    assert open_files(os.getpid()) == before
    return caught.value.message


def test_a_program_that_is_not_there():
    message = run(["/no/such/program"], worker_restarts=1)
    assert "worker processes died more than 1 times within a minute (worker_restarts)" in message
    assert "could not be started: No such file or directory" in message


def test_a_program_that_ends_before_it_is_ready():
    message = run([sys.executable, "-c", "raise SystemExit(7)"])
    assert message == "a worker process ended with exit code 7 before it was ready: see what it printed"


def test_a_program_that_is_killed_before_it_is_ready():
    message = run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert "was killed by signal 9 before it was ready" in message


def test_a_program_that_does_not_become_ready():
    message = run([sys.executable, "-c", "import signal; signal.pause()"], worker_start_s=0.2)
    assert message.startswith("a worker process was not ready in its time (worker_start_s)")
