"""A folder with an environment in it, of today's shape or of an older one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..errors import NotAProject
from .manifest import FILE_NAME, Manifest

__all__ = ["Project"]

_DOCKERFILES = ("server/Dockerfile", "Dockerfile")


@dataclass(frozen=True, slots=True)
class Project:
    """A project on disk.

    Attributes:
        folder: Where it lies, as an absolute path.
        manifest: What its `openenv.yaml` says.
    """

    folder: Path
    manifest: Manifest

    @classmethod
    def find(cls, place: Path) -> Self:
        """The project in a folder.

        Args:
            place: The folder, or its `openenv.yaml`.

        Raises:
            NotAProject: There is no such folder, or no `openenv.yaml` in it.
            UsageError: Its `openenv.yaml` is not valid; the message says where.
        """
        folder = place.parent if place.name == FILE_NAME else place
        try:
            there, has_manifest = folder.is_dir(), (folder / FILE_NAME).is_file()
        except OSError as error:
            raise NotAProject(
                f"{folder} cannot be looked at: {error.strerror}; give the folder that has the {FILE_NAME}"
            ) from None
        if not there:
            raise NotAProject(f"there is no folder {folder}: give the one that has the {FILE_NAME}")
        if not has_manifest:
            raise NotAProject(
                f"{folder.resolve()} is no project, for it has no {FILE_NAME}: change to one, or begin one with "
                "`openenv init NAME`"
            )
        return cls(folder.resolve(), Manifest.read(folder))

    @property
    def package(self) -> str | None:
        """The name its folder is imported by; None for a folder that is no package."""
        return self.folder.name if (self.folder / "__init__.py").is_file() else None

    @property
    def dockerfile(self) -> Path | None:
        """What its image is built by."""
        return next((self.folder / name for name in _DOCKERFILES if (self.folder / name).is_file()), None)

    @property
    def readme(self) -> Path | None:
        """What it tells people, and the Hub."""
        path = self.folder / "README.md"
        return path if path.is_file() else None
