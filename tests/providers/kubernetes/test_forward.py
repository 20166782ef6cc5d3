"""A port of this machine that leads to a Pod, without a Pod."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from openenv.providers.kubernetes.pods import PortForward

LIMIT_S = 10.0


class ForwardingCluster:
    """A cluster of which nothing is there but the way to one Pod."""

    def __init__(self, port: int):
        self._url = f"ws://127.0.0.1:{port}"

    async def port_forward_to(self, pod: str, port: int) -> tuple[str, dict[str, Any]]:
        return self._url, {}


async def test_a_client_that_does_not_read_holds_up_no_stop() -> None:
    async def pod(connection: ServerConnection) -> None:
        for channel in (b"\0", b"\1"):
            await connection.send(channel + b"P\0")
        await connection.send(b"\0" + bytes(32_000_000))
        await connection.wait_closed()

    protocol = Subprotocol("v4.channel.k8s.io")
    async with asyncio.timeout(LIMIT_S), serve(pod, "127.0.0.1", 0, subprotocols=[protocol]) as server:
        cluster: Any = ForwardingCluster(next(iter(server.sockets)).getsockname()[1])
        forward = PortForward(cluster, "a-pod", 80)
        reader, writer = await asyncio.open_connection("127.0.0.1", await forward.start(), limit=1024)
        try:
            assert await reader.readexactly(1) == b"\0"
            await forward.stop()
        finally:
            writer.transport.abort()
