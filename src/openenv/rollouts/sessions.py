"""The sessions of a run: calls of many rollouts, sent in batches over few connections."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..client import GenericEnvClient, VectorEnvClient
from ..errors import OpenEnvError, UsageError
from ..types import StepResult
from .records import ChatMessage
from .tokens import TokenHistory

Result = StepResult[dict[str, Any]]

# One connection serves that many sessions without being what they wait for.
_SESSIONS_A_CONNECTION = 512


@dataclass(frozen=True, slots=True, eq=False)
class ForkedSession:
    """A session with a copy of what another rollout's had after some turns, and the conversation of these turns.

    Attributes:
        slot: Its slot.
        episode_id: The episode that it goes on with.
        messages: The messages so far.
        history: Their tokens.
    """

    slot: int
    episode_id: str | None
    messages: Sequence[ChatMessage]
    history: TokenHistory


class SessionPool:
    """The slots of a `VectorEnvClient`, one for each rollout at a time. Use it as an asynchronous context manager.

    The calls that rollouts make in one iteration of the event loop leave in one message.

    Args:
        slots: Number of slots: most sessions at the same time.
        connections: Number of connections; None for one for each 512 sessions and at least one for each server.
        spare: Number of further slots, which hold forks until their rollouts take the slot of another one.
        options: Arguments of `GenericEnvClient`.

    Attributes:
        client: The client.
    """

    def __init__(self, slots: int, connections: int | None, spare: int, **options: Any):
        urls = options.get("base_url")
        servers = len(urls) if isinstance(urls, list | tuple) else 1
        count = connections or max(servers, -(-slots // _SESSIONS_A_CONNECTION))
        self.client = VectorEnvClient(
            GenericEnvClient, num_envs=slots + spare, connections=min(count, slots), **options
        )
        self._free = deque(range(slots))
        self._spare = list(range(slots, slots + spare))
        self._freed = asyncio.Event()
        self._replies: dict[int, asyncio.Future[Result]] = {}
        self._resets: list[tuple[int, Mapping[str, Any]]] = []
        self._steps: list[tuple[int, dict[str, Any]]] = []
        self._called = asyncio.Event()
        self._underway = 0
        self._sent = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._open: set[int] = set()

    async def __aenter__(self) -> SessionPool:
        await self.client.connect()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    async def take(self) -> int:
        """Waits for a free slot and takes it."""
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        return self._free.popleft()

    def give_back(self, slot: int) -> None:
        """Frees a slot. Those that have a session are taken first."""
        if slot in self._open:
            self._free.appendleft(slot)
        else:
            self._free.append(slot)
        self._freed.set()

    def exchange(self, slot: int, fork: int) -> None:
        """Takes the slot of a fork into use, in place of another one that is free."""
        self._spare.append(slot)
        self._open.add(fork)

    async def fork(self, slot: int, count: int) -> tuple[list[int], list[OpenEnvError]]:
        """Copies the session of a slot on the server.

        Args:
            slot: A slot with an episode and without a call in flight.
            count: Number of copies.

        Returns:
            The slots of the copies, for `exchange`; and why there are not more: without an error for each of the
            others, all spare slots are in use.
        """
        targets = [spare for spare in self._spare if spare not in self._replies][:count]
        self._spare = [spare for spare in self._spare if spare not in targets]
        errors: Sequence[OpenEnvError | None] = []
        try:
            errors = await self.client.fork(slot, targets)
        except UsageError as error:
            errors = [error] * len(targets)
        finally:  # a cancelled call has no copies
            copies = [target for target, error in zip(targets, errors, strict=False) if error is None]
            self._spare += [target for target in targets if target not in copies]
        return copies, [error for error in errors if error is not None]

    @property
    def has_sessions(self) -> bool:
        """Whether the server has given a session to any of the slots."""
        return bool(self._open)

    async def reset(self, slot: int, arguments: Mapping[str, Any]) -> Result:
        """Begins an episode.

        Args:
            slot: A slot that the caller has taken.
            arguments: The arguments of the environment's reset.

        Raises:
            OpenEnvError: The failure of this session.
        """
        late = self._replies.get(slot)
        if late is not None:  # a cancelled rollout had a call in flight
            await asyncio.wait([late])
        self._resets.append((slot, arguments))
        self._open.discard(slot)
        result = await self._reply(slot)
        self._open.add(slot)
        return result

    async def step(self, slot: int, action: dict[str, Any]) -> Result:
        """Takes a step. Raises as `reset` does."""
        self._steps.append((slot, action))
        return await self._reply(slot)

    async def _reply(self, slot: int) -> Result:
        reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._replies[slot] = reply
        self._called.set()
        try:
            result = await reply
        except asyncio.CancelledError:
            if self._replies.get(slot) is reply:
                self._replies[slot] = asyncio.get_running_loop().create_future()
            raise
        if result.error is not None:
            raise result.error
        return result

    async def _send(self) -> None:
        while True:
            await self._called.wait()
            self._called.clear()
            resets, self._resets = self._resets, []
            steps, self._steps = self._steps, []
            for (has_seed, rest), alike in groupby(resets, _shared_arguments):
                slots, given = zip(*alike, strict=True)
                seeds = [arguments["seed"] for arguments in given] if has_seed else None
                await self._sending(slots, self.client.send_reset(seeds, slots, **rest))
            if steps:
                slots = [slot for slot, _ in steps]
                await self._sending(slots, self.client.send([action for _, action in steps], slots))

    async def _sending(self, slots: Sequence[int], sending: Awaitable[None]) -> None:
        try:
            await sending
        except OpenEnvError as error:
            for slot in slots:
                self._settle(slot, StepResult(observation={}, error=error))
        else:
            self._underway += len(slots)
            self._sent.set()

    async def _receive(self) -> None:
        while True:
            while not self._underway:
                self._sent.clear()
                await self._sent.wait()
            results = await self.client.recv()
            self._underway -= len(results)
            for slot, result in results:
                self._settle(slot, result)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault of the program: the callers raise it."""
        error = None if task.cancelled() else task.exception()
        for reply in self._replies.values():
            if error is not None and not reply.done():
                reply.set_exception(error)

    def _settle(self, slot: int, result: Result) -> None:
        reply = self._replies.pop(slot)
        if not reply.done():
            reply.set_result(result)


def _shared_arguments(reset: tuple[int, Mapping[str, Any]]) -> tuple[bool, dict[str, Any]]:
    """What resets in one message have in common: whether they have a seed, and all other arguments."""
    arguments = dict(reset[1])
    has_seed = isinstance(arguments.get("seed"), int)
    if has_seed:
        del arguments["seed"]
    return has_seed, arguments
