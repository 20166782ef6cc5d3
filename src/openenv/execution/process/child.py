"""Inside the process of a session: makes the environment and does what the server asks, one call after the other."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import traceback
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from ...errors import FactoryFailed
from ..executor import Operation, attempt, close, construct, has_close
from ..host import Host
from ..profile import is_asynchronous, profile_of
from .messages import HEAD, Made, Verb, decode_request, encode_error, encode_reply

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
        self._operations: dict[int, Operation] = {Verb.MAKE: self._make, Verb.CALL: _call, Verb.CLOSE: close}
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
        return Made(cls.__name__, has_close(environment), profile.seedable)

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


def _call(environment: Any, argument: tuple[Operation, Any]) -> Any:
    operation, given = argument
    return operation(environment, given)


async def _awaited(result: Any) -> Any:
    return await result
