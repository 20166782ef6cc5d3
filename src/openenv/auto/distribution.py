"""What an installed distribution has of an environment: its package and its manifest, without importing anything."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlparse

from ..project.manifest import FILE_NAME
from .name import canonical

__all__ = ["folder_of", "manifest_of", "origin_of", "package_of"]

_MODULES = (FILE_NAME, "client.py", "models.py")
_NEVER = {"tests", "test", "docs", "examples", "build", "dist"}


def package_of(distribution: Distribution) -> str | None:
    """The import name of its package: of several, the one called like it, or else the one that looks like one."""
    found = [name for name in dict.fromkeys(_packages(distribution)) if folder_of(name) is not None]
    wanted = canonical(distribution.metadata["Name"])
    return max(found, key=lambda name: (canonical(name) == wanted, _likeness(name)), default=None)


def folder_of(package: str) -> Path | None:
    """Where a package is; None if it cannot be found, or is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def manifest_of(distribution: Distribution, folder: Path) -> Path | None:
    """Its `openenv.yaml`: in its package, among its other files, or in the project that it is an editable one of."""
    places = [folder / FILE_NAME]
    places += [Path(str(file.locate())) for file in distribution.files or () if file.name == FILE_NAME]
    root = _project(distribution)
    if root is not None:
        places.append(root / FILE_NAME)
    return next((place for place in places if place.is_file()), None)


def origin_of(distribution: Distribution) -> str:
    """The URL that it was installed from, if it was from one; else the empty text."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    return str(origin.get("url", "")) if isinstance(origin, dict) else ""


def _packages(distribution: Distribution) -> Iterator[str]:
    yield from (distribution.read_text("top_level.txt") or "").split()
    for file in distribution.files or ():
        if file.suffix == ".py" and len(file.parts) > 1 and file.parts[0].isidentifier():
            yield file.parts[0]
    root = _project(distribution)
    if root is not None:
        # A project whose folder is the package has a name that is not told anywhere else.
        yield root.name
        for folder in (root, root / "src"):
            if folder.is_dir():
                yield from sorted(each.parent.name for each in folder.glob("*/__init__.py") if _may_be(each.parent))
    name = distribution.metadata["Name"].replace("-", "_").replace(".", "_").lower()
    yield from (name, name.removeprefix("openenv_"))


def _may_be(folder: Path) -> bool:
    return folder.name.isidentifier() and folder.name not in _NEVER


def _project(distribution: Distribution) -> Path | None:
    """The folder of the project that it is an editable installation of."""
    origin = urlparse(origin_of(distribution))
    folder = Path(unquote(origin.path))
    return folder if origin.scheme == "file" and folder.is_dir() else None


def _likeness(package: str) -> int:
    folder = folder_of(package)
    assert folder is not None
    return sum((folder / name).is_file() for name in _MODULES)
