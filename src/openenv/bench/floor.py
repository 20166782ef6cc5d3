"""The physical floor: a server that does nothing but answer every frame with the same one.

What picows and the machine take for a frame in and a frame out is what no environment server can be below. The
answer is one to a v1 request, of the size that the benchmark environment's have, so that the same load can be put on
both. Run as a module, it serves on a free port of this machine and says its address.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_create_server

from .crew import run_loop
from .served import ServedProcess

__all__ = ["Floor"]

BACKLOG = 4096
_ANSWER = (
    b'{"type":"observation","data":{"observation":{"host_url":"localhost","pid":1,"session_hash":"0123456789abcdef",'
    b'"waited_seconds":0.0,"timestamp":1700000000.123456},"reward":1.0,"done":false}}'
)


class Floor(ServedProcess):
    """The floor as a process: there on entering, gone on leaving.

    Args:
        cpus: The cores it may use; None for all.
    """

    def __init__(self, cpus: Collection[int] | None = None):
        super().__init__([sys.executable, "-m", __name__], cpus=cpus)


class _Answering(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type is WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        else:
            transport.send(WSMsgType.TEXT, _ANSWER)


async def _serve() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = await ws_create_server(lambda _: _Answering(), "127.0.0.1", 0, backlog=BACKLOG)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await stopped.wait()


if __name__ == "__main__":
    run_loop(_serve())
