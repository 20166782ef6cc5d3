"""Ask all workers of a server which sessions they have."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable
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
    """Asks all workers on behalf of this one. One question at a time: its answer is for all who ask meanwhile.

    Args:
        ask: Sends the question to the parent.
        here: What this worker itself has to say.
    """

    def __init__(self, ask: Callable[[], None], here: Callable[[], list[Facts]]):
        self._ask = ask
        self._here = here
        self._running: asyncio.Task[list[Facts]] | None = None
        self._answers: list[tuple[str, asyncio.Task[list[Facts]]]] = []
        self._complete = asyncio.Event()

    async def all_sessions(self) -> list[Facts]:
        """Sessions of all workers.

        A worker that does not answer in its time is named in a line of its own, whose `id` is None and whose `state`
        is "unanswered".
        """
        if self._running is None:
            self._running = asyncio.create_task(self._run())
            self._running.add_done_callback(self._forget)
        return await asyncio.shield(self._running)

    def take_sockets(self, payload: bytes, sockets: list[int]) -> None:
        """The parent has handed over some of the sockets on which others answer."""
        places = range(_COUNT_BYTES, len(payload), KEY_BYTES)
        keys = [f"{int.from_bytes(payload[place : place + KEY_BYTES], 'big'):x}" for place in places]
        ends: Iterable[int | None] = [*sockets, *[None] * (len(keys) - len(sockets))]
        if self._running is None or self._complete.is_set():  # it came too late
            for descriptor in sockets:
                os.close(descriptor)
            return
        for key, end in zip(keys, ends, strict=True):
            self._answers.append((key, asyncio.create_task(_read(end))))
        if len(self._answers) >= int.from_bytes(payload[:_COUNT_BYTES], "big"):
            self._complete.set()

    async def _run(self) -> list[Facts]:
        self._answers.clear()
        self._complete.clear()
        sessions = self._here()
        self._ask()
        deadline = asyncio.get_running_loop().time() + ANSWER_S
        try:
            async with asyncio.timeout_at(deadline):
                await self._complete.wait()
        except TimeoutError:
            logger.warning("the parent process does not say whom to ask for sessions: only this worker's are listed")
        self._complete.set()
        for key, answer in self._answers:
            try:
                async with asyncio.timeout_at(deadline):
                    sessions += await answer
            except (OSError, ValueError, TimeoutError) as error:
                logger.warning("worker %s does not say what sessions it has: %s", key, str(error) or "it is silent")
                unknown = dict.fromkeys(("age_s", "idle_s", "steps", "peer"))
                sessions.append({"id": None, "state": "unanswered", **unknown, "worker": key})
        return sessions

    def _forget(self, task: asyncio.Task[list[Facts]]) -> None:
        self._running = None


async def send_sessions(end: socket.socket, sessions: list[Facts]) -> None:
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
    except (OSError, TimeoutError):  # the other worker has stopped reading
        end.close()


async def _read(end: int | None) -> list[Facts]:
    """Reads an answer from a socket, of which this is the descriptor.

    Raises:
        OSError: There is no socket, or the answer is not complete.
        ValueError: What comes is no answer.
    """
    if end is None:
        raise ConnectionRefusedError("it cannot be asked")
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=end), limit=MOST_LINE_BYTES)
    sessions: list[Facts] = []
    try:
        while (line := await reader.readline()) != END:
            if not line:
                raise ConnectionResetError("it ended")
            sessions += msgspec.json.decode(line, type=list[Facts])
    finally:
        writer.close()
    return sessions
