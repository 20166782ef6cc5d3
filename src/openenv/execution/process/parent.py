"""The server's end of the road to a warm parent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ...settings import environ_of_environments
from . import sandbox
from .plan import MESSAGE_BYTES, Plan

__all__ = ["Orders", "WarmParent"]

# What it imports is found where this process finds it, this package too.
_BOOT = (
    "import json, os, sys; plan = os.fdopen(int(sys.argv[2]), 'rb'); sys.path[:] = json.loads(plan.readline()); "
    "from openenv.execution.process.warm import main; main(int(sys.argv[1]), plan)"
)
# The system lets only so many descriptors be under way at a time: the next ones are sent after so long.
CROWDED_S = 0.01
# After that, one that is to end is killed.
LEAVE_S = 10.0

Orders = deque[tuple[bytes, socket.socket | FileIO | None]]
"""What is to be sent, with the road or the pipe that goes along with it."""


class _Listener(Protocol):
    """Who hears what a warm parent says."""

    def told(self, verb: str, ward_id: int, facts: list[Any]) -> None:
        """A message."""

    def died(self) -> None:
        """It has ended, and with it all that it forked."""


class WarmParent:
    """A fresh process that imports the environment and forks the processes of sessions.

    Args:
        plan: What it is to make.
        orders: What is to be sent to it; whoever adds something calls `flush`.
        listener: Hears what it says.

    Raises:
        OSError: It could not be started.
    """

    def __init__(self, plan: Plan, orders: Orders, listener: _Listener):
        self._loop = asyncio.get_running_loop()
        self._orders = orders
        self._listener = listener
        self.started_at = self._loop.time()
        self._road, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._road.setblocking(False)
        told = os.memfd_create("openenv-plan")
        try:
            os.write(told, json.dumps(sys.path).encode() + b"\n" + pickle.dumps((plan, str(Path.cwd()))))
            os.lseek(told, 0, os.SEEK_SET)
            boot = [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(told)]
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                sandbox.command(plan.sandbox, boot),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environ_of_environments() | ({} if plan.sandbox == "none" else sandbox.VARIABLES),
                pass_fds=(theirs.fileno(), told),
                start_new_session=True,  # a Ctrl-C at the terminal is for the server
            )
        except OSError:
            self._road.close()
            raise
        finally:
            theirs.close()
            os.close(told)
        self._loop.add_reader(self._road, self._readable)

    @property
    def pid(self) -> int:
        """Its process, or that of its sandbox."""
        return self._process.pid

    def flush(self) -> None:
        """Sends what there is to send."""
        road, orders = self._road, self._orders
        if road.fileno() < 0:
            return
        while orders:
            message, passed = orders[0]
            try:
                socket.send_fds(road, [message], [] if passed is None else [passed.fileno()])
            except BlockingIOError:
                self._loop.add_writer(road, self.flush)
                return
            except OSError as error:  # else it has ended, of which `_readable` hears
                if error.errno in {errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM}:
                    self._loop.call_later(CROWDED_S, self.flush)
                return
            orders.popleft()
            if passed is not None:
                passed.close()
        self._loop.remove_writer(road)

    def close(self) -> None:
        """Lets it end, by closing the road."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._road)
            self._loop.remove_writer(self._road)
        self._road.close()

    async def ended(self) -> None:
        """Waits until it has ended."""
        limit = self._loop.time() + LEAVE_S
        while self._process.poll() is None:
            if self._loop.time() > limit:
                self._process.kill()
            await asyncio.sleep(0.002)

    def wait(self) -> None:
        """The same where no event loop runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)

    def is_there(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def _readable(self) -> None:
        try:
            message = self._road.recv(MESSAGE_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return  # the latter: it ended before it had read everything, and its last words come after this
        if message:
            verb, ward_id, *facts = msgspec.msgpack.decode(message)
            self._listener.told(verb, ward_id, facts)
        else:
            self.close()
            self._listener.died()
