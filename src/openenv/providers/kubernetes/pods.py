"""Watch Pods by their labels over one connection, read their status, and forward local ports to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from ..._asyncio import first_of
from ..._backoff import Backoff
from ...errors import LaunchFailed, ProviderFailed
from ..base import ConnectionRefusal
from .api import UNAUTHORIZED, KubernetesCluster
from .manifests import Manifest

# Seconds between two attempts to watch again, at first and at most.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
PATIENCE_S = 60.0
"""Seconds of silence of a cluster after which the state of its Pods is considered unknown."""


class PodWatch:
    """Watches Pods by their labels. Belongs to one event loop.

    Args:
        cluster: The cluster of the Pods.
        selector: Label selector of the Pods, as the API writes it.

    Attributes:
        pods: The last known manifest of each existing Pod, by name.
        losses: Number of deletions and of full lists received.
        listed: Whether the first full list has come; from then on the watch adds changes.
    """

    def __init__(self, cluster: KubernetesCluster, selector: str):
        self.pods: dict[str, Manifest] = {}
        self.losses = 0
        self.listed = False
        self._cluster = cluster
        self._selector = selector
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._trouble: ProviderFailed | None = None
        self._deaf_since = 0.0

    def start(self) -> None:
        """Starts the watch, unless it runs."""
        if self._following is None or self._following.done():
            self._following = asyncio.ensure_future(self._follow())

    async def stop(self) -> None:
        """Stops the watch, and forgets the Pods."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        self.pods.clear()
        self.listed = False
        self._trouble = None

    def note(self, pod: Manifest, losses: int) -> None:
        """Adds a Pod from the answer to a request, which may come before the watch reports the Pod.

        Args:
            pod: The Pod.
            losses: The value of `losses` before the request: after a later deletion or list, the Pod may be gone.
        """
        if losses == self.losses:
            self.pods.setdefault(pod["metadata"]["name"], pod)
            self._tell()

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Waits until `holds` returns True; calls it after each change of a Pod.

        Returns:
            Whether it returned True within `limit_s` seconds.

        Raises:
            ProviderFailed: The cluster has been silent for too long.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not holds():
                    self.check()
                    # Also wake up without a change, to check the silence of the cluster.
                    with contextlib.suppress(TimeoutError):
                        # Not `wait_for`, which loses a cancellation that comes with the event before Python 3.12.
                        async with asyncio.timeout(LONGEST_PAUSE_S):
                            await self._changed.wait()
        except TimeoutError:
            return holds()
        return True

    def check(self) -> None:
        """Raises `ProviderFailed` if the cluster has been silent too long: the state of the Pods is unknown then."""
        if self._following is not None and self._following.done():
            self._following.result()  # raises an error of this module
        if self._trouble is not None and asyncio.get_running_loop().time() - self._deaf_since > PATIENCE_S:
            raise self._trouble

    async def _follow(self) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                items, version = await self._cluster.find("Pod", labelSelector=self._selector)
                self.pods = {pod["metadata"]["name"]: pod for pod in items}
                self.losses += 1
                self.listed = True
                self._tell()
                backoff.reset()
                self._trouble = None
                while True:
                    watch = self._cluster.watch("Pod", version, labelSelector=self._selector)
                    async with contextlib.aclosing(watch) as events:
                        async for happened, pod in events:
                            version = pod["metadata"].get("resourceVersion", version)
                            if happened == "DELETED":
                                self.pods.pop(pod["metadata"]["name"], None)
                                self.losses += 1
                            elif happened != "BOOKMARK":
                                self.pods[pod["metadata"]["name"]] = pod
                            self._tell()
                    await asyncio.sleep(FIRST_PAUSE_S)
            except ProviderFailed as error:
                if self._trouble is None:
                    self._deaf_since = asyncio.get_running_loop().time()
                self._trouble = error
            self._tell()
            await asyncio.sleep(backoff.grow())

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# Reasons of waiting containers that do not resolve without a change.
_HOPELESS = {
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
}
# Messages with these reasons that are temporary: the kubelet will retry, for instance after a stall.
_PASSING = ("failed to sync ", "timed out", "deadline exceeded")


def end_of(pod: Manifest) -> str | None:
    """Why a Pod has failed for good, phrased to follow "the server". None if it runs, or may still run.

    A Pod without a node is not covered here: see `unplaced`.
    """
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("reason"):
        # An eviction or an exceeded deadline: the containers are stopped, and may end with exit code 0.
        return f"was ended by the cluster ({_because(status)})"
    restarts = pod.get("spec", {}).get("restartPolicy") == "Always"
    ends = (_end_of_container(container, restarts) for container in _containers(pod))
    end = next(filter(None, ends), None)
    if pod.get("metadata", {}).get("deletionTimestamp") is not None:  # its containers may end before it is gone
        because = _because(_condition(pod, "DisruptionTarget"))
        removed = "is being removed from the cluster" + (f" ({because})" if because else "")
        return removed if end is None else f"{removed}; it {end}"
    if end is None and status.get("phase") in {"Failed", "Succeeded"}:
        return f"was ended by the cluster ({_because(status) or status['phase']})"
    return end


def unplaced(pod: Manifest) -> str | None:
    """Why no node takes a Pod, phrased to follow "the server". None if a node did, or it was not scheduled yet."""
    condition = _condition(pod, "PodScheduled")
    if condition.get("status") == "False" and condition.get("reason") == "Unschedulable":
        return f"fits on no node (Unschedulable: {condition.get('message', 'no reason given')})"
    return None


def address_of(pod: Manifest) -> str | None:
    """The address of a Pod within its cluster, if it has one."""
    address = pod.get("status", {}).get("podIP")
    if not address:
        return None
    return f"[{address}]" if ":" in address else str(address)


def never_ran(pod: Manifest) -> bool:
    """Whether none of its containers has started yet."""
    states = [{**each.get("state", {}), **each.get("lastState", {})} for each in _containers(pod)]
    return not any("running" in state or "terminated" in state for state in states)


def _end_of_container(container: Manifest, restarts: bool) -> str | None:
    state = container.get("state", {})
    if "terminated" in state:
        # A container that restarts is between two runs. A completed init container is not a failure.
        return None if restarts or container.get("ready") else _ended(state["terminated"])
    waiting = state.get("waiting", {})
    reason = waiting.get("reason")
    if reason not in _HOPELESS:
        return None
    if reason == "CrashLoopBackOff":
        return f"{_ended(container.get('lastState', {}).get('terminated', {}))}, repeatedly ({reason})"
    message = waiting.get("message", "no reason given")
    return None if any(each in message for each in _PASSING) else f"cannot start ({reason}: {message})"


def _ended(terminated: Manifest) -> str:
    reason = terminated.get("reason")
    detail = f" ({_because(terminated)})" if reason and reason not in {"Error", "Completed"} else ""
    return f"ended with exit code {terminated.get('exitCode', 'unknown')}{detail}"


def _containers(pod: Manifest) -> list[Manifest]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _condition(pod: Manifest, kind: str) -> Manifest:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def _because(part: Manifest) -> str:
    return ": ".join(part[name] for name in ("reason", "message") if part.get(name))


# The first byte of each message is its channel: data or errors. The first message of each channel has only its port.
_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_DATA, _ERROR = 0, 1
PIECE = 256 * 1024
CONNECT_S = 10.0
FORBIDDEN = 403
# Maximum of bytes of a refusal's body in an error.
MOST_SAID = 1000


class PortForward:
    """Forwards connections on a loopback port to a Pod, each over its own WebSocket.

    The port forward of kr8s is not used: it retries without a pause or a limit when the Pod is gone.

    Args:
        cluster: The cluster of the Pod.
        pod: Its name. It need not run yet: connections are closed until it does.
        port: Its port.

    Attributes:
        refusal: Why the cluster refused the last connection; None if it succeeded.
    """

    def __init__(self, cluster: KubernetesCluster, pod: str, port: int):
        self._cluster = cluster
        self._pod = pod
        self._port = port
        self.refusal: ConnectionRefusal | None = None
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, local_port: int | None = None) -> int:
        """Starts to listen; returns the port.

        Raises:
            LaunchFailed: The port is taken.
        """
        try:
            self._listener = await asyncio.start_server(self._take, "127.0.0.1", local_port or 0)
        except OSError as error:
            raise LaunchFailed(f"cannot listen on port {local_port} of this machine: {error.strerror}") from None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Stops listening and ends all connections. May be called repeatedly."""
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

                    async def outward() -> None:
                        while data := await reader.read(PIECE):
                            await there.send(bytes([_DATA]) + data)

                    await first_of(asyncio.ensure_future(outward()), asyncio.ensure_future(_inward(there, writer)))
        except asyncio.CancelledError:
            writer.transport.abort()  # by `stop`: a client that does not read would block a clean close forever
        finally:
            self._connections.discard(connection)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _reach(self) -> ClientConnection:
        try:
            url, needed = await self._cluster.port_forward_to(self._pod, self._port)
            try:
                return await _dial(url, needed)
            except InvalidStatus as refusal:
                if refusal.response.status_code != UNAUTHORIZED:
                    raise
            return await _dial(*await self._cluster.port_forward_to(self._pod, self._port, refused=needed))
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
        return ConnectionRefusal(reason, lasting=False)  # temporary: renewed credentials, a restarted kubelet
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
        ping_interval=None,  # the forwarded connections have their own pings
        **needed,
    )


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
