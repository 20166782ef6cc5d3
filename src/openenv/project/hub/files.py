"""Select the files of a project to publish, without ignored files and likely secrets."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from ...errors import UsageError
from ..manifest import read_text

GIT = "git"
DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class _Rule:
    matches: re.Pattern[str]
    keeps: bool
    folders_only: bool

    @classmethod
    def read(cls, line: str, git: bool) -> Self | None:
        """Parses a line of an ignore file. None for a line that matches no file."""
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
        return cls(matches, keeps, folders_only)


@dataclass(frozen=True, slots=True)
class Globs:
    """The lines of one ignore file.

    Attributes:
        rules: The lines in their order. The last one that matches decides.
        strict: Whether files in an excluded folder cannot be kept, as with Git.
    """

    rules: tuple[_Rule, ...]
    strict: bool

    @classmethod
    def read(cls, text: str, dialect: str) -> Self:
        """Parses an ignore file.

        Args:
            text: Its contents: one glob per line, `!` for files to keep, `#` for comments.
            dialect: `GIT`, in which a glob without a slash matches in all folders, or `DOCKER`, in which it does not.
        """
        git = dialect == GIT
        rules = (_Rule.read(line, git) for line in text.removeprefix("\ufeff").splitlines())
        return cls(tuple(rule for rule in rules if rule is not None), git)

    def leaves_out(self, path: PurePosixPath, folder: bool = False) -> bool:
        """Whether a file is left out.

        Args:
            path: Its path, relative to the folder of the ignore file.
            folder: Whether it is a folder.
        """
        out = False
        # Its parent folders, from the outermost, and then itself.
        for part in (*(parent for parent in reversed(path.parents) if parent.parts), path):
            for rule in self.rules:
                may_match = part is not path or folder or not rule.folders_only
                if may_match and rule.matches.fullmatch(str(part)):
                    out = not rule.keeps
            if out and self.strict:
                return True
        return out


_TOKEN = re.compile(
    r"(?P<deep>(?:^|(?<=/))\*\*(?:/|$))|\*+|\?|\\(?P<plain>.)|\[(?P<not>[!^]?)(?P<set>\]?[^]]*)\]|(?P<char>.)",
    re.DOTALL,
)


def _translated(glob: str, git: bool) -> Iterable[str]:
    """The parts of a regular expression for a glob."""
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


# Files that belong to one machine, and generated files.
_NOISE = """
.git
.hg
.svn
__pycache__/
*.py[cod]
.*_cache/
.cache/
.hypothesis/
.venv/
.tox/
.nox/
.eggs/
*.egg-info/
node_modules/
.ipynb_checkpoints/
.coverage
.coverage.*
htmlcov/
.idea/
.vscode/
.DS_Store
Thumbs.db
*.sw[op]
*~
"""
# Files with credentials.
_KEYS = """
.env
.env.*
*.env
.envrc
!.env.example
!.env.sample
!.env.template
.netrc
.pypirc
.npmrc
.git-credentials
.pgpass
.my.cnf
.dockercfg
.vault-token
credentials.json
client_secret*.json
service_account*.json
service-account*.json
.streamlit/secrets.toml
.ssh/
.aws/
.gnupg/
.kube/
.docker/
.huggingface/
id_rsa*
id_dsa*
id_ecdsa*
id_ed25519*
*.pem
*.key
*.ppk
*.p12
*.pfx
*.jks
*.keystore
*.kdbx
"""
# Files that ignore files cannot exclude: the Space and a pull of it need them.
_KEPT = frozenset({"openenv.yaml", "README.md", "pyproject.toml", ".dockerignore", ".gitignore"})
# Marks a virtual environment, which may have any name.
_OF_VENVS = "pyvenv.cfg"


class Tree:
    """The files of a project that are published.

    Args:
        folder: Folder of the project.
        exclude: File with globs of further files to leave out, one per line.
        kept: Files that ignore files cannot exclude, in addition to those that all Spaces need.

    Raises:
        UsageError: A folder or an ignore file cannot be read.

    Attributes:
        files: Files by their paths in the project, with `/`, in order.
        left_out: Excluded files that a user might expect, with the reasons.
    """

    def __init__(self, folder: Path, exclude: Path | None = None, kept: frozenset[str] = frozenset()):
        self._folder = folder
        if exclude is not None and not exclude.is_file():
            raise UsageError(f"--exclude {exclude}: the file does not exist; write one glob per line into it")
        excluded = "" if exclude is None else _text(exclude)
        self._exclude = Globs.read(excluded, GIT)
        lines = map(str.strip, excluded.splitlines())
        self._exclude_lines = [line for line in lines if line and line[0] not in "#!"]
        self._kept = _KEPT | kept
        self._noise = Globs.read(_NOISE, GIT)
        self._keys = Globs.read(_KEYS, GIT)
        self._docker = Globs.read(_text(folder / ".dockerignore"), DOCKER)
        self._git: dict[PurePosixPath, Globs] = {}
        self._outer = list(_outer(folder))
        self.left_out: list[str] = []
        found: dict[str, Path] = {}
        for place, folders, names in os.walk(self._folder, onerror=_refuse):
            at = PurePosixPath(Path(place).relative_to(self._folder).as_posix())
            if ignored := _text(Path(place) / ".gitignore"):
                self._git[at] = Globs.read(ignored, GIT)
            folders[:] = sorted(name for name in folders if self._enters(at / name))
            for name in sorted(names):
                if self._takes(at / name):
                    found[str(at / name)] = self._folder / at / name
        self.files = dict(sorted(found.items()))

    def _enters(self, path: PurePosixPath) -> bool:
        """Whether to search a folder."""
        here = self._folder / path
        if here.is_symlink():
            self.left_out.append(f"{path}: a link to a folder")
            return False
        if self._noise.leaves_out(path, folder=True) or (here / _OF_VENVS).is_file():
            return False
        if self._holds_keys(path, folder=True):
            self.left_out.append(f"{path}: contains keys")
            return False
        return not self._is_excluded(path, folder=True)

    def _takes(self, path: PurePosixPath) -> bool:
        here = self._folder / path
        if self._noise.leaves_out(path):
            return False
        if self._holds_keys(path):
            self.left_out.append(f"{path}: may contain keys")
            return False
        if self._is_ignored(path):
            return False
        if here.is_symlink():
            try:
                target = PurePosixPath(here.resolve(strict=True).relative_to(self._folder.resolve()).as_posix())
            except (OSError, RuntimeError, ValueError):  # a broken link, a link to itself, a link out of the project
                self.left_out.append(f"{path}: a broken link, or a link out of the project")
                return False
            if self._noise.leaves_out(target) or self._holds_keys(target) or self._is_ignored(target):
                self.left_out.append(f"{path}: a link to {target}, which is not published")
                return False
        return here.is_file()

    def _holds_keys(self, path: PurePosixPath, folder: bool = False) -> bool:
        return self._keys.leaves_out(PurePosixPath(str(path).lower()), folder)

    def _is_excluded(self, path: PurePosixPath, folder: bool = False) -> bool:
        """Whether `--exclude` matches: its globs match as in Git or in `hf upload`, where `*` also matches `/`."""
        text = f"{path}/" if folder else str(path)
        return self._exclude.leaves_out(path, folder) or any(
            fnmatch.fnmatchcase(text, line) for line in self._exclude_lines
        )

    def _is_ignored(self, path: PurePosixPath) -> bool:
        return str(path) not in self._kept and (
            self._is_excluded(path)
            or self._docker.leaves_out(path)
            or any(globs.leaves_out(way / path) for way, globs in self._outer)
            or any(
                globs.leaves_out(path.relative_to(at)) for at, globs in self._git.items() if path.is_relative_to(at)
            )
        )


def _text(file: Path) -> str:
    """The contents of an ignore file, or "" if there is none."""
    return read_text(file, "utf-8-sig") if file.is_file() else ""


def _outer(folder: Path) -> Iterator[tuple[PurePosixPath, Globs]]:
    """The `.gitignore` of each parent folder in the Git repository, and the path from there to the folder."""
    above = list(folder.parents)
    depth = next((at for at, each in enumerate([folder, *above]) if (each / ".git").exists()), 0)
    for parent in above[:depth]:
        way = PurePosixPath(folder.relative_to(parent).as_posix())
        globs = Globs.read(_text(parent / ".gitignore"), GIT)
        # Ignore rules for the whole folder: its push is intended.
        if not globs.leaves_out(way, folder=True):
            yield way, globs


def _refuse(error: OSError) -> None:
    raise UsageError(
        f"{error.filename} cannot be read: {error.strerror}; make it readable, or move it out of the project"
    )
