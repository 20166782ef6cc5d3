"""The executor of an environment in its own process, and snapshots of its state by fork or by pickle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...errors import EnvironmentCrashed, NotForkable, OpenEnvError, ResetRequired
from ..executor import Done, Operation, Snapshot, load, save
from ..profile import EnvironmentProfile, Execution
from .handle import ProcessExit, ProcessHandle
from .messages import MadeEnvironment, Verb, decode, encode_request
from .pool import ProcessPool


class PickledSnapshot(Snapshot):
    """A state as the process wrote it; nobody here reads it.

    Attributes:
        state: What it said.
        made: What is known of the environment.
    """

    __slots__ = ("made", "state")

    def __init__(self, state: bytes, made: MadeEnvironment):
        self.state = state
        self.made = made


class ForkedSnapshot(Snapshot):
    """A process that goes on from where it was forked.

    Attributes:
        ward: The process.
        made: What is known of the environment.
    """

    __slots__ = ("made", "ward")

    def __init__(self, ward: ProcessHandle, made: MadeEnvironment):
        self.ward = ward
        self.made = made

    def discard(self) -> None:
        self.ward.owner = None
        self.ward.end("", 0.0)


class PendingFork:
    """A process of a session on its way to two; owner of the new one until that has said that it is there.

    Args:
        nursery: Where processes are.
        parent: The one that forks.
        made: What is known of its environment.
        done: Hears once of the `ForkedSnapshot`, or why there is none.

    Raises:
        OSError: There is no descriptor left.
    """

    def __init__(self, nursery: ProcessPool, parent: ProcessHandle, made: MadeEnvironment, done: Done):
        self._nursery = nursery
        self._parent = parent
        self._made = made
        self._done: Done | None = done
        self._told = self._there = False
        self._ward, self._descriptors = nursery.expect(self)

    def ready(self, result: Any, error: BaseException | None) -> bool:
        """The parent is about to fork, or will not. Whether there is more to be heard of it."""
        if error is None:
            try:
                self._parent.pass_on(self._descriptors)
            except OSError as trouble:
                # It waits for them, and would do so forever.
                self._parent.end(f"it could not be given what a fork of it needs: {trouble}", 0.0)
        else:
            self._fail(error)
        self._let_go()
        return error is None

    def forked(self, pid: Any, error: BaseException | None) -> None:
        """The parent has forked, or could not."""
        self._let_go()
        if error is None and type(pid) is int:
            self._nursery.adopt(self._ward, pid)
            self._told = True
            self._conclude()
        else:
            self._fail(error or NotForkable("the environment's process does not keep to what was agreed"))

    # What the new process says.

    def heard(self, frame: bytes | bytearray) -> None:
        try:
            result, error = decode(frame)
            if result != 0 or error is not None:
                raise ValueError("it did not say that it is there")
        except ValueError as fault:
            self._ward.end(str(fault), 0.0)
            return
        self._there = True
        self._conclude()

    def ended(self, ending: ProcessExit) -> None:
        said = f": {ending.reason}" if ending.reason else ""
        self._finish(None, NotForkable(f"the fork of the environment's process has ended at once{said}"))

    def _conclude(self) -> None:
        if self._told and self._there and self._done is not None:
            self._finish(ForkedSnapshot(self._ward, self._made), None)

    def _fail(self, error: BaseException) -> None:
        self._ward.owner = None
        self._ward.end("", 0.0)
        self._finish(None, error)

    def _finish(self, result: ForkedSnapshot | None, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result, error if isinstance(error, OpenEnvError) or error is None else NotForkable(str(error)))

    def _let_go(self) -> None:
        """The descriptors are the new process's now."""
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)


# What a process that is asked to end may take to tidy up.
GRACE_S = 0.2
# What `close` of an environment may take: nobody waits for its result, and its slot is wanted.
CLOSE_S = 30.0


_HINTS = {
    "SIGKILL": ", from outside or by the kernel (out of memory?)",
    "SIGXCPU": ", at its limit (process_cpu_s, OPENENV_PROCESS_CPU_S)",
}


def _operation() -> Operation:
    """Stands for an operation of a profile: by which of them it is, the executor knows the verb."""

    def elsewhere(environment: Any, argument: Any) -> Any:
        raise AssertionError("this environment is in another process")

    return elsewhere


_RESET, _STEP, _STEP_WITH, _STATE = _operation(), _operation(), _operation(), _operation()
_VERBS = {_RESET: Verb.RESET, _STEP: Verb.STEP, _STEP_WITH: Verb.STEP_WITH, _STATE: Verb.STATE}


class RemoteEnvironment:
    """What an executor has of an environment in another process.

    Attributes:
        profile: How to call it, by `ProcessExecutor.submit`.
    """

    def __init__(self, made: MadeEnvironment):
        self.profile = EnvironmentProfile(
            name=made.name,
            execution=Execution.PROCESS,
            reset=_RESET,
            step=_STEP,
            step_with=_STEP_WITH,
            state=_STATE,
            concurrent=True,
            seedable=made.seedable,
        )


class ProcessExecutor:
    """Runs an environment in a process that the nursery gives, and in another one after that has ended.

    A process that crashed or was stopped is followed by a new one at the next `reset`; other calls until then get
    a typed error. What comes from the process is taken for data that anybody may have sent.

    Args:
        nursery: Where processes come from.
        seed: What the environment goes on from when it starts; None: from nothing.
    """

    stoppable = True
    __slots__ = ("_closed", "_done", "_fate", "_made", "_nursery", "_seed", "_stopped", "_timer", "_ward")

    def __init__(self, nursery: ProcessPool, seed: Snapshot | None = None):
        self._nursery = nursery
        self._seed = seed
        self._ward: ProcessHandle | None = None
        self._done: Done | None = None
        self._made: MadeEnvironment | None = None
        self._fate: OpenEnvError | None = None
        self._stopped = False
        self._closed: Done | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, factory: Callable[[], Any], done: Done) -> None:
        """As the contract says; the nursery has been told of the factory before."""

        def made(result: Any, error: BaseException | None) -> None:
            done(None if error is not None else RemoteEnvironment(result), error)

        seed, self._seed = self._seed, None
        if seed is None:
            self._make(made)
        else:
            self._load(seed, lambda _, error: made(self._made, error))

    def submit(self, operation: Operation, argument: Any, done: Done) -> None:
        ward = self._ward
        if ward is None:
            if operation is _RESET:
                self._make_and_reset(argument, done)
            elif operation is load:
                self._load(argument, done)
            else:
                done(
                    None, self._fate or ResetRequired("the environment's process has ended: reset() starts a new one")
                )
            return
        verb = _VERBS.get(operation)
        if verb is None and (operation is save or operation is load):
            self._save(ward, done) if operation is save else self._load(argument, done)
            return
        try:
            if verb is None:
                frame = encode_request(Verb.CALL, (operation, argument))
            else:
                frame = encode_request(verb, argument)
        except OpenEnvError as error:
            done(None, error)
            return
        self._done = done
        ward.send(frame)

    def cancel(self) -> bool:
        if self._ward is not None and self._done is not None:
            self._stopped = True
            self._ward.end("its call was stopped", GRACE_S)
        return True

    def close(self, done: Done) -> None:
        ward = self._ward
        if ward is None:
            done(None, None)
            return
        self._closed = done
        self._timer = asyncio.get_running_loop().call_later(CLOSE_S, ward.end, "its close() took too long", 0.0)
        if self._made is not None and self._made.closes:
            self._done = _ignore_result
            ward.send(encode_request(Verb.CLOSE, None))
        else:
            ward.end("", 0.0)

    # What the process says.

    def heard(self, frame: bytes | bytearray) -> None:
        done = self._done
        assert self._ward is not None
        try:
            if done is None:
                raise ValueError("it said more than it was asked for")
            result, error = decode(frame)
        except ValueError as fault:
            self._ward.end(str(fault), 0.0)
            return
        self._done = None
        if self._closed is not None:
            closed = self._closed
            self._closed = lambda _, __: closed(None, error)
            self._ward.end("", GRACE_S)
        else:
            done(result, error)

    def ended(self, ending: ProcessExit) -> None:
        self._ward = None
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped:
            self._stopped = False
            error: OpenEnvError = ResetRequired(
                "the call was stopped, and the environment's process with it: reset() starts a new one"
            )
        else:
            error = _crash(ending)
        self._fate = error
        done, self._done = self._done, None
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(None, None if done is None else error)  # what ends a process that has nothing to close is no error
        elif done is not None:
            done(None, error)

    def _save(self, ward: ProcessHandle, done: Done) -> None:
        """Has the process forked; its state sent, where it cannot be."""
        made = self._made
        assert made is not None
        if not (made.forks and self._nursery.forks):

            def sent(state: Any, error: BaseException | None) -> None:
                if error is None and type(state) is not bytes:
                    error = EnvironmentCrashed("the environment's process does not keep to what was agreed")
                done(None if error else PickledSnapshot(state, made), error)

            self._done = sent
            ward.send(encode_request(Verb.SAVE, None))
            return
        try:
            branching = PendingFork(self._nursery, ward, made, done)
        except OSError as error:
            done(None, NotForkable(f"there is no descriptor left for another process: {error}"))
            return

        def ready(result: Any, error: BaseException | None) -> None:
            if branching.ready(result, error):
                self._done = branching.forked

        self._done = ready
        ward.send(encode_request(Verb.FORK, None))

    def _load(self, seed: Any, done: Done) -> None:
        """Goes on from a seed, in a process that is there already or in another one."""
        if isinstance(seed, ForkedSnapshot) and not seed.ward.is_open:
            done(None, EnvironmentCrashed("the fork of the environment's process has ended before it was used"))
        elif isinstance(seed, ForkedSnapshot):
            if self._ward is not None:
                self._ward.owner = None
                self._ward.end("", GRACE_S)
            self._ward, self._made = seed.ward, seed.made
            self._ward.owner = self
            done(None, None)
        elif self._ward is not None:
            self._done = done
            self._ward.send(encode_request(Verb.LOAD, seed.state))
        else:
            self._make_and(lambda: self._load(seed, done), done)

    def _make(self, done: Done) -> None:
        def made(result: Any, error: BaseException | None) -> None:
            if error is None and type(result) is not MadeEnvironment:
                error = EnvironmentCrashed("the environment's process does not keep to what was agreed")
            self._made = None if error is not None else result
            done(result, error)

        try:
            self._ward = self._nursery.take(self)
        except OSError as error:
            done(None, error)
            return
        self._done = made
        self._ward.send(encode_request(Verb.MAKE, None))

    def _make_and_reset(self, argument: Any, done: Done) -> None:
        self._make_and(lambda: self.submit(_RESET, argument, done), done)

    def _make_and(self, then: Callable[[], None], done: Done) -> None:
        """Makes an environment, and does something with it if that went well."""

        def made(_: Any, error: BaseException | None) -> None:
            if error is None:
                then()
                return
            if self._ward is not None:  # alive, and without an environment
                self._ward.owner = None
                self._ward.end("", 0.0)
                self._ward = None
            done(None, error)

        self._make(made)


def _crash(ending: ProcessExit) -> EnvironmentCrashed:
    if ending.reason:
        how = f"was ended: {ending.reason}"
    elif ending.signal is not None:
        how = f"was ended by {ending.signal}{_HINTS.get(ending.signal, '')}"
    else:
        how = f"ended with exit code {ending.exit_code}"
    last = ending.stderr.rstrip().rpartition("\n")[2]
    said = f" (stderr: {last[:200]})" if last else ""
    return EnvironmentCrashed(
        f"the environment's process {how}{said}; reset() starts a new one",
        exit_code=ending.exit_code,
        signal=ending.signal,
        stderr=ending.stderr,
    )


def _ignore_result(_: Any, __: BaseException | None) -> None:
    """Hears of what nobody waits for."""
