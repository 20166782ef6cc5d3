"""What a project may be called."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Self

import yaml

from ..errors import UsageError

__all__ = ["ProjectName"]

# Names of Spaces and of hosts go no further.
MOST_CHARACTERS = 63
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
# Modules and folders of every project, and names by which AutoEnv finds something else.
_RESERVED = {"build", "client", "core", "dist", "docs", "examples", "models", "server", "src", "tests", "wheels"}
_RESERVED |= {"openenv", "openenv_core", "test"}
_RESERVED |= {"call_tool", "list_tools"}  # templates import classes of the very names that theirs would have


@dataclass(frozen=True, slots=True)
class ProjectName:
    """A name that can be that of a package, a distribution, an image and a Space.

    Attributes:
        package: As it is imported, and as its folder is called: `word_hunt_env`.
    """

    package: str

    @classmethod
    def checked(cls, name: str, taken: frozenset[str] = frozenset(), place: Path | None = None) -> Self:
        """Takes a name if it is fit for a project.

        Args:
            name: As somebody typed it.
            taken: Further names that mean something else already.
            place: The folder that the project will be in; what is found there is not in its way.

        Raises:
            UsageError: It is not fit; the message says why, and one that is.
        """
        fault = next(_faults(name, taken, place), None)
        if fault is not None:
            raise UsageError(f"{name!r} cannot be the name of an environment: {fault}; try {_other(name, taken)!r}")
        return cls(name)

    @property
    def prefix(self) -> str:
        """What its classes begin with: `WordHunt`, to which `Env`, `Action` and so on are added."""
        short = self.package.removesuffix("_env") or self.package
        short = short.removesuffix("Env") or short
        return "".join(part[:1].upper() + part[1:] for part in short.split("_"))

    @property
    def title(self) -> str:
        """In words: `Word hunt env`."""
        words = self.package.replace("_", " ")
        return words[:1].upper() + words[1:]


def _faults(name: str, taken: frozenset[str], place: Path | None) -> Iterator[str]:
    """What is wrong with a name."""
    if not _NAME.fullmatch(name):
        yield "it must be letters, digits and single underscores between them, and begin with a letter"
        return
    # On file systems that do not tell `JSON` from `json`, and among distributions, the two are one.
    lower = name.lower()
    if len(name) > MOST_CHARACTERS:
        yield f"it has more than {MOST_CHARACTERS} characters"
    if keyword.iskeyword(name) or keyword.iskeyword(lower):
        yield "it is a word of Python itself"
    if lower in _RESERVED:
        yield "it has a meaning of its own in every project"
    if yaml.safe_load(lower) != lower:
        yield "openenv.yaml would take it for another value than a text"
    if lower in _needed():
        yield "a package that openenv may need is called so, and would no longer be found"
    if lower in taken:
        yield "an environment that comes with openenv is called so"
    if lower in sys.stdlib_module_names:
        yield "a module of Python's standard library is called so, and would no longer be found"
    if any(_installed(each, place) for each in {name, lower}):
        yield "an installed module is called so, and would no longer be found"


def _needed() -> set[str]:
    """Names of the packages that openenv uses, whether they are installed or not."""
    try:
        requirements = metadata.requires("openenv") or []
    except metadata.PackageNotFoundError:
        return set()
    return {re.split(r"[^\w.-]", each, maxsplit=1)[0].replace("-", "_").lower() for each in requirements}


def _installed(name: str, place: Path | None) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # of a module that was imported in some way of its own
        return name in sys.modules
    if spec is None:
        return False
    found = [Path(each) for each in spec.submodule_search_locations or [spec.origin or ""]]
    return place is None or any(each.resolve() != place.resolve() for each in found)


def _other(name: str, taken: frozenset[str]) -> str:
    """A name like it that is fit."""
    plain = unicodedata.normalize("NFKD", Path(name).name).encode("ascii", "ignore").decode().lower()
    words = "_".join(re.findall("[a-z0-9]+", plain))[: MOST_CHARACTERS - len("env_") - len("_env")].strip("_")
    for each in (words, f"{words}_env", f"env_{words}", f"env_{words}_env"):
        if not any(_faults(each, taken, None)):
            return each
    return "my_env"
