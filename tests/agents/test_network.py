"""The relay between a network namespace and addresses outside of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from asyncio.subprocess import PIPE
from contextlib import ExitStack

import pytest

from openenv.agents.network import NetworkRelay

from ..asynchronous import PATIENCE_S

pytestmark = pytest.mark.real

INSIDE = """
import socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
print("up", flush=True)
with socket.create_connection(("127.0.0.1", int(input()))) as connection:
    print("connected", flush=True)
    connection.recv(1)
print("closed", flush=True)
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip"))), reason="needs a namespace: root, unshare, ip"
)
async def test_closing_ends_a_connection_that_still_waits_for_the_other_side() -> None:
    with ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(3):  # more than its queue takes: who connects now waits
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        command = ("unshare", "--net", sys.executable, "-c", INSIDE)
        inside = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert inside.stdin is not None
                assert inside.stdout is not None
                assert await inside.stdout.readline() == b"up\n"
                relay = NetworkRelay([f"127.0.0.1:{port}"])
                await relay.open(inside.pid)
                inside.stdin.write(f"{port}\n".encode())
                assert await inside.stdout.readline() == b"connected\n"
                await relay.close()
                assert await inside.stdout.readline() == b"closed\n"
        finally:
            if inside.returncode is None:
                inside.kill()
            await inside.communicate()
