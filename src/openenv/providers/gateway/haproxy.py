"""Render HAProxy's configuration of a topology (HAProxy 2.6 and later)."""

from __future__ import annotations

from ...errors import UsageError
from .topology import BACKEND_IDLE_S, COOKIE, HEAD_S, HEADER, PARAMETER, Backend, Topology

CONFIGURATION = "haproxy.cfg"
"""The configuration file of HAProxy (`haproxy -W -f`); a reload (SIGUSR2) keeps existing sessions."""


def render(topology: Topology) -> dict[str, str]:
    """The files of a configuration, by name: `CONFIGURATION`. HAProxy resolves host names at its start.

    Raises:
        UsageError: HAProxy would not find the key file, or a backend with TLS has no host name.
    """
    if topology.tls and topology.tls_key not in {topology.tls_certificate, f"{topology.tls_certificate}.key"}:
        raise UsageError(
            "HAProxy reads the key from the file of the certificate, or from a file of the same name plus .key: "
            f"tls_key must be {topology.tls_certificate} or {topology.tls_certificate}.key, got {topology.tls_key}"
        )
    nameless = [backend.name for backend in topology.backends if backend.tls and backend.certified is None]
    if nameless:
        raise UsageError(f"HAProxy compares certificates with host names: use a host name for {', '.join(nameless)}")
    tls = f" ssl crt {topology.tls_certificate} alpn http/1.1" if topology.tls else ""
    named = " ".join(backend.name for backend in topology.backends)
    lines = [
        "global",
        f"    maxconn {topology.max_sessions}",
        "",
        "defaults",
        "    mode http",
        "    timeout connect " + _milliseconds(topology.connect_timeout_s),
        f"    timeout http-request {HEAD_S}s",
        "    timeout http-keep-alive 60s",
        # Client and server decide how long a call or a silent session may last.
        "    timeout client 24d",
        "    timeout server 24d",
        "    timeout tunnel 24d",
        # For connections that wait for a free server.
        "    timeout queue 60s",
        "    timeout check " + _milliseconds(topology.health_timeout_s),
        "    option forwardfor",
        "    option http-keep-alive",
        "    retries 3",
        "    retry-on conn-failure empty-response",
        "",
        "frontend sessions",
        f"    bind {topology.listen}{tls}",
        f"    maxconn {topology.max_sessions}",
        f"    http-request set-header x-forwarded-proto {'https' if topology.tls else 'http'}",
        # A client that returns to a session names its server.
        f"    http-request set-var(txn.route) req.cook({COOKIE})",
        f"    http-request set-var(txn.route) req.hdr({HEADER}) if {{ req.hdr({HEADER}) -m found }}",
        f"    http-request set-var(txn.route) url_param({PARAMETER}) if {{ url_param({PARAMETER}) -m found }}",
        "    http-request set-var(txn.opening) bool(true) if METH_POST { path /sessions }",
        f"    http-response set-header {HEADER} %[srv_name]",
        f'    http-response add-header set-cookie "{COOKIE}=%[srv_name]; Path=/; HttpOnly; SameSite=Strict" '
        "if { var(txn.opening) -m bool }",
        *([f"    use_backend to-%[var(txn.route)] if {{ var(txn.route) -m str {named} }}"] if named else []),
        "    default_backend servers",
        "",
        "backend servers",
        "    balance leastconn",
        "    option redispatch 1",
        # A request is retried if no server has seen it. A handshake without an answer may be retried at another
        # server: its session ends with its connection.
        "    http-request disable-l7-retry unless { req.hdr(upgrade) -i websocket }",
        f"    option httpchk GET {topology.health_path}",
        "    http-check expect status 200",
        f"    default-server check inter {_milliseconds(topology.health_interval_s)} fall {topology.unhealthy_after} "
        "rise 1",
        *(_server(topology, backend) + " weight 0" * (not backend.accepting) for backend in topology.backends),
    ]
    for backend in topology.backends:
        # Not with `use-server` in one backend: that falls back to another server when the named one does not answer,
        # and the session on the named one would be lost.
        lines += ["", f"backend to-{backend.name}", _server(topology, backend)]
    if topology.admin_port:
        lines += [
            "",
            "frontend statistics",
            f"    bind 127.0.0.1:{topology.admin_port}",
            "    http-request use-service prometheus-exporter if { path /metrics }",
            "    stats enable",
            "    stats uri /",
        ]
    return {CONFIGURATION: "\n".join([*lines, ""])}


def _server(topology: Topology, backend: Backend) -> str:
    line = f"    server {backend.name} {backend.place} pool-purge-delay {BACKEND_IDLE_S}s"
    if not backend.tls:
        return line
    named = "" if backend.certified is None else f" sni str({backend.certified}) verifyhost {backend.certified}"
    return f"{line} ssl verify required ca-file {topology.backend_ca}{named} check-ssl"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
