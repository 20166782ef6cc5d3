"""What a place can do, asked before anything is started there."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError
from .spec import LaunchSpec

__all__ = ["Capabilities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do.

    Attributes:
        forms: The forms of `LaunchSpec` that it starts.
        gpus: Whether servers can have GPUs.
        limits: Which of `cpus`, `memory` and `processes` it enforces.
        replicas: Whether one deployment may have several servers.
        options: The names that `LaunchSpec.options` may have; None lets the place decide.
    """

    forms: frozenset[str]
    gpus: bool = False
    limits: frozenset[str] = frozenset()
    replicas: bool = True
    options: frozenset[str] | None = frozenset()

    def check(self, provider: str, spec: LaunchSpec) -> None:
        """Raises `UsageError` for what the place cannot do of a specification, and says what it can."""
        if spec.form not in self.forms:
            raise UsageError(f"{provider} starts no {spec.form}: give it {' or '.join(sorted(self.forms))}")
        if spec.count > 1 and not self.replicas:
            raise UsageError(f"{provider} has one server a deployment: leave out replicas, or deploy several")
        resources = spec.resources
        if resources.gpus and not self.gpus:
            raise UsageError(f"{provider} gives no GPUs to servers: leave out gpus")
        wanted = {name for name in ("cpus", "memory", "processes") if getattr(resources, name) is not None}
        if wanted - self.limits:
            can = ", ".join(sorted(self.limits)) or "none"
            raise UsageError(f"{provider} cannot limit {', '.join(sorted(wanted - self.limits))} (it limits {can})")
        unknown = spec.options.keys() - self.options if self.options is not None else set()
        if unknown:
            names = ", ".join(sorted(self.options or ())) or "none"
            raise UsageError(f"{provider} has no option {', '.join(sorted(unknown))}: there are {names}")
