"""The session process: makes the environment, answers calls one at a time, and forks itself on request."""

from __future__ import annotations

import asyncio
import functools
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

from ..._asyncio import as_coroutine
from ..._processes import adopt_orphans, die_with_parent, limit_of
from ..._sockets import receive_with_descriptors
from ...errors import FactoryFailed, NotForkable
from .. import executor
from ..loop import EagerTask
from ..profile import is_asynchronous, profile_of
from . import sandbox
from .messages import CHUNK_BYTES, HEAD, MadeEnvironment, Verb, decode_request, dumps, encode_error, encode_reply

_LOOK_S, _PATIENCE_S = 0.0005, 5.0


def double_fork() -> int:
    """Forks this process twice, so that the fork server becomes the parent of the new process and adopts it.

    The new process leads its own process group and session. Python's random numbers continue in it as they do here.

    Returns:
        Like `os.fork`: 0 in the new process, its process id in this one.

    Raises:
        OSError: The process could not be made.
    """
    parent, random = os.getppid(), sys.modules.get("random")
    random_state = None if random is None else random.getstate()

    def detach() -> None:
        limit = time.monotonic() + _PATIENCE_S
        if sys.platform == "win32":
            raise OSError("Windows has no fork")
        while os.getppid() != parent and time.monotonic() < limit:
            time.sleep(_LOOK_S)
        os.setsid()
        die_with_parent()
        if random_state is not None:  # Python reseeds `random` after a fork
            sys.modules["random"].setstate(random_state)
        if os.getppid() != parent:
            raise OSError("the fork server has not adopted it")

    try:
        # From now on, the parent of this process adopts orphans.
        adopt_orphans(False)
        return sandbox.fork_through(lambda: None, detach)
    finally:
        adopt_orphans()


class SessionProcess:
    """One environment and the connection to the server.

    Args:
        connection: A connected stream socket.
        factory: Makes the environment.
    """

    def __init__(self, connection: socket.socket, factory: Callable[[], Any]):
        self._connection = connection
        self._factory = factory
        self._environment: Any = None
        self._operations: dict[int, executor.Operation] = {
            Verb.MAKE: self._make,
            Verb.CALL: lambda environment, call: call[0](environment, call[1]),
            Verb.CLOSE: executor.close,
            Verb.SAVE: lambda environment, _: executor.finish(
                executor.save(environment, None), functools.partial(_pickled, environment)
            ),
            # Trusted: it comes from a process of the same class, for the same client.
            Verb.LOAD: lambda environment, state: executor.load(environment, pickle.loads(state)),  # noqa: S301
            Verb.FORK: self._fork,
        }
        self._runner: asyncio.Runner | None = None

    def run(self) -> None:
        """Serves until the server closes the connection. An asynchronous environment runs on an event loop."""
        while (frame := self._read()) is not None:
            verb, argument = decode_request(frame)
            del frame
            result, error = executor.attempt(self._operations[verb], self._environment, argument)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                result, error = executor.attempt(self._await, result, None)
            self._answer(verb, result, error)
            if verb == Verb.CLOSE:
                return
            if verb == Verb.MAKE and self._environment is not None and is_asynchronous(type(self._environment)):
                asyncio.run(self._serve())
                return
            del argument, result, error

    async def _serve(self) -> None:
        """`run`, on an event loop: tasks of the environment continue between calls."""
        loop = asyncio.get_running_loop()
        task = EagerTask()
        ended = loop.create_future()

        def readable() -> None:
            frame = self._read()
            if frame is None:
                loop.remove_reader(self._connection)
                ended.set_result(None)
                return
            verb, argument = decode_request(frame)

            def done(result: Any, error: BaseException | None) -> None:
                self._answer(verb, result, error)
                if verb == Verb.CLOSE:
                    os._exit(0)

            result, error = executor.attempt(self._operations[verb], self._environment, argument)
            if error is None and inspect.isawaitable(result):
                task.run(result if type(result) is CoroutineType else as_coroutine(result), done)
            else:
                done(result, error)

        loop.add_reader(self._connection, readable)
        await ended

    def _make(self, _: None, __: None) -> MadeEnvironment:
        environment = executor.construct(None, self._factory)
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
        # An asyncio event loop cannot be used in a fork of its process.
        forks = not executor.keeps_state(cls) and not is_asynchronous(cls)
        return MadeEnvironment(cls.__name__, executor.has_close(environment), profile.seedable, forks)

    def _fork(self, environment: Any, nothing: None) -> int:
        """Forks the process. The new process continues from here too: it answers 0 on the connection that it gets."""
        count = threading.active_count()
        if count > 1 or self._runner is not None:
            name = type(environment).__name__
            raise NotForkable(
                f"{name} cannot be forked: its process has {count} threads or an event loop, but a fork would have "
                "only one thread: implement save_state() and load_state()"
            )
        executor.ensure_rng(environment)
        self._answer(Verb.CALL, True, None)
        _, descriptors = receive_with_descriptors(self._connection, 1, 2)
        if len(descriptors) != 2:
            for descriptor in descriptors:
                os.close(descriptor)
            raise NotForkable("the process can open no more files, which a fork needs: retry later")
        connection, errors = descriptors
        given = socket.socket(fileno=connection)
        try:
            pid = double_fork()
            if pid == 0:
                self._connection.close()
                self._connection, given = given, self._connection
                self._connection.set_inheritable(False)
                os.dup2(errors, 2)
            return pid
        except OSError as error:
            raise NotForkable(f"the system cannot start another process: {error}") from error
        finally:
            given.close()
            os.close(errors)

    def _await(self, call: Any, _: None) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(call if type(call) is CoroutineType else as_coroutine(call))

    def _answer(self, verb: int, result: Any, error: BaseException | None) -> None:
        if error is None:
            written, error = executor.attempt(encode_reply, verb, result)
        if error is not None:
            written = encode_error(error, "".join(traceback.format_exception(error)))
        if len(written) < CHUNK_BYTES:
            self._connection.sendall(HEAD.pack(len(written)) + written)
        else:
            self._connection.sendall(HEAD.pack(len(written)))
            self._connection.sendall(written)

    def _read(self) -> bytes | bytearray | None:
        """The contents of one frame; None at the end of the stream. The server sends one frame at a time."""
        data = self._connection.recv(CHUNK_BYTES)
        while 0 < len(data) < HEAD.size:
            data += self._connection.recv(HEAD.size - len(data)) or b"\0" * HEAD.size
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
            count = self._connection.recv_into(rest[have:])
            if count == 0:
                return None
            have += count
        return frame


def _pickled(environment: Any, snapshot: Any) -> bytes:
    """Pickles a snapshot. The server forwards it without unpickling."""
    name = type(environment).__name__
    try:
        state = dumps(snapshot)
    except Exception as error:
        sent = f"its state cannot be sent to another process ({executor.error_text(error)})"
        raise NotForkable(f"{name} cannot be forked: {sent}: implement save_state() and load_state()") from error
    if len(state) > limit_of("RLIMIT_FSIZE") - CHUNK_BYTES:
        size = f"its state of {len(state)} bytes is over the limit (process_output_mb, OPENENV_PROCESS_OUTPUT_MB)"
        raise NotForkable(f"{name} cannot be forked: {size}")
    return state
