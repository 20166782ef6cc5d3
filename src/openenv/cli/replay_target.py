"""From the name of an environment in a record to something that can be served here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ..errors import UnknownEnvironment, UsageError
from ..project import Manifest
from ..project.target import bundled, is_project

__all__ = ["target_of"]


def target_of(environment: str) -> str:
    """What `openenv serve` would be told to serve an environment of that name.

    The name is what a record says, which may be anybody's: it is looked for among what is installed and in the
    current folder, and nothing is imported or made of it otherwise.

    Raises:
        UsageError: Nothing here is called so.
    """
    if environment in bundled():
        return environment
    if is_project(".") and Manifest.read(Path.cwd()).name == environment:
        return "."
    if _in_gymnasium(environment):
        return f"gymnasium:{environment}"
    from ..auto.catalog import find

    try:
        entry = find(environment)
    except (UnknownEnvironment, UsageError):
        entry = None
    if entry is None or entry.manifest_path is None:
        raise UsageError(
            f"the record is of {environment!r}, and nothing here is called so: name it with --target (as for "
            "`openenv serve`), or a server that runs with --base-url"
        )
    return str(entry.manifest_path.parent)


def _in_gymnasium(name: str) -> bool:
    if importlib.util.find_spec("gymnasium") is None:
        return False
    from gymnasium.envs.registration import registry

    return name in registry
