"""What `openenv serve TARGET` means: from a name to an app."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import Any

from ..errors import NotAProject, UsageError
from .imports import attribute_of, import_module, search

__all__ = ["bundled", "is_project", "load"]

_KINDS = "module:attribute, a folder with openenv.yaml, gymnasium:ENV_ID, pettingzoo:MODULE, or a bundled environment"


def load(target: str) -> Any:
    """Makes the app a target stands for.

    Args:
        target: `module:attribute` (an app or an Environment class), a folder with `openenv.yaml`,
            `gymnasium:ENV_ID?key=value`, `pettingzoo:MODULE?key=value`, or the name of a bundled environment.

    Raises:
        UsageError: There is no such thing; the message says what was looked for and where.
        NotAProject: It is a folder without `openenv.yaml`.
        ImportFailed: Its module cannot be imported; the message says why, and in which file.
        MissingExtra: The target needs a package that is not installed.
    """
    if target.startswith("gymnasium:"):
        from ..adapters.gymnasium import gymnasium_app, parse_target

        env_id, arguments = parse_target(target.removeprefix("gymnasium:"))
        return gymnasium_app(env_id, **arguments)
    if target.startswith("pettingzoo:"):
        from ..adapters.gymnasium import parse_target
        from ..adapters.pettingzoo import pettingzoo_app

        module, arguments = parse_target(target.removeprefix("pettingzoo:"))
        search(Path.cwd())
        return pettingzoo_app(module, **arguments)
    if target in bundled():
        return attribute_of(import_module(f"openenv.envs.{target}.server.app", target), "app", target)
    if is_project(target):
        return _from_project(Path(target).resolve())
    module, colon, attribute = target.partition(":")
    if target and not colon and Path(target).is_dir():
        raise NotAProject(
            f"{target!r} is no project, for {Path(target).resolve()} has no openenv.yaml: give {_KINDS} "
            f"({', '.join(bundled())}), or begin a project with `openenv init NAME`"
        )
    if not colon:
        close = difflib.get_close_matches(target, bundled(), 1)
        meant = f" did you mean {close[0]}?" if close else ""
        raise UsageError(f"{target!r} is nothing to serve:{meant} give {_KINDS} ({', '.join(bundled())})")
    search(Path.cwd())
    return _found(module, attribute, target)


def is_project(target: str) -> bool:
    """Whether it is a folder with `openenv.yaml`.

    Raises:
        UsageError: It may not be looked at, or no folder can be called so.
    """
    try:
        return (Path(target) / "openenv.yaml").is_file()
    except OSError as error:
        raise UsageError(f"{target!r} cannot be looked at: {error.strerror}; give {_KINDS}") from None


def bundled() -> list[str]:
    """Names of the environments that come with the package."""
    folder = Path(__file__).parent.parent / "envs"
    return sorted(manifest.parent.name for manifest in folder.glob("*/openenv.yaml"))


def _from_project(folder: Path) -> Any:
    from .manifest import Manifest

    manifest = Manifest.read(folder)
    served = manifest.app
    if manifest.environment is not None and "app" not in manifest.model_fields_set:
        served = manifest.environment
    module, colon, attribute = served.partition(":")
    if not colon:
        raise UsageError(f"{manifest.path}: `environment: {served}` is to be served: write module:{served}")
    # Projects import their models both as `..models` and as `models`: both must resolve.
    search(folder)
    if (folder / "__init__.py").is_file():
        search(folder.parent)
        module = f"{folder.name}.{module}"
    return _found(module, attribute, str(manifest.path))


def _found(module: str, attribute: str, target: str) -> Any:
    return _app_of(attribute_of(import_module(module, target), attribute, target), target)


def _app_of(value: Any, target: str) -> Any:
    from ..environment import Environment
    from ..launch.in_process import types_of

    if inspect.isclass(value) and issubclass(value, Environment):
        from ..server import create_app

        action, observation, state = types_of(value, target)
        return create_app(value, action, observation, state_cls=state)
    if not callable(value) or inspect.isclass(value):
        raise UsageError(f"{target} is a {type(value).__name__}: an app or an Environment class can be served")
    return value
