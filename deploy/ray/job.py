"""A Ray job that starts its environments in its own cluster: servers on every node, and sessions on all of them.

    python job.py --servers 4 --sessions 256                                  # on a node of the cluster
    ray job submit --working-dir . -- python job.py --servers 4               # from anywhere

Every node needs `pip install 'openenv[ray]'`, and the package of `--target`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from openenv import GenericEnvClient
from openenv.providers import LaunchSpec, RayProvider, Resources, deploy


async def episode(urls: list[str], api_key: str | None, steps: int) -> str:
    """Plays an episode, and returns its server and process. In a trainer, the model chooses the actions."""
    async with GenericEnvClient(urls, api_key=api_key) as env:  # the server with the fewest sessions of this process
        await env.reset()
        for _ in range(steps):
            result = await env.step({"wait_seconds": 0.0})
        return f"{result.observation['host_url']}, process {result.observation['pid']}"


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="benchmark")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cpus", type=float, default=1.0, help="Processors that Ray sets aside for each server.")
    given = parser.parse_args()
    spec = LaunchSpec(target=given.target, replicas=given.servers, resources=Resources(cpus=given.cpus))
    async with deploy(spec, RayProvider(strategy="SPREAD")) as servers:
        print(f"{len(servers.urls)} servers: {', '.join(servers.urls)}")
        calls = (episode(servers.urls, servers.api_key, given.steps) for _ in range(given.sessions))
        places = Counter(await asyncio.gather(*calls))
    for place, count in sorted(places.items()):
        print(f"{count} episodes on {place}")


if __name__ == "__main__":
    asyncio.run(main())
