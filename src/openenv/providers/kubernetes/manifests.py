"""Manifests: what a cluster is to have, as plain data. Nothing here talks to one."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

from .workload import Workload, processors, size

__all__ = [
    "autoscaler",
    "deployment",
    "disruption_budget",
    "headless_service",
    "manifest",
    "namespace",
    "network_policy",
    "pod",
    "prepull",
    "secret",
    "service",
]

Manifest = dict[str, Any]

CONTAINER = "server"
PORT_NAME = "http"
HEALTH, READY = "/health", "/ready"
SESSIONS_METRIC = "openenv_slots_held"
"""What an autoscaler goes by: sessions of a Pod, as its /metrics tells."""
# Seconds between two looks, and how many must fail, until the server is started anew; or gets no new connections.
LIVENESS_S, LIVENESS_FAILURES = 10, 6
READINESS_S, READINESS_FAILURES = 5, 2
STARTUP_S = 1
_IDLE = {"cpu": "10m", "memory": "16Mi"}


def manifest(kind: str, version: str, workload: Workload, name: str | None = None, **parts: Any) -> Manifest:
    """A manifest with the labels and annotations of a workload."""
    options = workload.options
    metadata: Manifest = {"name": name or workload.name, "labels": {**options.labels, **workload.labels}}
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
    if workload.owner is not None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": workload.owner["name"], "uid": workload.owner["uid"]}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def namespace(name: str) -> Manifest:
    """A namespace in which no Pod may do more than ours ask for (the Pod security standard "restricted")."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def secret(workload: Workload) -> Manifest:
    """The variables of the servers, all of them: which of them are secrets is for nobody to guess."""
    # Not as `stringData`: what is left out of that later stays in the cluster.
    data = {name: base64.b64encode(value.encode()).decode() for name, value in workload.variables.items()}
    return manifest("Secret", "v1", workload, type="Opaque", data=data)


def pod(workload: Workload, name: str) -> Manifest:
    """One server."""
    spec = _pod_spec(workload)
    spec["restartPolicy"] = "Always" if workload.options.restart else "Never"
    if workload.options.lifetime_s is not None:
        spec["activeDeadlineSeconds"] = int(workload.options.lifetime_s)
    return manifest("Pod", "v1", workload, name, spec=spec)


def deployment(workload: Workload, replicas: int | None) -> Manifest:
    """Servers that are replaced when they end, and one after the other when the image changes.

    Args:
        workload: What runs.
        replicas: How many; None leaves it to an autoscaler.
    """
    labels = {**workload.options.labels, **workload.labels}
    template: Manifest = {"metadata": {"labels": labels}, "spec": _pod_spec(workload)}
    if workload.options.annotations:
        template["metadata"]["annotations"] = dict(workload.options.annotations)
    spec: Manifest = {
        "selector": {"matchLabels": dict(workload.selector)},
        # A new server first: those that drain may have sessions for as long as the grace.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": math.ceil(workload.options.start_s) + 300,
        "template": template,
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return manifest("Deployment", "apps/v1", workload, spec=spec)


def service(workload: Workload) -> Manifest:
    """One address for all servers, each connection to any of them."""
    port = {"name": PORT_NAME, "port": workload.port, "targetPort": PORT_NAME, "protocol": "TCP"}
    return manifest("Service", "v1", workload, spec={"selector": dict(workload.selector), "ports": [port]})


def headless_service(workload: Workload) -> Manifest:
    """A name that stands for the addresses of all servers that are ready: for a gateway, which knows them apart."""
    found = service(workload)
    found["metadata"]["name"] = f"{workload.name}-servers"
    found["spec"] |= {"clusterIP": "None"}
    return found


def autoscaler(workload: Workload, least: int, most: int, sessions: int) -> Manifest:
    """As many servers as there are sessions for.

    Args:
        workload: What runs, as a `deployment`.
        least: Servers at least.
        most: Servers at most.
        sessions: Sessions that each is to have, on average.
    """
    target = {"type": "AverageValue", "averageValue": str(sessions)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": SESSIONS_METRIC}, "target": target}}],
        "behavior": {
            "scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
            # Between two rollouts of a trainer there are no sessions for a while, and soon there are as many again.
            "scaleDown": {
                "stabilizationWindowSeconds": 300,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
            },
        },
    }
    return manifest("HorizontalPodAutoscaler", "autoscaling/v2", workload, spec=spec)


def disruption_budget(workload: Workload) -> Manifest:
    """No more than one server at a time makes way for work on the nodes."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(workload.selector)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return manifest("PodDisruptionBudget", "policy/v1", workload, spec=spec)


def network_policy(workload: Workload) -> Manifest:
    """Connections to the port of the servers, and no others. (What the cluster's network enforces, if it does.)"""
    options = workload.options
    into: Manifest = {"ports": [{"port": workload.port, "protocol": "TCP"}]}
    if options.callers is not None:
        into["from"] = [{"podSelector": {"matchLabels": dict(options.callers)}}]
    spec = {
        "podSelector": {"matchLabels": dict(workload.selector)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [into],
        "egress": [{}] if options.egress else [],
    }
    return manifest("NetworkPolicy", "networking.k8s.io/v1", workload, spec=spec)


def prepull(workload: Workload) -> Manifest:
    """Has every node that may run a server pull its image beforehand, and keep it."""
    name = f"{workload.name}-image"
    match = {"openenv.image": workload.name}
    container = {
        "name": "image",
        "image": workload.image,
        "command": ["sleep", "infinity"],
        "resources": {"requests": dict(_IDLE), "limits": dict(_IDLE)},
        "securityContext": _locked(read_only=True),
    }
    if workload.options.pull_policy is not None:
        container["imagePullPolicy"] = workload.options.pull_policy
    spec = {**_place(workload), "containers": [container], "terminationGracePeriodSeconds": 0}
    spec.pop("runtimeClassName", None)
    found = manifest("DaemonSet", "apps/v1", workload, name)
    found["spec"] = {
        "selector": {"matchLabels": match},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        # None of the labels that servers and their owner are found by.
        "template": {"metadata": {"labels": match}, "spec": spec},
    }
    return found


def _pod_spec(workload: Workload) -> Manifest:
    options = workload.options
    writable = [{"name": f"writable-{number}", "emptyDir": {}} for number, _ in enumerate(options.writable)]
    spec = {
        **_place(workload),
        "containers": [_container(workload)],
        "terminationGracePeriodSeconds": workload.termination_s,
    }
    if writable:
        spec["volumes"] = writable
    return _merged(spec, options.pod)


def _place(workload: Workload) -> Manifest:
    """Where Pods run, and as whom."""
    options = workload.options
    identity: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if options.user is not None:
        identity |= {"runAsUser": options.user, "runAsGroup": options.user, "fsGroup": options.user}
    place: Manifest = {
        "automountServiceAccountToken": False,
        # Variables of other services' addresses would be taken for settings: OPENENV_...
        "enableServiceLinks": False,
        "securityContext": identity,
    }
    if options.runtime_class is not None:
        place["runtimeClassName"] = options.runtime_class
    if options.pull_secrets:
        place["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    if options.node_selector:
        place["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        place["tolerations"] = [dict(each) for each in options.tolerations]
    return place


def _locked(read_only: bool) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def _container(workload: Workload) -> Manifest:
    options = workload.options
    health = {"path": HEALTH, "port": PORT_NAME}
    container: Manifest = {
        "name": CONTAINER,
        "image": workload.image,
        "ports": [{"name": PORT_NAME, "containerPort": workload.port, "protocol": "TCP"}],
        "env": [{"name": name, "value": value} for name, value in _address(workload).items()],
        "envFrom": [{"secretRef": {"name": workload.name}}],
        "startupProbe": {
            "httpGet": health,
            "periodSeconds": STARTUP_S,
            "timeoutSeconds": 5,
            "failureThreshold": max(1, math.ceil(options.start_s / STARTUP_S)),
        },
        "readinessProbe": {
            "httpGet": {"path": READY, "port": PORT_NAME},
            "periodSeconds": READINESS_S,
            "timeoutSeconds": READINESS_S,
            "failureThreshold": READINESS_FAILURES,
        },
        # Of a server whose event loop stands still, all sessions are lost anyway: after a minute.
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": LIVENESS_S,
            "timeoutSeconds": LIVENESS_S,
            "failureThreshold": LIVENESS_FAILURES,
        },
        "securityContext": _locked(options.read_only),
    }
    if workload.command is not None:
        container["command"] = list(workload.command)
    if options.pull_policy is not None:
        container["imagePullPolicy"] = options.pull_policy
    if workload.settle_s:
        container["lifecycle"] = {"preStop": {"sleep": {"seconds": workload.settle_s}}}
    if options.writable:
        container["volumeMounts"] = [
            {"name": f"writable-{number}", "mountPath": path} for number, path in enumerate(options.writable)
        ]
    resources = _resources(workload)
    if resources:
        container["resources"] = resources
    return _merged(container, options.container)


def _address(workload: Workload) -> dict[str, str]:
    """Where a server listens, for one that is not told by its own variables."""
    ours = {"HOST": "0.0.0.0", "PORT": str(workload.port)}  # noqa: S104 - in a network of its own
    return {name: value for name, value in ours.items() if name not in workload.variables}


def _resources(workload: Workload) -> Manifest:
    limits: Manifest = {}
    if workload.resources.cpus is not None:
        limits["cpu"] = processors(workload.resources.cpus)
    if workload.resources.memory_bytes is not None:
        limits["memory"] = size(workload.resources.memory_bytes)
    requests = {**limits, **(workload.options.requests or {})}
    if workload.resources.gpus:
        limits[workload.options.gpu_resource] = str(workload.resources.gpus)
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Manifest:
    """Both: mappings by their keys, lists one after the other, and of all else the second."""
    found = dict(base)
    for name, value in more.items():
        there = found.get(name)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            found[name] = _merged(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            found[name] = [*there, *value]
        else:
            found[name] = value
    return found
