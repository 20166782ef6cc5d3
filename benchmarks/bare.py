"""A vector environment behind a bare picows socket, and its client: what a server of arrays is compared with."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from openenv.bench.load import run_loop, split_evenly
from openenv.bench.served import EmptyListener, ServedProcess, serve_floor

ROOT = Path(__file__).parents[1]
MAX_MESSAGE_BYTES = 1 << 30
# The mode of a world of `worlds`.
BATCHED = "batched"


class BatchBytes:
    """The message with the results of a batch, and its arrays, which share their memory with it.

    Args:
        space: Space of one environment's observations, with a shape and a dtype.
        num_envs: Number of environments.
    """

    def __init__(self, space: Space[Any], num_envs: int):
        self.layout = np.dtype(
            [
                ("observations", space.dtype, (num_envs, *(space.shape or ()))),
                ("rewards", np.float64, num_envs),
                ("terminated", np.bool_, num_envs),
                ("truncated", np.bool_, num_envs),
            ]
        )
        self.message = bytearray(self.layout.itemsize)
        record = np.frombuffer(self.message, self.layout)[0]
        self.arrays: list[NDArray[Any]] = [record[name] for name in self.layout.names or ()]

    def fill(self, results: Sequence[NDArray[Any]]) -> None:
        """Copies arrays, in the order of the layout."""
        for array, result in zip(self.arrays, results, strict=False):
            array[...] = result


class SteppingListener(EmptyListener):
    """Steps a vector environment for each binary message, which has the actions; an empty one resets it."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]):
        self._envs = envs
        self._results = BatchBytes(envs.single_observation_space, envs.num_envs)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Answers a message."""
        if frame.msg_type is not WSMsgType.BINARY:
            super().on_ws_frame(transport, frame)
            return
        space = self._envs.action_space
        actions = np.frombuffer(frame.get_payload_as_bytes(), space.dtype)
        if len(actions):
            self._results.fill(self._envs.step(actions.reshape(space.shape or ()))[:4])
        else:
            self._results.fill(self._envs.reset(seed=0)[:1])
        transport.send(WSMsgType.BINARY, self._results.message)


class BareServers:
    """Processes with a share of the environments each, for a `with` block.

    Args:
        env_id: Name of the environment in Gymnasium's registry, or of a world.
        num_envs: Number of all environments.
        workers: Number of processes.
        mode: Vectorization mode of `gymnasium.make_vec`, or `BATCHED` for a world.
        kwargs: Arguments of the environment, as JSON.
    """

    def __init__(self, env_id: str, num_envs: int, workers: int, mode: str, kwargs: dict[str, Any]):
        self.shares = [len(numbers) for numbers in split_evenly(num_envs, workers)]
        command = [sys.executable, "-m", __name__, env_id, mode, json.dumps(kwargs)]
        self._servers = [ServedProcess([*command, str(share)], cwd=ROOT) for share in self.shares]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for server in self._servers:
                stack.enter_context(server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        """Addresses of the processes."""
        return [server.url for server in self._servers]

    def cpu_seconds(self) -> float:
        """CPU time of all processes so far, in seconds."""
        return sum(server.cpu_seconds() for server in self._servers)

    def resident_bytes(self) -> int:
        """Resident memory of all processes, in bytes."""
        return sum(server.resident_bytes() for server in self._servers)


class BareVectorEnv:
    """The environments of `BareServers`, with the interface of a vector environment.

    Args:
        servers: The servers.
        space: Space of one environment's observations.
    """

    def __init__(self, servers: BareServers, space: Space[Any]):
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._results = BatchBytes(space, sum(servers.shares))
        self._connections: list[_Receiver] = []
        first = 0
        for url, share in zip(servers.urls, servers.shares, strict=True):
            receiver = _Receiver(self._results, BatchBytes(space, share), first, first + share)
            self._loop.run_until_complete(receiver.connect(url))
            self._connections.append(receiver)
            first += share

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Starts an episode in each environment."""
        self._loop.run_until_complete(self._exchange(None))
        return self._results.arrays[0], {}

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Takes a step in each environment. The arrays are valid until the next call."""
        self._loop.run_until_complete(self._exchange(actions))
        return tuple(self._results.arrays)

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections:
            connection.transport.disconnect()
        self._runner.close()

    async def _exchange(self, actions: NDArray[Any] | None) -> None:
        await asyncio.gather(*(connection.ask(actions) for connection in self._connections))


class _Receiver(WSListener):
    """A connection, which copies results into their place in the batch."""

    transport: WSTransport

    def __init__(self, batch: BatchBytes, share: BatchBytes, begin: int, end: int):
        self._share = share.layout
        self._targets = [array[begin:end] for array in batch.arrays]
        self._place = slice(begin, end)
        self._answered: asyncio.Future[None] | None = None

    async def connect(self, url: str) -> None:
        address = url.replace("http", "ws", 1)
        self.transport, _ = await ws_connect(lambda: self, address, max_frame_size=MAX_MESSAGE_BYTES)

    def ask(self, actions: NDArray[Any] | None) -> asyncio.Future[None]:
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.send(WSMsgType.BINARY, b"" if actions is None else actions[self._place].tobytes())
        return self._answered

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        record = np.frombuffer(frame.get_payload_as_memoryview(), self._share)[0]
        for target, name in zip(self._targets, self._share.names or (), strict=True):
            target[...] = record[name]
        if self._answered is not None:
            self._answered.set_result(None)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("the bare server closed the connection"))


def main(env_id: str, mode: str, kwargs: str, num_envs: str) -> None:
    """Serves environments until SIGTERM."""
    envs: Any
    if mode == BATCHED:
        from .worlds import WORLDS, LocalBatch  # noqa: PLC0415 - servers of other environments do without

        envs = LocalBatch(WORLDS[env_id], int(num_envs))
    else:
        vector = {"copy": False} if mode == "sync" else {}
        envs = gymnasium.make_vec(env_id, int(num_envs), mode, vector_kwargs=vector, **json.loads(kwargs))
    run_loop(serve_floor(partial(SteppingListener, envs)))


if __name__ == "__main__":
    main(*sys.argv[1:])
