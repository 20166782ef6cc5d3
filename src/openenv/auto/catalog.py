"""The environments that there are here: installed ones, and those that come with this package."""

from __future__ import annotations

import difflib
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from ..errors import UnknownEnvironment, UsageError
from ..project import Manifest
from ..project.manifest import FILE_NAME
from .distribution import folder_of, manifest_of, origin_of, package_of
from .name import canonical, plain

__all__ = ["Entry", "entries", "find"]

_BUNDLED = Path(__file__).parent.parent / "envs"
# This package itself, and what it was called once.
_OURS = {"openenv", "core"}


class Entry(NamedTuple):
    """One environment.

    Attributes:
        key: Its shortest name.
        package: Import name.
        folder: Where that is.
        distribution: Name of what was installed; None for one that comes with this package.
        version: Of that.
        summary: In one line, if it says one.
        manifest_path: Its `openenv.yaml`, if it has one.
        origin: URL that it was installed from, if it was from one.
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
        """What it says of itself. Raises `UsageError` where that is not valid."""
        return None if self.manifest_path is None else Manifest.read(self.manifest_path)

    @property
    def names(self) -> set[str]:
        """What it is known by, in canonical form."""
        found = {self.key, canonical(self.package.rpartition(".")[2])}
        try:
            manifest = self.manifest
        except UsageError:  # told to whoever asks for this environment
            manifest = None
        return found | ({canonical(manifest.name)} if manifest else set())


_known: tuple[object, list[Entry]] | None = None


def entries() -> list[Entry]:
    """All environments by their keys, found anew when distributions were installed or removed."""
    global _known  # noqa: PLW0603 - one table for the process, as that of importlib
    print_of_now = _fingerprint()
    if _known is None or _known[0] != print_of_now:
        found = _installed()
        found += [entry for entry in _bundled() if entry.key not in {each.key for each in found}]
        _known = print_of_now, sorted(found)
    return list(_known[1])


def find(name: str) -> Entry:
    """The environment of a name, in whichever form.

    Raises:
        UnknownEnvironment: There is none; the message has those with similar names, and how to install one.
        UsageError: There are several.
    """
    wanted = canonical(name)
    there = entries()
    found = [entry for entry in there if wanted in entry.names]
    exact = [entry for entry in found if plain(name) in {plain(entry.distribution or ""), plain(entry.package)}]
    chosen = exact if len(exact) == 1 else found
    if len(chosen) > 1:
        several = ", ".join(entry.distribution or entry.package for entry in chosen)
        raise UsageError(f"{name!r} may be each of {several}: use the whole name")
    if not chosen:
        raise UnknownEnvironment(_absent(name, there), data={"name": name})
    return chosen[0]


def _absent(name: str, there: list[Entry]) -> str:
    names = {known: entry.key for entry in there for known in entry.names}
    close = dict.fromkeys(names[each] for each in difflib.get_close_matches(canonical(name), names, cutoff=0.5))
    meant = f" did you mean {' or '.join(close)}?" if close else ""
    known = ", ".join(entry.key for entry in there) or "none"
    return (
        f"no environment {name!r} is installed;{meant} there are: {known}. Install its package (pip install "
        "openenv-NAME, or pip install -e with the folder of its project), or name a Space of the Hub (user/space)"
    )


def _installed() -> list[Entry]:
    found: dict[str, Entry] = {}
    for distribution in distributions():
        name = _field(distribution, "Name")
        if plain(name) in found or not plain(name).startswith("openenv-") or canonical(name) in _OURS:
            continue
        entry = _entry(name, distribution)
        if entry is not None:
            found[plain(name)] = entry
    return list(found.values())


def _entry(name: str, distribution: Distribution) -> Entry | None:
    package = package_of(distribution)
    folder = None if package is None else folder_of(package)
    if package is None or folder is None:
        return None
    summary = _field(distribution, "Summary")
    manifest, origin = manifest_of(distribution, folder), origin_of(distribution)
    return Entry(canonical(name), package, folder, name, distribution.version, summary, manifest, origin)


def _field(distribution: Distribution, name: str) -> str:
    """A line of its metadata; the empty text where that has none."""
    return str((distribution.metadata.get_all(name) or [""])[0])


def _bundled() -> list[Entry]:
    found = []
    for path in sorted(_BUNDLED.glob(f"*/{FILE_NAME}")):
        manifest, folder = Manifest.read(path), path.parent
        said = manifest.version or "", manifest.description or ""
        found.append(Entry(canonical(folder.name), f"openenv.envs.{folder.name}", folder, None, *said, path))
    return found


def _fingerprint() -> object:
    """What changes with every installation and removal: the times of the folders that hold distributions."""
    return tuple((place, _time_of(place)) for place in sys.path)


def _time_of(place: str) -> int | None:
    try:
        return Path(place or ".").stat().st_mtime_ns
    except OSError:
        return None
