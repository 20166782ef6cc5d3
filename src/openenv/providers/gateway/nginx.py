"""Render nginx's configuration of a topology.

nginx has no active health checks (they are a feature of the paid edition): for a while it skips a server
that accepts no connection, but it does not detect one that hangs. It does not count resumed sessions of a server.
"""

from __future__ import annotations

import re

from ...errors import UsageError
from .topology import COOKIE, HEAD_S, HEADER, PARAMETER, Topology

CONFIGURATION = "nginx.conf"
"""The configuration file of nginx (`nginx -c`); a reload (SIGHUP) keeps existing sessions."""

_FURTHER_FILES = 256
_MAP_WORDS = frozenset({"default", "hostnames", "include", "volatile"})
_HEADER = HEADER.replace("-", "_")


def render(topology: Topology) -> dict[str, str]:
    """The files of a configuration, by name: `CONFIGURATION`. nginx resolves host names at its start.

    Raises:
        UsageError: A backend speaks TLS: nginx would expect the same name in all certificates.
    """
    if any(backend.tls for backend in topology.backends):
        raise UsageError(
            "nginx cannot check the certificates of several backends: use Envoy or HAProxy for backends with TLS"
        )
    known = [
        # Escape names in a map that are also directives.
        "    " + ("\\" if backend.name in _MAP_WORDS else "") + f"{backend.name} to-{backend.name};"
        for backend in topology.backends
    ]
    named = [
        f"    ~(?:^|,\\x20){re.escape(backend.place)}$ {backend.name};"
        for backend in topology.backends
        if backend.is_address
    ]
    tls = [f"    ssl_certificate {topology.tls_certificate};", f"    ssl_certificate_key {topology.tls_key};"]
    fails = f"max_fails={topology.unhealthy_after} fail_timeout={max(1, round(topology.health_interval_s))}s"
    http = [
        "access_log off;",
        "server_tokens off;",
        f"client_header_timeout {HEAD_S}s;",
        # The servers limit the size of messages.
        "client_max_body_size 0;",
        "map_hash_bucket_size 256;",
        "server_names_hash_bucket_size 128;",
        "",
        "map $http_upgrade $connection_upgrade { default upgrade; '' ''; }",
        # A client that returns to a session names its server. `$address_name` maps an address to a server's name.
        f"map $arg_{PARAMETER} $by_parameter {{ default $arg_{PARAMETER}; '' $by_header; }}",
        f"map $http_{_HEADER} $by_header {{ default $http_{_HEADER}; '' $cookie_{COOKIE}; }}",
        "map $by_parameter $goal {",
        "    default servers;",
        *known,
        "}",
        "map $upstream_addr $address_name {",
        "    default '';",
        *named,
        "}",
        "map $goal $route {",
        "    default $address_name;",
        *(f"    to-{backend.name} {backend.name};" for backend in topology.backends),
        "}",
        # nginx does not send a header with an empty value.
        "map $request_method:$uri:$route $cookie {",
        "    default '';",
        f'    "~^POST:/sessions:(?<name>.+)$" "{COOKIE}=$name; Path=/; HttpOnly; SameSite=Strict";',
        "}",
        "",
        "upstream servers {",
        "    zone servers 1m;",
        "    least_conn;",
        *(f"    server {backend.place} {fails}{' down' * (not backend.accepting)};" for backend in topology.backends),
        *([] if topology.backends else ["    server 127.0.0.1:1 down;"]),  # an upstream needs a server
        "}",
        *(f"upstream to-{backend.name} {{ server {backend.place} max_fails=0; }}" for backend in topology.backends),
        "",
        "server {",
        f"    listen {topology.listen}{' ssl' if topology.tls else ''} backlog=65535;",
        *(tls if topology.tls else []),
        "    location / {",
        "        proxy_pass http://$goal;",
        "        proxy_http_version 1.1;",
        "        proxy_set_header Host $http_host;",
        "        proxy_set_header Upgrade $http_upgrade;",
        "        proxy_set_header Connection $connection_upgrade;",
        "        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
        "        proxy_set_header X-Forwarded-Proto $scheme;",
        f"        add_header {HEADER} $route always;",
        "        add_header set-cookie $cookie always;",
        f"        proxy_connect_timeout {max(1, round(topology.connect_timeout_s))}s;",
        # Client and server decide how long a call or a silent session may last.
        "        proxy_read_timeout 24d;",
        "        proxy_send_timeout 24d;",
        "        proxy_buffering off;",
        "        proxy_request_buffering off;",
        # Retry only requests that no server has seen: nginx does not repeat a POST after it has begun to send it.
        "        proxy_next_upstream error;",
        "        proxy_next_upstream_tries 3;",
        "    }",
        "}",
    ]
    if topology.admin_port:
        http += ["", f"server {{ listen 127.0.0.1:{topology.admin_port}; location / {{ stub_status; }} }}"]
    lines = [
        "worker_processes auto;",
        # Each session needs two connections, and one worker may get all sessions.
        f"worker_rlimit_nofile {2 * topology.max_sessions + _FURTHER_FILES};",
        f"events {{ worker_connections {2 * topology.max_sessions}; }}",
        "http {",
        *(f"    {line}" if line else "" for line in http),
        "}",
    ]
    return {CONFIGURATION: "\n".join(lines) + "\n"}
