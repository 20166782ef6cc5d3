"""Prepare the files of a Space: README, Dockerfile and wheel are adapted, and the project is not changed."""

from __future__ import annotations

import fnmatch
import mmap
import os
import posixpath
import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...errors import UsageError
from ...providers.redaction import KEYS
from ..dockerfile import Dockerfile
from ..image.wheel import own_wheel
from ..manifest import FrontMatter, Project
from .files import Tree
from .request import SHORTEST, SpaceRequest

INTERFACE = "ENABLE_WEB_INTERFACE"
OWN_WHEELS = "wheels/openenv-*.whl"


@dataclass(frozen=True)
class Stage:
    """What is uploaded.

    Attributes:
        files: By their paths in the Space: files of the project, and contents of what was changed.
        notes: What a user should know about them.
        replaced: Globs of files of the Space that they take the place of.
    """

    files: Mapping[str, Path | bytes]
    notes: list[str] = field(default_factory=list)
    replaced: tuple[str, ...] = ()

    @classmethod
    def of(cls, project: Project, request: SpaceRequest) -> Self:
        """Chooses and changes the files of a project.

        Args:
            project: The project.
            request: How it is to be published.

        Raises:
            UsageError: There is no Dockerfile, the README's front matter is not valid, something cannot be read, or
                no wheel can be made of the openenv that runs here.
        """
        original = project.dockerfile
        if original is None:
            raise UsageError(
                f"{project.folder} has no Dockerfile, by which a Space is built: write server/Dockerfile (a project "
                "of `openenv init` has one)"
            )
        where = original.relative_to(project.folder).as_posix()
        tree = Tree.of(project.folder, request.exclude, frozenset({where}))
        files: dict[str, Path | bytes] = dict(tree.files)
        notes = [f"stays here: {each}" for each in tree.left_out]
        files.pop(where, None)
        if modes := [path for path, source in tree.files.items() if source.stat().st_mode & 0o100]:
            notes.append(f"executable here, but not in the Space, for the Hub keeps no modes: {', '.join(modes)}")
        dockerfile = _dockerfile(Dockerfile.read(original, where), files, request, notes)
        files["Dockerfile"] = dockerfile.text.encode()
        files["README.md"] = _readme(project, request.interface).encode()
        # The newest would be installed, whichever was pushed last.
        replaced = (OWN_WHEELS,) if _add_wheel(files, dockerfile, notes) else ()
        return cls(dict(sorted(files.items())), notes, replaced)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(each) if isinstance(each, bytes) else each.stat().st_size for each in self.files.values())

    def check_no_secrets(self, secrets: Collection[str]) -> None:
        """Raises `UsageError` if a file has a secret in it, which others could read there, or cannot be read."""
        wanted = [secret.encode() for secret in secrets if len(secret) >= SHORTEST]
        for path, source in self.files.items():
            if isinstance(source, bytes):
                found = any(each in source for each in wanted)
            else:
                try:
                    with source.open("rb") as file:
                        found = os.fstat(file.fileno()).st_size > 0  # an empty file cannot be mapped
                        if found:
                            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
                                found = any(contents.find(each) >= 0 for each in wanted)
                except (OSError, ValueError) as error:
                    raise UsageError(
                        f"{source} cannot be read: {error}; make it readable, or name the file in .gitignore"
                    ) from None
            if found:
                raise UsageError(
                    f"{path} has your token or the value of a --secret in it, which others could read: take it out, "
                    "or name the file in .gitignore"
                )


def front_matter_of(project: Project, interface: bool) -> dict[str, Any]:
    """What a Space needs in the front matter of its README, where the README does not say it."""
    port = project.manifest.port
    return {
        "title": project.manifest.name.replace("_", " ").replace("-", " ").capitalize(),
        "sdk": "docker",
        "app_port": port or 8000,
        **({"base_path": "/web"} if interface else {}),
        "tags": ["openenv"],
    }


def _readme(project: Project, interface: bool) -> str:
    name = project.manifest.name
    path = project.readme
    try:
        # In bytes: its line ends stay.
        text = (
            path.read_bytes().decode() if path is not None else f"# {name}\n\n{project.manifest.description or ''}\n"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    front = FrontMatter.read(text)
    sdk = front.values.get("sdk")
    if sdk not in {None, "docker"}:
        raise UsageError(
            f"README.md says `sdk: {sdk}`, and the Space of an environment needs `sdk: docker`: correct it"
        )
    return front.completed(front_matter_of(project, interface))


def _dockerfile(
    original: Dockerfile, files: Mapping[str, Any], request: SpaceRequest, notes: list[str]
) -> Dockerfile:
    """As a Space needs it: in the root, from where it copies; on the base and with the web UI that are asked for;
    open to all who may see the Space, unless a variable or a secret of it says its keys.
    """
    found = original if request.base_image is None else original.with_base(request.base_image)
    folder = original.name.rpartition("/")[0]
    lines = list(found.lines)
    for each in found.instructions():
        for source in each.sources if "<<" not in each.text else ():
            if not source or "://" in source or _is_there(source, files):
                continue
            if folder and _is_there(f"{folder}/{source}", files):
                # In the first line of the instruction that has it.
                word = re.compile(rf'(?<![^\s"\[,]){re.escape(source)}(?![^\s",\]])')
                named = posixpath.normpath(f"{folder}/{source}")
                at = next((at for at in range(each.first - 1, each.last) if word.search(lines[at])), None)
                if at is not None:
                    lines[at] = word.sub(lambda _, named=named: named, lines[at], count=1)  # type: ignore[misc]
            elif not re.search(r"[*?\[$]", source):
                notes.append(
                    f"{original.name}, line {each.first}: {source} is not among the files of the Space, so it "
                    "cannot be built"
                )
    found = Dockerfile(found.name, tuple(lines))
    wanted = "true" if request.interface else "false"
    if _says(found, INTERFACE) != wanted:
        found = found.with_variable(INTERFACE, wanted)
    # Without it, a server would make a key of its own at every start, which only the Space's log tells.
    return found if _says(found, KEYS) else found.with_variable(KEYS, "none")


def _says(dockerfile: Dockerfile, variable: str) -> str | None:
    """What the last stage of a Dockerfile sets a variable to, as after an earlier push."""
    said = None
    for each in dockerfile.instructions():
        found = re.search(rf"\b{variable}[= ]\s*\"?([^\s\"]+)", each.text) if each.word == "ENV" else None
        said = None if each.word == "FROM" else found[1] if found else said
    return said


def _is_there(source: str, files: Mapping[str, Any]) -> bool:
    path = posixpath.normpath(source.strip("/"))
    return path == "." or path in files or any(name.startswith(f"{path}/") for name in files)


def _add_wheel(files: dict[str, Path | bytes], dockerfile: Dockerfile, notes: list[str]) -> bool:
    """Adds the openenv that runs here, if the image could not get it from an index."""
    own = fnmatch.filter(files, OWN_WHEELS)
    if own and _MARK not in _contents(files.get(".gitignore", b"")):  # it was not put there by a push
        return False
    looked_for = any("wheels" in each.text for each in dockerfile.instructions())
    with tempfile.TemporaryDirectory(prefix="openenv-push-") as folder:
        wheel = own_wheel(Path(folder)) if looked_for else None
        if wheel is None:
            return False
        for name in own:
            del files[name]
        files[f"wheels/{wheel.name}"] = wheel.read_bytes()
    notes.append(f"this openenv did not come from an index: wheels/{wheel.name} goes with it")
    # The Hub leaves out what `.gitignore` names, and the build of the Space what `.dockerignore` does.
    for ignore, lines in (
        (".gitignore", "!/wheels/\n!/wheels/*.whl\n"),
        (".dockerignore", "!wheels\n!wheels/*.whl\n"),
    ):
        text = _contents(files.get(ignore, b""))
        if _MARK not in text and (text or ignore == ".gitignore"):
            files[ignore] = text.rstrip(b"\n") + b"\n" * bool(text) + _MARK + lines.encode()
    return True


_MARK = b"# openenv push: the openenv that was not from an index\n"


def _contents(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()
