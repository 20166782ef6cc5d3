"""Inside the process of a session: makes the environment and does what the server asks, one call after the other."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
import threading
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from ...errors import FactoryFailed, NotForkable
from ..executor import Operation, attempt, close, construct, describe, has_close
from ..forking import begin_random, keeps_state, load, save
from ..host import Host
from ..profile import is_asynchronous, profile_of
from .limits import most_output_bytes
from .messages import HEAD, Made, Verb, decode_request, encode_error, encode_reply
from .reference import dumps
from .sibling import fork_sibling

__all__ = ["Child"]

# Below what the allocator maps and unmaps each time.
_CHUNK = 64 * 1024


class Child:
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
        host = Host()
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

    def _make(self, _: None, __: None) -> Made:
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
        return Made(cls.__name__, has_close(environment), profile.seedable, forks)

    def _fork(self, environment: Any, nothing: None) -> int:
        """Forks the process. The new one goes on from here too: it answers, with 0, on the road it is given."""
        count = threading.active_count()
        if count > 1 or self._runner is not None:
            name = type(environment).__name__
            raise NotForkable(
                f"{name} cannot be forked: its process has {count} threads or an event loop, and a fork of it would "
                "have one thread: implement save_state() and load_state()"
            )
        begin_random(environment)
        self._answer(Verb.CALL, True, None)
        _, descriptors, _, _ = socket.recv_fds(self._road, 1, 2)
        if len(descriptors) != 2:
            for descriptor in descriptors:
                os.close(descriptor)
            raise NotForkable("there is no descriptor left for another process: retry later")
        road, errors = descriptors
        given = socket.socket(fileno=road)
        try:
            pid = fork_sibling()
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
        sent = f"its state cannot be sent to another process ({describe(error)})"
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
