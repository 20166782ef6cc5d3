"""nginx's file: what stands in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from openenv.errors import UsageError
from openenv.providers.gateway import Backend, Topology, nginx

from .shapes import THREE, topologies


def text_of(topology: Topology) -> str:
    (text,) = nginx.render(topology).values()
    return text


@given(topologies)
def test_every_backend_stands_there_once_and_once_for_those_who_come_back(topology: Topology) -> None:
    text = text_of(topology)
    group = text.partition("upstream servers {")[2].partition("}")[0]
    expected = [backend.place for backend in topology.backends] or ["127.0.0.1:1"]
    assert re.findall(r"server (\S+) ", group) == expected
    alone = re.findall(r"upstream to-(\S+) \{ server (\S+) max_fails=0; \}", text)
    assert alone == [(backend.name, backend.place) for backend in topology.backends]
    assert text.count("{") == text.count("}")


@given(topologies)
def test_a_server_is_told_by_the_last_address_that_was_tried(topology: Topology) -> None:
    patterns = re.findall(r"^ +(~\S+) (\S+);$", text_of(topology), re.MULTILINE)
    for pattern, name in patterns:
        backend = next(backend for backend in topology.backends if backend.name == name)
        expression = re.compile(pattern.removeprefix("~"))
        assert expression.search(backend.place)
        assert expression.search(f"10.9.9.9:1, {backend.place}")
        assert not expression.search(f"{backend.place}, 10.9.9.9:1")
        assert not expression.search(f"1{backend.place}")


def test_an_address_never_stands_for_another_that_only_looks_like_it() -> None:
    text = text_of(Topology(backends=(Backend("a", "10.0.0.1", 80),)))
    (pattern,) = re.findall(r"~(\S+) a;", text)
    assert not re.search(pattern, "10a0b0c1:80")


def test_a_backend_that_accepts_nothing_new_is_there_for_those_who_come_back() -> None:
    text = text_of(Topology(backends=(Backend("a", "10.0.0.1", 80, accepting=False), Backend("b", "10.0.0.2", 80))))
    assert re.search(r"server 10\.0\.0\.1:80 .* down;", text)
    assert "upstream to-a { server 10.0.0.1:80 max_fails=0; }" in text
    assert text.count("down;") == 1


def test_sessions_are_spread_by_load() -> None:
    assert "least_conn;" in text_of(THREE)


def test_backends_with_tls_are_refused_since_their_names_would_not_be_checked() -> None:
    with pytest.raises(UsageError, match="Envoy or HAProxy"):
        nginx.render(Topology(backends=(Backend("a", "env.example.org", 443, tls=True),), backend_ca="/ca.pem"))


def test_tls_towards_clients() -> None:
    text = text_of(THREE.changed(tls_certificate="/tls/chain.pem", tls_key="/tls/key.pem"))
    assert "listen 127.0.0.1:8080 ssl backlog=65535;" in text
    assert "ssl_certificate_key /tls/key.pem;" in text


def test_statistics_are_on_loopback_and_only_where_a_port_was_named() -> None:
    assert "listen 127.0.0.1:9901;" in text_of(THREE)
    assert "stub_status" not in text_of(Topology())
