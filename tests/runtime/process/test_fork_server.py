"""What the fork server takes for left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec

from openenv.runtime.process.fork_server import ForkServer
from openenv.runtime.process.messages import EXPECT, ForkServerPlan, pickle_by_reference
from openenv.runtime.process.sandbox import ProcessLimits
from openenv.settings import ServerSettings

from .wild import Wild

_ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def answers(process: subprocess.Popen[str]) -> bool:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("there?\n")
    process.stdin.flush()
    return process.stdout.readline() == "there?\n"


def test_a_fork_that_came_before_its_announcement_was_read_is_no_orphan():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fork_server = ForkServer(
        theirs, ForkServerPlan(pickle_by_reference(Wild), ProcessLimits.of(ServerSettings()), "none", []), Wild
    )
    with ours, theirs, fork_server._selector:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        forked = subprocess.Popen([sys.executable, "-c", _ECHO], **pipes, text=True, start_new_session=True)
        try:
            reading, writing = os.pipe()
            socket.send_fds(ours, [msgspec.msgpack.encode([EXPECT, 1])], [reading])
            assert fork_server._end_orphans()
            assert answers(forked)
            fork_server._receive()
            assert fork_server._end_orphans()
            assert answers(forked)
            fork_server._give_up(1)
            assert fork_server._end_orphans()
            assert forked.wait(20) == -9
        finally:
            forked.kill()
            forked.communicate()
            for descriptor in (reading, writing, fork_server._woken, fork_server._wake):
                os.close(descriptor)
