"""HAProxy's file: what stands in it."""

from __future__ import annotations

import pytest
from hypothesis import given

from openenv.errors import UsageError
from openenv.providers.gateway import Backend, Topology, haproxy

from .shapes import THREE, topologies


def sections(topology: Topology) -> dict[str, list[str]]:
    """The lines of each section, by its first one."""
    found: dict[str, list[str]] = {}
    (text,) = haproxy.render(topology).values()
    for line in text.splitlines():
        if line and not line.startswith(" "):
            lines = found[line] = []
        elif line:
            lines.append(line.strip())
    return found


@given(topologies)
def test_every_backend_stands_there_once_and_once_for_those_who_come_back(topology: Topology) -> None:
    found = sections(topology)
    servers = [line.split()[1:3] for line in found["backend servers"] if line.startswith("server ")]
    assert servers == [[backend.name, backend.place] for backend in topology.backends]
    for backend in topology.backends:
        (line,) = found[f"backend to-{backend.name}"]
        assert line.split()[1:3] == [backend.name, backend.place]
    assert sum(title.startswith("backend to-") for title in found) == len(topology.backends)


def test_the_three_ways_to_name_a_server() -> None:
    front = "\n".join(sections(THREE)["frontend sessions"])
    for way in ("url_param(route)", "req.hdr(x-openenv-route)", "req.cook(openenv_route)"):
        assert f"set-var(txn.route) {way}" in front
    assert "use_backend to-%[var(txn.route)] if { var(txn.route) -m str first sec.ond third-1_x }" in front


def test_without_a_backend_nobody_is_named() -> None:
    assert not any(line.startswith("use_backend") for line in sections(Topology())["frontend sessions"])


def test_sessions_are_spread_by_load_and_servers_asked_every_second() -> None:
    lines = sections(THREE)["backend servers"]
    assert "balance leastconn" in lines
    assert "option httpchk GET /health" in lines
    assert "default-server check inter 1000ms fall 2 rise 1" in lines


def test_a_backend_that_accepts_nothing_new_is_there_for_those_who_come_back() -> None:
    found = sections(Topology(backends=(Backend("a", "10.0.0.1", 80, accepting=False), Backend("b", "10.0.0.2", 80))))
    assert [line.endswith(" weight 0") for line in found["backend servers"] if "server " in line[:7]] == [True, False]
    assert not any("weight" in line for line in found["backend to-a"])


def test_tls_on_both_sides() -> None:
    backends = (Backend("a", "env.example.org", 443, tls=True), Backend("b", "10.0.0.2", 80))
    files = {"tls_certificate": "/tls/chain.pem", "tls_key": "/tls/chain.pem.key", "backend_ca": "/tls/ca.pem"}
    found = sections(Topology(backends=backends, **files))
    assert found["frontend sessions"][0] == "bind 127.0.0.1:8000 ssl crt /tls/chain.pem alpn http/1.1"
    first, second = found["backend servers"][-2:]
    assert "ssl verify required ca-file /tls/ca.pem sni str(env.example.org) verifyhost env.example.org" in first
    assert "ssl" not in second


def test_a_key_that_haproxy_would_not_find_is_refused() -> None:
    with pytest.raises(UsageError, match=r"chain\.pem\.key"):
        haproxy.render(Topology(tls_certificate="/tls/chain.pem", tls_key="/tls/other.pem"))


def test_statistics_are_on_loopback_and_only_where_a_port_was_named() -> None:
    assert sections(THREE)["frontend statistics"][0] == "bind 127.0.0.1:9901"
    assert "frontend statistics" not in sections(Topology())


def test_a_certificate_is_never_taken_for_anybodys() -> None:
    with pytest.raises(UsageError, match="use a host name"):
        haproxy.render(Topology(backends=(Backend("a", "10.0.0.1", 443, tls=True),), backend_ca="/ca.pem"))
