"""Build manifests from a workload. Pure: nothing here talks to a cluster."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ...errors import UsageError
from ..spec import CONTAINER_PORT, LaunchSpec, Resources

# Seconds until a whole cluster knows that a Pod takes no new connections any more.
SETTLE_S = 5
# Seconds that a server needs beyond the grace of its sessions, for calls that run and for its own end.
BEYOND_GRACE_S = 15
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?|Ki)?")
# Options that are no words and no switches.
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
        labels: Further labels of all objects.
        annotations: Annotations of all objects.
        requests: Requests of each server, by resource ("cpu", "memory"); None: its limits.
        gpu_resource: Resource name of GPUs.
        user: User and group id that servers run as; None takes the image's, which must be a number and not 0.
        read_only: Whether the root file system is read-only.
        writable: Folders that are writable all the same, and empty at first.
        restart: Whether the kubelet restarts a server that has ended.
        lifetime_s: Seconds after which the cluster ends a Pod, so that none is forgotten; None: never. Only of
            single Pods.
        policy: Whether a NetworkPolicy lets in connections to the server's port alone, and none out.
        callers: Labels of the Pods, of the same namespace, that may connect; None: all. Only with `policy`.
        egress: Whether servers may connect to others. Only with `policy`.
        prepull: Whether the image is kept on every node, by a DaemonSet.
        start_s: Seconds for a server to answer; after that, the kubelet restarts its container.
        pod: Merged into the Pod's specification: lists are added to.
        container: Merged into the container, likewise.
        local_port: Port of this machine that the first server is forwarded to; None takes a free one.
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
    writable: Sequence[str] = ("/tmp",)  # noqa: S108 - of the container
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
                raise UsageError(f"requests must be quantities as '500m' or '2Gi', got {name}={amount!r}")
        if self.callers is not None and not self.policy:
            raise UsageError("callers needs policy=True: it is the NetworkPolicy that keeps others out")

    def _check_kinds(self) -> None:
        for kind, names in _KINDS.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and (not isinstance(value, kind) or isinstance(value, (str, bool))):
                    wanted = {Mapping: "a mapping", Sequence: "a list"}.get(kind, "a number")
                    raise UsageError(f"{name} must be {wanted}, got {value!r}")

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all options."""
        return frozenset(each.name for each in fields(cls))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWorkload:
    """Servers of one image, alike but for their names.

    Attributes:
        name: Of what belongs to all of them together.
        image: The image.
        command: What runs in place of the image's own command; None: that.
        port: Port that a server listens on.
        selector: Labels that its Pods have and no others.
        labels: Labels of everything that belongs to it, those among them.
        variables: Environment variables, secrets among them.
        resources: What one server may use; GPUs are those of one.
        options: What only Kubernetes knows.
        owner: Metadata of the Pod with which the cluster removes all of this; None: nothing does.
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
            raise UsageError(f"Kubernetes has no environment variables of such names: {', '.join(map(repr, odd))}")
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
        """The workload that a specification asks for.

        Raises:
            UsageError: An option of no such value, or a variable of no such name.
        """
        resources = spec.resources
        return cls(
            name=name,
            image=str(spec.image),
            command=None if spec.command is None else tuple(spec.command),
            port=spec.port or CONTAINER_PORT,
            selector=selector,
            labels=labels,
            variables=variables,
            resources=Resources(cpus=resources.cpus, memory=resources.memory, gpus=spec.gpus_each),
            options=PodOptions(**spec.options),
        )

    @property
    def grace_s(self) -> float:
        """Seconds that its sessions have to end by themselves.

        Raises:
            UsageError: The variable that says so is no number.
        """
        text = self.variables.get("OPENENV_GRACE_S", "30")
        try:
            return max(0.0, float(text))
        except ValueError:
            raise UsageError(f"OPENENV_GRACE_S must be seconds, got {text!r}") from None

    @property
    def settle_s(self) -> int:
        """Seconds between the decision to end a Pod and the moment its server hears of it."""
        return SETTLE_S if self.grace_s else 0

    @property
    def termination_s(self) -> int:
        """Seconds after which a Pod that is to end is killed: later than its server ends by itself."""
        return int(self.grace_s) + self.settle_s + BEYOND_GRACE_S


def processors(number: float) -> str:
    """So many processors, as Kubernetes writes it itself: so that nothing differs when it is compared."""
    return str(int(number)) if number == int(number) else f"{round(number * 1000)}m"


def size(number: int) -> str:
    """So many bytes, likewise."""
    for unit, each in (("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024)):
        if number % each == 0:
            return f"{number // each}{unit}"
    return str(number)


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


def manifest(kind: str, version: str, workload: PodWorkload, name: str | None = None, **parts: Any) -> Manifest:
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


def secret(workload: PodWorkload) -> Manifest:
    """A Secret with all variables of the servers: no rule knows for sure which of them are secrets."""
    # Not `stringData`: the cluster would keep keys that a later manifest leaves out.
    data = {name: base64.b64encode(value.encode()).decode() for name, value in workload.variables.items()}
    return manifest("Secret", "v1", workload, type="Opaque", data=data)


def pod(workload: PodWorkload, name: str) -> Manifest:
    """One server."""
    spec = _pod_spec(workload)
    spec["restartPolicy"] = "Always" if workload.options.restart else "Never"
    if workload.options.lifetime_s is not None:
        spec["activeDeadlineSeconds"] = int(workload.options.lifetime_s)
    return manifest("Pod", "v1", workload, name, spec=spec)


def deployment(workload: PodWorkload, replicas: int | None) -> Manifest:
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


def service(workload: PodWorkload) -> Manifest:
    """One address for all servers, each connection to any of them."""
    port = {"name": PORT_NAME, "port": workload.port, "targetPort": PORT_NAME, "protocol": "TCP"}
    return manifest("Service", "v1", workload, spec={"selector": dict(workload.selector), "ports": [port]})


def headless_service(workload: PodWorkload) -> Manifest:
    """A name that stands for the addresses of all servers that are ready: for a gateway, which knows them apart."""
    found = service(workload)
    found["metadata"]["name"] = f"{workload.name}-servers"
    found["spec"] |= {"clusterIP": "None"}
    return found


def autoscaler(workload: PodWorkload, least: int, most: int, sessions: int) -> Manifest:
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


def disruption_budget(workload: PodWorkload) -> Manifest:
    """No more than one server at a time makes way for work on the nodes."""
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": dict(workload.selector)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return manifest("PodDisruptionBudget", "policy/v1", workload, spec=spec)


def network_policy(workload: PodWorkload) -> Manifest:
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


def prepull(workload: PodWorkload) -> Manifest:
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


def _pod_spec(workload: PodWorkload) -> Manifest:
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


def _place(workload: PodWorkload) -> Manifest:
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


def _container(workload: PodWorkload) -> Manifest:
    options = workload.options
    health = {"path": HEALTH, "port": PORT_NAME}
    # Where the server listens, unless the specification's own variables set it.
    address = {"HOST": "0.0.0.0", "PORT": str(workload.port)}  # noqa: S104 - in the Pod's network
    container: Manifest = {
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


def _resources(workload: PodWorkload) -> Manifest:
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
