"""Distributions as installers leave them: a package, and a folder that says what was installed."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["CLIENT", "INIT", "MODELS", "files_of", "install", "metadata_of", "wheel"]

INIT = "from .client import MazeEnv\nfrom .models import MazeAction, MazeObservation\n"
MODELS = """
from openenv.core.env_server.types import Action, Observation


class MazeAction(Action):
    go: str


class MazeObservation(Observation):
    room: int = 0
"""
CLIENT = """
from openenv.core.env_client import EnvClient
from openenv.core.env_server.types import State

from .models import MazeAction, MazeObservation


class MazeEnv(EnvClient[MazeAction, MazeObservation, State]):
    pass
"""
MANIFEST = "spec_version: 1\nname: {package}\ntype: space\nruntime: fastapi\napp: server.app:app\nport: 8000\n"


def files_of(package: str = "maze_env", **files: str | None) -> dict[str, str]:
    """What a whole environment has; a keyword replaces a file, or leaves it out."""
    whole: dict[str, str | None] = {
        "__init__": INIT,
        "client": CLIENT,
        "models": MODELS,
        "manifest": MANIFEST.format(package=package),
        **files,
    }
    names = {"manifest": "openenv.yaml"}
    return {names.get(name, f"{name}.py"): text for name, text in whole.items() if text is not None}


def metadata_of(name: str, version: str = "0.1.0", summary: str = "A maze") -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"


def install(
    site: Path,
    name: str = "openenv-maze_env",
    package: str = "maze_env",
    files: Mapping[str, str] | None = None,
    *,
    version: str = "0.1.0",
    project: Path | None = None,
    record: bool = True,
    top_level: bool = False,
    origin: Mapping[str, object] | None = None,
) -> Path:
    """Writes a distribution into a folder of the search path, whose time then tells of it.

    Args:
        site: That folder.
        name: Of the distribution.
        package: Its import name.
        files: Of the package; those of a maze by default.
        version: Of the distribution.
        project: Where its package is instead, as for an editable installation.
        record: Whether it has the list of its files.
        top_level: Whether it says which packages it has.
        origin: What it says of where it is from.

    Returns:
        Where the package is.
    """
    folder = (project or site) / package
    folder.mkdir(parents=True)
    for file, text in (files_of(package) if files is None else files).items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(metadata_of(name, version))
    if record:
        listed = [] if project else sorted(each.relative_to(site).as_posix() for each in folder.rglob("*.*"))
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*listed, f"{info.name}/METADATA"]))
    if top_level:
        (info / "top_level.txt").write_text(f"{package}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return folder


def wheel(folder: Path, name: str = "openenv_maze_env", package: str = "maze_env", version: str = "0.1.0") -> Path:
    """A wheel that any installer takes."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    contents = {f"{package}/{file}": text for file, text in files_of(package).items()}
    contents[f"{info}/METADATA"] = metadata_of(name, version)
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{file},sha256={_digest(text)},{len(text.encode())}" for file, text in contents.items()]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
