"""The network of a sandbox: its loopback, on which this process listens and passes connections on."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .._asyncio import on_thread
from .._sockets import receive_with_descriptors
from ..errors import InvalidArgument, LaunchFailed

_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    inside: str  # the loopback address that stands for the host in the sandbox


class NetworkRelay:
    """Lets a network namespace reach listed addresses outside, each under its own name and port.

    The sockets in the namespace belong to this process, so no program there can change where they lead.

    Args:
        allow: Addresses as `host:port`.

    Raises:
        InvalidArgument: An address is malformed.
    """

    def __init__(self, allow: Sequence[str]):
        self.allow = tuple(dict.fromkeys(allow))
        self._addresses = []
        hosts: dict[str, str] = {}
        for address in self.allow:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise InvalidArgument(f"allow: {address!r} must be HOST:PORT, as in 127.0.0.1:8000")
            if host not in hosts:
                hosts[host] = _inside(host, len(hosts))
            self._addresses.append(_Address(host, int(port), hosts[host]))
        self._hosts = hosts
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def hosts(self) -> dict[str, str]:
        """The loopback address in the sandbox of each host name, for /etc/hosts."""
        return {host: inside for host, inside in self._hosts.items() if host not in (inside, "localhost")}

    async def open(self, pid: int) -> None:
        """Listens in the network namespace of a process.

        Raises:
            LaunchFailed: This process may not, or an address is taken there.
        """
        if not self._addresses:
            return
        for address, listener in zip(self._addresses, await on_thread(lambda: self._listeners(pid)), strict=True):

            def pass_on(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: _Address = address
            ) -> None:
                task = asyncio.ensure_future(_relay(reader, writer, address))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
                task.add_done_callback(lambda _: writer.close())  # also of a task that is cancelled before it begins

            self._servers.append(await asyncio.start_server(pass_on, sock=listener))

    async def close(self) -> None:
        """Closes every connection."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _listeners(self, pid: int) -> list[socket.socket]:
        # A separate process enters the namespace: only one with a single thread may enter that of another user.
        code = (
            f"import ctypes, fcntl, json, os, socket, sys\n{inspect.getsource(listen_in)}\nlisten_in(*sys.argv[1:])"
        )
        ours, theirs = socket.socketpair()
        with ours, theirs:
            places = json.dumps([(each.inside, each.port) for each in self._addresses])
            made = subprocess.run(  # noqa: S603 - our own command line
                [sys.executable, "-I", "-S", "-c", code, str(pid), str(theirs.fileno()), places],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            theirs.close()
            if made.returncode:
                said = "".join(made.stderr.strip().splitlines()[-1:])
                raise LaunchFailed(
                    f"allow: {', '.join(self.allow)} cannot be opened to the sandbox ({said}): run this program as "
                    "root, or use a ProcessSandbox, and do not list an address twice"
                )
            _, descriptors = receive_with_descriptors(ours, 16, len(self._addresses))
        return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def listen_in(pid: str, channel: str, addresses: str) -> None:
    """Runs in a separate process: listens in the network namespace of another process, and sends the sockets back.

    Args:
        pid: That process.
        channel: Descriptor of the Unix socket for them.
        addresses: JSON: host and port of each.
    """
    import fcntl

    if sys.platform == "win32":
        raise OSError("network namespaces need Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, 0xB701)  # NS_GET_USERNS
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino and libc.setns(owner, 0):  # noqa: PTH116
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.setns(network, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    listeners = [socket.create_server((host, port), backlog=128) for host, port in json.loads(addresses)]
    end = socket.socket(fileno=int(channel))
    socket.send_fds(end, [b"listening"], [listener.fileno() for listener in listeners])


def _inside(host: str, number: int) -> str:
    """The loopback address that stands for a host; a host that is one keeps it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "127.0.0.1" if host == "localhost" else f"127.0.1.{number + 1}"
    if not address.is_loopback:
        raise InvalidArgument(f"allow: {host} is an address of another machine: give the name of its host")
    return host


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: _Address) -> None:
    try:
        outer_reader, outer_writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return
    try:
        await asyncio.gather(_pump(reader, outer_writer), _pump(outer_reader, writer))
    except OSError:  # a side has reset its connection
        pass
    finally:
        outer_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
