"""An agent program as a child process that speaks in lines of text."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from .._asyncio import on_thread
from .._processes import KILL, signal_group
from ..settings import environ_of_environments
from .agents import HarnessNotRunningError, HarnessStartupError

# Lines of stderr that are kept, characters of stdout that may wait for their reader, and of one line: a longer line
# is read in parts.
STDERR_LINES = 50
UNREAD_CHARS = 16 * 1024 * 1024
LINE_CHARS = 1024 * 1024


class _Lines:
    """Lines that one thread puts, and coroutines on any loop take. A cancelled take loses no line."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._unread = 0
        self._ended = False
        self._wakes: list[Callable[[], object]] = []

    def put(self, line: str | None) -> None:
        """Adds a line, when there is room; None is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread < UNREAD_CHARS or self._ended)
            if line is None:
                self._ended = True
            elif not self._ended:
                self._lines.append(line)
                self._unread += len(line)
            self._wake()

    def end(self) -> None:
        """No more lines are added, and none waits for room."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            self._wake()

    async def take(self) -> str | None:
        """The next line; None at the end."""
        loop = asyncio.get_running_loop()
        while True:
            ready = asyncio.Event()
            with self._changed:
                if self._lines:
                    line = self._lines.popleft()
                    self._unread -= len(line)
                    self._changed.notify_all()
                    return line
                if self._ended:
                    return None
                self._wakes.append(partial(loop.call_soon_threadsafe, ready.set))
            await ready.wait()

    def _wake(self) -> None:
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                wake()


class HarnessProcess:
    """Runs a program in a process group of its own. Text is UTF-8; other bytes are replaced.

    Its methods may be called on different event loops. The program waits while 16 MB of its output are unread.

    Args:
        command: The program and its arguments.
        cwd: Folder that it starts in.
        env_vars: Environment variables on top of those of this process.
        startup_timeout_s: Seconds that it has to become ready.
        terminate_grace_s: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        command: Sequence[str],
        cwd: str,
        env_vars: Mapping[str, str] | None = None,
        startup_timeout_s: float = 30.0,
        terminate_grace_s: float = 5.0,
    ):
        self.command = list(command)
        self.cwd = cwd
        self.env_vars = dict(env_vars or {})
        self.startup_timeout_s = startup_timeout_s
        self.terminate_grace_s = terminate_grace_s
        self._process: subprocess.Popen[str] | None = None
        self._lines = _Lines()
        self._errors: deque[str] = deque(maxlen=STDERR_LINES)
        self._readers: list[threading.Thread] = []

    def is_running(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.poll() is None

    def drain_stderr(self) -> str:
        """The last 50 lines that the program wrote to stderr."""
        return "".join(self._errors)

    async def start(self, ready_check: Callable[[str], bool] | None = None) -> None:
        """Starts the program, and waits until a line of its output says that it is ready.

        Args:
            ready_check: Whether a line says that; without it, the program is ready at once.

        Raises:
            HarnessStartupError: It runs already, cannot be started, ends before it is ready, or takes too long.
        """
        if self.is_running():
            raise HarnessStartupError(f"{self.command[0]} runs already: stop() it first")
        self._lines, self._errors = _Lines(), deque(maxlen=STDERR_LINES)
        try:
            await on_thread(self._spawn)
        except OSError as error:
            raise HarnessStartupError(f"{self.command[0]} cannot be started in {self.cwd}: {error}") from error
        if ready_check is None:
            return
        try:
            async with asyncio.timeout(self.startup_timeout_s):
                while (line := await self._lines.take()) is not None:
                    if ready_check(line.rstrip("\r\n")):
                        return
            reason = "it ended before it was ready"
        except TimeoutError:
            reason = f"it was not ready within {self.startup_timeout_s:g} s (startup_timeout_s)"
        except BaseException:
            await self.stop()
            raise
        await self.stop()
        raise HarnessStartupError(f"{self.command[0]} did not start: {reason}; stderr: {self.drain_stderr()!r:.2000}")

    async def stop(self) -> None:
        """Stops the program and its children: SIGTERM, then SIGKILL. May be called repeatedly."""
        process, self._process = self._process, None
        if process is not None:
            await on_thread(lambda: self._end(process))

    async def write_line(self, text: str) -> None:
        """Writes a line to the program. Raises `HarnessNotRunningError`."""
        process = self._process
        if process is None or process.poll() is not None or process.stdin is None:
            raise HarnessNotRunningError(f"{self.command[0]} does not run; stderr: {self.drain_stderr()!r:.2000}")
        stdin = process.stdin

        def write() -> None:
            stdin.write(f"{text}\n")
            stdin.flush()

        try:
            await on_thread(write)
        except (OSError, ValueError) as error:  # it closed its input, or ended
            raise HarnessNotRunningError(f"{self.command[0]} reads no more: {error}") from error

    async def read_line(self, timeout_s: float | None = None) -> str | None:
        """The next line of the program's output, without its end.

        Args:
            timeout_s: Seconds to wait; None: no limit.

        Returns:
            The line; None when the output has ended, and after the time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                line = await self._lines.take()
                return None if line is None else line.rstrip("\r\n")
        return None

    def _spawn(self) -> None:
        process = subprocess.Popen(  # noqa: S603 - that is what it is for
            self.command,
            cwd=self.cwd,
            env={**environ_of_environments(), **self.env_vars},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._process, lines, errors = process, self._lines, self._errors

        def read() -> None:
            stdout = process.stdout
            while stdout is not None and (line := stdout.readline(LINE_CHARS)):
                lines.put(line)
            lines.put(None)

        def read_errors() -> None:
            stderr = process.stderr
            while stderr is not None and (line := stderr.readline(LINE_CHARS)):
                errors.append(line)

        self._readers = [threading.Thread(target=target, daemon=True) for target in (read, read_errors)]
        for thread in self._readers:
            thread.start()

    def _end(self, process: subprocess.Popen[str]) -> None:
        for number in (signal.SIGTERM, KILL):
            with contextlib.suppress(ProcessLookupError):  # the whole group has ended
                signal_group(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.terminate_grace_s)
        self._lines.end()
        for thread in self._readers:
            thread.join(self.terminate_grace_s)
        # A process that left the group may hold the other end, so that closing would wait for its reader.
        streams = (process.stdin, process.stdout, process.stderr)
        for stream in streams if not any(thread.is_alive() for thread in self._readers) else streams[:1]:
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
