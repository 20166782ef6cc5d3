"""`python -m tests.model_server`: the endpoint as a program, on many cores."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from pathlib import Path

import uvloop

from .server import FAULTS, ModelServer, listening, serve


def main() -> None:
    parser = argparse.ArgumentParser(description="An ideal model endpoint. Its model names are policies.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--latency-s", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--fault", action="append", default=[], metavar="KIND:RATE", help=", ".join(FAULTS))
    parser.add_argument("--retry-after", default="0", help="header of a 429")
    parser.add_argument("--key", help="the API key that requests must have")
    parser.add_argument("--context", type=int, help="most tokens of prompt and completion")
    parser.add_argument("--log", type=Path, help="gets a JSON line for each sample")
    parser.add_argument("--remember", action="store_true", help="a known idempotency key gets its sample again")
    arguments = parser.parse_args()
    faults = {kind: float(rate) for kind, _, rate in (fault.partition(":") for fault in arguments.fault)}
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    server = ModelServer(
        faults=faults,
        retry_after=arguments.retry_after,
        latency_s=arguments.latency_s,
        key=arguments.key,
        context=arguments.context,
        log=arguments.log,
        remember=arguments.remember,
        keep=False,
    )
    first = listening(arguments.port, reuse=True)
    port = first.getsockname()[1]
    listeners = [first, *(listening(port, reuse=True) for _ in range(arguments.workers - 1))]
    parent_end, children_end = os.pipe()
    children = []
    for listener in listeners:
        child = os.fork()
        if not child:
            os.close(children_end)
            uvloop.run(_work(server, listener, parent_end))
            os._exit(0)
        children.append(child)
    print(f"http://127.0.0.1:{port}", flush=True)  # noqa: T201 - a program
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: os.close(children_end))  # the children see its end, also if this process dies
    for child in children:
        os.waitpid(child, 0)


async def _work(server: ModelServer, listener: socket.socket, parent_end: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, ended.set)
    loop.add_reader(parent_end, ended.set)
    await serve(server, listener, ended)


main()
