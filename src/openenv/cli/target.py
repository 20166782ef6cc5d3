"""What `openenv serve TARGET` means: from a name to an app."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import yaml

from ..environment import Environment
from ..errors import UsageError
from ..generics import type_arguments
from ..types import Action, Observation, State

__all__ = ["bundled", "load"]

_KINDS = "module:attribute, a folder with openenv.yaml, gymnasium:ENV_ID, or a bundled environment"


def load(target: str) -> Any:
    """Makes the app a target stands for.

    Args:
        target: `module:attribute` (an app or an Environment class), a folder with `openenv.yaml`,
            `gymnasium:ENV_ID?key=value`, or the name of a bundled environment.

    Raises:
        UsageError: There is no such thing; the message says what was looked for and where.
        MissingExtra: The target needs a package that is not installed.
    """
    if target.startswith("gymnasium:"):
        from ..adapters.gymnasium import gymnasium_app, parse_target

        env_id, arguments = parse_target(target.removeprefix("gymnasium:"))
        return gymnasium_app(env_id, **arguments)
    if target in bundled():
        return _attribute(_import(f"openenv.envs.{target}.server.app", target), "app", target)
    if (Path(target) / "openenv.yaml").is_file():
        return _from_project(Path(target).resolve())
    module, colon, attribute = target.partition(":")
    if not colon:
        raise UsageError(f"{target!r} is nothing to serve: give {_KINDS} ({', '.join(bundled())})")
    _search(Path.cwd())
    return _app_of(_attribute(_import(module, target), attribute, target), target)


def bundled() -> list[str]:
    """Names of the environments that come with the package."""
    folder = Path(__file__).parent.parent / "envs"
    return sorted(manifest.parent.name for manifest in folder.glob("*/openenv.yaml"))


def _from_project(folder: Path) -> Any:
    manifest = folder / "openenv.yaml"
    try:
        contents = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"{manifest} is no YAML: {error}") from None
    app = contents.get("app", "server.app:app") if isinstance(contents, dict) else None
    if not isinstance(app, str) or ":" not in app:
        raise UsageError(f"{manifest}: `app` must say module:attribute, as in `app: server.app:app`")
    module, _, attribute = app.partition(":")
    # Projects import their models both as `..models` and as `models`: both must resolve.
    _search(folder)
    if (folder / "__init__.py").is_file():
        _search(folder.parent)
        module = f"{folder.name}.{module}"
    return _app_of(_attribute(_import(module, str(manifest)), attribute, str(manifest)), str(manifest))


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(module: str, target: str) -> ModuleType:
    if not all(module.split(".")):
        raise UsageError(f"{target}: {module!r} is no name of a module")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise UsageError(
                f"{target}: no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from None
        raise UsageError(f"{target}: importing {module} failed: {error}; is it installed?") from error


def _attribute(module: ModuleType, path: str, target: str) -> Any:
    value: Any = module
    for name in path.split("."):
        if not hasattr(value, name):
            raise UsageError(f"{target}: module {module.__name__} has no {path!r}")
        value = getattr(value, name)
    return value


def _app_of(value: Any, target: str) -> Any:
    if inspect.isclass(value) and issubclass(value, Environment):
        from ..server import create_app

        action, observation, state = _types_of(value, target)
        return create_app(value, action, observation, state_cls=state)
    if not callable(value) or inspect.isclass(value):
        raise UsageError(f"{target} is a {type(value).__name__}: an app or an Environment class can be served")
    return value


def _types_of(cls: type[Environment[Any, Any, Any]], target: str) -> tuple[Any, Any, Any]:
    """What an environment takes and gives: from `Environment[A, O, S]`, or from the annotations of `step`."""
    arguments = type_arguments(cls, Environment)
    if len(arguments) == 3:
        return arguments
    try:
        hints = get_type_hints(cls.step)
    except NameError:
        hints = {}
    names = list(inspect.signature(cls.step).parameters)
    action = hints.get(names[1]) if len(names) > 1 else None
    observation = hints.get("return")
    for found, base in ((action, Action), (observation, Observation)):
        if not (inspect.isclass(found) and issubclass(found, base)):
            raise UsageError(
                f"{target}: the types of {cls.__name__} are not declared: write "
                f"class {cls.__name__}(Environment[MyAction, MyObservation, State]), or make the app with create_app"
            )
    return action, observation, State
