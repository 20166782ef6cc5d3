from __future__ import annotations

import pytest

from openenv.server.transports.picows import Upgrade

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def request_of(target="/ws", version="13", key=KEY, more=""):
    return (
        f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: {version}\r\n{more}\r\n"
    ).encode()


def test_what_a_request_says():
    assert Upgrade.parse(request_of())[:3] == ("/ws", "", KEY.encode())
    assert Upgrade.parse(request_of("/a%20b?c=1&d=%20"))[:3] == ("/a b", "c=1&d=%20", KEY.encode())


def test_headers_are_known_by_their_names_in_lower_case_and_lists_are_joined():
    fields = Upgrade.parse(request_of(more="Origin: http://a\r\nORIGIN:http://b\r\nX-Empty:\r\n")).fields
    assert fields[b"origin"] == b"http://a,http://b"
    assert (fields[b"host"], fields[b"x-empty"]) == (b"localhost", b"")


@pytest.mark.parametrize("fault", [{"version": "12"}, {"key": "short"}, {"version": ""}])
def test_what_is_no_good_request(fault):
    assert Upgrade.parse(request_of(**fault)) is None


@pytest.mark.parametrize(
    ("headers", "chosen"),
    [
        ("", None),
        ("Sec-WebSocket-Protocol: chat\r\n", None),
        ("Sec-WebSocket-Protocol: openenv.v2.json\r\n", "openenv.v2.json"),
        ("sec-websocket-protocol: chat,openenv.v2.json , openenv.v2.msgpack\r\n", "openenv.v2.json"),
        ("Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: openenv.v2.msgpack\r\n", "openenv.v2.msgpack"),
    ],
)
def test_the_first_offer_that_is_known_is_taken(headers, chosen):
    assert Upgrade.parse(request_of(more=headers)).subprotocol == chosen


@pytest.mark.parametrize(
    ("target", "worker"),
    [("/ws", None), ("/ws?worker=7.a", "7.a"), ("/ws?a=1&worker=x%2Fy", "x/y"), ("/ws?worker=", None)],
)
def test_the_worker_that_a_client_wants(target, worker):
    assert Upgrade.parse(request_of(target)).worker == worker
