from __future__ import annotations

import pytest

from openenv.client.endpoints import Affinity, convert_to_ws_url, websocket_url
from openenv.errors import UsageError
from openenv.settings import is_loopback


@pytest.mark.parametrize(
    ("base_url", "endpoint"),
    [
        ("http://localhost:8000", "ws://localhost:8000/ws"),
        ("https://envs.example", "wss://envs.example/ws"),
        ("ws://localhost:8000", "ws://localhost:8000/ws"),
        ("wss://envs.example:8443", "wss://envs.example:8443/ws"),
        ("HTTP://localhost:8000", "ws://localhost:8000/ws"),
        ("localhost:8000", "ws://localhost:8000/ws"),
        ("localhost", "ws://localhost/ws"),
        ("127.0.0.1:1", "ws://127.0.0.1:1/ws"),
        ("[::1]:8000", "ws://[::1]:8000/ws"),
        ("http://[::1]:8000", "ws://[::1]:8000/ws"),
        ("http://localhost:8000/", "ws://localhost:8000/ws"),
        ("http://localhost:8000/ws", "ws://localhost:8000/ws"),
        ("http://localhost:8000/ws/", "ws://localhost:8000/ws"),
        ("localhost:8000/ws", "ws://localhost:8000/ws"),
        ("https://envs.example/team/echo", "wss://envs.example/team/echo/ws"),
        ("https://envs.example/team/echo/", "wss://envs.example/team/echo/ws"),
        ("https://envs.example/team/echo/ws", "wss://envs.example/team/echo/ws"),
        ("https://envs.example/laws", "wss://envs.example/laws/ws"),
        ("localhost:8000/team", "ws://localhost:8000/team/ws"),
        ("http://localhost:8000?key=1", "ws://localhost:8000/ws?key=1"),
        ("http://localhost:8000/ws?key=1", "ws://localhost:8000/ws?key=1"),
        ("http://localhost:8000#part", "ws://localhost:8000/ws"),
    ],
)
def test_every_form_of_an_address(base_url, endpoint):
    assert websocket_url(base_url) == endpoint


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "http://",
        "://localhost",
        "ftp://localhost:8000",
        "file:///server",
        "/ws",
        ":8000",
        "::1",
        "http://[::1",
        "http://localhost:port",
        "localhost:99999",
        "localhost:-1",
    ],
)
def test_what_is_no_address_is_refused_where_it_is_given(base_url):
    with pytest.raises(UsageError) as caught:
        websocket_url(base_url)
    assert repr(base_url) in str(caught.value)
    assert "host:port" in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "api.localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_this_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "envs.example", "10.0.0.1", "0.0.0.0", "::", ""])
def test_other_machines(host):
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("url", "worker", "route", "expected"),
    [
        ("ws://h/ws", None, None, "ws://h/ws"),
        ("ws://h/ws", "2.1", None, "ws://h/ws?worker=2.1"),
        ("ws://h/ws", None, "env-a", "ws://h/ws?route=env-a"),
        ("ws://h/ws?key=1", "2", "a", "ws://h/ws?key=1&worker=2&route=a"),
        ("ws://h/ws", "&x=1", "a b/?#\u00e4", "ws://h/ws?worker=%26x%3D1&route=a%20b%2F%3F%23%C3%A4"),
    ],
)
def test_the_way_back_to_a_server_stands_in_the_query_and_breaks_nothing(url, worker, route, expected):
    assert Affinity(None, route, worker).to(url) == expected


@pytest.mark.parametrize(
    ("url", "converted"),
    [
        ("http://localhost:8000", "ws://localhost:8000"),
        ("https://envs.example/team/", "wss://envs.example/team"),
        ("ws://localhost", "ws://localhost"),
        ("wss://envs.example//", "wss://envs.example"),
        ("localhost:8000/team", "ws://localhost:8000/team"),
    ],
)
def test_an_address_with_the_scheme_of_websockets(url, converted):
    assert convert_to_ws_url(url) == converted
