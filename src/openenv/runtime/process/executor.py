"""The executor for an environment in its own process, and snapshots of its state by fork or by pickle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import EnvironmentCrashed, NotForkable, OpenEnvError, ResetRequired
from ..executor import Done, Operation, Snapshot, load, save
from ..profile import EnvironmentProfile, Execution
from .handle import ProcessExit, ProcessHandle
from .messages import GRACE_S, MadeEnvironment, Verb, decode, encode_request
from .pool import ProcessPool


@dataclass(slots=True, eq=False)
class PickledSnapshot(Snapshot):
    """A pickled state from a session process; only another such process unpickles it.

    Attributes:
        state: The bytes from the process.
        made: The description of the environment.
    """

    state: bytes
    made: MadeEnvironment


@dataclass(slots=True, eq=False)
class ForkedSnapshot(Snapshot):
    """A forked process with a copy of the environment.

    Attributes:
        handle: The process.
        made: The description of the environment.
    """

    handle: ProcessHandle
    made: MadeEnvironment

    def discard(self) -> None:
        self.handle.discard()


class PendingFork:
    """A pending fork of a session process. Listens to the new process until that reports that it runs.

    Args:
        pool: The pool of processes.
        parent: The process that forks.
        made: The description of its environment.
        done: Called once, with the `ForkedSnapshot` or the error.

    Raises:
        OSError: The server can open no more files.
    """

    def __init__(self, pool: ProcessPool, parent: ProcessHandle, made: MadeEnvironment, done: Done):
        self._pool = pool
        self._parent = parent
        self._made = made
        self._done: Done | None = done
        self._registered = self._there = False
        self._handle, self._descriptors = pool.prepare_fork(self)

    def ready(self, result: Any, error: BaseException | None) -> bool:
        """The parent is about to fork, or refuses. Returns whether it sends another message about it."""
        if error is None:
            try:
                self._parent.pass_on(self._descriptors)
            except OSError as trouble:
                # Otherwise it would wait for the descriptors forever.
                self._parent.end(f"the descriptors for its fork could not be sent: {trouble}", 0.0)
        else:
            self._fail(error)
        for descriptor in self._descriptors:  # if they were sent, the parent has copies
            os.close(descriptor)
        return error is None

    def forked(self, pid: Any, error: BaseException | None) -> None:
        """The parent has forked, or could not."""
        if error is None and type(pid) is int:
            self._pool.register_fork(self._handle, pid)
            self._registered = True
            self._conclude()
        else:
            self._fail(error or NotForkable("the environment's process sent an invalid message"))

    # Messages of the new process.

    def on_frame(self, frame: bytes | bytearray) -> None:
        try:
            result, error = decode(frame)
            if result != 0 or error is not None:
                raise ValueError("its first message is not a report that it runs")
        except ValueError as fault:
            self._handle.end(str(fault), 0.0)
            return
        self._there = True
        self._conclude()

    def on_exit(self, exit_: ProcessExit) -> None:
        said = f": {exit_.reason}" if exit_.reason else ""
        self._finish(None, NotForkable(f"the fork of the environment's process ended at once{said}"))

    def _conclude(self) -> None:
        if self._registered and self._there and self._done is not None:
            self._finish(ForkedSnapshot(self._handle, self._made), None)

    def _fail(self, error: BaseException) -> None:
        self._handle.discard()
        self._finish(None, error)

    def _finish(self, result: ForkedSnapshot | None, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result, error if isinstance(error, OpenEnvError) or error is None else NotForkable(str(error)))


# Seconds that the `close` of an environment may take: another session may be waiting for its slot.
CLOSE_S = 30.0


_HINTS = {
    "SIGKILL": ", from outside or by the kernel (out of memory?)",
    "SIGXCPU": ", at its limit (process_cpu_s, OPENENV_PROCESS_CPU_S)",
}


class ProcessExecutor:
    """Runs an environment in a process of the pool; after the end of that process, in another one.

    After a process has crashed or was stopped, the next `reset` starts a new one; until then, other calls get a typed
    error. Messages from the process are untrusted data.

    Args:
        pool: Provides processes.
        snapshot: The state that the environment starts with; None for a fresh environment.
    """

    stoppable = True
    __slots__ = ("_closed", "_done", "_failure", "_handle", "_made", "_pool", "_snapshot", "_stopped", "_timer")

    def __init__(self, pool: ProcessPool, snapshot: Snapshot | None = None):
        self._pool = pool
        self._snapshot = snapshot
        self._handle: ProcessHandle | None = None
        self._done: Done | None = None
        self._made: MadeEnvironment | None = None
        self._failure: OpenEnvError | None = None
        self._stopped = False
        self._closed: Done | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        """As in `Executor`, but ignores the factory, because the pool has its own."""

        def made(result: Any, error: BaseException | None) -> None:
            if error is not None:
                done(None, error)
                return
            profile = EnvironmentProfile(
                name=result.name,
                execution=Execution.PROCESS,
                reset=Verb.RESET,
                step=Verb.STEP,
                step_with=Verb.STEP_WITH,
                state=Verb.STATE,
                concurrent=True,
                seedable=result.seedable,
            )
            done(profile, None)

        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            self._make(made)
        else:
            self._load(snapshot, lambda _, error: made(self._made, error))

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        handle = self._handle
        if handle is None:
            if operation is Verb.RESET:
                self._make_and(lambda: self.submit(Verb.RESET, argument, done), done)
            elif operation is load:
                self._load(argument, done)
            else:
                ended = ResetRequired("the environment's process has ended: reset() starts a new one")
                done(None, self._failure or ended)
            return
        if operation is save or operation is load:
            self._save(handle, done) if operation is save else self._load(argument, done)
            return
        try:
            if type(operation) is Verb:
                frame = encode_request(operation, argument)
            else:
                frame = encode_request(Verb.CALL, (operation, argument))
        except OpenEnvError as error:
            done(None, error)
            return
        self._done = done
        handle.send(frame)

    def cancel(self) -> None:
        if self._handle is not None and self._done is not None:
            self._stopped = True
            self._handle.end("its call was stopped", GRACE_S)

    def close(self, done: Done) -> None:
        handle = self._handle
        if handle is None:
            done(None, None)
            return
        self._closed = done
        self._timer = asyncio.get_running_loop().call_later(CLOSE_S, handle.end, "its close() took too long", 0.0)
        if self._made is not None and self._made.closes:
            self._done = lambda _, __: None  # `on_frame` answers the caller
            handle.send(encode_request(Verb.CLOSE, None))
        else:
            handle.end("", 0.0)

    # Messages of the process.

    def on_frame(self, frame: bytes | bytearray) -> None:
        done = self._done
        assert self._handle is not None
        try:
            if done is None:
                raise ValueError("it sent a message without a request")
            result, error = decode(frame)
        except ValueError as fault:
            self._handle.end(str(fault), 0.0)
            return
        self._done = None
        if self._closed is not None:
            closed = self._closed
            self._closed = lambda _, __: closed(None, error)
            self._handle.end("", GRACE_S)
        else:
            done(result, error)

    def on_exit(self, exit_: ProcessExit) -> None:
        self._handle = None
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped:
            self._stopped = False
            error: OpenEnvError = ResetRequired(
                "the call was stopped, and the environment's process with it: reset() starts a new one"
            )
        else:
            if exit_.reason:
                how = f"was ended: {exit_.reason}"
            elif exit_.signal is not None:
                how = f"was ended by {exit_.signal}{_HINTS.get(exit_.signal, '')}"
            else:
                how = f"ended with exit code {exit_.exit_code}"
            last = exit_.stderr.rstrip().rpartition("\n")[2]
            said = f" (stderr: {last[:200]})" if last else ""
            error = EnvironmentCrashed(
                f"the environment's process {how}{said}; reset() starts a new one",
                exit_code=exit_.exit_code,
                signal=exit_.signal,
                stderr=exit_.stderr,
            )
        self._failure = error
        done, self._done = self._done, None
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(None, None if done is None else error)  # without a `close` call, an end is no error
        elif done is not None:
            done(None, error)

    def _save(self, handle: ProcessHandle, done: Done) -> None:
        """Forks the process. If it cannot be forked, requests its state instead."""
        made = self._made
        assert made is not None
        if not (made.forks and self._pool.forks):

            def sent(state: Any, error: BaseException | None) -> None:
                if error is None and type(state) is not bytes:
                    error = EnvironmentCrashed("the environment's process sent an invalid message")
                done(None if error else PickledSnapshot(state, made), error)

            self._done = sent
            handle.send(encode_request(Verb.SAVE, None))
            return
        try:
            pending = PendingFork(self._pool, handle, made, done)
        except OSError as error:
            done(None, NotForkable(f"the server can open no more files, which a fork needs: {error}"))
            return

        def ready(result: Any, error: BaseException | None) -> None:
            if pending.ready(result, error):
                self._done = pending.forked

        self._done = ready
        handle.send(encode_request(Verb.FORK, None))

    def _load(self, snapshot: Any, done: Done) -> None:
        """Continues from a snapshot, in the current process or in another one."""
        if isinstance(snapshot, ForkedSnapshot) and not snapshot.handle.is_open:
            done(None, EnvironmentCrashed("the fork of the environment's process ended before it was used"))
        elif isinstance(snapshot, ForkedSnapshot):
            if self._handle is not None:
                self._handle.discard(GRACE_S)
            self._handle, self._made = snapshot.handle, snapshot.made
            self._handle.listener = self
            done(None, None)
        elif self._handle is not None:
            self._done = done
            self._handle.send(encode_request(Verb.LOAD, snapshot.state))
        else:
            self._make_and(lambda: self._load(snapshot, done), done)

    def _make(self, done: Done) -> None:
        def made(result: Any, error: BaseException | None) -> None:
            if error is None and type(result) is not MadeEnvironment:
                error = EnvironmentCrashed("the environment's process sent an invalid message")
            self._made = None if error is not None else result
            done(result, error)

        try:
            self._handle = self._pool.take(self)
        except OSError as error:
            done(None, error)
            return
        self._done = made
        self._handle.send(encode_request(Verb.MAKE, None))

    def _make_and(self, then: Callable[[], None], done: Done) -> None:
        """Makes an environment, then calls `then` if that succeeded."""

        def made(_: Any, error: BaseException | None) -> None:
            if error is None:
                then()
                return
            if self._handle is not None:  # the process runs, but has no environment
                self._handle.discard()
                self._handle = None
            done(None, error)

        self._make(made)
