"""Ask all workers of a server which sessions they have."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from .pipe import KEY_BYTES

logger = logging.getLogger("openenv.supervisor")

# What a worker has to answer. One that hangs or dies is left out.
ANSWER_S = 2.0
# An answer is lines of so many sessions each, and a last one that says that nothing is missing.
SESSIONS_A_LINE = 128
MOST_LINE_BYTES = 1024 * 1024
END = b"null\n"
_COUNT_BYTES = 2

Facts = dict[str, Any]


class Broadcast:
    """Asks all workers on behalf of this one. One question at a time: who asks meanwhile gets the same answer.

    Args:
        ask: Sends the question to the parent.
        here: What this worker itself has to say.
    """

    def __init__(self, ask: Callable[[], None], here: Callable[[], list[Facts]]):
        self._ask = ask
        self._here = here
        self._running: asyncio.Task[list[Facts]] | None = None
        self._answers: list[tuple[str, asyncio.Task[list[Facts]]]] = []
        self._told = asyncio.Event()

    async def all_sessions(self) -> list[Facts]:
        """Sessions of all workers.

        A worker that does not answer in its time is named in a line of its own, whose `id` is None and whose `state`
        is "unanswered".
        """
        if self._running is None:
            self._running = asyncio.create_task(self._run())
            self._running.add_done_callback(self._forget)
        return await asyncio.shield(self._running)

    def told(self, payload: bytes, sockets: list[int]) -> None:
        """The parent has handed over some of the sockets on which others answer."""
        keys = [f"{int.from_bytes(key, 'big'):x}" for key in _split(payload[_COUNT_BYTES:])]
        ends: Iterable[int | None] = [*sockets, *[None] * (len(keys) - len(sockets))]
        if self._running is None or self._told.is_set():  # it came too late
            for descriptor in sockets:
                os.close(descriptor)
            return
        for key, end in zip(keys, ends, strict=True):
            heard = _no_answer() if end is None else _read(socket.socket(fileno=end))
            self._answers.append((key, asyncio.create_task(heard)))
        if len(self._answers) >= int.from_bytes(payload[:_COUNT_BYTES], "big"):
            self._told.set()

    async def _run(self) -> list[Facts]:
        self._answers.clear()
        self._told.clear()
        sessions = self._here()
        self._ask()
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        try:
            async with asyncio.timeout_at(deadline):
                await self._told.wait()
        except TimeoutError:
            logger.warning("the parent process does not say whom to ask for sessions: only this worker's are listed")
        self._told.set()
        for key, answer in self._answers:
            try:
                async with asyncio.timeout_at(deadline):
                    sessions += await answer
            except (OSError, ValueError, TimeoutError) as error:
                logger.warning("worker %s does not say what sessions it has: %s", key, str(error) or "it is silent")
                sessions.append(_unanswered(key))
        return sessions

    def _forget(self, task: asyncio.Task[list[Facts]]) -> None:
        self._running = None


async def answer(end: socket.socket, sessions: list[Facts]) -> None:
    """Writes what sessions there are, as fast as it is read, and closes."""
    try:
        _, writer = await asyncio.open_unix_connection(sock=end)
        try:
            async with asyncio.timeout(ANSWER_S):
                for first in range(0, len(sessions), SESSIONS_A_LINE):
                    writer.write(msgspec.json.encode(sessions[first : first + SESSIONS_A_LINE]) + b"\n")
                    await writer.drain()
                writer.write(END)
                await writer.drain()
        finally:
            writer.close()
    except (OSError, TimeoutError):  # nobody reads it any more
        end.close()


async def _read(end: socket.socket) -> list[Facts]:
    """Reads an answer.

    Raises:
        OSError: It has no end.
        ValueError: It is none.
    """
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=MOST_LINE_BYTES)
    sessions: list[Facts] = []
    try:
        while (line := await reader.readline()) != END:
            if not line:
                raise ConnectionResetError("it ended")
            sessions += msgspec.json.decode(line, type=list[Facts])
    finally:
        writer.close()
    return sessions


async def _no_answer() -> list[Facts]:
    raise ConnectionRefusedError("it cannot be asked")


def _unanswered(key: str) -> Facts:
    nothing = dict.fromkeys(("age_s", "idle_s", "steps", "peer"))
    return {"id": None, "state": "unanswered", **nothing, "worker": key}


def _split(keys: bytes) -> Iterator[bytes]:
    return (keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))
