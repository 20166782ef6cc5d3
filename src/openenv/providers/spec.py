"""What to start (`LaunchSpec`), and what a provider can start (`Capabilities`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from ..errors import UsageError

CONTAINER_PORT = 8000
"""The port that images of environments listen on (`port` in openenv.yaml)."""
_UNITS = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Limits of one server. None: no limit.

    Attributes:
        cpus: Processors, fractions allowed.
        memory: Bytes, or a size such as "512m".
        gpus: Number of GPUs of each server. With `LaunchSpec.one_per_gpu`, number of GPUs of all servers together.
        processes: Maximum number of concurrent processes and threads.
    """

    cpus: float | None = None
    memory: int | str | None = None
    gpus: int = 0
    processes: int | None = None

    def __post_init__(self) -> None:
        if self.cpus is not None and not self.cpus > 0:
            raise UsageError(f"cpus must be more than 0, got {self.cpus!r}")
        if self.gpus < 0:
            raise UsageError(f"gpus must be 0 or more, got {self.gpus!r}")
        if self.processes is not None and self.processes < 1:
            raise UsageError(f"processes must be 1 or more, got {self.processes!r}")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int | None:
        """The memory in bytes.

        Raises:
            UsageError: The size is invalid.
        """
        if self.memory is None:
            return None
        text = str(self.memory).strip().lower().removesuffix("b").removesuffix("i")
        number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
        try:
            size = int(float(number) * _UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            size = 0
        if size <= 0:
            raise UsageError(f"memory must be bytes or a size such as '512m' or '2g', got {self.memory!r}")
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Servers to start, in one of four forms: an image, a project, a target, or a command.

    Attributes:
        image: Name of a container image. `command`, if given, replaces the command of the image.
        project: A folder with pyproject.toml, or `git+https://...` of a repository.
        target: Argument of `openenv serve`: `module:attribute`, a folder with openenv.yaml, a bundled environment.
        command: Command line of a server that listens on the port in the environment variable PORT. It must not
            contain secrets.
        port: Port that the server listens on. For a container: the port inside it (8000 by default). Otherwise, None
            takes a free port.
        env_vars: Environment variables of the servers.
        resources: Limits of each server.
        one_per_gpu: Start one server for each of `resources.gpus`.
        replicas: Number of servers.
        api_key: API key of the servers. None generates one, unless `env_vars` has `OPENENV_API_KEYS`. "": no key.
        name: Prefix of the names of the started objects; None takes it from the image or target.
        options: Options of the provider, by the names in its documentation.
    """

    image: str | None = None
    project: str | Path | None = None
    target: str | None = None
    command: Sequence[str] | None = None
    port: int | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets may be among them
    resources: Resources = field(default_factory=Resources)
    one_per_gpu: bool = False
    replicas: int = 1
    api_key: str | None = field(default=None, repr=False)
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        forms = [form for form in ("image", "project", "target") if getattr(self, form) is not None]
        if len(forms) > 1 or (not forms and self.command is None):
            raise UsageError(
                f"a LaunchSpec needs one of image, project, target or command, got {', '.join(forms) or 'none'}"
            )
        command = self.command
        if command is not None and (isinstance(command, str) or not command or not _are_texts(command)):
            raise UsageError(f"command must be a list of strings, got {command!r}")
        wrong = [str(name) for name, value in self.env_vars.items() if not _are_texts((name, value))]
        if wrong:
            raise UsageError(f"names and values of env_vars must be strings: {', '.join(wrong)}")
        if self.api_key is not None and re.search(r"[\s,]", self.api_key):
            raise UsageError("api_key must not contain whitespace or commas")
        if self.port is not None and not 1 <= self.port <= 65_535:
            raise UsageError(f"port must be from 1 to 65535, or None for a free port, got {self.port!r}")
        if self.replicas < 1:
            raise UsageError(f"replicas must be 1 or more, got {self.replicas!r}")
        if self.one_per_gpu and not self.resources.gpus:
            raise UsageError("one_per_gpu needs the number of GPUs: resources=Resources(gpus=N)")

    @property
    def form(self) -> str:
        """The form of the specification: image, project, target or command."""
        return next((form for form in ("image", "project", "target") if getattr(self, form) is not None), "command")

    @property
    def count(self) -> int:
        """Number of servers."""
        return self.resources.gpus if self.one_per_gpu else self.replicas

    @property
    def gpus_each(self) -> int:
        """Number of GPUs of each server."""
        return 1 if self.one_per_gpu else self.resources.gpus

    def changed(self, **changes: Any) -> Self:
        """A copy with other values."""
        return replace(self, **changes)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Features of a provider.

    Attributes:
        forms: The forms of `LaunchSpec` that it starts.
        gpus: Whether servers can have GPUs.
        limits: Which of `cpus`, `memory` and `processes` it enforces.
        replicas: Whether one deployment may have several servers.
        options: Allowed names in `LaunchSpec.options`. None if the place checks the names.
    """

    forms: frozenset[str]
    gpus: bool = False
    limits: frozenset[str] = frozenset()
    replicas: bool = True
    options: frozenset[str] | None = frozenset()

    def check(self, provider: str, spec: LaunchSpec) -> None:
        """Raises `UsageError` if the provider does not support a specification; the message names alternatives."""
        if spec.form not in self.forms:
            raise UsageError(f"{provider} does not support {spec.form}: use {' or '.join(sorted(self.forms))}")
        if spec.count > 1 and not self.replicas:
            raise UsageError(f"{provider} runs one server per deployment: leave out replicas, or launch several")
        resources = spec.resources
        if resources.gpus and not self.gpus:
            raise UsageError(f"{provider} does not support GPUs: leave out gpus")
        wanted = {name for name in ("cpus", "memory", "processes") if getattr(resources, name) is not None}
        if wanted - self.limits:
            can = ", ".join(sorted(self.limits)) or "none"
            raise UsageError(f"{provider} cannot limit {', '.join(sorted(wanted - self.limits))} (it limits {can})")
        unknown = spec.options.keys() - self.options if self.options is not None else set()
        if unknown:
            names = ", ".join(sorted(self.options or ())) or "none"
            raise UsageError(f"{provider} has no option {', '.join(sorted(unknown))}. Its options: {names}")
