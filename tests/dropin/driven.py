"""Drivers run once for each pairing of client and server; each check is a test of its own."""

from __future__ import annotations

from pathlib import Path

from .installation import DRIVERS, NAMES, Installation, checks_of
from .server import Server

__all__ = ["Driven", "driver_of", "every_check"]


class Driven:
    """Outcomes of drivers, each found out when it is first asked for."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._outcomes: dict[tuple[str, str, str, str], dict[str, str | None]] = {}

    def outcome(self, name: str, check: str, client: Installation, server: Installation, way: str) -> str | None:
        """The traceback of one check, None if it passed."""
        key = (name, client.system, server.system, way)
        if key not in self._outcomes:
            options = () if client.system == server.system == "ours" else ("--peer",)
            with Server(server, name, way, self._folder) as served:
                self._outcomes[key] = client.drive(driver_of(name), served.url, *options)
        return self._outcomes[key][check]


def driver_of(name: str) -> Path:
    """The driver of a package."""
    return DRIVERS / f"{name.removesuffix('_env')}.py"


def every_check(ours: bool = True) -> list[tuple[str, str]]:
    """Package and check, for all packages."""
    return [(name, check) for name in NAMES for check in checks_of(driver_of(name), ours)]
