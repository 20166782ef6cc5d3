"""Has mypy --strict and pyright check every Python block of README.md and the documents; each tool runs once.

    python -m tests.docs.check_types

A page is one program: its blocks in their order, and its files (blocks with a title) beside it. Blocks from the first
one with `await` at its top level on are the body of a coroutine function. The comment `<!-- types: wrong -->` in the
line before a block leaves it out: it shows a mistake.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openenv.project.scaffold import Scaffold

from .page import PAGES, ROOT, Block, Page

_INIT = re.compile(r"openenv init (\w+)$", re.MULTILINE)
_IMPORT = r"^(\s*)(from|import) ({})\b"
# All programs are in one package, which has options of its own in pyproject.toml.
_PAGES = "document_pages"
_PYRIGHT = {
    "pythonVersion": "3.11",
    "reportMissingImports": "none",
    "reportMissingModuleSource": "none",
    "reportAttributeAccessIssue": "error",
}


@dataclass
class Program:
    """A file that a type checker reads.

    Attributes:
        path: Where it is, in the folder of all programs.
        lines: Its lines.
        places: For each line the page and line that it came from.
    """

    path: Path
    lines: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def add(self, text: str, block: Block, indent: str = "") -> None:
        """Adds the code of a block."""
        page, _, first = block.place.rpartition(":")
        for number, line in enumerate(textwrap.indent(text, indent).splitlines(), int(first)):
            self.lines.append(line)
            self.places.append(f"{page}:{number}")

    def moved(self, older: str, package: str) -> Program:
        """The same file in another package."""
        lines = [line.replace(f" {_PAGES}.{older}.", f" {_PAGES}.{package}.") for line in self.lines]
        return Program(Path(package, *self.path.parts[1:]), lines, self.places)


def programs_of(page: Page) -> list[Program]:
    """The files of a page, in a package of its own: pages may have files of one name.

    A file that replaces an earlier one begins another package, with the other files as they were.
    """
    blocks = [block for block in page.blocks if block.language == "python" and block.types_checked]
    package = re.sub(r"\W", "_", page.name)
    projects = _INIT.findall("".join(block.source for block in page.blocks if block.language == "sh"))
    files = {program.path: program for project in projects for program in _project(Path(package, project))}
    modules = {Path(block.title).parts[0].removesuffix(".py") for block in blocks if block.title} | {*projects}
    imported = re.compile(_IMPORT.format("|".join(modules) or "$"), re.MULTILINE)
    main = Program(Path(package, "page.py"))
    found = [main]
    indent = ""
    for block in blocks:
        path = Path(package, block.title or "")
        if path in files:
            found += files.values()
            older, package = package, f"{package}_"
            files = {Path(package, *other.parts[1:]): files[other].moved(older, package) for other in files}
            path = Path(package, *path.parts[1:])
        source = imported.sub(rf"\1\2 {_PAGES}.{package}.\3", block.source)
        if block.title:
            files[path] = Program(path)
            files[path].add(source, block)
            continue
        if not indent and _awaits(source):
            main.add("async def page() -> None:", block)
            indent = "    "
        main.add(source, block, indent)
    return [*found, *files.values()]


def _project(folder: Path) -> Iterator[Program]:
    """What `openenv init NAME` makes. Templates have checks of their own, so its lines have no places."""
    for path, text in Scaffold.of(folder.name).files().items():
        if path.endswith(".py") and not path.startswith("tests/"):
            yield Program(folder / path, text.splitlines(), [""] * text.count("\n"))


def _awaits(source: str) -> bool:
    """Whether a program awaits at its top level."""
    try:
        compile(source, "block", "exec", dont_inherit=True)
    except SyntaxError:
        compile(source, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return True
    return False


def check(pages: Iterable[Page]) -> list[str]:
    """What the type checkers have against the blocks of some pages: `page:line: message`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        programs = {}
        for page in pages:
            for program in programs_of(page):
                path = folder / _PAGES / program.path
                path.parent.mkdir(parents=True, exist_ok=True)
                for parent in path.relative_to(folder).parents[:-1]:
                    (folder / parent / "__init__.py").touch()
                path.write_text("\n".join(program.lines) + "\n", encoding="utf-8")
                programs[program.path] = program
        complaints = set()
        for path, line, message in [*_mypy(folder), *_pyright(folder)]:
            place = programs[path].places[line - 1]
            if place:
                complaints.add(f"{place}: {message}")
        return sorted(complaints)


def _program(file: str) -> Path:
    """Where a file is in the package of all programs. What mypy has cached is in a folder of an earlier run."""
    return Path(file.partition(f"/{_PAGES}/")[2])


def _mypy(folder: Path) -> list[tuple[Path, int, str]]:
    # In the project's folder and with its options: what `make check` has cached of other packages serves here, too.
    command = [sys.executable, "-m", "mypy", "--output=json", str(folder / _PAGES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stderr:
        raise RuntimeError(done.stderr)
    found = [json.loads(line) for line in done.stdout.splitlines() if line]
    return [
        (_program(each["file"]), each["line"], f"mypy: {each['message']} [{each['code']}]")
        for each in found
        if each["severity"] == "error"
    ]


def _pyright(folder: Path) -> list[tuple[Path, int, str]]:
    (folder / "pyrightconfig.json").write_text(json.dumps(_PYRIGHT))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (
            _program(each["file"]),
            each["range"]["start"]["line"] + 1,
            f"pyright: {each['message']} [{each.get('rule')}]",
        )
        for each in found
        if each["severity"] == "error"
    ]


if __name__ == "__main__":
    complaints = check(PAGES)
    sys.stdout.write("".join(f"{complaint}\n" for complaint in complaints))
    raise SystemExit(bool(complaints))
