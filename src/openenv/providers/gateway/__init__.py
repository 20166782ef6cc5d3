"""One address for many servers: configuration of Envoy, HAProxy and nginx, and a running Envoy."""

from __future__ import annotations

from .topology import COOKIE, HEADER, PARAMETER, Backend, Topology, plain_name

__all__ = ["COOKIE", "HEADER", "PARAMETER", "Backend", "Topology", "plain_name"]
