"""nginx's configuration of a topology.

It asks no server how it is (that is a feature of the paid edition): one that accepts no connection is left out for a
moment, and one that hangs is not noticed. Sessions that come back are not counted among those of their server.
"""

from __future__ import annotations

import re

from ...errors import UsageError
from .topology import COOKIE, HEADER, PARAMETER, Topology

CONFIGURATION = "nginx.conf"
"""The file that nginx is started with (`nginx -c`); a reload (SIGHUP) keeps the sessions that there are."""

# Seconds that a client may take for the head of its request.
_HEAD_S = 30
_FURTHER_FILES = 256
_MAP_WORDS = frozenset({"default", "hostnames", "include", "volatile"})
_HEADER = HEADER.replace("-", "_")


def render(topology: Topology) -> dict[str, str]:
    """The files of a configuration, by name: `CONFIGURATION`. Host names are looked up when nginx starts.

    Raises:
        UsageError: A backend speaks TLS: nginx would look for one name in the certificates of all.
    """
    if any(backend.tls for backend in topology.backends):
        raise UsageError("nginx cannot check the certificates of several backends: have Envoy or HAProxy before TLS")
    known = [
        # Some words on the left of a map are directives.
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
        f"client_header_timeout {_HEAD_S}s;",
        # How large a message may be is the matter of the servers.
        "client_max_body_size 0;",
        "map_hash_bucket_size 256;",
        "server_names_hash_bucket_size 128;",
        "",
        "map $http_upgrade $connection_upgrade { default upgrade; '' ''; }",
        # Who comes back to a session names its server; what a server is called, by its address.
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
        # An empty header is not sent.
        "map $request_method:$uri:$route $cookie {",
        "    default '';",
        f'    "~^POST:/sessions:(?<name>.+)$" "{COOKIE}=$name; Path=/; HttpOnly; SameSite=Strict";',
        "}",
        "",
        "upstream servers {",
        "    zone servers 1m;",
        "    least_conn;",
        *(f"    server {backend.place} {fails};" for backend in topology.backends),
        *([] if topology.backends else ["    server 127.0.0.1:1 down;"]),  # it wants one
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
        # A call, or a session that is silent, may last for as long as its client and its server like.
        "        proxy_read_timeout 24d;",
        "        proxy_send_timeout 24d;",
        "        proxy_buffering off;",
        "        proxy_request_buffering off;",
        # Only what no server has seen: nginx does not repeat a POST that it has begun to send.
        "        proxy_next_upstream error;",
        "        proxy_next_upstream_tries 3;",
        "    }",
        "}",
    ]
    if topology.admin_port:
        http += ["", f"server {{ listen 127.0.0.1:{topology.admin_port}; location / {{ stub_status; }} }}"]
    lines = [
        "worker_processes auto;",
        # Each session is two of them, and a worker may get all.
        f"worker_rlimit_nofile {2 * topology.max_sessions + _FURTHER_FILES};",
        f"events {{ worker_connections {2 * topology.max_sessions}; }}",
        "http {",
        *(f"    {line}" if line else "" for line in http),
        "}",
    ]
    return {CONFIGURATION: "\n".join(lines) + "\n"}
