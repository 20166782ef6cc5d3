"""The balancers that a topology can be rendered for, and how each looks at its own configuration."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from ..errors import MissingExtra
from ..gateway import Topology, envoy, haproxy, nginx
from .envoy import envoy_program, look_at, validate

__all__ = ["BALANCERS", "Balancer"]


@dataclass(frozen=True, slots=True)
class Balancer:
    """A program, and what it reads.

    Attributes:
        name: Its name.
        render: Its files by name, of a topology, for the folder where they will lie.
        program: The program on this machine; None where there is none.
        check: Has the program look at the files in a folder. Raises `UsageError` for what it refuses.
        command: How it is started with files in a folder.
    """

    name: str
    render: Callable[[Topology, PurePath], Mapping[str, str]]
    program: Callable[[], str | None]
    check: Callable[[str, Topology, Path], None]
    command: str


def _envoy() -> str | None:
    try:
        return str(envoy_program())
    except MissingExtra:
        return None


def _on_path(name: str) -> str | None:
    # Debian has daemons where the PATH of users does not lead.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def _check_envoy(program: str, topology: Topology, _: Path) -> None:
    validate(topology, program)


def _check_haproxy(program: str, _: Topology, folder: Path) -> None:
    look_at([program, "-c", "-f", str(folder / haproxy.CONFIGURATION)], "HAProxy")


def _check_nginx(program: str, _: Topology, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="openenv-gateway-") as place:
        settings = f"pid {place}/pid; error_log stderr;"
        file = str((folder / nginx.CONFIGURATION).absolute())
        look_at([program, "-t", "-q", "-p", place, "-e", "stderr", "-c", file, "-g", settings], "nginx")


BALANCERS: Mapping[str, Balancer] = {
    each.name: each
    for each in (
        Balancer("envoy", envoy.render, _envoy, _check_envoy, f"envoy -c {{}}/{envoy.BOOTSTRAP}"),
        Balancer(
            "haproxy",
            lambda topology, _: haproxy.render(topology),
            lambda: _on_path("haproxy"),
            _check_haproxy,
            f"haproxy -W -f {{}}/{haproxy.CONFIGURATION}",
        ),
        Balancer(
            "nginx",
            lambda topology, _: nginx.render(topology),
            lambda: _on_path("nginx"),
            _check_nginx,
            f"nginx -c {{}}/{nginx.CONFIGURATION}",
        ),
    )
}
"""Every balancer, by its name."""
