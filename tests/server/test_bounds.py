"""What a server holds of requests that wait: bounded in bytes, on every transport."""

from __future__ import annotations

import json
import socket
import struct

import httpx
import pytest
from websockets.sync.client import connect

from openenv.mcp import CallToolAction, CallToolObservation
from openenv.server import create_app
from openenv.server.transports.uvicorn import FastPath, HTTPProtocol
from openenv.settings import ServerSettings

from ..mcp.environments import ToolEnvironment
from .probe import ProbeAction, ProbeEnvironment, ProbeObservation
from .raw import BINARY, CONTINUATION, TEXT, close_frame, frame, read_frame, read_until, shake_hands
from .wires import PATIENCE_S, eventually, served

MIB = 1024 * 1024
# More than sockets of loopback take by themselves, less than 64 messages of 1 MiB.
NETWORK_BYTES = 24 * MIB


def app_of(environment=ProbeEnvironment, types=(ProbeAction, ProbeObservation), **settings):
    return create_app(environment, *types, max_concurrent_envs=8, settings=ServerSettings.read({}, **settings))


def tools(**settings):
    return app_of(ToolEnvironment, (CallToolAction, CallToolObservation), **settings)


def fast(app):
    return served(app, receive_buffer=MIB, loop="uvloop", http=HTTPProtocol, ws=FastPath)


def stock(app):
    return served(app, receive_buffer=MIB, http=HTTPProtocol)


def taken(raw: socket.socket, message: bytes, most: int = 64) -> int:
    """Bytes that the other end takes of so many messages before it stops reading."""
    sent = 0
    raw.settimeout(1)
    try:
        for _ in range(most):
            for start in range(0, len(message), 65536):
                sent += raw.send(message[start : start + 65536])
    except TimeoutError:
        pass
    raw.settimeout(PATIENCE_S)
    return sent


@pytest.mark.parametrize("serve", [fast, stock])
def test_v1_requests_that_wait_are_at_most_one_message_of_bytes(serve):
    ProbeEnvironment.forget()
    with serve(app_of(max_message_mb=1)) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        raw.sendall(frame(TEXT, b'{"type":"step","data":{"kind":"wait"}}'))
        assert ProbeEnvironment.waiting.wait(PATIENCE_S)
        large = json.dumps({"type": "state", "padding": "x" * (MIB - 100)}).encode()
        assert taken(raw, frame(TEXT, large)) < NETWORK_BYTES
        ProbeEnvironment.gate.set()
        for _ in range(4):  # the requests that were taken are answered
            read_frame(raw)


@pytest.mark.slow
@pytest.mark.parametrize("serve", [fast, stock])
def test_v2_requests_without_a_reply_are_bounded_in_bytes(serve):
    ProbeEnvironment.forget()
    app = app_of(max_message_mb=1, max_unsent_mb=2, max_in_flight=1000)
    with serve(app) as address, shake_hands(address, more="Sec-WebSocket-Protocol: openenv.v2.json\r\n") as raw:
        read_until(raw, b"\r\n\r\n")
        calls = [
            {"op": "open", "session": "one"},
            {"op": "step", "session": "one", "seq": 1, "action": {"kind": "wait"}},
        ]
        raw.sendall(frame(TEXT, json.dumps({"id": 1, "op": "batch", "calls": calls}).encode()))
        assert ProbeEnvironment.waiting.wait(PATIENCE_S)
        frames = [
            frame(TEXT, json.dumps({
                "id": number, "op": "step", "session": "one", "seq": number,
                "action": {"kind": "ok", "metadata": {"padding": "x" * (MIB // 2)}},
            }).encode())
            for number in range(2, 66)
        ]  # fmt: skip
        sent = taken(raw, b"".join(frames), 1)
        assert sent < NETWORK_BYTES
        ProbeEnvironment.gate.set()
        whole = sent // len(frames[0])
        replies = 0
        while replies < whole:
            replies += json.loads(read_frame(raw)[1]).get("id", 0) > 1


@pytest.mark.slow
def test_mcp_requests_that_wait_are_at_most_one_message_of_bytes():
    with fast(tools(max_message_mb=1)) as address, shake_hands(address, path="/mcp") as raw:
        read_until(raw, b"\r\n\r\n")
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"padding": "x" * (MIB - 200)}}
        slow = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "hang", "arguments": {}},
        }
        raw.sendall(frame(TEXT, json.dumps(slow).encode()))
        assert taken(raw, frame(TEXT, json.dumps(ping).encode())) < NETWORK_BYTES


@pytest.mark.parametrize("path", ["/mcp", "/ws/ui"])
def test_no_socket_of_a_server_agrees_to_compression(path):
    """A frame of 16 KiB can hold 16 MiB."""
    with fast(tools()) as address:
        more = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
        with shake_hands(address, path=path, more=more) as raw:
            answer = read_until(raw, b"\r\n\r\n").lower()
            assert b"sec-websocket-extensions" not in answer


def test_bodies_of_all_http_requests_together_are_bounded():
    ProbeEnvironment.forget()
    body = json.dumps({"action": {"kind": "wait", "metadata": {"padding": "x" * (700 * 1024)}}})
    with (
        fast(app_of(max_message_mb=1, max_unsent_mb=1)) as address,
        socket.create_connection(address.split(":")) as first,
    ):
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        first.sendall(f"POST /step HTTP/1.1\r\n{fields}\r\n\r\n{body}".encode())
        assert ProbeEnvironment.waiting.wait(PATIENCE_S)
        refused = httpx.post(f"http://{address}/step", content=body, headers={"content-type": "application/json"})
        assert refused.status_code == 503
        assert refused.json()["error"] == "TooManyCalls"
        assert "max_unsent_mb" in refused.json()["message"]
        ProbeEnvironment.gate.set()
        assert b" 200 " in first.recv(100)
        # What was answered makes room again.
        eventually(
            lambda: httpx.post(
                f"http://{address}/step", content=body, headers={"content-type": "application/json"}
            ).status_code == 200
        )  # fmt: skip


class TestFramesAgainstTheRules:
    """RFC 6455, section 5: the connection is closed with 1002, and says why."""

    def closed(self, *frames: bytes) -> tuple[int, str]:
        with fast(app_of()) as address, shake_hands(address) as raw:
            read_until(raw, b"\r\n\r\n")
            raw.sendall(b"".join(frames))
            payload = close_frame(raw)
            return struct.unpack("!H", payload[:2])[0], payload[2:].decode()

    def test_a_continuation_of_nothing(self):
        code, reason = self.closed(frame(CONTINUATION, b'{"type":"state"}'))
        assert (code, "continuation" in reason) == (1002, True)

    def test_a_message_inside_another(self):
        code, reason = self.closed(frame(TEXT, b'{"type":', fin=False), frame(TEXT, b'{"type":"state"}'))
        assert (code, "fragment" in reason) == (1002, True)

    def test_a_binary_message_inside_a_text(self):
        assert self.closed(frame(TEXT, b'{"type":', fin=False), frame(BINARY, b"x"))[0] == 1002

    @pytest.mark.parametrize("opcode", [TEXT, BINARY, CONTINUATION])
    def test_a_bit_of_an_extension_that_was_not_agreed_on(self, opcode):
        code, reason = self.closed(frame(opcode, b'{"type":"state"}', rsv1=True))
        assert (code, "RSV1" in reason) == (1002, True)

    def test_fragments_in_their_order_are_a_message(self):
        with fast(app_of()) as address, shake_hands(address) as raw:
            read_until(raw, b"\r\n\r\n")
            for _ in range(2):
                raw.sendall(frame(TEXT, b'{"type":', fin=False) + frame(CONTINUATION, b'"state"}'))
                assert json.loads(read_frame(raw)[1])["type"] == "state"
            raw.sendall(frame(TEXT, b'{"type":"state"}'))
            assert json.loads(read_frame(raw)[1])["type"] == "state"


def test_bad_utf8_on_a_stock_socket_is_one_line_in_the_log(caplog):
    with fast(tools()) as address, connect(f"ws://{address}/mcp", proxy=None) as client:
        client.socket.sendall(frame(TEXT, b"\xff\xfe"))
        eventually(lambda: client.close_code == 1007)
    assert not any(record.exc_info for record in caplog.records)
