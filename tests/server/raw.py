"""WebSocket by hand, for what no library would send or leave unread."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct

from .wires import PATIENCE_S

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: {connection}\r\n"
    "Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n{more}\r\n"
)


def shake_hands(address, connection="Upgrade", version="13", more="", key=None, path="/ws"):
    key = key or base64.b64encode(os.urandom(16)).decode()
    host, port = address.split(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    raw.sendall(HANDSHAKE.format(connection=connection, version=version, more=more, key=key, path=path).encode())
    return raw


def read_until(raw: socket.socket, end: bytes) -> bytes:
    data = b""
    while end not in data:
        more = raw.recv(1)  # and nothing of what comes behind it
        if not more:
            break
        data += more
    return data


def frame(opcode: int, payload: bytes, fin: bool = True, rsv1: bool = False) -> bytes:
    """A masked client frame (the mask is zero)."""
    first = (0x80 if fin else 0) | (0x40 if rsv1 else 0) | opcode
    if len(payload) < 126:
        head = struct.pack("!BB", first, 0x80 | len(payload))
    elif len(payload) < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, len(payload))
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, len(payload))
    return head + b"\0\0\0\0" + payload


TEXT, BINARY, CLOSE, PING, CONTINUATION = 1, 2, 8, 9, 0


def read_frame(raw: socket.socket) -> tuple[int, bytes]:
    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = raw.recv(count - len(data))
            assert more, "closed"
            data += more
        return bytes(data)

    first, second = exactly(2)
    size = second & 0x7F
    if size == 126:
        size = struct.unpack("!H", exactly(2))[0]
    elif size == 127:
        size = struct.unpack("!Q", exactly(8))[0]
    return first & 0x0F, exactly(size)


def slow_reader(address, **options):
    """A v2 connection whose client asks for more than 64 MiB, and reads nothing of it yet."""
    raw = shake_hands(address, more="Sec-WebSocket-Protocol: openenv.v2.json\r\n")
    read_until(raw, b"\r\n\r\n")
    read_frame(raw)
    calls = [{"op": "open", "session": "one"}]
    calls += [{"op": "step", "session": "one", "seq": seq, "action": options} for seq in range(1, 101)]
    raw.sendall(frame(TEXT, json.dumps({"id": 1, "op": "batch", "calls": calls}).encode()))
    return raw


def close_frame(raw: socket.socket) -> bytes:
    """Reads to the end, and tells how the server closed."""
    opcode, payload = read_frame(raw)
    while opcode != CLOSE:
        opcode, payload = read_frame(raw)
    return payload
