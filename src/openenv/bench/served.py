"""Servers that run as long as a measurement, and an empty server as the lower bound."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from .._tuning import raise_file_limit
from ..client import GenericEnvClient
from ..errors import ConnectionFailed, LaunchFailed, NotReady
from ..providers.process import kill_on_parent_death
from .load import run_loop
from .machine import cpu_seconds, process_tree, resident_bytes

# Seconds from the start of a server to its first reset.
READY_S = 30.0
# Seconds in which a server that was asked to end may end its connections.
STOP_S = 10.0
# A server is quiet when it uses less CPU than this in one look: it has imported what it needs, in every worker.
QUIET_CPU_S = 0.03
LOOK_S = 0.25
SETTLE_S = 10.0
_LOG_TAIL = 2000
_ADDRESS = re.compile(rb"https?://[^\s\x1b]+:\d+")


class ServedProcess:
    """A command that serves an environment: started on entering, ready then, and gone on leaving.

    It is gone as well when the thread that entered ends without leaving, as by SIGKILL.

    Args:
        command: What to run; it says its address (`http://host:port`) in its output.
        url: Where it listens, for a command that does not say so.
        workers: How many worker processes it starts, if it starts any.
        cwd: Where to run it; None for here.
        cpus: The cores it may use; None for all.
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
            LaunchFailed: It ended; the message has the tail of its output.
            NotReady: It did not answer in time.
        """
        raise_file_limit()
        self._log = tempfile.TemporaryFile()
        # A session of its own, so that its workers can be ended with it and Ctrl-C is ours to handle.
        try:
            self._process = subprocess.Popen(  # noqa: S603  no shell is involved
                kill_on_parent_death(self._command),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=self._cwd,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise LaunchFailed(f"cannot start {self._name()}: {error}") from error
        try:
            if self._cpus is not None:
                os.sched_setaffinity(self._process.pid, self._cpus)
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
        """Where it listens."""
        assert self._url is not None
        return self._url

    def pids(self) -> list[int]:
        """Its processes. Raises `LaunchFailed` if it has ended."""
        self._check()
        return process_tree([self._process.pid])

    def cpu_seconds(self) -> float:
        """CPU time that its processes have used so far."""
        return cpu_seconds(self.pids())

    def resident_bytes(self) -> int:
        """Resident memory of its processes."""
        return resident_bytes(self.pids())

    def settle(self) -> None:
        """Waits until all its workers are there and idle, for 10 s at most."""
        # With workers, there is a parent too.
        processes = self._workers + (self._workers > 1)
        limit = time.monotonic() + SETTLE_S
        while time.monotonic() < limit:
            before = self.cpu_seconds()
            time.sleep(LOOK_S)
            if self.cpu_seconds() - before < QUIET_CPU_S and len(self.pids()) >= processes:
                return

    def close(self) -> None:
        """Ends it: asks, waits, and kills what is left of it. May be called repeatedly."""
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        finally:  # also after a second Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._log.close()

    def _await_reset(self, limit: float) -> None:
        failure = "it has not said its address"
        while time.monotonic() < limit:
            self._check()
            if self._url is None and (found := _ADDRESS.search(self._output())):
                self._url = found.group().decode()
            if self._url is not None:
                try:
                    probe(self._url, timeout_s=max(0.1, limit - time.monotonic()))
                except ConnectionFailed as error:
                    failure = error.message
                else:
                    return
            time.sleep(0.05)
        raise NotReady(f"{self._name()} is not ready after {READY_S:g} s: {failure}{self._tail()}")

    def _check(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise LaunchFailed(f"{self._name()} ended with exit code {code}{self._tail()}")

    def _name(self) -> str:
        return " ".join(self._command)

    def _output(self) -> bytes:
        # pread: the server writes where the file's one position stands.
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)

    def _tail(self) -> str:
        text = self._output()[-_LOG_TAIL:].decode(errors="replace").strip()
        return f"; the end of its output:\n{text}" if text else "; it has printed nothing"


class ServedTarget(ServedProcess):
    """What `openenv serve TARGET` serves, on a free port of this machine.

    Args:
        target: As `openenv serve` takes it.
        workers: Worker processes.
        max_sessions: How many sessions must be possible at one time.
        cpus: The cores it may use; None for all.
        cwd: Where to run it; None for here.
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
    """Whether a session can be opened at an address and reset.

    Raises:
        OpenEnvError: It cannot; this is why.
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
    """The floor as a process: there on entering, gone on leaving.

    Args:
        cpus: The cores it may use; None for all.
    """

    def __init__(self, cpus: Collection[int] | None = None):
        super().__init__([sys.executable, "-m", __name__], cpus=cpus)


class _Answering(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        else:
            transport.send(WSMsgType.TEXT, _ANSWER)


async def serve_floor() -> None:
    """Answers every frame with the same observation until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await ws_create_server(lambda _: _Answering(), "127.0.0.1", 0, backlog=BACKLOG)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await stopped.wait()


if __name__ == "__main__":
    run_loop(serve_floor())
