"""Create a new project from a template, under a valid name."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import keyword
import os
import re
import shutil
import sys
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Self

import yaml

from ..errors import UsageError
from .target import bundled

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
            name: As a user typed it.
            taken: Further names that mean something else already.
            place: The folder that will contain the project; modules found there do not conflict with the name.

        Raises:
            UsageError: It is not fit; the message says why, and one that is.
        """
        fault = next(_faults(name, taken, place), None)
        if fault is not None:
            raise UsageError(f"{name!r} cannot be the name of an environment: {fault}; try {_other(name, taken)!r}")
        return cls(name)

    @property
    def prefix(self) -> str:
        """The prefix of its classes: `WordHunt`, to which `Env`, `Action` and so on are added."""
        short = self.package.removesuffix("_env") or self.package
        short = short.removesuffix("Env") or short
        return "".join(part[:1].upper() + part[1:] for part in short.split("_"))

    @property
    def title(self) -> str:
        """In words: `Word hunt env`."""
        words = self.package.replace("_", " ")
        return words[:1].upper() + words[1:]


def _faults(name: str, taken: frozenset[str], place: Path | None) -> Iterator[str]:
    """The errors in a name."""
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


_TEMPLATES = Path(__file__).parent / "templates"
_COMMON = "common"
# The placeholders for a name in templates. In `MyEnv` and `MyAction` it is the prefix.
_PLACEHOLDER = re.compile(r"my_env|My env|\bMy(?=[A-Z])")
# Beside the files of a template, where it was imported, or looked at by a tool.
_NOT_OURS = re.compile(r"__pycache__|\.\w+_cache|.*\.egg-info")
_MODE = 0o777
# A folder counts as removed when it has stayed away for so long; it is tried so often.
CLEARING_S = 0.05
CLEARINGS = 20


class Template(StrEnum):
    """The kinds of environments to begin with."""

    BASIC = "basic"
    TEXT_GAME = "text-game"
    TOOLS = "tools"
    GYMNASIUM = "gymnasium"
    CODE = "code"

    @property
    def summary(self) -> str:
        """A short description."""
        return _SUMMARIES[self]

    @property
    def extra(self) -> str | None:
        """The extra of openenv without which it does not run."""
        return _EXTRAS.get(self)


_SUMMARIES = {
    Template.BASIC: "a game in few lines: guess a number",
    Template.TEXT_GAME: "text in and out, with a picture and buttons for the web page",
    Template.TOOLS: "actions are calls of tools (MCP)",
    Template.GYMNASIUM: "an environment of Gymnasium, with named and typed fields",
    Template.CODE: "actions are Python programs, which run in processes with limits",
}
_EXTRAS = {Template.TOOLS: "mcp", Template.GYMNASIUM: "gymnasium"}


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A project that is about to be made.

    Attributes:
        name: Of the project.
        template: Its template.
        folder: Where it will be, as an absolute path.
    """

    name: ProjectName
    template: Template
    folder: Path

    @classmethod
    def of(cls, name: str, template: Template = Template.BASIC, output_dir: Path = Path()) -> Scaffold:
        """Checks the arguments, and writes nothing yet.

        Args:
            name: Of the project, its package and its folder.
            template: Its template.
            output_dir: The folder in which its own will be; made if it is not there.

        Raises:
            UsageError: The name is not fit (the message says one that is), or there is something already.
        """
        folder = Path(os.path.abspath(output_dir)) / name  # noqa: PTH100 - `resolve` would follow links
        checked = ProjectName.checked(name, frozenset(bundled()), folder)
        _check_free(folder)
        return cls(checked, template, folder)

    def files(self) -> dict[str, str]:
        """Its files by their paths inside of the project, sorted."""
        found = {}
        for root in (_TEMPLATES / _COMMON, _TEMPLATES / f"{self.template.replace('-', '_')}_env"):
            for path in _files(root):
                relative = path.relative_to(root).as_posix()
                found[self._named(relative)] = self._named(path.read_text(encoding="utf-8"))
        return dict(sorted(found.items()))

    def make(self) -> list[str]:
        """Writes the whole project, or nothing if that fails or is interrupted.

        Returns:
            The paths of its files, inside of its folder.

        Raises:
            UsageError: It cannot be written there, or another program made something there meanwhile.
        """
        files = self.files()
        try:
            with whole_or_not_at_all(self.folder) as beside:
                for path, text in files.items():
                    file = beside / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            _check_free(self.folder)
            raise UsageError(
                f"{self.folder} cannot be written: {error.strerror or error}; choose another place with --output-dir"
            ) from None
        return list(files)

    def _named(self, text: str) -> str:
        """A text of a template, with the name of this project in it."""
        name = self.name
        words = {"my_env": name.package, "My env": name.title, "My": name.prefix}
        return _PLACEHOLDER.sub(lambda found: words[found[0]], text)


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if _NOT_OURS.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _check_free(folder: Path) -> None:
    """Raises `UsageError` if the path exists and is not an empty folder."""
    try:
        free = not folder.is_symlink() and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be looked at: {error.strerror or error}; choose another place with --output-dir"
        ) from None
    if not free:
        raise UsageError(
            f"{folder} is there already, and is left as it is: choose another name, or a place with --output-dir"
        )


@contextlib.contextmanager
def whole_or_not_at_all(folder: Path) -> Iterator[Path]:
    """A folder to write into that becomes the given one when all went well.

    Otherwise it is removed, with the folders above that were made for it.
    """
    made = list(itertools.takewhile(lambda parent: not parent.exists(), folder.parents))
    beside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield beside
        mask = os.umask(0o022)  # there is no other way to read it than to set it
        os.umask(mask)
        beside.chmod(_MODE & ~mask)
        beside.rename(folder)
    except BaseException:
        for _ in range(CLEARINGS):  # threads of a library may still write there after an interruption
            if beside is None or not beside.exists():
                break
            shutil.rmtree(beside, ignore_errors=True)
            time.sleep(CLEARING_S)
        for each in made:
            with contextlib.suppress(OSError):  # not empty: it is in use
                each.rmdir()
        raise
