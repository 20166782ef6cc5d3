"""The machine that measures, for everything that is written down about a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from .. import __version__

__all__ = ["machine"]

_CPUINFO = Path("/proc/cpuinfo")
# What a step goes through.
_PACKAGES = ("picows", "uvloop", "uvicorn", "pydantic", "msgspec", "numpy", "gymnasium")


def machine() -> dict[str, str]:
    """What this machine is, and what runs on it, in words."""
    return {
        "openenv": __version__,
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "packages": ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name))),
    }


def _processor() -> str:
    """Its name, where the system tells one."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
