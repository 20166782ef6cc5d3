"""Inside a session's process: makes the environment, answers calls one by one, forks itself on request."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from ...errors import FactoryFailed, NotForkable
from ..executor import (
    Operation,
    attempt,
    close,
    construct,
    ensure_rng,
    error_text,
    has_close,
    keeps_state,
    load,
    save,
)
from ..loop import EagerTask
from ..profile import is_asynchronous, profile_of
from . import linux
from .messages import HEAD, MadeEnvironment, Verb, decode_request, dumps, encode_error, encode_reply
from .sandbox import most_output_bytes

_LOOK_S, _PATIENCE_S = 0.0005, 5.0


def double_fork() -> int:
    """Forks this process. The new one leads a group and a session of its own, and ends with the parent of both.

    Between the two stands one that ends at once, so that the parent, which adopts orphans, has the new one. Python's
    random numbers go on in it as they do here.

    Returns:
        As `os.fork` does: 0 in the new process; its number here.

    Raises:
        OSError: It could not be made.
    """
    parent, random = os.getppid(), _state_of_random()
    reading, writing = os.pipe()
    try:
        # What is left behind from here on goes past this process to the parent of it.
        linux.adopt_orphans(False)
        between = os.fork()
        if between == 0:
            if _fork_again(writing):
                os._exit(0)
            _settle(parent, random)
            return 0
        os.close(writing)
        writing = -1
        said = os.read(reading, 200)
        with contextlib.suppress(ChildProcessError):  # the environment may have its children reaped by themselves
            os.waitpid(between, 0)
    finally:
        linux.adopt_orphans()
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not said.isdigit():
        raise OSError(said.decode(errors="replace") or "fork failed")
    return int(said)


def _fork_again(writing: int) -> bool:
    """In the process between: forks, and says what came of it. False in the new process."""
    try:
        pid = os.fork()
        if pid == 0:
            return False
        os.write(writing, b"%d" % pid)
    except BaseException as error:  # noqa: BLE001 - a copy of the session must not go on here
        os.write(writing, str(error).encode()[:200])
    return True


def _settle(parent: int, random: Any) -> None:
    """In the new process: is one of its own."""
    try:
        limit = time.monotonic() + _PATIENCE_S
        while os.getppid() != parent and time.monotonic() < limit:
            time.sleep(_LOOK_S)
        os.setsid()
        linux.die_with_parent()
        if random is not None:  # Python has begun them anew
            sys.modules["random"].setstate(random)
        settled = os.getppid() == parent
    except BaseException:  # noqa: BLE001 - a second session must not go on where the first one is
        settled = False
    if not settled:
        os._exit(1)


def _state_of_random() -> Any:
    module = sys.modules.get("random")
    return None if module is None else module.getstate()


# Below what the allocator maps and unmaps each time.
_CHUNK = 64 * 1024


class SessionProcess:
    """One environment and the road to the server.

    Args:
        road: A connected stream socket.
        factory: Makes the environment.
    """

    def __init__(self, road: socket.socket, factory: Callable[[], Any]):
        self._road = road
        self._factory = factory
        self._environment: Any = None
        self._operations: dict[int, Operation] = {
            Verb.MAKE: self._make,
            Verb.CALL: _call,
            Verb.CLOSE: close,
            Verb.SAVE: _save,
            Verb.LOAD: _load,
            Verb.FORK: self._fork,
        }
        self._runner: asyncio.Runner | None = None
        self._made: asyncio.Future[None] | None = None

    def run(self) -> None:
        """Serves until the server closes the road. An asynchronous environment gets an event loop of its own."""
        while (frame := self._read()) is not None:
            verb, argument = decode_request(frame)
            del frame
            result, error = attempt(self._do, verb, argument)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                result, error = attempt(self._await, result, None)
            self._answer(verb, result, error)
            if verb == Verb.CLOSE:
                return
            if verb == Verb.MAKE and self._environment is not None and is_asynchronous(type(self._environment)):
                asyncio.run(self._serve())
                return
            del argument, result, error

    async def _serve(self) -> None:
        """`run`, on an event loop, on which what the environment left there goes on between calls."""
        loop = asyncio.get_running_loop()
        host = EagerTask()
        ended = loop.create_future()

        def readable() -> None:
            frame = self._read()
            if frame is None:
                loop.remove_reader(self._road)
                ended.set_result(None)
                return
            verb, argument = decode_request(frame)

            def done(result: Any, error: BaseException | None) -> None:
                self._answer(verb, result, error)
                if verb == Verb.CLOSE:
                    os._exit(0)

            result, error = attempt(self._do, verb, argument)
            if error is None and inspect.isawaitable(result):
                host.run(result if type(result) is CoroutineType else _awaited(result), done)
            else:
                done(result, error)

        loop.add_reader(self._road, readable)
        await ended

    def _do(self, verb: int, argument: Any) -> Any:
        return self._operations[verb](self._environment, argument)

    def _make(self, _: None, __: None) -> MadeEnvironment:
        environment = construct(None, self._factory)
        cls = type(environment)
        if not (callable(getattr(cls, "reset", None)) and callable(getattr(cls, "step", None))):
            raise FactoryFailed(cls.__name__, f"made a {cls.__name__}, which has no reset and step")
        profile = profile_of(cls)
        self._operations |= {
            Verb.RESET: profile.reset,
            Verb.STEP: profile.step,
            Verb.STEP_WITH: profile.step_with,
            Verb.STATE: profile.state,
        }
        self._environment = environment
        # A loop of asyncio cannot be used in a copy of its process.
        forks = not keeps_state(cls) and not is_asynchronous(cls)
        return MadeEnvironment(cls.__name__, has_close(environment), profile.seedable, forks)

    def _fork(self, environment: Any, nothing: None) -> int:
        """Forks the process. The new one goes on from here too: it answers, with 0, on the road it is given."""
        count = threading.active_count()
        if count > 1 or self._runner is not None:
            name = type(environment).__name__
            raise NotForkable(
                f"{name} cannot be forked: its process has {count} threads or an event loop, and a fork of it would "
                "have one thread: implement save_state() and load_state()"
            )
        ensure_rng(environment)
        self._answer(Verb.CALL, True, None)
        _, descriptors, _, _ = socket.recv_fds(self._road, 1, 2)
        if len(descriptors) != 2:
            for descriptor in descriptors:
                os.close(descriptor)
            raise NotForkable("there is no descriptor left for another process: retry later")
        road, errors = descriptors
        given = socket.socket(fileno=road)
        try:
            pid = double_fork()
            if pid == 0:
                self._road.close()
                self._road, given = given, self._road
                self._road.set_inheritable(False)
                os.dup2(errors, 2)
            return pid
        except OSError as error:
            raise NotForkable(f"there is no process left for a fork: {error}") from error
        finally:
            given.close()
            os.close(errors)

    def _await(self, call: Any, _: None) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(call if type(call) is CoroutineType else _awaited(call))

    def _answer(self, verb: int, result: Any, error: BaseException | None) -> None:
        if error is None:
            written, error = attempt(encode_reply, verb, result)
        if error is not None:
            written = encode_error(error, "".join(traceback.format_exception(error)))
        if len(written) < _CHUNK:
            self._road.sendall(HEAD.pack(len(written)) + written)
        else:
            self._road.sendall(HEAD.pack(len(written)))
            self._road.sendall(written)

    def _read(self) -> bytes | bytearray | None:
        """The contents of one frame; None at the end. The server sends one at a time."""
        data = self._road.recv(_CHUNK)
        while 0 < len(data) < HEAD.size:
            data += self._road.recv(HEAD.size - len(data)) or b"\0" * HEAD.size
        if not data:
            return None
        (length,) = HEAD.unpack_from(data)
        if len(data) - HEAD.size == length:
            return data[HEAD.size :]
        frame = bytearray(length)
        have = len(data) - HEAD.size
        frame[:have] = data[HEAD.size :]
        rest = memoryview(frame)
        while have < length:
            count = self._road.recv_into(rest[have:])
            if count == 0:
                return None
            have += count
        return frame


def _save(environment: Any, _: None) -> Any:
    seed = save(environment, None)
    return _pickled_later(environment, seed) if inspect.isawaitable(seed) else _pickled(environment, seed)


async def _pickled_later(environment: Any, seed: Any) -> bytes:
    return _pickled(environment, await seed)


def _pickled(environment: Any, seed: Any) -> bytes:
    """The server hands it on as it is: what a process says is not unpickled there."""
    name = type(environment).__name__
    try:
        state = dumps(seed)
    except Exception as error:
        sent = f"its state cannot be sent to another process ({error_text(error)})"
        raise NotForkable(f"{name} cannot be forked: {sent}: implement save_state() and load_state()") from error
    if len(state) > most_output_bytes() - _CHUNK:
        size = f"its state of {len(state)} bytes is over the limit (process_output_mb, OPENENV_PROCESS_OUTPUT_MB)"
        raise NotForkable(f"{name} cannot be forked: {size}")
    return state


def _load(environment: Any, state: bytes) -> Any:
    return load(environment, pickle.loads(state))  # noqa: S301 - of a process of the same class, for the same client


def _call(environment: Any, argument: tuple[Operation, Any]) -> Any:
    operation, given = argument
    return operation(environment, given)


async def _awaited(result: Any) -> Any:
    return await result
