"""What an API server refuses beyond its schemas, as far as manifests of ours could be refused for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["breaches", "request_faults", "restricted"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_NAME = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_UNITS = {"": 1.0, "m": 0.001, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "k": 1e3, "M": 1e6, "G": 1e9}
_PARAMETERS = {
    "GET": {
        "labelSelector", "fieldSelector", "watch", "resourceVersion", "allowWatchBookmarks", "timeoutSeconds",
        "tailLines", "ports", "limit",
    },
    "POST": {"fieldManager", "fieldValidation", "dryRun"},
    "PATCH": {"fieldManager", "force", "fieldValidation", "dryRun"},
    "DELETE": {"gracePeriodSeconds", "propagationPolicy", "labelSelector"},
}  # fmt: skip


def request_faults(method: str, parameters: dict[str, str]) -> list[str]:
    """Parameters that the API does not have for a method."""
    return [f"{method} has no parameter {name}" for name in parameters.keys() - _PARAMETERS.get(method, set())]


def breaches(thing: dict[str, Any]) -> list[str]:
    """Why an object would be refused as invalid."""
    return [*_of_metadata(thing["metadata"]), *_of_kind(thing)]


def restricted(spec: dict[str, Any]) -> list[str]:
    """What the Pod security standard "restricted" forbids of a Pod's specification."""
    found = []
    whole = spec.get("securityContext", {})
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            found.append("allowPrivilegeEscalation != false")
        if own.get("capabilities", {}).get("drop") != ["ALL"]:
            found.append("unrestricted capabilities")
        if not own.get("runAsNonRoot", whole.get("runAsNonRoot")):
            found.append("runAsNonRoot != true")
        if own.get("runAsUser", whole.get("runAsUser")) == 0:
            found.append("runAsUser=0")
        if own.get("seccompProfile", whole.get("seccompProfile", {})).get("type") not in {
            "RuntimeDefault",
            "Localhost",
        }:
            found.append("seccompProfile")
    if any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")):
        found.append("host namespaces")
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        found.append("restricted volume types (hostPath)")
    return found


def _of_metadata(metadata: dict[str, Any]) -> Iterator[str]:
    if not _NAME.fullmatch(metadata["name"]) or len(metadata["name"]) > 63:
        yield f"metadata.name: Invalid value: {metadata['name']!r}"
    yield from _of_labels(metadata.get("labels", {}))


def _of_labels(labels: dict[str, str]) -> Iterator[str]:
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name) or len(name.rpartition("/")[2]) > 63:
            yield f"metadata.labels: Invalid value: {name!r}"
        if not _LABEL.fullmatch(value):
            yield f"metadata.labels: Invalid value: {value!r}"


def _of_kind(thing: dict[str, Any]) -> Iterator[str]:
    spec = thing.get("spec", {})
    if thing["kind"] == "Secret":
        yield from (f"data: bad key {key!r}" for key in thing.get("data", {}) if not _SECRET_KEY.fullmatch(key))
    elif thing["kind"] == "Pod":
        yield from _of_pod(spec)
    elif thing["kind"] in {"Deployment", "DaemonSet"}:
        template = spec["template"]
        if not spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
            yield "spec.template.metadata.labels: `selector` does not match template `labels`"
        if template["spec"].get("restartPolicy", "Always") != "Always" or "activeDeadlineSeconds" in template["spec"]:
            yield "spec.template.spec: Unsupported value: restartPolicy or activeDeadlineSeconds"
        yield from _of_labels(template["metadata"]["labels"])
        yield from _of_pod(template["spec"])
    elif thing["kind"] == "Service" and not spec.get("selector"):
        yield "spec.selector: Required value"


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for container in spec["containers"]:
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{probe}: no port {port!r}"
        if any(mount["name"] not in volumes for mount in container.get("volumeMounts", [])):
            yield "volumeMounts: Not found"
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if sleep > spec.get("terminationGracePeriodSeconds", 30):
            yield "lifecycle.preStop.sleep: must be less than terminationGracePeriodSeconds"
        yield from _of_resources(container.get("resources", {}))


def _of_resources(resources: dict[str, Any]) -> Iterator[str]:
    limits = resources.get("limits", {})
    for name, amount in resources.get("requests", {}).items():
        if name in limits and _amount(amount) > _amount(limits[name]):
            yield f"resources.requests: Invalid value: {amount!r}: must be less than or equal to {name} limit"


def _amount(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", text).groups()
    return float(number) * _UNITS[unit]
