"""Render Envoy's configuration of a topology."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from .topology import BACKEND_IDLE_S, COOKIE, HEAD_S, HEADER, PARAMETER, Topology

BOOTSTRAP = "envoy.yaml"
"""The configuration file that Envoy starts with; read once."""
ROUTES, CLUSTERS, ENDPOINTS = "routes.yaml", "clusters.yaml", "endpoints.yaml"
CLUSTER = "servers"
LISTENER = "sessions"

Fields = dict[str, Any]
_TYPE = "type.googleapis.com/envoy."
# Key of the metadata that identifies a backend's endpoint.
_BACKEND = "backend"
# The same for all backends that get new sessions.
_ACCEPTING = "accepting"
_BUFFER_BYTES = 64 * 1024
# Envoy weights a backend by its active requests to the power of minus this value. A larger value plans the order of
# backends too far ahead: the counts are outdated when many sessions end together.
_BIAS = 0.5
# Paths that Envoy answers on its administration port; none of them can stop it.
_ADMIN_PATHS = ("/ready", "/listeners", "/clusters", "/stats", "/server_info")


def render(topology: Topology, folder: str | PurePath) -> dict[str, str]:
    """The files of a configuration, by name.

    Args:
        topology: The gateway and its backends.
        folder: The folder of the files, which contain each other's paths.

    Returns:
        `BOOTSTRAP`, which Envoy reads once, and `ROUTES`, `CLUSTERS` and `ENDPOINTS`, which Envoy reads again when
        another file is renamed to them. `ENDPOINTS` is empty if backends have host names: Envoy then resolves
        them, and the cluster lists them.
    """
    place = PurePath(folder)
    routes = {"route_config_name": LISTENER, "config_source": _watched(place, ROUTES)}
    looked_up = _looked_up(topology)
    listed = topology.changed(backends=()) if looked_up else topology
    found = (
        _stated(topology)
        if looked_up
        else {
            "type": "EDS",
            "eds_cluster_config": {"service_name": CLUSTER, "eds_config": _watched(place, ENDPOINTS)},
        }
    )
    bootstrap = _bootstrap(topology, {"rds": routes})
    bootstrap["dynamic_resources"] = {"cds_config": _watched(place, CLUSTERS)}
    return {
        BOOTSTRAP: _yaml(bootstrap),
        ROUTES: _yaml(_resource("config.route.v3.RouteConfiguration", _routes(topology))),
        CLUSTERS: _yaml(_resource("config.cluster.v3.Cluster", _cluster(topology, found))),
        ENDPOINTS: _yaml(_resource("config.endpoint.v3.ClusterLoadAssignment", _assignment(listed))),
    }


def whole(topology: Topology) -> str:
    """The whole configuration in one file with fixed backends, for `envoy --mode validate`."""
    bootstrap = _bootstrap(topology, {"route_config": _routes(topology)})
    bootstrap["static_resources"]["clusters"] = [_cluster(topology, _stated(topology))]
    return _yaml(bootstrap)


def _yaml(document: Fields) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110)


def _resource(kind: str, fields: Fields) -> Fields:
    return {"resources": [_typed(kind, fields)]}


def _typed(kind: str, fields: Mapping[str, Any] | None = None) -> Fields:
    return {"@type": f"{_TYPE}{kind}", **(fields or {})}


def _extension(name: str, kind: str, fields: Mapping[str, Any] | None = None) -> Fields:
    return {"name": f"envoy.{name}", "typed_config": _typed(kind, fields)}


def _watched(folder: PurePath, name: str) -> Fields:
    """A file that Envoy reads again when another file is renamed to it."""
    path = {"path": str(folder / name), "watched_directory": {"path": str(folder)}}
    return {"resource_api_version": "V3", "path_config_source": path}


def _address(host: str, port: int) -> Fields:
    return {"socket_address": {"address": host, "port_value": port}}


def _seconds(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".") + "s"


def _bootstrap(topology: Topology, routes: Fields) -> Fields:
    router = _extension(
        "filters.http.router", "extensions.filters.http.router.v3.Router", {"suppress_envoy_headers": True}
    )
    manager = {
        "stat_prefix": LISTENER,
        "codec_type": "HTTP1",
        **routes,
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [router],
        # No idle timeout: client and server decide how long a session may be silent.
        "stream_idle_timeout": "0s",
        "request_headers_timeout": _seconds(HEAD_S),
        # Servers get the client's address: they count wrong keys by it.
        "use_remote_address": True,
        "server_header_transformation": "PASS_THROUGH",
        "generate_request_id": False,
    }
    kind = "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    chain: Fields = {"filters": [_extension("filters.network.http_connection_manager", kind, manager)]}
    if topology.tls:
        certificate = {
            "certificate_chain": {"filename": topology.tls_certificate},
            "private_key": {"filename": topology.tls_key},
        }
        # WebSockets need HTTP/1.1.
        context = {"alpn_protocols": ["http/1.1"], "tls_certificates": [certificate]}
        kind = "extensions.transport_sockets.tls.v3.DownstreamTlsContext"
        chain["transport_socket"] = _extension("transport_sockets.tls", kind, {"common_tls_context": context})
    listener = {
        "name": LISTENER,
        "address": _address(topology.host, topology.port),
        "tcp_backlog_size": 65_535,
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }
    # The limit allows the connections of all sessions, and as many for other requests.
    kind = "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    most = {"max_active_downstream_connections": 2 * topology.max_sessions}
    limit = _extension("resource_monitors.global_downstream_max_connections", kind, most)
    return {
        "node": {"id": "openenv-gateway", "cluster": "openenv"},
        "admin": {
            "address": _address("127.0.0.1", topology.admin_port),
            "allow_paths": [{"prefix": path} for path in _ADMIN_PATHS],
        },
        "static_resources": {"listeners": [listener]},
        "overload_manager": {"resource_monitors": [limit]},
    }


def _routes(topology: Topology) -> Fields:
    named = []
    for backend in topology.backends:
        exactly = {"string_match": {"exact": backend.name}}
        cookie = {
            "string_match": {"safe_regex": {"regex": f"(?:.*;)? *{COOKIE}={re.escape(backend.name)} *(?:;.*)?"}}
        }
        ways: list[Fields] = [
            {"query_parameters": [{"name": PARAMETER, **exactly}]},
            {"headers": [{"name": HEADER, **exactly}]},
            {"headers": [{"name": "cookie", **cookie}]},
        ]
        for match in ways:
            there = {"metadata_match": {"filter_metadata": {"envoy.lb": {_BACKEND: backend.name}}}}
            named.append(_route(there, **match))
    handshake = {"name": "upgrade", "string_match": {"exact": "websocket", "ignore_case": True}}
    post = {"name": ":method", "string_match": {"exact": "POST"}}
    # A handshake without an answer may be retried at another server: its session ends with its connection.
    accepting = {"metadata_match": {"filter_metadata": {"envoy.lb": {_ACCEPTING: "yes"}}}}
    new, other = ({**accepting, **_retry(reasons)} for reasons in (f"{_UNSEEN},reset", _UNSEEN))
    anywhere = [
        _route(new, headers=[handshake]),
        _route(other, path="/sessions", headers=[post]),
        _route(other),
    ]
    anywhere[1]["response_headers_to_add"] = [
        {"header": {"key": "set-cookie", "value": f"{COOKIE}={_NAMED}; Path=/; HttpOnly; SameSite=Strict"}}
    ]
    # Nearly all handshakes name no backend: this route saves their comparison with all names.
    first = _route(new, headers=[handshake, *_UNROUTED["headers"]], query_parameters=_UNROUTED["query_parameters"])
    tells = {"header": {"key": HEADER, "value": _NAMED}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    host = {
        "name": LISTENER,
        "domains": ["*"],
        "routes": [first, *named, *anywhere],
        "response_headers_to_add": [tells],
    }
    return {"name": LISTENER, "virtual_hosts": [host], "ignore_port_in_host_matching": True}


_NAMED = f"%UPSTREAM_METADATA(envoy.lb:{_BACKEND})%"
_UNROUTED: Fields = {
    "query_parameters": [{"name": PARAMETER, "present_match": False}],
    "headers": [
        {"name": HEADER, "present_match": False},
        {
            "name": "cookie",
            "string_match": {"contains": f"{COOKIE}="},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        },
    ],
}
# Failures after which a request is retried: no server has seen it.
_UNSEEN = "connect-failure,refused-stream,reset-before-request"


def _route(action: Fields, **match: Any) -> Fields:
    place = {} if "path" in match else {"prefix": "/"}
    return {
        "match": {**place, **match},
        "route": {"cluster": CLUSTER, **action, "timeout": "0s", "idle_timeout": "0s"},
    }


def _retry(reasons: str) -> Fields:
    others = _extension(
        "retry_host_predicates.previous_hosts", "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    )
    policy = {
        "retry_on": reasons,
        "num_retries": 3,
        "retry_host_predicate": [others],
        "host_selection_retry_max_attempts": 5,
    }
    return {"retry_policy": policy}


def _stated(topology: Topology) -> Fields:
    """The backends, listed in their cluster."""
    kind = "STRICT_DNS" if _looked_up(topology) else "STATIC"
    return {"type": kind, "load_assignment": _assignment(topology)}


def _cluster(topology: Topology, found: Fields) -> Fields:
    # Statuses of a proxy in front of a server. 500 and 503 come from the server itself: it failed, or it is full.
    no_server = {"name": ":status", "string_match": {"safe_regex": {"regex": "502|504"}}}
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    breaker = {"priority": "DEFAULT", **dict.fromkeys(limits, topology.max_sessions)}
    uncounted = ("consecutive_gateway_failure", "success_rate", "failure_percentage", "local_origin_success_rate")
    health_check = {
        "timeout": _seconds(topology.health_timeout_s),
        "interval": _seconds(topology.health_interval_s),
        "no_traffic_interval": _seconds(topology.health_interval_s),
        "unhealthy_threshold": topology.unhealthy_after,
        "healthy_threshold": 1,
        # A draining server accepts no new connection, but still answers on existing ones.
        "reuse_connection": False,
        "http_health_check": {"path": topology.health_path, "codec_client_type": "HTTP1"},
    }
    return {
        "name": CLUSTER,
        **found,
        "connect_timeout": _seconds(topology.connect_timeout_s),
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "load_balancing_policy": _balancing(),
        # By default, Envoy's threads hear of a new or healthy server up to a second late, and answer 503 until then.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0.0}, "update_merge_window": "0.05s"},
        # A removed backend gets no new requests, healthy or not. Its sessions continue.
        "ignore_health_on_host_removal": True,
        "health_checks": [health_check],
        # A backend is ejected for a while when a proxy in front of it repeatedly reports that it is gone.
        "outlier_detection": {
            # Envoy counts each session that its server ends as a connection failure: ignore those.
            "split_external_local_origin_errors": True,
            "enforcing_consecutive_local_origin_failure": 0,
            "enforcing_failure_percentage_local_origin": 0,
            **{f"enforcing_{kind}": 0 for kind in uncounted},
            "consecutive_5xx": 5,
            "enforcing_consecutive_5xx": 100,
            "interval": "1s",
            "base_ejection_time": "2s",
            "max_ejection_time": "10s",
            "max_ejection_percent": 100,
        },
        "circuit_breakers": {"thresholds": [breaker]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _typed(
                "extensions.upstreams.http.v3.HttpProtocolOptions",
                {
                    "explicit_http_config": {"http_protocol_options": {}},
                    "common_http_protocol_options": {"idle_timeout": _seconds(BACKEND_IDLE_S)},
                    "outlier_detection": {"error_matcher": {"http_response_headers_match": {"headers": [no_server]}}},
                },
            )
        },
        **_encryption(topology),
    }


def _looked_up(topology: Topology) -> bool:
    return not all(backend.is_address for backend in topology.backends)


def _balancing() -> Fields:
    # Envoy counts a request only once its connection is established. In a burst, choosing the backend with the fewest
    # requests ("full scan", or the better of two) sends hundreds to one backend before they are counted: of 4,096
    # sessions, four backends got 400 to 1,400. Weighted round robin by active requests gave each 1,024, within 5.
    # Envoy uses it only for hosts of unequal weight; a slow start gives them unequal weights.
    least = _extension(
        "load_balancing_policies.least_request",
        "extensions.load_balancing_policies.least_request.v3.LeastRequest",
        {
            "active_request_bias": {"default_value": _BIAS, "runtime_key": "openenv.bias"},
            "slow_start_config": {"slow_start_window": "0.001s"},
        },
    )
    # Subsets of one cluster, so that resumed sessions count like all others.
    selector = {"keys": [_BACKEND], "single_host_per_subset": True, "fallback_policy": "NO_FALLBACK"}
    subset = _extension(
        "load_balancing_policies.subset",
        "extensions.load_balancing_policies.subset.v3.Subset",
        {
            "fallback_policy": "ANY_ENDPOINT",
            "subset_selectors": [selector, {"keys": [_ACCEPTING]}],
            "subset_lb_policy": {"policies": [{"typed_extension_config": least}]},
        },
    )
    return {"policies": [{"typed_extension_config": subset}]}


def _encryption(topology: Topology) -> Fields:
    if topology.backend_ca is None:
        return {}
    authority = {"trusted_ca": {"filename": topology.backend_ca}}
    by_name = {
        "common_tls_context": {"validation_context": authority},
        "auto_host_sni": True,
        "auto_sni_san_validation": True,
    }
    # Without a host name, compare the address: otherwise any certificate of these authorities would be accepted.
    addresses = sorted({backend.host for backend in topology.backends if backend.tls and not backend.certified})
    by_address = []
    for address in addresses:
        names = [{"san_type": "IP_ADDRESS", "matcher": {"exact": address}}]
        context = {"validation_context": {**authority, "match_typed_subject_alt_names": names}}
        by_address.append(_encrypted(address, {"common_tls_context": context}))
    plain = _extension("transport_sockets.raw_buffer", "extensions.transport_sockets.raw_buffer.v3.RawBuffer")
    return {
        "transport_socket_matches": [
            *by_address,
            _encrypted(True, by_name),
            {"name": "plain", "match": {}, "transport_socket": plain},
        ]
    }


def _encrypted(match: str | bool, context: Fields) -> Fields:
    kind = "extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    name = "tls" if match is True else f"tls-{match}"
    return {
        "name": name,
        "match": {"tls": match},
        "transport_socket": _extension("transport_sockets.tls", kind, context),
    }


def _assignment(topology: Topology) -> Fields:
    endpoints = []
    for backend in topology.backends:
        accepting = {_ACCEPTING: "yes"} if backend.accepting else {}
        metadata: Fields = {"envoy.lb": {_BACKEND: backend.name, **accepting}}
        if backend.tls:
            metadata["envoy.transport_socket_match"] = {"tls": backend.certified is not None or backend.host}
        endpoint = {"address": _address(backend.host, backend.port), "hostname": backend.certified or ""}
        endpoints.append({"endpoint": endpoint, "metadata": {"filter_metadata": metadata}})
    return {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": endpoints}]}
