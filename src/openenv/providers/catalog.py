"""The providers there are, by the names that commands take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from ..errors import UsageError
from .provider import Provider

__all__ = ["CATALOG", "Entry", "entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A kind of place.

    Attributes:
        name: What commands call it.
        class_name: Its class in `openenv.providers`.
        extra: What installs the packages it takes, as `pip install 'openenv[EXTRA]'`; None: nothing more is needed.
        place: Where its servers run, in words.
    """

    name: str
    class_name: str
    extra: str | None
    place: str

    def load(self) -> type[Provider]:
        """Its class. Imports no package of the extra: making an instance may."""
        found: type[Provider] = getattr(import_module("openenv.providers"), self.class_name)
        return found

    def make(self, **options: Any) -> Provider:
        """A provider with the arguments of its class.

        Raises:
            MissingExtra: The extra is not installed.
            ProviderFailed: The place cannot be reached.
            UsageError: It has no such argument.
        """
        found = self.load()
        _check(found, options)
        made: Provider = found(**options)
        return made


def _check(found: type[Provider], options: Mapping[str, Any]) -> None:
    there = signature(found).parameters.values()
    names = [each.name for each in there if each.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}]
    unknown = [name for name in options if name not in names]
    if unknown and not any(each.kind is Parameter.VAR_KEYWORD for each in there):
        raise UsageError(f"{found.__name__} has no argument {', '.join(unknown)}: there are {', '.join(names)}")


def entry(name: str) -> Entry:
    """What is called so. Raises `UsageError` for what is not there."""
    found = CATALOG.get(name)
    if found is None:
        raise UsageError(f"there is no provider {name!r}: there are {', '.join(CATALOG)}")
    return found


_ENTRIES = (
    Entry("local", "LocalProvider", None, "processes of this machine"),
    Entry("uv", "UVProvider", None, "projects on this machine, by uv run"),
    Entry("docker", "LocalDockerProvider", "docker", "containers of this machine's Docker engine"),
    Entry("swarm", "DockerSwarmProvider", "docker", "services of a Docker swarm"),
    Entry("kubernetes", "KubernetesProvider", "kubernetes", "pods of a Kubernetes cluster"),
    Entry("ray", "RayProvider", "ray", "actors of a Ray cluster"),
    Entry("slurm", "SlurmProvider", None, "jobs of a Slurm cluster"),
    Entry("hf", "HFSandboxProvider", "sandbox", "jobs on the Hub"),
)
CATALOG: Mapping[str, Entry] = {each.name: each for each in _ENTRIES}
"""Every kind of place, by its name."""
