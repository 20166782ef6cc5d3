"""Envoy's files: what stands in them. That Envoy takes them and does so is for tests/infra."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given

from openenv.providers.gateway import COOKIE, HEADER, PARAMETER, Backend, Topology, envoy

from .shapes import THREE, topologies

pytestmark = pytest.mark.slow

FOLDER = "/etc/gateway"


def rendered(topology: Topology) -> dict[str, Any]:
    return {name: yaml.safe_load(text) for name, text in envoy.render(topology, FOLDER).items()}


def resource(topology: Topology, name: str) -> Any:
    (found,) = rendered(topology)[name]["resources"]
    return found


def endpoints(assignment: Any) -> list[tuple[str, str, int]]:
    (locality,) = assignment["endpoints"]
    rows = []
    for entry in locality["lb_endpoints"]:
        address = entry["endpoint"]["address"]["socket_address"]
        name = entry["metadata"]["filter_metadata"]["envoy.lb"]["backend"]
        rows.append((name, address["address"], address["port_value"]))
    return rows


def routes(topology: Topology) -> list[Any]:
    (host,) = resource(topology, envoy.ROUTES)["virtual_hosts"]
    found: list[Any] = host["routes"]
    return found


def keys(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from keys(value)
    elif isinstance(document, list):
        for value in document:
            yield from keys(value)


@given(topologies)
def test_every_backend_stands_there_once(topology: Topology) -> None:
    expected = [(backend.name, backend.host, backend.port) for backend in topology.backends]
    cluster, listed = resource(topology, envoy.CLUSTERS), endpoints(resource(topology, envoy.ENDPOINTS))
    if all(backend.is_address for backend in topology.backends):
        assert (cluster["type"], listed) == ("EDS", expected)
        assert "load_assignment" not in cluster
    else:
        assert (cluster["type"], listed) == ("STRICT_DNS", [])
        assert endpoints(cluster["load_assignment"]) == expected


@given(topologies)
def test_the_whole_in_one_file_has_the_same_backends_and_reads_no_other_file(topology: Topology) -> None:
    document = yaml.safe_load(envoy.whole(topology))
    (cluster,) = document["static_resources"]["clusters"]
    assert len(endpoints(cluster["load_assignment"])) == len(topology.backends)
    assert "path_config_source" not in set(keys(document))


@given(topologies)
def test_each_name_leads_to_its_backend_alone_and_anything_else_to_any_that_accepts(
    topology: Topology,
) -> None:
    first, *named, handshake, opening, last = routes(topology)
    assert len(named) == 3 * len(topology.backends)
    for number, backend in enumerate(topology.backends):
        by_parameter, by_header, by_cookie = named[3 * number : 3 * number + 3]
        assert by_parameter["match"]["query_parameters"] == [
            {"name": PARAMETER, "string_match": {"exact": backend.name}}
        ]
        assert by_header["match"]["headers"] == [{"name": HEADER, "string_match": {"exact": backend.name}}]
        pattern = by_cookie["match"]["headers"][0]["string_match"]["safe_regex"]["regex"]
        for text in (f"{COOKIE}={backend.name}", f"a=b; {COOKIE}={backend.name}; c=d"):
            assert re.fullmatch(pattern, text)
        for text in (f"{COOKIE}={backend.name}x", f"x{COOKIE}={backend.name}", f"{COOKIE}=x{backend.name}"):
            assert not re.fullmatch(pattern, text)
        for route in (by_parameter, by_header, by_cookie):
            assert route["route"]["metadata_match"]["filter_metadata"]["envoy.lb"] == {"backend": backend.name}
            assert "retry_policy" not in route["route"]  # it is there, or nowhere
    assert first["match"]["query_parameters"] == [{"name": PARAMETER, "present_match": False}]
    for route in (first, handshake, opening, last):
        assert route["route"]["metadata_match"]["filter_metadata"]["envoy.lb"] == {"accepting": "yes"}
    assert last["match"] == {"prefix": "/"}


def test_a_backend_may_accept_nothing_new() -> None:
    backends = (THREE.backends[0], replace(THREE.backends[1], accepting=False))
    (locality,) = resource(THREE.changed(backends=backends), envoy.ENDPOINTS)["endpoints"]
    facts = [entry["metadata"]["filter_metadata"]["envoy.lb"] for entry in locality["lb_endpoints"]]
    assert facts == [{"backend": "first", "accepting": "yes"}, {"backend": "sec.ond"}]


def test_sessions_are_cut_by_no_timeout() -> None:
    for route in routes(THREE):
        assert (route["route"]["timeout"], route["route"]["idle_timeout"]) == ("0s", "0s")
    (listener,) = rendered(THREE)[envoy.BOOTSTRAP]["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["stream_idle_timeout"] == "0s"
    assert "max_stream_duration" not in set(keys(manager))
    assert manager["upgrade_configs"] == [{"upgrade_type": "websocket"}]


def test_health_is_asked_every_second_over_a_connection_of_its_own() -> None:
    (check,) = resource(THREE, envoy.CLUSTERS)["health_checks"]
    assert (check["interval"], check["no_traffic_interval"]) == ("1s", "1s")
    assert check["reuse_connection"] is False
    assert check["http_health_check"]["path"] == "/health"
    other = resource(THREE.changed(health_path="/ready", health_interval_s=0.25), envoy.CLUSTERS)["health_checks"][0]
    assert (other["http_health_check"]["path"], other["interval"]) == ("/ready", "0.25s")


def test_breakers_are_as_large_as_the_sessions() -> None:
    (limits,) = resource(THREE, envoy.CLUSTERS)["circuit_breakers"]["thresholds"]
    assert {limits[name] for name in limits if name.startswith("max_")} == {4096}


def test_administration_is_on_loopback_and_ends_nothing() -> None:
    admin = rendered(THREE.changed(host="0.0.0.0"))[envoy.BOOTSTRAP]["admin"]
    assert admin["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9901}
    allowed = [path["prefix"] for path in admin["allow_paths"]]
    assert not any("/quitquitquit".startswith(path) or "/config_dump".startswith(path) for path in allowed)


def test_files_name_one_another_in_the_folder_where_they_will_lie() -> None:
    text = envoy.render(THREE, "/srv/elsewhere")
    for reader, name in ((envoy.BOOTSTRAP, envoy.ROUTES), (envoy.BOOTSTRAP, envoy.CLUSTERS)):
        assert f"/srv/elsewhere/{name}" in text[reader]
    assert f"/srv/elsewhere/{envoy.ENDPOINTS}" in text[envoy.CLUSTERS]


def test_a_change_of_backends_leaves_the_file_that_is_read_once() -> None:
    before, after = envoy.render(THREE, FOLDER), envoy.render(THREE.changed(backends=THREE.backends[:1]), FOLDER)
    assert {name for name in before if before[name] != after[name]} == {envoy.ROUTES, envoy.ENDPOINTS}


@pytest.mark.parametrize("tls", [False, True])
def test_tls_towards_clients_where_there_is_a_certificate(tls: bool) -> None:
    files = {"tls_certificate": "/tls/chain.pem", "tls_key": "/tls/key.pem"} if tls else {}
    (listener,) = rendered(THREE.changed(**files))[envoy.BOOTSTRAP]["static_resources"]["listeners"]
    chain = listener["filter_chains"][0]
    assert ("transport_socket" in chain) is tls
    if tls:
        context = chain["transport_socket"]["typed_config"]["common_tls_context"]
        assert context["alpn_protocols"] == ["http/1.1"]  # WebSockets are upgraded from it
        assert context["tls_certificates"][0]["private_key"] == {"filename": "/tls/key.pem"}


def test_certificates_of_backends_are_checked_by_authority_and_name() -> None:
    mixed = (Backend("a", "10.0.0.1", 443, tls=True, certified="env.example.org"), Backend("b", "10.0.0.2", 80))
    topology = Topology(backends=mixed, backend_ca="/tls/ca.pem")
    matches = {match["name"]: match for match in resource(topology, envoy.CLUSTERS)["transport_socket_matches"]}
    context = matches["tls"]["transport_socket"]["typed_config"]
    assert context["common_tls_context"]["validation_context"]["trusted_ca"] == {"filename": "/tls/ca.pem"}
    assert context["auto_sni_san_validation"] is True
    (locality,) = resource(topology, envoy.ENDPOINTS)["endpoints"]
    first, second = locality["lb_endpoints"]
    assert first["endpoint"]["hostname"] == "env.example.org"
    assert first["metadata"]["filter_metadata"]["envoy.transport_socket_match"] == {"tls": True}
    assert "envoy.transport_socket_match" not in second["metadata"]["filter_metadata"]


def test_a_backend_without_a_name_must_have_a_certificate_of_its_address() -> None:
    topology = Topology(backends=(Backend("a", "10.0.0.1", 443, tls=True),), backend_ca="/ca.pem")
    match = resource(topology, envoy.CLUSTERS)["transport_socket_matches"][0]
    context = match["transport_socket"]["typed_config"]["common_tls_context"]["validation_context"]
    assert context["match_typed_subject_alt_names"] == [{"san_type": "IP_ADDRESS", "matcher": {"exact": "10.0.0.1"}}]
    (endpoint,) = resource(topology, envoy.ENDPOINTS)["endpoints"][0]["lb_endpoints"]
    assert endpoint["metadata"]["filter_metadata"]["envoy.transport_socket_match"] == match["match"]
