"""What is known of an environment, as a dict."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from .catalog import Entry
from .classes import Kind, class_of

__all__ = ["described"]


def described(entry: Entry) -> dict[str, Any]:
    """Its facts by name. A class that cannot be told is None; raises `ImportFailed` if nothing can be imported."""
    manifest = entry.manifest
    return {
        "env_key": entry.key,
        "name": manifest.name if manifest else entry.key,
        "env_name": manifest.name if manifest else entry.key,
        "package": entry.distribution or "openenv",
        "version": entry.version,
        "description": (manifest.description if manifest else None) or entry.summary,
        "action_class": _name_of(entry, "action"),
        "observation_class": _name_of(entry, "observation"),
        "default_image": f"{entry.key}-env:latest",
        "manifest": None if entry.manifest_path is None else str(entry.manifest_path),
        "spec_version": manifest.spec_version if manifest else None,
    }


def _name_of(entry: Entry, kind: Kind) -> str | None:
    try:
        return class_of(entry, kind).__name__
    except ImportError:
        raise
    except UsageError:
        return None
