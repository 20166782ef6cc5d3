"""`AutoEnv`: the client of an environment by name. Packages of Spaces are installed if they are trusted."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Literal, Self

from .._introspection import type_arguments
from ..client import EnvClient, GenericEnvClient
from ..errors import ImportFailed, LaunchFailed, UnknownEnvironment, UsageError
from ..mcp.types import CallToolAction, CallToolObservation
from ..project import attribute_of, catalog, import_module
from ..project.catalog import EnvironmentEntry, canonical
from ..project.hub import SpaceName
from ..providers.redaction import last_lines
from ..settings import ClientSettings
from ..types import Action, Observation

INSTALL_TIMEOUT_S = 900.0
TAIL_LINES = 20


class SpacePackage(SpaceName):
    """A Space of the Hub as a package that can be installed."""

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The Space of `owner/name` or of an address; None for a plain name."""
        return cls.whole(name.strip().rstrip("/").removesuffix(".git")) if "/" in name else None

    @property
    def git_url(self) -> str:
        """Its repository."""
        return f"{ClientSettings.read().hub_url.rstrip('/')}/spaces/{self.owner}/{self.name}"

    def installed(self) -> catalog.EnvironmentEntry | None:
        """Its package, if installed: from there, or under its name from an index or a folder.

        A package from another repository is another owner's, even with the same name.
        """
        there = [entry for entry in catalog.entries() if entry.distribution is not None]
        of_it = [entry for entry in there if entry.origin.removesuffix(".git").endswith(f"/{self.owner}/{self.name}")]
        local = [entry for entry in there if not entry.origin or entry.origin.startswith("file:")]
        named = [entry for entry in local if canonical(self.name) in entry.names]
        return next(iter(of_it or named), None)

    def ensure(self, trust_remote_code: bool) -> catalog.EnvironmentEntry:
        """Its package, installed if necessary. Blocks for as long as that takes.

        Raises:
            UsageError: It would have to be installed, and its code is not trusted.
            LaunchFailed: It cannot be installed; with the end of the installer's output.
            UnknownEnvironment: It was installed but contains no environment.
        """
        entry = self.installed()
        if entry is not None:
            return entry
        if not (trust_remote_code or ClientSettings.read().trust_remote_code):
            raise UsageError(
                f"{self.owner}/{self.name} is not installed, and its installation runs code of {self.git_url}: "
                "read that code, then pass trust_remote_code=True or set OPENENV_TRUST_REMOTE_CODE=1; "
                "skip_install=True gives a client without its types, and runs none of its code"
            )
        self._install()
        entry = self.installed()
        if entry is None:
            raise UnknownEnvironment(f"{self.git_url} was installed, but contains no distribution openenv-*")
        return entry

    def _install(self) -> None:
        source = f"git+{self.git_url}"
        uv = shutil.which("uv")
        installer = (
            [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
        )
        try:
            done = subprocess.run(  # noqa: S603 - a list, with a checked name
                [*installer, source], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise LaunchFailed(f"installing {source} took more than {INSTALL_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            tail = last_lines(done.stdout + done.stderr, TAIL_LINES)
            raise LaunchFailed(f"{source} could not be installed (exit code {done.returncode}):\n{tail}")
        importlib.invalidate_caches()


# A name of the released package: the environment variable with the effect of `trust_remote_code=True`.
OPENENV_TRUST_REMOTE_CODE = "OPENENV_TRUST_REMOTE_CODE"


class AutoEnv:
    """Finds the client class of an environment that is installed, comes with this package, or is a Space of the Hub::

        env = AutoEnv.from_env("echo", base_url="http://localhost:8000")

    A name may be written `echo`, `echo-env`, `echo_env` or `openenv-echo`; a Space is `user/space`. Not to be
    instantiated: it only has class methods.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:  # NoReturn would hide the class methods from mypy
        raise TypeError("AutoEnv has no instances: AutoEnv.from_env('echo', base_url=...) gives a client")

    @classmethod
    def from_env(
        cls,
        name: str,
        base_url: str | None = None,
        docker_image: str | None = None,
        container_provider: Any = None,
        wait_timeout: float = 30.0,
        env_vars: Mapping[str, str] | None = None,
        trust_remote_code: bool = False,
        skip_install: bool = False,
        **kwargs: Any,
    ) -> Any:
        """A client of the environment's own class.

        Args:
            name: Name of the environment or Space.
            base_url: Its server. Without one, a Space is used at its own address, and any other environment
                is started in a container.
            docker_image: Image to start in a container, if there is no server; `NAME-env:latest` by default.
            container_provider: Starts containers; Docker on this machine by default.
            wait_timeout: Seconds for a started server to become ready.
            env_vars: Environment variables for that server.
            trust_remote_code: The package of a Space may be installed, which runs its code.
                OPENENV_TRUST_REMOTE_CODE=1 does the same.
            skip_install: Search and install nothing; return a `GenericEnvClient`, which needs no types.
            kwargs: Further arguments of the client, or of the start of its server.

        Returns:
            A client. If a server is started in a running event loop, the result of `from_docker_image`.

        Raises:
            UnknownEnvironment: No environment of that name is installed.
            UsageError: Its class is not known (see `get_env_class`), or its package is not trusted.
            ImportFailed: Its package cannot be imported.
            LaunchFailed, NotReady, MissingExtra: No server could be started for it.
        """
        space = SpacePackage.parse(name)
        client: type[EnvClient[Any, Any, Any]] = (
            GenericEnvClient if skip_install else class_of(entry_of(name, trust_remote_code), "client")
        )
        url = base_url
        if url is None and docker_image is None and space is not None:
            url = space.url
        if url is not None:
            return client(base_url=url, **kwargs)
        if env_vars:
            kwargs["env_vars"] = dict(env_vars)
        image = docker_image or default_image(name)
        return client.from_docker_image(image, provider=container_provider, ready_timeout_s=wait_timeout, **kwargs)

    from_hub = from_env
    """Alias of `from_env`."""

    @classmethod
    def get_env_class(cls, name: str) -> type[EnvClient[Any, Any, Any]]:
        """The client class of an environment that is installed.

        Raises:
            UnknownEnvironment: It is not installed.
            UsageError: It has no client class, or several, and its `openenv.yaml` does not say which.
            ImportFailed: Its package cannot be imported.
        """
        return class_of(entry_of(name), "client")

    @classmethod
    def get_env_info(cls, name: str) -> dict[str, Any]:
        """Facts about an environment: names, version, classes, image. Raises as `get_env_class` does."""
        entry = entry_of(name)
        client = class_of(entry, "client")
        return {**entry_info(entry), "env_class": client.__name__, "module": client.__module__}

    @classmethod
    def list_environments(cls) -> list[str]:
        """Prints the available environments, and returns their names."""

        def facts_of(entry: catalog.EnvironmentEntry) -> str:
            return f"{entry.version}  {entry.summary}  ({entry.distribution or 'comes with openenv'})"

        return print_entries("Environments:", facts_of)


def print_entries(title: str, facts_of: Callable[[catalog.EnvironmentEntry], str]) -> list[str]:
    """Prints a line for each available environment, and returns their names."""
    there = catalog.entries()
    width = max((len(entry.key) for entry in there), default=0)
    print(title)  # noqa: T201 - this is what notebooks call `list_environments` and `list_actions` for
    for entry in there:
        print(f"  {entry.key:{width}}  {facts_of(entry)}")  # noqa: T201 - as above
    return [entry.key for entry in there]


def default_image(name: str) -> str:
    """The default name of an environment's image."""
    space = SpacePackage.parse(name)
    return f"{canonical(space.name if space else name)}-env:latest"


def entry_of(name: str, trust_remote_code: bool = False) -> catalog.EnvironmentEntry:
    """The environment of a name, or of a Space, which is installed if that is trusted."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{name!r} is not the name of an environment: write one such as 'echo'")
    space = SpacePackage.parse(name)
    return catalog.find(name) if space is None else space.ensure(trust_remote_code)


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
