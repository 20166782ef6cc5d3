"""Python processes that have imported what they need: forks of one process that has, in place of a start each.

A fork has its own session, arguments, environment variables, folder and descriptors, and no other ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

_MOST_BYTES = 1 << 18
_MOST_DESCRIPTORS = 16


class WarmPython:
    """A process that imports modules once, and forks.

    Args:
        modules: Those to import.
        python: Its interpreter.
        environment: Its variables while it starts; those of this process by default.
    """

    def __init__(
        self, *modules: str, python: Path = Path(sys.executable), environment: Mapping[str, str] | None = None
    ):
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-P", __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.shutdown(socket.SHUT_RDWR)  # also where forks of this process have it, too
        self._orders.close()
        self._process.wait()

    @property
    def orders(self) -> int:
        """The descriptor with which `python warm.py DESCRIPTOR order PROGRAM ARGUMENTS` becomes a fork."""
        return self._orders.fileno()

    client = __file__

    def run(
        self,
        program: str,
        *arguments: str,
        descriptors: Mapping[int, int],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> WarmProcess:
        """Starts a process.

        Args:
            program: What it runs: the path of a script, or a function as `module:name`.
            arguments: Its `sys.argv` after the first.
            descriptors: Those that it has, by their number there; 0 is of `/dev/null`.
            environment: Its variables; those of this process by default.
            folder: Its working directory; that of this process by default.
        """
        order = {
            "argv": [program, *arguments],
            "numbers": list(descriptors),
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(folder or Path.cwd()),
            "tied": False,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._orders, [json.dumps(order).encode()], [theirs.fileno(), *descriptors.values()])
        return WarmProcess(ours)


class WarmProcess:
    """A process that was forked, with the methods of `subprocess.Popen`."""

    def __init__(self, told: socket.socket):
        self._told = told
        self.pid = int(told.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        try:
            return self.wait(0.0)
        except (subprocess.TimeoutExpired, BlockingIOError):
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises TimeoutExpired."""
        if self.returncode is None:
            self._told.settimeout(timeout)
            try:
                self.returncode = int(self._told.recv(32))
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0) from None
            self._told.close()
        return self.returncode

    def terminate(self) -> None:
        """Asks it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _serve(orders: socket.socket) -> None:
    """Forks for each order, and tells its sender the process id and later the exit code. Returns in each fork too."""
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is orders:
                text, given, _, _ = socket.recv_fds(orders, _MOST_BYTES, _MOST_DESCRIPTORS)
                if not text:
                    return
                teller, *descriptors = given
                if (pid := os.fork()) == 0:
                    _become(json.loads(text), descriptors)
                    return
                for each in descriptors:
                    os.close(each)
                told = socket.socket(fileno=teller)
                with contextlib.suppress(OSError):  # who ordered it may have ended
                    told.send(str(pid).encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
                if json.loads(text)["tied"]:
                    selector.register(told, selectors.EVENT_READ, pid)
            elif isinstance(key.data, int):  # who waited for it has ended
                with contextlib.suppress(KeyError, ValueError, ProcessLookupError):  # so may the fork have
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            else:
                pid, told = key.data
                selector.unregister(key.fileobj)
                with contextlib.suppress(KeyError):
                    selector.unregister(told)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with told:
                    with contextlib.suppress(OSError):
                        told.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Makes this process what the order says, and runs its program. Errors end it as they end Python."""
    os.setsid()
    above = 1 + max(*order["numbers"], *(int(each.name) for each in Path("/proc/self/fd").iterdir()))
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    os.closerange(3, above)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, each in zip(order["numbers"], high, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(order["environment"])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [each for each in folders if each not in {"", *sys.path}]
    os.chdir(order["folder"])
    sys.argv = order["argv"]
    module, _, name = sys.argv[0].partition(":")
    if name:
        getattr(importlib.import_module(module), name)()
    else:
        runpy.run_path(module, run_name="__main__")


def _order(orders: socket.socket, argv: list[str]) -> int:
    """Is a fork, for its parent: with its output and its exit code. The fork ends with this process."""
    order = {
        "argv": argv,
        "numbers": [1, 2],
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "tied": True,
    }
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(orders, [json.dumps(order).encode()], [theirs.fileno(), 1, 2])
    ours.recv(32)
    return int(ours.recv(32)) & 0xFF


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[2:3] == ["order"]:
        sys.exit(_order(orders, sys.argv[3:]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # forks collect only their own garbage
    _serve(orders)


if __name__ == "__main__":
    main()
