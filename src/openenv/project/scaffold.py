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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Self

import yaml

from ..errors import UsageError
from .target import bundled

# Longest name of a Space or a host.
MOST_CHARACTERS = 63
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
# Modules and folders of every project, and names that AutoEnv resolves otherwise.
_RESERVED = {"build", "client", "core", "dist", "docs", "examples", "models", "server", "src", "tests", "wheels"}
_RESERVED |= {"openenv", "openenv_core", "test"}
_RESERVED |= {"call_tool", "list_tools"}  # their classes would have the names of classes that templates import


@dataclass(frozen=True, slots=True)
class ProjectName:
    """A name that is valid for a package, a distribution, an image and a Space.

    Attributes:
        package: Import name, and name of the folder: `word_hunt_env`.
    """

    package: str

    @classmethod
    def checked(cls, name: str, taken: frozenset[str] = frozenset(), place: Path | None = None) -> Self:
        """Checks a name.

        Args:
            name: The name from the user.
            taken: Names that are already in use.
            place: The folder that will contain the project; modules found there do not conflict with the name.

        Raises:
            UsageError: The name is invalid; the message has the reason, and a valid name.
        """
        fault = next(_faults(name, taken, place), None)
        if fault is not None:
            raise UsageError(
                f"{name!r} cannot be the name of an environment: {fault}; try {valid_name(name, taken)!r}"
            )
        return cls(name)

    @property
    def prefix(self) -> str:
        """The prefix of its classes: `WordHunt`, to which `Env`, `Action` and so on are added."""
        short = self.package.removesuffix("_env") or self.package
        short = short.removesuffix("Env") or short
        return "".join(part[:1].upper() + part[1:] for part in short.split("_"))

    @property
    def title(self) -> str:
        """The name as words: `Word hunt env`."""
        words = self.package.replace("_", " ")
        return words[:1].upper() + words[1:]


def _faults(name: str, taken: frozenset[str], place: Path | None) -> Iterator[str]:
    """The errors in a name."""
    if not _NAME.fullmatch(name):
        yield "it must begin with a letter and consist of letters, digits and single underscores between them"
        return
    # Distributions and some file systems do not distinguish `JSON` from `json`.
    lower = name.lower()
    if len(name) > MOST_CHARACTERS:
        yield f"it has more than {MOST_CHARACTERS} characters"
    if keyword.iskeyword(name) or keyword.iskeyword(lower):
        yield "it is a keyword of Python"
    if lower in _RESERVED:
        yield "it is reserved in projects"
    if yaml.safe_load(lower) != lower:
        yield "YAML would not read it as a string in openenv.yaml"
    if lower in _needed():
        yield "it would hide a package of that name, which openenv may need"
    if lower in taken:
        yield "it is the name of an environment that comes with openenv"
    if lower in sys.stdlib_module_names:
        yield "it would hide a module of that name in Python's standard library"
    if any(_installed(each, place) for each in {name, lower}):
        yield "it would hide an installed module of that name"


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
    except (ImportError, ValueError):  # of a module without a spec
        return name in sys.modules
    if spec is None:
        return False
    found = [Path(each) for each in spec.submodule_search_locations or [spec.origin or ""]]
    return place is None or any(each.resolve() != place.resolve() for each in found)


def valid_name(name: str, taken: frozenset[str] = frozenset()) -> str:
    """A similar name that is valid."""
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
# Caches among the files of a template, which Python or a tool may have written.
_NOT_OURS = re.compile(r"__pycache__|\.\w+_cache|.*\.egg-info")
_MODE = 0o777
# Seconds for which a removed folder must not reappear, and attempts to remove it.
CLEARING_S = 0.05
CLEARINGS = 20


class Template(StrEnum):
    """The templates of new projects.

    Attributes:
        summary: A short description.
        extra: The extra of openenv that it needs, if any.
        package: A package that it needs in addition to openenv, if any.
    """

    summary: str
    extra: str | None
    package: str | None

    BASIC = "basic", "a short game: guess a number"
    TEXT_GAME = "text-game", "text in and out, with a picture and buttons for the web page"
    TOOLS = "tools", "actions are calls of tools (MCP)", "mcp"
    GYMNASIUM = "gymnasium", "an environment of Gymnasium, with named and typed fields", "gymnasium"
    BATCHED = "batched", "one call steps many episodes, with arrays", None, "numpy"
    CODE = "code", "actions are Python programs, which run in processes with limits"

    def __new__(cls, name: str, summary: str = "", extra: str | None = None, package: str | None = None) -> Self:
        template = str.__new__(cls, name)
        template._value_ = name
        template.summary, template.extra, template.package = summary, extra, package
        return template


@dataclass(frozen=True, slots=True)
class Scaffold:
    """A new project, before its files are written.

    Attributes:
        name: Name of the project.
        template: Its template.
        folder: Absolute path of its folder.
    """

    name: ProjectName
    template: Template
    folder: Path

    @classmethod
    def of(cls, name: str, template: Template = Template.BASIC, output_dir: Path = Path()) -> Scaffold:
        """Checks the arguments. Writes no files.

        Args:
            name: Name of the project, its package and its folder.
            template: Its template.
            output_dir: The parent of its folder; created if it does not exist.

        Raises:
            UsageError: The name is invalid (the message has a valid one), or the folder is not empty.
        """
        folder = Path(os.path.abspath(output_dir)) / name  # noqa: PTH100 - `resolve` would follow links
        checked = ProjectName.checked(name, frozenset(bundled()), folder)
        check_free(folder)
        return cls(checked, template, folder)

    def files(self) -> dict[str, str]:
        """Contents of its files, by sorted paths in the project."""
        return template_files(f"{self.template.replace('-', '_')}_env", self.name)

    def make(self) -> list[str]:
        """Writes the whole project, or no file if this fails or is interrupted.

        Returns:
            The paths of its files in its folder.

        Raises:
            UsageError: The folder cannot be written, or another program has created it meanwhile.
        """
        return write_files(self.folder, self.files())


def template_files(folder: str, name: ProjectName) -> dict[str, str]:
    """Contents of the files of a template for a project of that name, by sorted paths in the project.

    Args:
        folder: Folder of the template; the files that all templates share are added.
        name: Name of the project.
    """
    words = {"my_env": name.package, "My env": name.title, "My": name.prefix}

    def named(text: str) -> str:
        return _PLACEHOLDER.sub(lambda found: words[found[0]], text)

    found = {}
    for root in (_TEMPLATES / _COMMON, _TEMPLATES / folder):
        for path in root.rglob("*"):
            relative = path.relative_to(root)
            if path.is_file() and not any(map(_NOT_OURS.fullmatch, relative.parts)):
                found[named(relative.as_posix())] = named(path.read_text(encoding="utf-8"))
    return dict(sorted(found.items()))


def write_files(folder: Path, files: Mapping[str, str | Path]) -> list[str]:
    """Writes a whole project, or no file if this fails or is interrupted.

    Args:
        folder: Its folder.
        files: Contents of its files, or files to copy, by their paths in the folder.

    Returns:
        The paths of its files in its folder.

    Raises:
        UsageError: The folder cannot be written, or another program has created it meanwhile.
    """
    try:
        with whole_or_not_at_all(folder) as beside:
            for path, content in files.items():
                file = beside / path
                file.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, Path):
                    shutil.copy(content, file)
                else:
                    file.write_text(content, encoding="utf-8", newline="\n")
    except OSError as error:
        check_free(folder)
        raise UsageError(
            f"{folder} cannot be written: {error.strerror or error}; choose another place with --output-dir"
        ) from None
    return list(files)


def check_free(folder: Path) -> None:
    """Raises `UsageError` if the path exists and is not an empty folder."""
    try:
        free = not folder.is_symlink() and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be accessed: {error.strerror or error}; choose another place with --output-dir"
        ) from None
    if not free:
        raise UsageError(f"{folder} exists already: choose another name, or a place with --output-dir")


@contextlib.contextmanager
def whole_or_not_at_all(folder: Path) -> Iterator[Path]:
    """A temporary folder, which becomes the given one if the block succeeds.

    Otherwise it is removed, with the parent folders that were created for it.
    """
    made = list(itertools.takewhile(lambda parent: not parent.exists(), folder.parents))
    beside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield beside
        mask = os.umask(0o022)  # the mask can only be read by setting it
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
