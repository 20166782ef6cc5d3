"""Build manifests from a workload. Pure functions: no requests to a cluster."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ...errors import UsageError
from ..spec import CONTAINER_PORT, LaunchSpec, Resources

# Seconds until all nodes have stopped sending new connections to a terminating Pod.
SETTLE_S = 5
# Seconds that a server needs beyond the grace period of its sessions, for running calls and its own shutdown.
BEYOND_GRACE_S = 15
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?|Ki)?")
# Types of options other than strings and booleans.
_KINDS: Mapping[Any, tuple[str, ...]] = {
    Mapping: ("node_selector", "labels", "annotations", "requests", "callers", "pod", "container"),
    Sequence: ("pull_secrets", "tolerations", "writable"),
    (int, float): ("user", "lifetime_s", "start_s", "local_port"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """The `LaunchSpec.options` of Kubernetes.

    Attributes:
        runtime_class: RuntimeClass of the Pods, such as "gvisor".
        pull_policy: When the image is pulled: Always, IfNotPresent or Never.
        pull_secrets: Names of Secrets for the image's registry.
        node_selector: Labels that nodes must have.
        tolerations: Tolerations of taints, as in a Pod's specification.
        labels: Additional labels of all objects.
        annotations: Annotations of all objects.
        requests: Requests of each server, by resource ("cpu", "memory"); None: its limits.
        gpu_resource: Resource name of GPUs.
        user: User and group id that servers run as; None takes that of the image, which must be a number above 0.
        read_only: Whether the root file system is read-only.
        writable: Folders that are writable despite `read_only`, and empty at first.
        restart: Whether the kubelet restarts a server that has ended.
        lifetime_s: Seconds after which the cluster ends a Pod, so that none is forgotten; None: never. Only of
            single Pods.
        policy: Whether a NetworkPolicy allows only incoming connections, and only to the server's port.
        callers: Labels of Pods in the same namespace that may connect; None: all may. Only with `policy`.
        egress: Whether servers may open connections. Only with `policy`.
        prepull: Whether a DaemonSet keeps the image on every node.
        start_s: Seconds for a server to answer; after that, the kubelet restarts its container.
        pod: Merged into the Pod's specification; lists are appended.
        container: Merged into the container in the same way.
        local_port: Local port that is forwarded to the first server; None takes a free one.
    """

    runtime_class: str | None = None
    pull_policy: str | None = None
    pull_secrets: Sequence[str] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] | None = None
    gpu_resource: str = "nvidia.com/gpu"
    user: int | None = 10001
    read_only: bool = True
    writable: Sequence[str] = ("/tmp",)  # noqa: S108 - in the container
    restart: bool = False
    lifetime_s: int | None = None
    policy: bool = True
    callers: Mapping[str, str] | None = None
    egress: bool = False
    prepull: bool = False
    start_s: float = 300.0
    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    local_port: int | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        if self.pull_policy not in {None, "Always", "IfNotPresent", "Never"}:
            raise UsageError(f"pull_policy must be Always, IfNotPresent or Never, got {self.pull_policy!r}")
        if self.user is not None and not self.user > 0:
            raise UsageError(f"user must be a number above 0 (servers do not run as root), got {self.user!r}")
        for name in ("lifetime_s", "start_s"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0, got {getattr(self, name)!r}")
        for name, amount in (self.requests or {}).items():
            if not _QUANTITY.fullmatch(str(amount)):
                raise UsageError(f"requests must be quantities such as '500m' or '2Gi', got {name}={amount!r}")
        if self.callers is not None and not self.policy:
            raise UsageError("callers needs policy=True: the NetworkPolicy rejects other Pods")

    def _check_kinds(self) -> None:
        for kind, names in _KINDS.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and (not isinstance(value, kind) or isinstance(value, (str, bool))):
                    wanted = {Mapping: "a mapping", Sequence: "a list"}.get(kind, "a number")
                    raise UsageError(f"{name} must be {wanted}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWorkload:
    """Servers of one image that differ only in their names.

    Attributes:
        name: Name of their shared objects.
        image: The image.
        command: Command that replaces that of the image, if given.
        port: Port that a server listens on.
        selector: Labels that only its Pods have.
        labels: Labels of all of its objects, including those of `selector`.
        variables: Environment variables, including secrets.
        resources: Limits of one server, including its GPUs.
        options: Options of Kubernetes.
        owner: Metadata of the Pod that owns all objects: the cluster removes them with it; None: no owner.
    """

    name: str
    image: str
    command: Sequence[str] | None = None
    port: int = CONTAINER_PORT
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    resources: Resources = field(default_factory=Resources)
    options: PodOptions = field(default_factory=PodOptions)
    owner: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        odd = [name for name in self.variables if not _VARIABLE.fullmatch(name)]
        if odd:
            raise UsageError(
                f"Kubernetes does not allow these names of environment variables: {', '.join(map(repr, odd))}"
            )
        _ = self.grace_s

    @classmethod
    def of(
        cls,
        spec: LaunchSpec,
        name: str,
        selector: Mapping[str, str],
        labels: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> Self:
        """The workload of a specification.

        Raises:
            UsageError: An invalid option, or an invalid name of a variable.
        """
        return cls(
            name=name,
            image=str(spec.image),
            command=None if spec.command is None else tuple(spec.command),
            port=spec.port or CONTAINER_PORT,
            selector=selector,
            labels=labels,
            variables=variables,
            resources=replace(spec.resources, gpus=spec.gpus_each),
            options=PodOptions(**spec.options),
        )

    @property
    def grace_s(self) -> float:
        """Seconds that its sessions have to end.

        Raises:
            UsageError: The variable with this value is not a number.
        """
        text = self.variables.get("OPENENV_GRACE_S", "30")
        try:
            return max(0.0, float(text))
        except ValueError:
            raise UsageError(f"OPENENV_GRACE_S must be seconds, got {text!r}") from None

    @property
    def settle_s(self) -> int:
        """Seconds between the deletion of a Pod and SIGTERM to its server."""
        return SETTLE_S if self.grace_s else 0

    @property
    def termination_s(self) -> int:
        """Termination grace period of a Pod in seconds: longer than its server needs to end."""
        return int(self.grace_s) + self.settle_s + BEYOND_GRACE_S


def processors(number: float) -> str:
    """A number of processors in the form that Kubernetes returns, so that a comparison finds no difference."""
    return str(int(number)) if number == int(number) else f"{round(number * 1000)}m"


def size(number: int) -> str:
    """A number of bytes in the form that Kubernetes returns."""
    for unit, each in (("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024)):
        if number % each == 0:
            return f"{number // each}{unit}"
    return str(number)


Manifest = dict[str, Any]

CONTAINER = "server"
PORT_NAME = "http"
HEALTH, READY = "/health", "/ready"
SESSIONS_METRIC = "openenv_slots_held"
"""Metric of the autoscaler: sessions of a Pod, from its /metrics."""
# Period of the probes in seconds, and failures until a restart (liveness) or until new connections stop (readiness).
LIVENESS_S, LIVENESS_FAILURES = 10, 6
READINESS_S, READINESS_FAILURES = 5, 2
STARTUP_S = 1
_IDLE = {"cpu": "10m", "memory": "16Mi"}


def manifest(kind: str, version: str, workload: PodWorkload, name: str | None = None, **parts: Any) -> Manifest:
    """A manifest with the labels and annotations of a workload."""
    metadata = {"name": name or workload.name, **_metadata(workload)}
    if workload.owner is not None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": workload.owner["name"], "uid": workload.owner["uid"]}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def _metadata(workload: PodWorkload) -> Manifest:
    labels = {**workload.options.labels, **workload.labels}
    return _without_none({"labels": labels, "annotations": dict(workload.options.annotations) or None})


def _without_none(parts: Manifest) -> Manifest:
    """The parts that are given: None stands for a part that is left out."""
    return {name: value for name, value in parts.items() if value is not None}


def namespace(name: str) -> Manifest:
    """A namespace that enforces the Pod security standard "restricted"."""
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def secret(workload: PodWorkload) -> Manifest:
    """A Secret with all variables of the servers: it is uncertain which of them are secrets."""
    # Not `stringData`: the cluster would keep keys that a later manifest leaves out.
    data = {name: base64.b64encode(value.encode()).decode() for name, value in workload.variables.items()}
    return manifest("Secret", "v1", workload, type="Opaque", data=data)


def pod(workload: PodWorkload, name: str) -> Manifest:
    """The Pod of one server."""
    spec = _pod_spec(workload)
    spec["restartPolicy"] = "Always" if workload.options.restart else "Never"
    if workload.options.lifetime_s is not None:
        spec["activeDeadlineSeconds"] = int(workload.options.lifetime_s)
    return manifest("Pod", "v1", workload, name, spec=spec)


def deployment(workload: PodWorkload, replicas: int | None) -> Manifest:
    """A Deployment: it replaces servers that end, and replaces them one by one when the image changes.

    Args:
        workload: The servers.
        replicas: Number of servers; None leaves it to an autoscaler.
    """
    spec = {
        "selector": {"matchLabels": dict(workload.selector)},
        # Start the new server first: a draining one may keep its sessions for the whole grace period.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "progressDeadlineSeconds": math.ceil(workload.options.start_s) + 300,
        "template": {"metadata": _metadata(workload), "spec": _pod_spec(workload)},
        "replicas": replicas,
    }
    return manifest("Deployment", "apps/v1", workload, spec=_without_none(spec))


def service(workload: PodWorkload) -> Manifest:
    """A Service: one address for all servers; each connection goes to any of them."""
    port = {"name": PORT_NAME, "port": workload.port, "targetPort": PORT_NAME, "protocol": "TCP"}
    return manifest("Service", "v1", workload, spec={"selector": dict(workload.selector), "ports": [port]})


def headless_service(workload: PodWorkload) -> Manifest:
    """A headless Service: its name resolves to the addresses of all ready servers, for a gateway."""
    found = service(workload)
    found["metadata"]["name"] = f"{workload.name}-servers"
    found["spec"] |= {"clusterIP": "None"}
    return found


def autoscaler(workload: PodWorkload, least: int, most: int, sessions: int) -> Manifest:
    """A HorizontalPodAutoscaler by number of sessions.

    Args:
        workload: The servers of a `deployment`.
        least: Minimum of servers.
        most: Maximum of servers.
        sessions: Target of sessions per server, on average.
    """
    target = {"type": "AverageValue", "averageValue": str(sessions)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": SESSIONS_METRIC}, "target": target}}],
        "behavior": {
            "scaleUp": {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
            # A trainer has no sessions between two rollouts, and soon needs the same number again: scale down slowly.
            "scaleDown": {
                "stabilizationWindowSeconds": 300,
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
            },
        },
    }
    return manifest("HorizontalPodAutoscaler", "autoscaling/v2", workload, spec=spec)


def disruption_budget(workload: PodWorkload) -> Manifest:
    """A PodDisruptionBudget: the cluster evicts at most one server at a time."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(workload.selector)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return manifest("PodDisruptionBudget", "policy/v1", workload, spec=spec)


def network_policy(workload: PodWorkload) -> Manifest:
    """A NetworkPolicy that allows only connections to the servers' port, if the cluster's network enforces it."""
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


def prepull(workload: PodWorkload) -> Manifest:
    """A DaemonSet that makes all nodes for servers pull the image in advance, and keep it."""
    name = f"{workload.name}-image"
    match = {"openenv.image": workload.name}
    container = {
        "name": "image",
        "image": workload.image,
        "command": ["sleep", "infinity"],
        "resources": {"requests": dict(_IDLE), "limits": dict(_IDLE)},
        "securityContext": _locked(read_only=True),
        "imagePullPolicy": workload.options.pull_policy,
    }
    spec = {**_place(workload), "containers": [_without_none(container)], "terminationGracePeriodSeconds": 0}
    spec.pop("runtimeClassName", None)
    found = manifest("DaemonSet", "apps/v1", workload, name)
    found["spec"] = {
        "selector": {"matchLabels": match},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        # Without the labels by which servers and their owner are found.
        "template": {"metadata": {"labels": match}, "spec": spec},
    }
    return found


def _pod_spec(workload: PodWorkload) -> Manifest:
    options = workload.options
    writable = [{"name": f"writable-{number}", "emptyDir": {}} for number, _ in enumerate(options.writable)]
    spec = {
        **_place(workload),
        "containers": [_container(workload)],
        "terminationGracePeriodSeconds": workload.termination_s,
        "volumes": writable or None,
    }
    return _merged(_without_none(spec), options.pod)


def _place(workload: PodWorkload) -> Manifest:
    """Placement and identity of the Pods."""
    options = workload.options
    identity: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if options.user is not None:
        identity |= {"runAsUser": options.user, "runAsGroup": options.user, "fsGroup": options.user}
    place = {
        "automountServiceAccountToken": False,
        # Variables with addresses of other services (OPENENV_...) would be read as settings.
        "enableServiceLinks": False,
        "securityContext": identity,
        "runtimeClassName": options.runtime_class,
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets] or None,
        "nodeSelector": dict(options.node_selector) or None,
        "tolerations": [dict(each) for each in options.tolerations] or None,
    }
    return _without_none(place)


def _locked(read_only: bool) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": read_only,
    }


def _container(workload: PodWorkload) -> Manifest:
    options = workload.options
    health = {"path": HEALTH, "port": PORT_NAME}
    # The address to listen on, unless variables of the specification set it.
    address = {"HOST": "0.0.0.0", "PORT": str(workload.port)}  # noqa: S104 - in the Pod's network
    mounts = [{"name": f"writable-{number}", "mountPath": path} for number, path in enumerate(options.writable)]
    container = {
        "name": CONTAINER,
        "image": workload.image,
        "ports": [{"name": PORT_NAME, "containerPort": workload.port, "protocol": "TCP"}],
        "env": [{"name": name, "value": address[name]} for name in address if name not in workload.variables],
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
        # A server with a blocked event loop is restarted after a minute: its sessions are lost anyway.
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": LIVENESS_S,
            "timeoutSeconds": LIVENESS_S,
            "failureThreshold": LIVENESS_FAILURES,
        },
        "securityContext": _locked(options.read_only),
        "command": None if workload.command is None else list(workload.command),
        "imagePullPolicy": options.pull_policy,
        "lifecycle": {"preStop": {"sleep": {"seconds": workload.settle_s}}} if workload.settle_s else None,
        "volumeMounts": mounts or None,
        "resources": _resources(workload) or None,
    }
    return _merged(_without_none(container), options.container)


def _resources(workload: PodWorkload) -> Manifest:
    cpus, memory = workload.resources.cpus, workload.resources.memory_bytes
    limits: Manifest = {} if cpus is None else {"cpu": processors(cpus)}
    if memory is not None:
        limits["memory"] = size(memory)
    requests = {**limits, **(workload.options.requests or {})}
    if workload.resources.gpus:
        limits[workload.options.gpu_resource] = str(workload.resources.gpus)
    return {name: amounts for name, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Manifest:
    """Merges two manifests: mappings by key, lists appended; of other values the second one wins."""
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
