"""Names of images."""

from __future__ import annotations

import re

from ...errors import UsageError
from ..project import Project

__all__ = ["LOCAL", "image_name", "local_name", "plain", "tag_of"]

LOCAL = "openenv-"
"""What the names of images begin with that are for this machine."""
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*(?::(?P<tag>[^:/]+))?")


def plain(name: str) -> str:
    """A name of a project, as images may be called."""
    word = re.sub(r"[^a-z0-9_.-]+", "-", name.lower())
    word = re.sub(r"[-._]*-[-._]*|\.[._]+|_[.]+|_{3,}", "-", word).strip("-._")
    if not word:
        raise UsageError(f"`name: {name}` of openenv.yaml gives no image a name: name the image with --tag")
    return word


def local_name(project: Project) -> str:
    """What a project's image is called where nobody says otherwise."""
    return LOCAL + plain(project.manifest.name)


def image_name(text: str) -> str:
    """The name of an image that somebody gave, with its tag.

    Raises:
        UsageError: No image can be called that.
    """
    if not _fits(text):
        hint = f"write {text.lower()}" if _fits(text.lower()) else "NAME[:TAG] in small letters, as my-env:1.0"
        raise UsageError(f"no image can be called {text!r}: {hint}")
    return text if ":" in text.rpartition("/")[2] else f"{text}:latest"


def _fits(text: str) -> bool:
    found = _NAME.fullmatch(text)
    return found is not None and (found["tag"] is None or _TAG.fullmatch(found["tag"]) is not None)


def tag_of(project: Project) -> str:
    """The tag of a project's image: its version."""
    version = re.sub(r"[^A-Za-z0-9_.-]+", "-", project.manifest.version or "")[:128].lstrip(".-")
    return version or "latest"
