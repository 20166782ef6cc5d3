"""A sandbox of one episode, seen from outside: what is asked of it, and what it answers."""

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
MOST_MEMORY = 768 * 1024 * 1024  # of all processes together
STEP_S = 5.0
# What the supervisor may take beyond the time of the code: it is ended when it has not answered by then.
GRACE_S = 5.0
START_S = 20.0
TICK_S = 0.03
CHUNK = 64 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        status: "done", "timeout" (it was stopped), "crashed" (the interpreter ended), "limit" (it took too much, and
            was stopped).
        reason: Why it was stopped, or how it ended.
        answers: What the interpreter says, one or several texts of JSON. As hostile as the code that ran.
        output: What was printed, cut at 16 KiB.
        output_cut: There was more.
        exit_code: Of an interpreter that ended; that of a signal is negative.
        started: How many interpreters there were, this one included.
        gone: Whether the sandbox, with its files, is at its end.
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
    """Starts at once.

    Raises:
        OSError: It could not be started; the message has what bubblewrap said.
    """

    def __init__(self) -> None:
        self._first = -1
        filter_at = os.memfd_create("seccomp")
        self._said = os.memfd_create("stderr")
        try:
            os.write(filter_at, seccomp.compiled())
            os.lseek(filter_at, 0, os.SEEK_SET)
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                walls.command(filter_at),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                pass_fds=(filter_at,),
                env={"PATH": os.environ.get("PATH", os.defpath)},
            )
        except BaseException:
            os.close(self._said)
            raise
        finally:
            os.close(filter_at)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._is_there()

    def ask(self, request: dict[str, Any], seconds: float = STEP_S) -> Reply:
        """Has something done. The sandbox is of no more use after a reply that is `gone`.

        Args:
            request: Its kind, and what belongs to it.
            seconds: What it may take.
        """
        data = json.dumps({**request, "seconds": seconds}).encode()
        try:
            body = self._exchange(HEAD.pack(len(data)) + data, time.monotonic() + seconds + GRACE_S)
            return Reply(**json.loads(body))
        except (ValueError, TypeError) as error:
            self.close()
            return Reply("crashed", f"the sandbox does not keep to what was agreed: {error}", gone=True)
        except _Ended as ended:
            self.close()
            return Reply(ended.args[0], ended.args[1], gone=True)

    def close(self) -> None:
        """Ends all that runs in it; may be called again."""
        process = self._process
        if self._first >= 0:
            # Its first process, with which the kernel ends all others: bubblewrap ends when they are gone.
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
        if self._said >= 0:
            os.close(self._said)
            self._said = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_there(self) -> None:
        """Waits for the supervisor's first sign."""
        ready, _, _ = select.select([self._out], [], [], START_S)
        if not ready or os.read(self._out, 1) != b"!":
            said = os.pread(self._said, CHUNK, 0).decode("utf-8", "replace").strip()
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
                    raise _Ended("limit", "the sandbox says too much")
            elif time.monotonic() > deadline:
                raise _Ended("timeout", "the sandbox did not answer, and was ended")
            else:
                self._weigh()
        return bytes(answer[HEAD.size :])

    def _weigh(self) -> None:
        """Adds up the memory and the number of what runs in the sandbox; too much ends it."""
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
    """The sandbox had to be ended, or has ended: status and reason."""
