"""What is to run on a cluster: the facts that manifests are made from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ...errors import UsageError
from ..spec import LaunchSpec, Resources

__all__ = ["PORT", "PodOptions", "Workload", "processors", "size"]

PORT = 8000
"""Port that servers listen on in their containers, where nobody says otherwise."""
# Seconds in which everybody on a cluster hears that a Pod takes no new connections any more.
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
    """What `LaunchSpec.options` may say for Kubernetes.

    Attributes:
        runtime_class: RuntimeClass of the Pods, such as "gvisor".
        pull_policy: When the image is pulled: Always, IfNotPresent or Never.
        pull_secrets: Names of Secrets for the image's registry.
        node_selector: Labels that nodes must have.
        tolerations: Taints that do not matter.
        labels: Further labels of everything.
        annotations: Annotations of everything.
        requests: What is set aside for each server, by resource ("cpu", "memory"); None: its limits.
        gpu_resource: What GPUs are called there.
        user: User and group id that servers run as; None leaves it to the image, whose user must be a number, not 0.
        read_only: Whether the root of the file system cannot be written to.
        writable: Folders that can be written to all the same; they are empty at first.
        restart: Whether a server that has ended is started again at the same place.
        lifetime_s: Seconds after which the cluster ends a Pod, whoever may have forgotten it; None: never. Only of
            single Pods.
        policy: Whether a NetworkPolicy lets in connections to the server's port alone, and none out.
        callers: Labels of the Pods, of the same namespace, that may connect; None: all. Only with `policy`.
        egress: Whether servers may connect to others. Only with `policy`.
        prepull: Whether the image is kept on every node, by a DaemonSet.
        start_s: Seconds until a server answers, after which its container is started anew.
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
            raise UsageError(f"user must be a number above 0 (servers run as nobody's superuser), got {self.user!r}")
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
class Workload:
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
    port: int = PORT
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
            port=spec.port or PORT,
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
