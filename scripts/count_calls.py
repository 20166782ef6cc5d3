"""Count the functions of openenv that one step calls, in the thread of the server and in that of the client.

    python scripts/count_calls.py [--batches 2 4 8] [--execution inline] [--trace]

A server with an environment of one line runs on a thread of this process, and the client plays on the main thread,
over a real WebSocket. The rows are a step of protocol v1, from a client of another library; a step of a single
client; and steps of vector clients of some sizes. The last lines fit functions = a + b n to the vector clients.
`--trace` prints the functions of each row in their order. Each call of a function counts. A coroutine or generator
that continues does not count. The environment is in this file, so its functions do not count. The metrics time only a
sample of the steps, so the counts are those of the most frequent of 25 steps.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from websockets.asyncio.client import connect

import openenv
from openenv import Action, EnvClient, Environment, Observation, State, VectorEnvClient
from openenv.server import create_app
from openenv.server.transports.uvicorn import FastPath

PACKAGE = f"{Path(openenv.__file__).parent}/"
STEPS, WARM_UP = 25, 5
# After its reply, a server continues for some microseconds, and these functions count too.
QUIET_S = 0.01
STOP_S = 10


class Move(Action):
    to: int = 0


class Seen(Observation):
    at: int = 0


class Walk(Environment[Move, Seen, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"

    def __init__(self) -> None:
        self._at = 0

    def reset(self, seed: int | None = None) -> Seen:
        return Seen(at=self._at)

    def step(self, action: Move) -> Seen:
        self._at += action.to
        return Seen(at=self._at, reward=1.0)

    @property
    def state(self) -> State:
        return State()


class WalkOnThread(Walk):
    execution = "thread"


class WalkClient(EnvClient[Move, Seen, State]):
    pass


class CallRecorder:
    """A profile function that records the functions of openenv that one thread calls."""

    def __init__(self) -> None:
        self.functions: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # The argument of RESUME is 0 only at the start of a function.
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_code[frame.f_lasti + 1]:
            self.functions.append(f"{code.co_filename.removeprefix(PACKAGE)} {code.co_qualname}")

    def take(self) -> tuple[str, ...]:
        """The functions since the last call."""
        functions, self.functions = self.functions, []
        return tuple(functions)


def main() -> None:
    options = _options()
    environment = Walk if options.execution == "inline" else WalkOnThread
    server, client = CallRecorder(), CallRecorder()
    with _served(create_app(environment, Move, Seen, max_concurrent_envs=100), server) as url:
        asyncio.run(_measure(url, options, server, client))


async def _measure(url: str, options: argparse.Namespace, server: CallRecorder, client: CallRecorder) -> None:
    counts: dict[int, list[int]] = {}
    async with connect(f"ws{url.removeprefix('http')}/ws") as v1:

        async def step_v1() -> None:
            await v1.send('{"type":"step","data":{"to":1}}')
            await v1.recv()

        await v1.send('{"type":"reset"}')
        await v1.recv()
        _report("v1 step", await _steps(step_v1, server, client), options.trace)
    async with WalkClient(base_url=url) as single:
        await single.reset()
        _report("step", await _steps(lambda: single.step(Move(to=1)), server, client), options.trace)
    for n in options.batches:
        async with VectorEnvClient(WalkClient, base_url=url, num_envs=n) as vector:
            await vector.reset()
            actions = [Move(to=1)] * n
            entered = await _steps(lambda: vector.step(actions), server, client)  # noqa: B023 - awaited here
            counts[n] = _report(f"batch of {n}", entered, options.trace)
    if len(counts) > 1:
        low, high = min(counts), max(counts)
        for place, side in enumerate(("server", "client")):
            slope = (counts[high][place] - counts[low][place]) / (high - low)
            print(f"{side}: {counts[low][place] - slope * low:g} + {slope:g} n")


async def _steps(
    step: Callable[[], Awaitable[Any]], server: CallRecorder, client: CallRecorder
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The functions that the most frequent step calls, on both sides."""
    found: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for number in range(WARM_UP + STEPS):
        server.take(), client.take()
        sys.setprofile(client)
        try:
            await step()
        finally:
            sys.setprofile(None)
        await asyncio.sleep(QUIET_S)
        if number >= WARM_UP:
            found[server.take(), client.take()] += 1
    return found.most_common(1)[0][0]


def _report(name: str, entered: tuple[tuple[str, ...], tuple[str, ...]], trace: bool) -> list[int]:
    for side, functions in zip(("server", "client"), entered, strict=True):
        files = {function.split()[0] for function in functions}
        print(f"{name}, {side}: {len(functions)} functions in {len(files)} files")
        if trace:
            print("".join(f"    {function}\n" for function in functions), end="")
    return [len(functions) for functions in entered]


@contextmanager
def _served(app: Any, entered: CallRecorder) -> Iterator[str]:
    """Serves an app on a thread, and counts its functions."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, lifespan="on", loop="uvloop", http="httptools", ws=FastPath)
    server = uvicorn.Server(config)

    def run() -> None:
        sys.setprofile(entered)
        server.run([listener])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(STOP_S)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--execution", choices=["inline", "thread"], default="inline")
    parser.add_argument("--trace", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
