"""What `.gitignore` and `.dockerignore` leave out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

__all__ = ["DOCKER", "GIT", "Globs"]

GIT = "git"
DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class _Rule:
    matches: re.Pattern[str]
    keeps: bool
    folders_only: bool


@dataclass(frozen=True, slots=True)
class Globs:
    """The lines of one ignore file.

    Attributes:
        rules: The lines, in their order: the last one that matches counts.
        strict: Whether nothing in a folder that is left out can be kept, as with Git.
    """

    rules: tuple[_Rule, ...]
    strict: bool

    @classmethod
    def read(cls, text: str, dialect: str) -> Self:
        """Reads the text of an ignore file.

        Args:
            text: Its contents: a glob a line, `!` before those that keep, `#` before comments.
            dialect: `GIT`, where a glob without a slash is looked for in all folders, or `DOCKER`, where it is not.
        """
        git = dialect == GIT
        rules = (_rule(line, git) for line in text.removeprefix("\ufeff").splitlines())
        return cls(tuple(rule for rule in rules if rule is not None), git)

    def leaves_out(self, path: PurePosixPath, folder: bool = False) -> bool:
        """Whether a file is left out.

        Args:
            path: Its path, relative to the folder of the ignore file.
            folder: Whether it is a folder.
        """
        out = False
        for part, is_folder in _parts(path, folder):
            out = self._says(part, is_folder, out)
            if out and self.strict:
                return True
        return out

    def _says(self, path: str, folder: bool, out: bool) -> bool:
        for rule in self.rules:
            if (folder or not rule.folders_only) and rule.matches.fullmatch(path):
                out = not rule.keeps
        return out


def _parts(path: PurePosixPath, folder: bool) -> Iterator[tuple[str, bool]]:
    """The folders that it is in, from the outermost, and then itself."""
    for parent in reversed(path.parents):
        if parent.parts:
            yield str(parent), True
    yield str(path), folder


def _rule(line: str, git: bool) -> _Rule | None:
    glob = re.sub(r"(?<!\\) +$", "", line) if git else line.strip()
    if not glob or glob.startswith("#"):
        return None
    keeps = glob.startswith("!")
    glob = glob.removeprefix("!") if git else glob.removeprefix("!").strip().removeprefix("./")
    folders_only = git and glob.endswith("/")
    glob = glob.rstrip("/") if git else glob.strip("/")
    anywhere = git and "/" not in glob
    glob = glob.removeprefix("/")
    if not glob or glob == ".":
        return None
    try:
        matches = re.compile(("(?:.*/)?" if anywhere else "") + "".join(_translated(glob, git)), re.DOTALL)
    except re.error:  # such as [z-a], which matches nothing
        return None
    return _Rule(matches, keeps, folders_only)


_TOKEN = re.compile(
    r"(?P<deep>(?:^|(?<=/))\*\*(?:/|$))|\*+|\?|\\(?P<plain>.)|\[(?P<not>[!^]?)(?P<set>\]?[^]]*)\]|(?P<char>.)",
    re.DOTALL,
)


def _translated(glob: str, git: bool) -> Iterable[str]:
    """A glob as a regular expression, piece by piece."""
    for token in _TOKEN.finditer(glob):
        if token["deep"]:
            yield "(?:.*/)?" if token["deep"].endswith("/") else ".+"
        elif token[0].startswith("*"):
            yield "[^/]*" if git or token[0] == "*" else ".*"
        elif token[0] == "?":
            yield "[^/]"
        elif token["set"]:
            chosen = token["set"].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            yield f"(?!/)[{'^' if token['not'] else ''}{chosen}]"
        else:
            yield re.escape(token["plain"] or token["char"] or token[0])
