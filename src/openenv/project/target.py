"""Load the app of a target of `openenv serve`. Import errors name the file and line that failed."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import linecache
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from ..errors import ImportFailed, NotAProject, OpenEnvError, UsageError


def import_module(name: str, what: str) -> ModuleType:
    """Imports a module of a user.

    Args:
        name: The module.
        what: The source of the name, for the beginning of the message: a file, a target, a package.

    Raises:
        UsageError: The module does not exist.
        ImportFailed: The module raised an exception.
        OpenEnvError: A call of openenv in the module raised this, such as `create_app`.
    """
    if not all(name.split(".")):
        raise UsageError(f"{what}: {name!r} is not a module name")
    try:
        return importlib.import_module(name)
    except OpenEnvError:  # of `create_app` in the module: it has a better message
        raise
    except (Exception, SystemExit) as error:  # the edge to foreign code: a module may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{what}: no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from None
        raise ImportFailed(f"{what}: importing {name} failed: {_reason(error)}", data={"module": name}) from error


def is_there(name: str) -> bool:
    """Whether a module of that name exists, here or installed; it is not imported."""
    top, *inner = name.split(".")
    here = [str(Path.cwd())]
    try:
        found = PathFinder.find_spec(top, here) or importlib.util.find_spec(top)
        for index, _ in enumerate(inner, 2):
            if found is None or found.name in sys.modules:  # a loaded module may have submodules without files
                break
            path = ".".join(name.split(".")[:index])
            found = PathFinder.find_spec(path, found.submodule_search_locations or [])
    except (ImportError, ValueError):  # an empty name, or a module without a spec
        return False
    return found is not None


def attribute_of(module: ModuleType, path: str, what: str) -> Any:
    """An attribute of a module, perhaps nested (`Site.app`).

    Raises:
        UsageError: The attribute does not exist.
        ImportFailed: The module imports it lazily, and the import failed.
    """
    value: Any = module
    try:
        for name in path.split("."):
            value = getattr(value, name)
    except AttributeError:
        raise UsageError(f"{what}: module {module.__name__} has no {path!r}") from None
    except ImportError as error:
        raise ImportFailed(
            f"{what}: importing {path} of {module.__name__} failed: {_reason(error)}",
            data={"module": module.__name__},
        ) from error
    return value


def search(folder: Path) -> None:
    """Puts a folder first in the search path for modules."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _reason(error: BaseException) -> str:
    """The reason of a failed import, its file and line, and a hint."""
    first = error.__context__
    # `except ImportError: from models import ...` hides the error of `from .models import ...`.
    # An error about a relative import only says that the module has another name than in its package.
    both = isinstance(error, ImportError) and isinstance(first, ImportError)
    if first is not None and both and "relative import" not in str(first):
        return f"{_reason(first)}; its fallback then failed with: {' '.join(str(error).split())}"
    where, said, trace = "", " ".join(str(error).split()), error.__traceback__
    while trace is not None:  # find the innermost line in a file
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and file != __file__ and Path(file) != Path(str(importlib.__file__)):
            line = linecache.getline(file, trace.tb_lineno).strip()
            where = f" in {file}, line {trace.tb_lineno} (`{line}`)" if line else ""
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        spot = f" in {error.filename}, line {error.lineno}" if error.filename else ""
        return f"{error.msg}{spot}: correct it"
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return f"{said}{where}: install {top}, or the project with its dependencies (pip install -e PROJECT)"
    if isinstance(error, ImportError):
        return f"{said}{where}: check that the versions of both are compatible"
    return f"{type(error).__name__}: {said}{where}: correct it"


_KINDS = (
    "module:attribute, a folder with openenv.yaml, gymnasium:ENV_ID, pettingzoo:MODULE, envpool:TASK_ID, "
    "pufferlib:NAME, verifiers:NAME, inspect:TASK, ors:URL, harbor:FOLDER, or a bundled environment"
)
# The functions that make apps or classes of other packages' environments, by the first words of targets.
ADAPTERS = {
    "envpool": "openenv.adapters.envpool:envpool_batch",
    "gymnasium": "openenv.adapters.gymnasium:gymnasium_app",
    "harbor": "openenv.harbor.task_environment:harbor_app",
    "inspect": "openenv.adapters.inspect:inspect_app",
    "ors": "openenv.adapters.ors:ors_app",
    "pettingzoo": "openenv.adapters.pettingzoo:pettingzoo_app",
    "pufferlib": "openenv.adapters.pufferlib:puffer_batch",
    "verifiers": "openenv.adapters.verifiers:verifiers_app",
}


def load(target: str) -> Any:
    """Creates the app of a target.

    Args:
        target: `module:attribute` (an app or an Environment class), a folder with `openenv.yaml`,
            `gymnasium:ENV_ID?key=value`, `pettingzoo:MODULE?key=value`, `envpool:TASK_ID?num_envs=256`,
            `pufferlib:NAME?num_envs=256`, `verifiers:NAME?key=value`, `inspect:TASK?key=value`,
            `ors:URL`, `harbor:FOLDER?sandbox=docker`, or the name of a bundled environment.

    Raises:
        UsageError: The target does not exist; the message names it and the searched places.
        NotAProject: It is a folder without `openenv.yaml`.
        ImportFailed: Its module cannot be imported; the message says why, and in which file.
        MissingExtra: The target needs a package that is not installed.
    """
    adapter, colon, text = target.partition(":")
    if colon and adapter in ADAPTERS:
        name, arguments = parse_target(text)
        search(Path.cwd())
        module, _, function = ADAPTERS[adapter].partition(":")
        made = getattr(importlib.import_module(module), function)(name, **arguments)
        if not isinstance(made, type):
            return made
        from ..server.app import create_app  # noqa: PLC0415 - only what serves HTTP loads the web framework

        return create_app(made, name=name)
    if target in bundled():
        return attribute_of(import_module(f"openenv.envs.{target}.server.app", target), "app", target)
    if is_project(target):
        return _from_project(Path(target).resolve())
    module, colon, attribute = target.partition(":")
    if target and not colon and Path(target).is_dir():
        raise NotAProject(
            f"{target!r} is not a project: {Path(target).resolve()} has no openenv.yaml. Use {_KINDS} "
            f"({', '.join(bundled())}), or create a project with `openenv init NAME`"
        )
    if not colon:
        close = difflib.get_close_matches(target, bundled(), 1)
        meant = f" did you mean {close[0]}?" if close else ""
        raise UsageError(f"{target!r} cannot be served:{meant} use {_KINDS} ({', '.join(bundled())})")
    search(Path.cwd())
    return _app_of(module, attribute, target)


def parse_target(text: str) -> tuple[str, dict[str, Any]]:
    """Parses `NAME?key=value&key=value`, with percent-encoding.

    A value that is valid JSON is parsed, and any other is a string: `sab=true` is a bool, `map_name=8x8` a str.

    Returns:
        The environment's name, and its keyword arguments.

    Raises:
        UsageError: The text has no name, or its arguments do not have that form.
    """
    name, _, query = text.partition("?")
    if not name:
        raise UsageError(f"{text!r} names no environment: write NAME?key=value&key=value")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UsageError(f"the arguments in {text!r} are not of the form key=value&key=value: {error}") from error
    arguments: dict[str, Any] = {}
    for key, value in pairs:
        try:
            arguments[key] = json.loads(value, parse_constant=float)
        except ValueError:
            arguments[key] = value
    if len(arguments) < len(pairs):
        raise UsageError(f"an argument is given twice in {text!r}")
    return name, arguments


def is_project(target: str) -> bool:
    """Whether it is a folder with `openenv.yaml`.

    Raises:
        UsageError: The folder cannot be accessed, or its name is invalid.
    """
    try:
        return (Path(target) / "openenv.yaml").is_file()
    except OSError as error:
        raise UsageError(f"{target!r} cannot be accessed: {error.strerror}; use {_KINDS}") from None


def bundled() -> dict[str, Path]:
    """The folders of the environments that come with the package, by their names."""
    folder = Path(__file__).parent.parent / "envs"
    return {manifest.parent.name: manifest.parent for manifest in sorted(folder.glob("*/openenv.yaml"))}


def _from_project(folder: Path) -> Any:
    from .manifest import Manifest  # noqa: PLC0415 - `openenv --help` loads no pydantic

    manifest = Manifest.read(folder)
    served = manifest.app
    if manifest.environment is not None and "app" not in manifest.model_fields_set:
        served = manifest.environment
    module, colon, attribute = served.partition(":")
    if not colon:
        raise UsageError(f"{manifest.path}: `environment: {served}` must have a module: write module:{served}")
    # Projects import their models both as `..models` and as `models`: both must resolve.
    search(folder)
    if (folder / "__init__.py").is_file():
        search(folder.parent)
        module = f"{folder.name}.{module}"
    return _app_of(module, attribute, str(manifest.path))


def _app_of(module: str, attribute: str, target: str) -> Any:
    from ..environment import Environment  # noqa: PLC0415 - `openenv --help` loads no pydantic

    value = attribute_of(import_module(module, target), attribute, target)
    if inspect.isclass(value) and issubclass(value, Environment):
        from ..server.app import HTTPEnvServer, app_of  # noqa: PLC0415 - `openenv --help` loads no pydantic
        from ..server.declared_types import declared_types  # noqa: PLC0415 - `openenv --help` loads no pydantic

        return app_of(HTTPEnvServer(value, **declared_types(value).complete(value, target)))
    if not callable(value) or inspect.isclass(value):
        kind = "another class" if inspect.isclass(value) else f"an object of type {type(value).__name__}"
        raise UsageError(f"{target} is {kind}: it must be an app or an Environment class")
    return value
