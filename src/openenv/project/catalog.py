"""Find the environments of this machine, installed or bundled, without importing their packages."""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from ..errors import UnknownEnvironment, UsageError
from .manifest import FILE_NAME, Manifest
from .target import bundled


def canonical(name: str) -> str:
    """The common short form of `echo`, `echo-env`, `echo_env`, `openenv-echo` and `openenv_echo_env`: `echo`."""
    short = plain(name).removeprefix("openenv-")
    return short.removesuffix("-env") or short


def plain(name: str) -> str:
    """A name in the normal form of installers: `openenv_echo.Env` as `openenv-echo-env`."""
    return re.sub(r"[-_.\s]+", "-", name.strip().lower()).strip("-")


_MODULES = (FILE_NAME, "client.py", "models.py")
_NEVER = {"tests", "test", "docs", "examples", "build", "dist"}


def package_of(distribution: Distribution) -> str | None:
    """Import name of a distribution's package. Of several, the one with its name, or else one for an environment."""
    found = [name for name in dict.fromkeys(_packages(distribution)) if folder_of(name) is not None]
    wanted = canonical(distribution.metadata["Name"])

    def likeness(name: str) -> tuple[bool, int]:
        folder = folder_of(name)
        assert folder is not None
        return canonical(name) == wanted, sum((folder / file).is_file() for file in _MODULES)

    return max(found, key=likeness, default=None)


def folder_of(package: str) -> Path | None:
    """The folder of a package. None if it cannot be found, or is a module."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def manifest_of(distribution: Distribution, folder: Path) -> Path | None:
    """The `openenv.yaml` of a distribution: in its package, among its other files, or in its editable project."""
    places = [folder / FILE_NAME]
    places += [Path(str(file.locate())) for file in distribution.files or () if file.name == FILE_NAME]
    root = _project(distribution)
    if root is not None:
        places.append(root / FILE_NAME)
    return next((place for place in places if place.is_file()), None)


def origin_of(distribution: Distribution) -> dict[str, Any]:
    """The contents of `direct_url.json`: the `url` of the installation, or empty if it came from an index."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


def _packages(distribution: Distribution) -> Iterator[str]:
    yield from (distribution.read_text("top_level.txt") or "").split()
    for file in distribution.files or ():
        if file.suffix == ".py" and len(file.parts) > 1 and file.parts[0].isidentifier():
            yield file.parts[0]
    root = _project(distribution)
    if root is not None:
        # If the folder of the project is the package, only the folder has its name.
        yield root.name
        for folder in (root, root / "src"):
            if folder.is_dir():
                names = sorted(each.parent.name for each in folder.glob("*/__init__.py"))
                yield from (name for name in names if name.isidentifier() and name not in _NEVER)
    name = distribution.metadata["Name"].replace("-", "_").replace(".", "_").lower()
    yield from (name, name.removeprefix("openenv_"))


def _project(distribution: Distribution) -> Path | None:
    """The project's folder of an editable installation."""
    origin = urlparse(str(origin_of(distribution).get("url", "")))
    folder = Path(unquote(origin.path))
    return folder if origin.scheme == "file" and folder.is_dir() else None


# This package itself, and its former name.
_OURS = {"openenv", "core"}


class EnvironmentEntry(NamedTuple):
    """One environment.

    Attributes:
        key: Its shortest name.
        package: Import name.
        folder: Folder of the package.
        distribution: Name of the installed distribution; None for an environment of this package.
        version: Version of the distribution.
        summary: Summary in one line, if it has one.
        manifest_path: Its `openenv.yaml`, if it has one.
        origin: URL of the installation, if it was installed from a URL.
    """

    key: str
    package: str
    folder: Path
    distribution: str | None
    version: str
    summary: str
    manifest_path: Path | None
    origin: str = ""

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest. Raises `UsageError` if the manifest is invalid."""
        return None if self.manifest_path is None else Manifest.read(self.manifest_path)

    @property
    def names(self) -> set[str]:
        """Its names, in canonical form."""
        found = {self.key, canonical(self.package.rpartition(".")[2])}
        try:
            manifest = self.manifest
        except UsageError:  # raised again when the environment is used
            manifest = None
        return found | ({canonical(manifest.name)} if manifest else set())


_known: tuple[object, list[EnvironmentEntry]] | None = None


def entries() -> list[EnvironmentEntry]:
    """All environments by key. The search is repeated after distributions were installed or removed."""
    global _known  # noqa: PLW0603 - one table for the process, as that of importlib
    # Each installation and removal changes the time of the folder that holds distributions.
    now: list[tuple[str, int | None]] = []
    for place in sys.path:
        try:
            now.append((place, Path(place or ".").stat().st_mtime_ns))
        except OSError:
            now.append((place, None))
    if _known is None or _known[0] != now:
        found = _installed()
        keys = {each.key for each in found}
        for name, folder in bundled().items():
            if canonical(name) not in keys:
                manifest = Manifest.read(folder / FILE_NAME)
                said = manifest.version or "", manifest.description or ""
                path = folder / FILE_NAME
                found.append(EnvironmentEntry(canonical(name), f"openenv.envs.{name}", folder, None, *said, path))
        _known = now, sorted(found)
    return list(_known[1])


def find(name: str) -> EnvironmentEntry:
    """The environment with a name, in any form.

    Raises:
        UnknownEnvironment: There is none. The message has similar names, and how to install one.
        UsageError: Several environments match.
    """
    wanted = canonical(name)
    there = entries()
    found = [entry for entry in there if wanted in entry.names]
    exact = [entry for entry in found if plain(name) in {plain(entry.distribution or ""), plain(entry.package)}]
    chosen = exact if len(exact) == 1 else found
    if len(chosen) > 1:
        several = ", ".join(entry.distribution or entry.package for entry in chosen)
        raise UsageError(f"{name!r} matches {several}: use the full name")
    if not chosen:
        names = {known: entry.key for entry in there for known in entry.names}
        close = dict.fromkeys(names[each] for each in difflib.get_close_matches(wanted, names, cutoff=0.5))
        meant = f" did you mean {' or '.join(close)}?" if close else ""
        known = ", ".join(entry.key for entry in there) or "none"
        raise UnknownEnvironment(
            f"no environment {name!r} is installed;{meant} installed: {known}. Install its package (pip "
            "install openenv-NAME, or pip install -e FOLDER_OF_ITS_PROJECT), or use the name of a Space of the Hub "
            "(user/space)",
            data={"name": name},
        )
    return chosen[0]


def _installed() -> list[EnvironmentEntry]:
    found: dict[str, EnvironmentEntry] = {}
    for distribution in distributions():
        name = _field(distribution, "Name")
        if plain(name) in found or not plain(name).startswith("openenv-") or canonical(name) in _OURS:
            continue
        package = package_of(distribution)
        folder = None if package is None else folder_of(package)
        if package is not None and folder is not None:
            found[plain(name)] = EnvironmentEntry(
                key=canonical(name),
                package=package,
                folder=folder,
                distribution=name,
                version=distribution.version,
                summary=_field(distribution, "Summary"),
                manifest_path=manifest_of(distribution, folder),
                origin=str(origin_of(distribution).get("url", "")),
            )
    return list(found.values())


def _field(distribution: Distribution, name: str) -> str:
    """A field of a distribution's metadata, or "" if it has none."""
    return str((distribution.metadata.get_all(name) or [""])[0])
