"""What a gateway stands before, read and checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.errors import UsageError
from openenv.providers.gateway import Backend, Topology, plain_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8000", Backend("10.0.0.1-8000", "10.0.0.1", 8000)),
        ("http://10.0.0.1:8000/", Backend("10.0.0.1-8000", "10.0.0.1", 8000)),
        (" https://env.example.org ", Backend("env.example.org-443", "env.example.org", 443, tls=True)),
        ("wss://env.example.org:9", Backend("env.example.org-9", "env.example.org", 9, tls=True)),
        ("http://env-a", Backend("env-a-80", "env-a", 80)),
        ("first=env-a:8000", Backend("first", "env-a", 8000)),
        ("first=https://env-a", Backend("first", "env-a", 443, tls=True)),
        ("my_stack_env.a-b:8000", Backend("my_stack_env.a-b-8000", "my_stack_env.a-b", 8000)),
        ("[::1]:8000", Backend("1-8000", "::1", 8000)),
        ("six=[fe80::1]:8000", Backend("six", "fe80::1", 8000)),
    ],
)
def test_a_backend_is_read_as_it_is_written(text: str, expected: Backend) -> None:
    assert Backend.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "a=",
        "host",
        "first=10.0.0.1",
        "[::1]",
        "host:port",
        "host:0",
        "host:70000",
        "http://host:8000/path",
        "http://host:8000/?a=b",
        "ftp://host:21",
        "a b:8000",
        "a=b=c:8000",
        "$(reboot)=host:8000",
        'a"b:8000',
        "-a=host:8000",
        "a\n=host:8000",
        "host;drop:8000",
        "x" * 64 + "=host:8000",
        "http://someone:secret@host:8000",
        "a..b:8000",
        "a_.:8000",
        "x" * 64 + ".example.org:8000",
    ],
)
def test_what_is_no_backend_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Backend.parse(text)


def test_a_host_without_a_port_is_asked_for_it_and_a_secret_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="'foo'.*host:port"):
        Backend.parse("foo")
    with pytest.raises(UsageError) as told:
        Backend.parse("http://someone:hush@host:8000")
    assert "hush" not in told.value.message


def test_the_name_of_a_host_is_the_one_its_certificate_must_have() -> None:
    assert Backend.parse("https://env.example.org").certified == "env.example.org"
    assert Backend.parse("https://10.0.0.1").certified is None
    assert Backend("a", "10.0.0.1", 443, tls=True, certified="env.example.org").certified == "env.example.org"
    with pytest.raises(UsageError, match="certificate"):
        Backend("a", "10.0.0.1", 443, tls=True, certified="env) ssl verify none (")


def test_a_place_is_written_as_urls_have_it() -> None:
    assert Backend("a", "::1", 80).place == "[::1]:80"
    assert Backend("a", "env", 80).place == "env:80"
    assert Topology(host="::1", port=80).listen == "[::1]:80"
    assert Topology().listen == "127.0.0.1:8000"  # loopback, if nobody says otherwise


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backends": [Backend("a", "x", 1), Backend("a", "y", 1)]}, "'a'"),
        ({"backends": [Backend("a", "x", 1, tls=True)]}, "backend_ca"),
        ({"host": "localhost"}, "IP address"),
        ({"port": 65536}, "ports"),
        ({"admin_port": -1}, "admin_port"),
        ({"tls_certificate": "/a"}, "tls_key"),
        ({"tls_key": "/a"}, "tls_certificate"),
        ({"tls_certificate": '/a"', "tls_key": "/b"}, "spaces or quotes"),
        ({"backend_ca": "/a b"}, "spaces or quotes"),
        ({"health_path": "health"}, "health_path"),
        ({"health_path": "/a b"}, "health_path"),
        ({"health_path": "/a\r\nX: y"}, "health_path"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"unhealthy_after": 0}, "unhealthy_after"),
        ({"health_interval_s": 0}, "health_interval_s"),
        ({"health_timeout_s": -1}, "health_timeout_s"),
        ({"connect_timeout_s": 0}, "connect_timeout_s"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Topology(**changes)


def test_backends_change_and_all_else_stays() -> None:
    topology = Topology(port=9000, max_sessions=7)
    changed = topology.changed(backends=[Backend("a", "x", 1)])
    assert (changed.port, changed.max_sessions, changed.backends) == (9000, 7, (Backend("a", "x", 1),))
    assert topology.backends == ()


@given(st.text(max_size=200))
def test_any_text_makes_a_name(text: str) -> None:
    assert Backend(plain_name(text), "127.0.0.1", 1).name == plain_name(text)
