"""The sandbox of one episode, as its session sees it: requests and replies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from . import seccomp, walls

__all__ = ["Reply", "Sandbox"]

HEAD = struct.Struct("<I")
MOST_REPLY = 32 * 1024 * 1024
MOST_MEMORY = 768 * 1024 * 1024  # sum of all processes
STEP_S = 5.0
# Time for the supervisor beyond the time of the code. If it has not answered by then, the sandbox is killed.
GRACE_S = 5.0
START_S = 20.0
TICK_S = 0.03
CHUNK = 64 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a request.

    Attributes:
        status: "done", "timeout" (the code was stopped), "crashed" (the interpreter ended), "limit" (the code used
            too much, and was stopped).
        reason: Why the code was stopped, or how the interpreter ended.
        answers: Answers of the interpreter, one or several texts of JSON. Untrusted: the code can forge them.
        output: Printed text, cut at 16 KiB.
        output_cut: Whether the output was cut.
        exit_code: Exit code of an interpreter that ended; negative for a signal.
        started: Number of interpreters so far, including this one.
        gone: Whether the sandbox has ended, and its files are lost.
    """

    status: Literal["done", "timeout", "crashed", "limit"]
    reason: str = ""
    answers: list[str] = field(default_factory=list)
    output: str = ""
    output_cut: bool = False
    exit_code: int | None = None
    started: int = 0
    gone: bool = False


class Sandbox:
    """A running sandbox. The constructor starts it.

    Raises:
        OSError: The sandbox could not be started; the message contains the error of bubblewrap.
    """

    def __init__(self) -> None:
        self._first = -1
        filter_at = os.memfd_create("seccomp")
        self._stderr = os.memfd_create("stderr")
        try:
            os.write(filter_at, seccomp.compiled())
            os.lseek(filter_at, 0, os.SEEK_SET)
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                walls.command(filter_at),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                pass_fds=(filter_at,),
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        except BaseException:
            os.close(self._stderr)
            raise
        finally:
            os.close(filter_at)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._wait_ready()

    def ask(self, request: dict[str, Any], seconds: float = STEP_S) -> Reply:
        """Sends a request and waits for its reply. After a reply with `gone`, the sandbox cannot be used any more.

        Args:
            request: The kind of request, and its fields.
            seconds: Time limit.
        """
        data = json.dumps({**request, "seconds": seconds}).encode()
        try:
            body = self._exchange(HEAD.pack(len(data)) + data, time.monotonic() + seconds + GRACE_S)
            return Reply(**json.loads(body))
        except (ValueError, TypeError) as error:
            self.close()
            return Reply("crashed", f"the sandbox sent an invalid reply: {error}", gone=True)
        except _Ended as ended:
            self.close()
            return Reply(ended.args[0], ended.args[1], gone=True)

    def close(self) -> None:
        """Kills all processes of the sandbox. A second call does nothing."""
        process = self._process
        if self._first >= 0:
            # When the first process ends, the kernel kills all others. Then bubblewrap exits.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            os.close(self._first)
            self._first = -1
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self._stderr >= 0:
            os.close(self._stderr)
            self._stderr = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_ready(self) -> None:
        """Waits for the first byte of the supervisor."""
        ready, _, _ = select.select([self._out], [], [], START_S)
        if not ready or os.read(self._out, 1) != b"!":
            said = os.pread(self._stderr, CHUNK, 0).decode("utf-8", "replace").strip()
            self.close()
            raise OSError(said.splitlines()[-1] if said else "it did not start")
        self._first = os.pidfd_open(_children(self._process.pid)[0])

    def _exchange(self, data: bytes, deadline: float) -> bytes:
        answer = bytearray()
        while len(answer) < HEAD.size or len(answer) < HEAD.size + HEAD.unpack_from(answer)[0]:
            readable, writable, _ = select.select([self._out], [self._in] if data else [], [], TICK_S)
            if writable:
                try:
                    data = data[os.write(self._in, data) :]
                except OSError as error:
                    raise _Ended("crashed", "the sandbox has ended") from error
            if readable:
                more = os.read(self._out, CHUNK)
                if not more:
                    raise _Ended("crashed", "the sandbox has ended")
                answer += more
                if len(answer) > MOST_REPLY:
                    raise _Ended("limit", f"the reply of the sandbox has more than {MOST_REPLY >> 20} MiB")
            elif time.monotonic() > deadline:
                raise _Ended("timeout", "the sandbox did not answer, and was ended")
            else:
                self._check_limits()
        return bytes(answer[HEAD.size :])

    def _check_limits(self) -> None:
        """Adds up the memory and the number of the processes in the sandbox.

        Raises:
            _Ended: They exceed a limit.
        """
        memory = count = 0
        waiting = [self._process.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):
                memory += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
                waiting += _children(pid)
                count += 1
        if count > walls.RESOURCES["RLIMIT_NPROC"] + 8:
            raise _Ended("limit", f"it started more than {walls.RESOURCES['RLIMIT_NPROC']} processes")
        if memory > MOST_MEMORY:
            raise _Ended("limit", f"its processes took more than {MOST_MEMORY >> 20} MiB of memory together")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class _Ended(Exception):
    """The sandbox has ended, or must be killed. The arguments are status and reason."""
