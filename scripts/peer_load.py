"""Run a closed loop through the client of the installed `openenv`, to measure the cost of the client side.

    python scripts/peer_load.py URL SESSIONS SECONDS

Prints `ready` when all sessions are connected. Steps when it reads a line, then prints JSON: steps and CPU seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from openenv import GenericEnvClient

CONNECTING = 16
WARM_UP = 20


async def main(url: str, sessions: int, seconds: float) -> None:
    """Connects, waits for the start, and steps all sessions until the time is over."""
    clients = [GenericEnvClient(base_url=url, connect_timeout_s=60.0) for _ in range(sessions)]
    places = asyncio.Semaphore(CONNECTING)

    async def prepare(client: GenericEnvClient) -> None:
        async with places:
            await client.connect()
            await client.reset()
            for _ in range(WARM_UP):
                await client.step({"wait_seconds": 0.0})

    async def step(client: GenericEnvClient, end: float) -> int:
        steps = 0
        while time.perf_counter() < end:
            await client.step({"wait_seconds": 0.0})
            steps += 1
        return steps

    await asyncio.gather(*(prepare(client) for client in clients))
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, end = time.process_time(), time.perf_counter() + seconds
    steps = sum(await asyncio.gather(*(step(client, end) for client in clients)))
    print(json.dumps({"steps": steps, "cpu_s": time.process_time() - cpu}), flush=True)
    await asyncio.gather(*(client.close() for client in clients))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
