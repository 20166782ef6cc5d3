"""Topologies for tests, and some that chance makes."""

from __future__ import annotations

from hypothesis import strategies as st

from openenv.providers.gateway import Backend, Topology

__all__ = ["THREE", "topologies"]

THREE = Topology(
    backends=(
        Backend("first", "10.0.0.1", 8001),
        Backend("sec.ond", "10.0.0.2", 8002),
        Backend("third-1_x", "::1", 8003),
    ),
    port=8080,
    admin_port=9901,
    max_sessions=4096,
)
"""Three servers, one of them at an address of the newer kind."""

_NAMES = st.from_regex(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)
_HOSTS = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?(?:\.[a-z]{2,5})?", fullmatch=True),
)
_PORTS = st.integers(1, 65535)
_BACKENDS = st.builds(Backend, _NAMES, _HOSTS, _PORTS)
topologies = st.builds(
    Topology,
    backends=st.lists(_BACKENDS, max_size=6, unique_by=lambda backend: backend.name).map(tuple),
    host=st.ip_addresses().map(lambda address: str(address).partition("%")[0]),
    port=_PORTS,
    admin_port=_PORTS,
    max_sessions=st.integers(1, 100_000),
)
"""Any topology without TLS."""
