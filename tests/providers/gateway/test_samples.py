"""The samples in `deploy/` are what is rendered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from openenv.providers.gateway import Backend, Topology, envoy, haproxy, nginx

DEPLOY = Path(__file__).parents[3] / "deploy"
SAMPLE = Topology(
    backends=tuple(Backend(name, f"10.0.0.{number}", 8000) for number, name in enumerate("abc", 1)),
    host="0.0.0.0",
    port=8000,
    admin_port=9901,
    backend_ca="/etc/ssl/certs/ca-certificates.crt",
)
COMMAND = (
    "openenv gateway render --no-check --backends a=10.0.0.1:8000,b=10.0.0.2:8000,c=10.0.0.3:8000 "
    "--listen 0.0.0.0:8000 --admin-port 9901 --backend-ca /etc/ssl/certs/ca-certificates.crt "
    "--format {0} --output-dir deploy/{0} --folder /etc/openenv-gateway"
)


@pytest.mark.parametrize(
    ("kind", "render"),
    [
        ("envoy", lambda topology: envoy.render(topology, "/etc/openenv-gateway")),
        ("haproxy", haproxy.render),
        ("nginx", nginx.render),
    ],
)
def test_a_sample_is_what_is_rendered(kind: str, render: Callable[[Topology], Mapping[str, str]]) -> None:
    found = {file.name: file.read_text(encoding="utf-8") for file in (DEPLOY / kind).iterdir()}
    assert found == dict(render(SAMPLE)), f"make it anew: {COMMAND.format(kind)}"
