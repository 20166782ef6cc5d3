"""What a Docker engine is asked for: a container, in the words of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .deployment import Deployment, Server
from .spec import LaunchSpec

__all__ = ["CONTAINER_PORT", "LOOPBACK", "NO_NETWORK", "container_port", "request"]

LOOPBACK = "127.0.0.1"
CONTAINER_PORT = 8000
"""What images of environments listen on (`port` in openenv.yaml)."""
NO_NETWORK = "none"
# What images need that begin as root, to read their volumes and to become somebody else. All others are dropped.
KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
# What the specification says in other words.
_OURS = {"environment": "env_vars", "image": "image", "ports": "port"}


def container_port(spec: LaunchSpec) -> int:
    """The port that a server listens on in its container."""
    return spec.port or CONTAINER_PORT


def request(deployment: Deployment, server: Server, gpus: tuple[str, ...], network: str | None) -> dict[str, Any]:
    """The arguments of `docker.containers.create` for a server, besides its image.

    Args:
        deployment: What it belongs to. Options of its specification win over what follows from the rest.
        server: The server.
        gpus: The GPUs that it is to have, by their numbers.
        network: A network that this machine alone reaches it through; None publishes its port on loopback.

    Raises:
        UsageError: Options that cannot be had together.
    """
    spec = deployment.spec
    options = dict(spec.options)
    for name in _OURS.keys() & options.keys():
        raise UsageError(f"{name} is no option of a container here: use {_OURS[name]}")
    port = options.pop("host_port", None)
    if port is not None and network is not None:
        raise UsageError(f"port {port} of this machine cannot be had with network={NO_NETWORK!r}: leave out one")
    given: dict[str, Any] = {"environment": deployment.variables, **_limits(spec), **_gpus(gpus)}
    # Whether a server is ready, we ask it ourselves. An image's own checks cost each container a process a second.
    given["healthcheck"] = {"test": ["NONE"]}
    if spec.command is not None:
        given["command"] = list(spec.command)
    if options.get("read_only"):
        given["tmpfs"] = {"/tmp": ""}  # noqa: S108 - in the container
    if network is None:
        given["ports"] = {f"{container_port(spec)}/tcp": (LOOPBACK, port)}
    else:
        options = {name: value for name, value in options.items() if name not in {"network", "network_mode"}}
        given |= {"network": network, "dns": [LOOPBACK]}  # or some engines would ask others for it
    labels = {**_labels(options.get("labels")), **deployment.labels}
    return {**given, **options, **_privileges(options), "name": server.name, "labels": labels}


def _limits(spec: LaunchSpec) -> dict[str, Any]:
    resources = spec.resources
    limits: dict[str, Any] = {}
    if resources.cpus is not None:
        limits["nano_cpus"] = int(resources.cpus * 1_000_000_000)
    if resources.memory_bytes is not None:
        # The same with swap: what a limit of memory lets a server have beyond it on disk is of no use to anybody.
        limits |= {"mem_limit": resources.memory_bytes, "memswap_limit": resources.memory_bytes}
    if resources.processes is not None:
        limits["pids_limit"] = resources.processes
    return limits


def _gpus(gpus: tuple[str, ...]) -> dict[str, Any]:
    if not gpus:
        return {}
    from docker.types import DeviceRequest

    return {"device_requests": [DeviceRequest(device_ids=list(gpus), capabilities=[["gpu"]])]}


def _privileges(options: Mapping[str, Any]) -> dict[str, Any]:
    """Less than Docker gives, unless somebody has decided about it."""
    if options.get("privileged"):
        return {}
    given: dict[str, Any] = {}
    if "security_opt" not in options:
        given["security_opt"] = ["no-new-privileges"]
    if "cap_drop" not in options:
        given |= {"cap_drop": ["ALL"], "cap_add": [*KEPT_CAPABILITIES, *(options.get("cap_add") or ())]}
    return given


def _labels(labels: Any) -> dict[str, str]:
    return dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(labels or (), "")
