"""What an image is built of: the files that the engine is sent."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import UsageError

__all__ = ["IGNORE_FILE", "Context"]

IGNORE_FILE = ".dockerignore"
WHEELS = "wheels"
# For folders without one: what no image needs, and what must not get into one.
_IGNORED = (".git", ".venv", "venv", ".env", "**/__pycache__", "**/*.pyc", "**/.*_cache")


@dataclass(frozen=True, slots=True)
class Context:
    """The files of a build.

    Attributes:
        folder: Whose files they are.
        files: Names of those that are sent, in their order: all but what `.dockerignore` names.
        added: What is sent besides or instead, by name.
    """

    folder: Path
    files: tuple[str, ...]
    added: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path, added: Mapping[str, bytes]) -> Context:
        """Looks what there is in a folder.

        Args:
            folder: The folder.
            added: What is sent besides, by name.

        Raises:
            UsageError: It, or its `.dockerignore`, cannot be read.
        """
        from docker.utils.build import exclude_paths

        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}: name what the Dockerfile copies from with --context")
        try:
            found = exclude_paths(str(folder), _patterns(folder))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{folder} cannot be read: {error}; name in {IGNORE_FILE} what the image needs not"
            ) from None
        return cls(folder, tuple(sorted(found)), dict(added))

    @property
    def wheels(self) -> list[str]:
        """Names of the wheels among them that are in the folder for wheels."""
        return [name for name in self.files if name.startswith(f"{WHEELS}/") and name.endswith(".whl")]

    def sizes(self) -> Counter[str]:
        """Bytes by what is directly in the folder."""
        sizes: Counter[str] = Counter()
        for name in self.files:
            path = self.folder / name
            if name not in self.added and path.is_file() and not path.is_symlink():
                sizes[name.partition("/")[0]] += path.stat().st_size
        for name, contents in self.added.items():
            sizes[name.partition("/")[0]] += len(contents)
        return sizes

    def write(self, file: IO[bytes]) -> None:
        """Writes all of it as a tar file, whoever's the files are here, and whenever they were copied.

        Raises:
            UsageError: A file cannot be read.
        """
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in self.files:
                if name not in self.added:
                    self._write_one(archive, name)
            for name, contents in self.added.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(contents), 0o644
                archive.addfile(entry, io.BytesIO(contents))

    def _write_one(self, archive: tarfile.TarFile, name: str) -> None:
        path = self.folder / name
        try:
            entry: Any = archive.gettarinfo(path, arcname=name)
            if entry is None or not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
                return  # a socket or a device, which no image can have of here
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.mtime = int(max(entry.mtime, 0))
            with path.open("rb") if entry.isfile() else contextlib.nullcontext() as contents:
                archive.addfile(entry, contents)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror}; name it in {IGNORE_FILE}, or mend it"
            ) from None


def _patterns(folder: Path) -> list[str]:
    file = folder / IGNORE_FILE
    if not file.is_file():
        return list(_IGNORED)
    return list(_lines(file.read_text(encoding="utf-8-sig")))


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        bare = line.strip()
        if bare and not bare.startswith("#"):
            yield bare
