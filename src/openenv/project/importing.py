"""Make a project of an environment of another library: a module that names the adapter, pins and a test."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from .hub.files import Tree
from .scaffold import Scaffold, template_files, valid_name, write_files
from .target import ADAPTERS, load, parse_target

VENDOR = "vendor"
"""Folder of a project for the copied source of an environment."""
# A file with a zero in its first bytes is binary, as for Git.
_LOOKED_AT = 8000


@dataclass(frozen=True, slots=True)
class ImportedSource:
    """An environment of another library, before its project is written.

    Attributes:
        text: How the user named it: `gymnasium:CartPole-v1`.
        project: A name for its project.
        summary: One sentence.
        adapter: The function that makes its app: `openenv.adapters.gymnasium:gymnasium_app`.
        name: First argument of the adapter.
        is_path: Whether the name is a path in the project.
        arguments: Keyword arguments of the adapter.
        requirements: Dependencies of the project.
        copied: Files that are copied into the project, by their paths there.
        search: Folder of the project in which copied modules are found; None without any.
        left_out: Files that are not copied, with the reasons.
    """

    text: str
    project: str
    summary: str
    adapter: str
    name: str
    is_path: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    copied: Mapping[str, Path] = field(default_factory=dict)
    search: str | None = None
    left_out: tuple[str, ...] = ()

    def app_module(self) -> str:
        """The text of `server/app.py`."""
        module, _, function = self.adapter.partition(":")
        here = "Path(__file__).parents[1] / "
        first = f"str({here}{json.dumps(self.name)})" if self.is_path else json.dumps(self.name)
        call = ", ".join([first, *(f"{key}={value!r}" for key, value in self.arguments.items())])
        standard = ["import sys"] * (self.search is not None)
        standard += ["from pathlib import Path"] * (self.is_path or self.search is not None)
        lines = ['"""The ASGI app. `openenv serve .` and other ASGI servers serve it."""', ""]
        lines += ["from __future__ import annotations", ""]
        lines += [*standard, *[""] * bool(standard), f"from {module} import {function}", ""]
        if self.search is not None:
            lines.append(f"sys.path.insert(0, str({here}{json.dumps(self.search)}))")
        return "\n".join([*lines, f"app = {function}({call})", ""])


def import_project(
    source: ImportedSource, name: str | None = None, output_dir: Path = Path()
) -> tuple[Path, list[str]]:
    """Writes the project of an imported environment, or no file if this fails or is interrupted.

    Args:
        source: The environment.
        name: Name of the project and its folder; None derives it from the environment's.
        output_dir: The parent of its folder; created if it does not exist.

    Returns:
        Its folder, and the paths of its files there.

    Raises:
        UsageError: The name is invalid, or the folder cannot be written or is not empty.
    """
    scaffold = Scaffold.of(name or source.project, output_dir=output_dir)
    values = {
        "my_source": source.text,
        "my_summary": source.summary,
        '"my_description"': json.dumps(source.summary),
        '["my_requirements"]': json.dumps([*source.requirements]),
    }
    files: dict[str, str | Path] = {}
    for path, text in template_files("imported_env", scaffold.name).items():
        filled = text
        for placeholder, value in values.items():
            filled = filled.replace(placeholder, value)
        files[path] = filled
    files["server/app.py"] = source.app_module()
    return scaffold.folder, write_files(scaffold.folder, {**files, **source.copied})


def copied_files(source: Path, into: str, binaries: bool = False) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The files of a folder, or one file, without keys, caches, folders of version control and ignored files.

    Args:
        source: The folder or file.
        into: Its path in the project.
        binaries: Whether binary files are copied too.

    Returns:
        The files by their paths in the project, and those that are left out although a user might expect them.

    Raises:
        UsageError: A folder cannot be read.
    """
    if source.is_file():
        return {into: source}, ()
    tree = Tree(source.resolve())
    left_out = list(tree.left_out)
    files = {}
    for path, file in tree.files.items():
        with file.open("rb") as opened:
            if not binaries and b"\0" in opened.read(_LOOKED_AT):
                left_out.append(f"{path}: a binary file")
                continue
        files[f"{into}/{path}"] = file
    return files, tuple(left_out)


class ImportedLibrary(NamedTuple):
    """A library with an adapter.

    Attributes:
        title: Its name for readers.
        package: The distribution that projects pin; None if the environment runs elsewhere.
        extra: The extra of openenv that the adapter needs.
    """

    title: str
    package: str | None
    extra: str


LIBRARIES = {
    "gymnasium": ImportedLibrary("Gymnasium", "gymnasium", "[gymnasium]"),
    "harbor": ImportedLibrary("Harbor tasks", None, ""),
    "inspect": ImportedLibrary("Inspect", "inspect-ai", "[inspect]"),
    "ors": ImportedLibrary("the Open Reward Standard", None, ""),
    "verifiers": ImportedLibrary("verifiers", "verifiers", ""),
}


def adapted_source(text: str) -> ImportedSource:
    """An environment that an adapter of openenv serves. Loads it, which finds what is wrong with it.

    Args:
        text: Its source, such as `gymnasium:CartPole-v1?key=value`.

    Raises:
        UsageError: There is no such environment.
        MissingExtra: Its library is not installed.
        ImportFailed: Its module cannot be imported.
    """
    kind, _, named = text.partition(":")
    name, arguments = parse_target(named)
    app = load(text).state.openenv
    served, library = app.env_name, LIBRARIES[kind]
    source = ImportedSource(
        text,
        valid_name(re.split("[:@/]", served)[-1]),
        f"{served}, an environment of {library.title}.",
        ADAPTERS[kind],
        name,
        arguments=arguments,
        requirements=(f"openenv{library.extra}>=1.0", *([pinned(library.package)] if library.package else [])),
    )
    if kind == "harbor":
        place = f"{VENDOR}/{served}"
        found = [copied_files(task.folder, f"{place}/{task.name}", binaries=True) for task in app.env_factory.tasks]
        copied = {path: file for files, _ in found for path, file in files.items()}
        left_out = tuple(each for _, ignored in found for each in ignored)
        return replace(source, name=place, is_path=True, copied=copied, left_out=left_out)
    file, at, task = name.rpartition("@")
    if kind == "inspect" and at and file.endswith(".py"):
        path = f"{VENDOR}/{Path(file).name}"
        return replace(source, name=f"{path}@{task}", is_path=True, copied={path: Path(file).resolve()})
    return _with_module(source, _module_of(kind, name))


def _module_of(kind: str, name: str) -> str:
    """The module at the top level that defines an environment; empty if its name does not say so."""
    match kind:
        case "gymnasium":  # module:Name-v0
            module = name.rpartition(":")[0]
        case "verifiers":  # owner/name@version
            module = name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
        case "inspect":  # package/task
            module = name.rpartition("/")[0]
        case _:  # module:Class, or an address
            module = "" if "//" in name else name.partition(":")[0]
    return module.partition(".")[0]


def _with_module(source: ImportedSource, module: str) -> ImportedSource:
    """Adds the module of an environment: pins its distribution, or copies it if no distribution has it."""
    owners = metadata.packages_distributions().get(module)
    if owners:
        pins = dict.fromkeys([*source.requirements, pinned(owners[0])])
        return replace(source, requirements=tuple(pins))
    spec = importlib.util.find_spec(module) if module else None
    if spec is None:
        return source
    folders = spec.submodule_search_locations
    place = Path(folders[0] if folders else str(spec.origin))
    copied, left_out = copied_files(place, f"{VENDOR}/{place.name}")
    return replace(source, copied=copied, left_out=left_out, search=VENDOR)


def pinned(package: str) -> str:
    """The requirement of the installed version of a distribution."""
    return f"{package}=={metadata.version(package)}"


SOURCES: dict[str, Callable[[str], ImportedSource]] = dict.fromkeys(LIBRARIES, adapted_source)
"""What reads the text of a source, by the word before its colon. Raises as `adapted_source`."""
FORMS = "verifiers:NAME, ors:URL, inspect:TASK, harbor:FOLDER, gymnasium:ENV_ID"
