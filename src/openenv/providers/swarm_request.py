"""What a specification asks of a swarm, in the words of the Docker SDK."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from ..errors import UsageError
from .deployment import Deployment

__all__ = ["PUBLISHED", "PUBLISH_MODES", "mesh_works", "published_as", "service_of"]

PUBLISH_MODES = ("ingress", "host", "dnsrr")
PUBLISHED = "published_port"
"""The option of ours: the port of the nodes that a service is published at."""
# What images of environments listen on (`port` in openenv.yaml).
CONTAINER_PORT = 8000
# Seconds between the request to end and the end, beyond the grace of the sessions.
STOP_S = 5.0
# Seconds before a server that has ended is started again.
RESTART_S = 1.0
_NS = 1_000_000_000


def mesh_works() -> bool:
    """Whether this kernel can balance connections (IPVS), which the mesh of a swarm leaves to it."""
    if Path("/proc/net/ip_vs").exists():
        return True
    modules = Path("/lib/modules") / os.uname().release  # the engine loads it when it is first needed
    lists = (modules / name for name in ("modules.dep", "modules.builtin"))
    return any("/ip_vs.ko" in each.read_text(errors="replace") for each in lists if each.is_file())


def published_as(options: dict[str, Any], otherwise: str) -> str:
    """How a service is published: as its own `endpoint_spec` says, if it has one."""
    endpoint = options.get("endpoint_spec")
    if endpoint is None:
        return otherwise
    ports = endpoint.get("Ports") or ()
    if not ports:
        return "dnsrr"
    return "host" if ports[0].get("PublishMode") == "host" else "ingress"


def service_of(
    deployment: Deployment, publish: str, replicas: int, network: str | None, grace_s: float, gpu: str
) -> dict[str, Any]:
    """What `docker.services.create` is given besides the image. The options of the specification win.

    Args:
        deployment: Whose service it is.
        publish: One of `PUBLISH_MODES`.
        replicas: How many servers it begins with.
        network: A network that it joins.
        grace_s: Seconds that sessions have when a server is ended.
        gpu: Name of the generic resource that GPUs are.
    """
    from docker.types import RestartPolicy, ServiceMode, UpdateConfig

    spec, options = deployment.spec, dict(deployment.spec.options)
    port = options.pop(PUBLISHED, None)
    if port is not None and publish == "dnsrr":
        raise UsageError("publish='dnsrr' publishes no port: leave out port")
    networks = [*(options.pop("networks", None) or ()), *([network] if network else ())]
    # A port of one's own can be had once on a node: there the old server goes before the new one comes.
    order: Literal["start-first", "stop-first"]
    order = "stop-first" if port is not None and publish == "host" else "start-first"
    return {
        "name": deployment.name,
        "mode": ServiceMode("replicated", replicas),
        "endpoint_spec": _endpoint(publish, port, spec.port or CONTAINER_PORT),
        "resources": _resources(deployment, gpu),
        "restart_policy": RestartPolicy("any", delay=int(RESTART_S * _NS)),
        "update_config": UpdateConfig(parallelism=1, order=order, failure_action="rollback"),
        "stop_grace_period": int((grace_s + STOP_S) * _NS),
        **({"args": list(spec.command)} if spec.command is not None else {}),
        **options,
        "constraints": list(options.get("constraints") or ()),
        "networks": networks or None,
        "env": [f"{name}={value}" for name, value in deployment.variables.items()],
        "labels": {**(options.get("labels") or {}), **deployment.labels},
        "container_labels": {**(options.get("container_labels") or {}), **deployment.labels},
    }


def _endpoint(publish: str, port: int | None, container_port: int) -> Any:
    from docker.types import EndpointSpec

    if publish == "dnsrr":
        return EndpointSpec(mode="dnsrr")
    published: dict[str, Any] = {"Protocol": "tcp", "TargetPort": container_port, "PublishMode": publish}
    if port is not None:
        published["PublishedPort"] = port
    # A virtual address is of use to the mesh alone, and takes a kernel that can balance connections.
    return EndpointSpec(mode="vip" if publish == "ingress" else "dnsrr", ports=[published])


def _resources(deployment: Deployment, gpu: str) -> Any:
    from docker.types import Resources

    wanted, gpus = deployment.spec.resources, deployment.spec.gpus_each
    resources = Resources(
        cpu_limit=None if wanted.cpus is None else int(wanted.cpus * _NS),
        mem_limit=wanted.memory_bytes,
        generic_resources={gpu: gpus} if gpus else None,
    )
    if wanted.processes is not None:  # the SDK has no word for it
        resources.setdefault("Limits", {})["Pids"] = wanted.processes
    return resources
