"""Find the client, action and observation classes of an environment's package."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType
from typing import Any, Literal

from .._introspection import type_arguments
from ..client import EnvClient
from ..errors import ImportFailed, UsageError
from ..mcp.types import CallToolAction, CallToolObservation
from ..project import attribute_of, import_module
from ..project.catalog import EnvironmentEntry
from ..types import Action, Observation

Kind = Literal["client", "action", "observation"]
_BASES: dict[Kind, type[Any]] = {"client": EnvClient, "action": Action, "observation": Observation}
_MODULES: dict[Kind, tuple[str, ...]] = {
    "client": ("client", ""),
    "action": ("models", "client", ""),
    "observation": ("models", "client", ""),
}
_TOOL_CLIENTS = "openenv.client.mcp_client"
# Index of the type in `EnvClient[action, observation, state]`.
_PLACES: dict[Kind, int] = {"action": 0, "observation": 1}


def class_of(entry: EnvironmentEntry, kind: Kind) -> type[Any]:
    """A class of an environment.

    The manifest comes first. Without its entry, the client is the only subclass of `EnvClient` that `client.py`
    defines or imports from its package, or that the package has; action and observation are those of the client,
    or the only ones that `models.py` has in the same way.

    Raises:
        UsageError: There is none, there are several, or the manifest names another kind of object; the message names
            the manifest's key for it.
        ImportFailed: The package cannot be imported.
    """
    manifest = entry.manifest
    reference: str | None = getattr(manifest, kind) if manifest is not None else None
    if reference is not None:
        return _named(entry, kind, reference)
    of_client = None if kind == "client" else _made_for(entry, kind)
    if of_client is not None:
        return of_client
    found = _candidates(entry, kind)
    base, what = _BASES[kind].__name__, f"{entry.package} ({entry.manifest_path or entry.folder})"
    key = f"`{kind}: module:Name` in its openenv.yaml"
    if len(found) > 1:
        names = ", ".join(f"{cls.__module__.removeprefix(entry.package + '.')}:{cls.__name__}" for cls in found)
        raise UsageError(f"{what} has several subclasses of {base}: {names}; name one of them with {key}")
    if not found:
        raise UsageError(f"{what} has no subclass of {base}; name one with {key}")
    return found[0]


def _made_for(entry: EnvironmentEntry, kind: Kind) -> type[Any] | None:
    """The type that the environment's client declares, if it has one client that does."""
    manifest = entry.manifest
    if manifest is not None and manifest.client is not None:
        client = _named(entry, "client", manifest.client)
    else:
        found = _candidates(entry, "client")
        if len(found) != 1:
            return None
        client = found[0]
    arguments = type_arguments(client, EnvClient)
    declared = arguments[_PLACES[kind]] if len(arguments) == 3 else None
    if inspect.isclass(declared) and issubclass(declared, _BASES[kind]) and declared is not _BASES[kind]:
        return declared
    if not any(base.__module__ == _TOOL_CLIENTS for base in client.__mro__):
        return None
    # An environment of tools need not have types of its own.
    return CallToolAction if kind == "action" else CallToolObservation


def _candidates(entry: EnvironmentEntry, kind: Kind) -> list[type[Any]]:
    """The classes of a kind in the first module that defines some; bases of others among them do not count."""
    for name in _MODULES[kind]:
        module = _module(entry, name)
        found = [] if module is None else _defined(module, kind, entry.package)
        if found:
            return [cls for cls in found if not any(cls in other.__mro__[1:] for other in found)]
    return []


def _defined(module: ModuleType, kind: Kind, package: str) -> list[type[Any]]:
    """The classes that a module defines; if none, those that it imports from its package."""
    values, failure = [], None
    for name in dir(module):
        if name.startswith("_"):
            continue
        try:
            values.append(attribute_of(module, name, package))
        except ImportFailed as error:  # perhaps the server's side, which is not needed here
            failure = error
        except UsageError:
            continue
    found = [cls for cls in values if inspect.isclass(cls) and issubclass(cls, _BASES[kind])]
    found = [cls for cls in dict.fromkeys(found) if f"{cls.__module__}.".startswith(f"{package}.")]
    if failure is not None and not found:
        raise failure
    return [cls for cls in found if cls.__module__ == module.__name__] or found


def _module(entry: EnvironmentEntry, name: str) -> ModuleType | None:
    """A module of the package, the package itself for the empty name; None if it does not exist."""
    package = import_module(entry.package, entry.package)
    if not name:
        return package
    whole = f"{entry.package}.{name}"
    try:
        there = importlib.util.find_spec(whole) is not None
    except ModuleNotFoundError:  # its parent is missing too
        there = False
    return import_module(whole, entry.package) if there else None


def _named(entry: EnvironmentEntry, kind: Kind, reference: str) -> type[Any]:
    """The class in the manifest: `module:Name`, from the package or from anywhere, or a name alone."""
    what = f"{entry.manifest_path}: `{kind}: {reference}`"
    module, colon, name = reference.rpartition(":")
    if not colon and "." in reference:
        module, _, name = reference.rpartition(".")
    if module:
        inside = _module(entry, module.removeprefix(f"{entry.package}.")) if module != entry.package else None
        found = attribute_of(inside or import_module(module, what), name, what)
    else:
        modules = (_module(entry, place) for place in _MODULES[kind])
        owner = next((each for each in modules if each is not None and hasattr(each, name)), None)
        if owner is None:
            where = ", ".join(f"{place}.py" if place else entry.package for place in _MODULES[kind])
            raise UsageError(f"{what}: there is no {name} in {where}; write module:{name}")
        found = getattr(owner, name)
    if not inspect.isclass(found) or (kind == "client" and not issubclass(found, EnvClient)):
        raise UsageError(f"{what} is {found!r:.100}: it must be a subclass of {_BASES[kind].__name__}")
    return found


def entry_info(entry: EnvironmentEntry) -> dict[str, Any]:
    """Its facts by name. A class that is not found is None; raises `ImportFailed` if nothing can be imported."""
    manifest = entry.manifest
    return {
        "env_key": entry.key,
        "name": manifest.name if manifest else entry.key,
        "env_name": manifest.name if manifest else entry.key,
        "package": entry.distribution or "openenv",
        "version": entry.version,
        "description": (manifest.description if manifest else None) or entry.summary,
        "action_class": _class_name(entry, "action"),
        "observation_class": _class_name(entry, "observation"),
        "default_image": f"{entry.key}-env:latest",
        "manifest": None if entry.manifest_path is None else str(entry.manifest_path),
        "spec_version": manifest.spec_version if manifest else None,
    }


def _class_name(entry: EnvironmentEntry, kind: Kind) -> str | None:
    try:
        return class_of(entry, kind).__name__
    except ImportError:
        raise
    except UsageError:
        return None
