"""Many servers behind one address: the configuration of balancers, and no balancer of our own."""

from __future__ import annotations

from .topology import COOKIE, HEADER, PARAMETER, Backend, Topology, plain_name

__all__ = ["COOKIE", "HEADER", "PARAMETER", "Backend", "Topology", "plain_name"]
