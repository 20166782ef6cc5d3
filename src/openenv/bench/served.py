"""Servers for the duration of a measurement, and an empty server for the lower bound of the cost of a step."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Self

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from .._processes import raise_file_limit, use_cores
from ..client import GenericEnvClient
from ..errors import ConnectionFailed, LaunchFailed, NotReady
from ..providers.process import Process
from .load import run_loop
from .machine import cpu_seconds, process_tree, resident_bytes

# Seconds from the start of a server to its first reset.
READY_S = 30.0
# Seconds for a server to close its connections after SIGTERM.
STOP_S = 10.0
# CPU seconds between two checks below which a server is idle: all of its workers have imported their modules.
QUIET_CPU_S = 0.03
LOOK_S = 0.25
SETTLE_S = 10.0
_ADDRESS = r"https?://[^\s\x1b]+:\d+"


class ServedProcess:
    """A command that serves an environment. Runs for a `with` block, and is ready at its start.

    It also ends when this process ends, for instance by SIGKILL.

    Args:
        command: Command line. The command prints its address (`http://host:port`).
        url: Address of the server, if the command does not print it.
        workers: Number of worker processes.
        cwd: Working folder. None for the current one.
        cpus: CPU cores that it may use, on Linux. None for all.
    """

    def __init__(
        self,
        command: Sequence[str],
        url: str | None = None,
        workers: int = 1,
        cwd: Path | None = None,
        cpus: Collection[int] | None = None,
    ):
        self._command = list(command)
        self._url = url
        self._workers = workers
        self._cwd = cwd
        self._cpus = cpus

    def __enter__(self) -> Self:
        """Starts it and waits until a reset over a WebSocket is answered.

        Raises:
            LaunchFailed: The command ended; with the end of its output.
            NotReady: The server did not answer in time.
        """
        raise_file_limit()
        self._process = Process(self._command, None, self._cwd)
        try:
            if self._cpus is not None:
                use_cores(self._process.pid, self._cpus)
            self._await_reset(time.monotonic() + READY_S)
            self.settle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Address of the server."""
        assert self._url is not None
        return self._url

    def pids(self) -> list[int]:
        """PIDs of its processes. Raises `LaunchFailed` if it has ended."""
        self._check()
        return process_tree([self._process.pid])

    def cpu_seconds(self) -> float:
        """CPU time of its processes so far, in seconds."""
        return cpu_seconds(self.pids())

    def resident_bytes(self) -> int:
        """Resident memory of its processes, in bytes."""
        return resident_bytes(self.pids())

    def settle(self) -> None:
        """Waits until all of its workers run and are idle, at most 10 s."""
        # Several workers also have a parent process.
        processes = self._workers + (self._workers > 1)
        limit = time.monotonic() + SETTLE_S
        while time.monotonic() < limit:
            before = self.cpu_seconds()
            time.sleep(LOOK_S)
            if self.cpu_seconds() - before < QUIET_CPU_S and len(self.pids()) >= processes:
                return

    def close(self) -> None:
        """Ends it: SIGTERM, then SIGKILL for the processes that remain. May be called repeatedly."""
        self._process.stop(STOP_S)

    def _await_reset(self, limit: float) -> None:
        failure = "it has not printed its address"
        if self._url is None and (found := self._process.wait_for(_ADDRESS, READY_S)):
            self._url = found[0]
        self._check()
        while self._url is not None and time.monotonic() < limit:
            try:
                probe(self._url, timeout_s=max(0.1, limit - time.monotonic()))
            except ConnectionFailed as error:
                failure = error.message
            else:
                return
            time.sleep(0.05)
            self._check()
        raise NotReady(f"{self._name()} is not ready after {READY_S:g} s: {failure}{self._tail()}")

    def _check(self) -> None:
        end = self._process.end
        if end is not None:
            raise LaunchFailed(f"{self._name()} {end}{self._tail()}")

    def _name(self) -> str:
        return " ".join(self._command)

    def _tail(self) -> str:
        text = self._process.tail
        return f"; the end of its output:\n{text}" if text else "; it has no output"


class ServedTarget(ServedProcess):
    """Runs `openenv serve TARGET` on a free port of this machine.

    Args:
        target: Argument of `openenv serve`.
        workers: Number of worker processes.
        max_sessions: Number of concurrent sessions that it must allow.
        cpus: CPU cores that it may use. None for all.
        cwd: Working folder. None for the current one.
    """

    def __init__(
        self,
        target: str,
        workers: int = 1,
        max_sessions: int = 1000,
        cpus: Collection[int] | None = None,
        cwd: Path | None = None,
    ):
        self.target = target
        options = {"host": "127.0.0.1", "port": 0, "workers": workers, "max-sessions": max_sessions}
        command = [sys.executable, "-m", "openenv", "serve", target]
        command += [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        super().__init__(command, workers=workers, cwd=cwd, cpus=cpus)

    def _name(self) -> str:
        return f"openenv serve {self.target}"


def probe(url: str, timeout_s: float = 10.0) -> None:
    """Opens and resets a session at an address.

    Raises:
        OpenEnvError: That failed.
    """

    async def reset() -> None:
        async with GenericEnvClient(url, connect_timeout_s=timeout_s, message_timeout_s=timeout_s) as client:
            await client.reset()

    asyncio.run(reset())


BACKLOG = 4096
_ANSWER = (
    b'{"type":"observation","data":{"observation":{"host_url":"localhost","pid":1,"session_hash":"0123456789abcdef",'
    b'"waited_seconds":0.0,"timestamp":1700000000.123456},"reward":1.0,"done":false}}'
)


class Floor(ServedProcess):
    """The empty server as a process, for a `with` block."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-m", __name__])


class EmptyListener(WSListener):
    """Answers every frame with the same observation."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        else:
            transport.send(WSMsgType.TEXT, _ANSWER)


async def serve_floor(listener: Callable[[], WSListener] = EmptyListener) -> None:
    """Serves connections until SIGTERM, each with a new listener."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await ws_create_server(lambda _: listener(), "127.0.0.1", 0, backlog=BACKLOG)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await stopped.wait()


if __name__ == "__main__":
    run_loop(serve_floor())
