"""Forward a local port to a port of a Pod, through the API of its cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from ..._asyncio import first_of
from ...errors import LaunchFailed, ProviderFailed
from ..base import ConnectionRefusal
from .api import UNAUTHORIZED, KubernetesCluster

# Each message is of a channel, which its first byte names: data, or what went wrong. The first message of each says
# its port and nothing else.
_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_DATA, _ERROR = 0, 1
PIECE = 256 * 1024
CONNECT_S = 10.0
FORBIDDEN = 403
# Bytes of a refusal that an error repeats.
MOST_SAID = 1000


class PortForward:
    """Takes connections on a loopback port and passes their bytes to a Pod and back: one WebSocket each.

    What kr8s has for this asks a cluster again without a pause, and for ever, when the Pod is gone.

    Args:
        cluster: Where the Pod is.
        pod: Its name. It need not run yet: connections are closed until it does.
        port: Its port.

    Attributes:
        refusal: Why the cluster refused the last connection; None where it made one.
    """

    def __init__(self, cluster: KubernetesCluster, pod: str, port: int):
        self._cluster = cluster
        self._pod = pod
        self._port = port
        self.refusal: ConnectionRefusal | None = None
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, local_port: int | None = None) -> int:
        """Listens; the port.

        Raises:
            LaunchFailed: The port is taken.
        """
        try:
            self._listener = await asyncio.start_server(self._take, "127.0.0.1", local_port or 0)
        except OSError as error:
            raise LaunchFailed(f"port {local_port} of this machine cannot be had: {error.strerror}") from None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Ends all connections. May be called repeatedly."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            with contextlib.suppress(OSError, WebSocketException, ProviderFailed, TimeoutError):
                async with await self._reach() as there:
                    self.refusal = None
                    await first_of(
                        asyncio.ensure_future(_outward(reader, there)), asyncio.ensure_future(_inward(there, writer))
                    )
        except asyncio.CancelledError:
            writer.transport.abort()  # by `stop`: what a client does not read would hold it up for ever
        finally:
            self._connections.discard(connection)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _reach(self) -> ClientConnection:
        try:
            url, needed = await self._cluster.road_to(self._pod, self._port)
            try:
                return await _dial(url, needed)
            except InvalidStatus as refusal:
                if refusal.response.status_code != UNAUTHORIZED:
                    raise
            return await _dial(*await self._cluster.road_to(self._pod, self._port, refused=needed))
        except InvalidStatus as refusal:
            self.refusal = _refusal(refusal)
            raise
        except ProviderFailed as error:
            self.refusal = ConnectionRefusal(error.message, lasting=False)
            raise


def _refusal(answer: InvalidStatus) -> ConnectionRefusal:
    status, body = answer.response.status_code, bytes(answer.response.body or b"")
    try:
        said = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError):
        said = body[:MOST_SAID].decode("utf-8", "replace").strip() or "no reason given"
    reason = f"the cluster's API answers {status} to a port-forward: {said}"
    if status != FORBIDDEN:
        return ConnectionRefusal(reason, lasting=False)  # credentials may be renewed, and a kubelet may come back
    return ConnectionRefusal(
        f"{reason} (the role of this account needs create and get of pods/portforward)", lasting=True
    )


async def _dial(url: str, needed: Mapping[str, Any]) -> ClientConnection:
    return await connect(
        url,
        subprotocols=[_PROTOCOL],
        compression=None,
        max_size=None,
        open_timeout=CONNECT_S,
        close_timeout=1.0,
        ping_interval=None,  # the conversations inside have their own
        **needed,
    )


async def _outward(reader: asyncio.StreamReader, there: ClientConnection) -> None:
    while data := await reader.read(PIECE):
        await there.send(bytes([_DATA]) + data)


async def _inward(there: ClientConnection, writer: asyncio.StreamWriter) -> None:
    begun: set[int] = set()
    async for message in there:
        if not isinstance(message, bytes) or not message:
            return
        channel = message[0]
        if channel not in begun:
            begun.add(channel)
        elif channel == _ERROR:
            return
        else:
            writer.write(message[1:])
            await writer.drain()
