"""What can be seen in a project's files without running any of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from ...errors import NotAProject, OpenEnvError
from ...testing.probe import CannotTell, Doubt, Fault, Probe
from ..manifest import FILE_NAME, remarks
from ..project import Project
from .dockerfile import Dockerfile

__all__ = ["PROBES"]

# What the Hub takes.
_COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_SHORT_DESCRIPTION = 60
_OURS = re.compile(r"openenv(-core)?\b", re.IGNORECASE)


def _manifest(place: Path) -> str:
    try:
        project = Project.find(place)
    except NotAProject:
        raise
    except OpenEnvError as error:
        raise Fault(f"{error.message}.", f"correct {FILE_NAME}; the messages name the keys") from None
    manifest = project.manifest
    return (
        f"{manifest.name}, version {manifest.version or 'not given'}, serves {manifest.app} at port {manifest.port}"
    )


def _keys(place: Path) -> str:
    found = remarks(Project.find(place).manifest.path)
    if found:
        told = "; ".join(f"{each.place}: {each.saw}" for each in found)
        raise Doubt(f"{FILE_NAME}, {told}.", "; ".join(dict.fromkeys(each.mend for each in found)))
    return "none looks misspelt, and none is given twice"


def _package(place: Path) -> str:
    folder = Project.find(place).folder
    path = folder / "pyproject.toml"
    if not path.is_file():
        if (folder.parent / "__init__.py").is_file():
            raise CannotTell(f"the folder is part of the package {folder.parent.name}, which is installed as a whole")
        raise Doubt(
            "there is no pyproject.toml: the environment cannot be installed.",
            "add one with [project] name, version and dependencies = ['openenv']",
        )
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise Fault(f"pyproject.toml cannot be read: {error}.", "correct it: pip and uv refuse it too") from None
    if not isinstance(project, dict) or not project.get("name"):
        raise Fault("pyproject.toml has no [project] name.", "give it one: it cannot be installed without")
    named = project.get("dependencies")
    wanted = [str(each) for each in named] if isinstance(named, list) else []
    if not any(_OURS.match(each) for each in wanted):
        raise Fault(
            f"pyproject.toml does not depend on openenv; its dependencies are {', '.join(wanted) or 'none'}.",
            "add 'openenv' to [project] dependencies, or what imports it fails where it is installed",
        )
    return f"{project['name']}, which needs {', '.join(wanted)}"


def _dockerfile(place: Path) -> str:
    project = Project.find(place)
    path, file = _read_dockerfile(project)
    final = file.final
    if final is None:
        raise Fault(f"{path} has no FROM.", "begin it with the image that it starts from")
    if final.last("CMD") is None and final.last("ENTRYPOINT") is None:
        raise Fault(
            f"{path} has no CMD: the image does nothing when it is started.",
            'add CMD ["openenv", "serve", ".", "--host", "0.0.0.0", "--port", "8000"]',
        )
    return f"{path}: {len(file.stages)} stage{'s' if len(file.stages) > 1 else ''}, from {final.base}"


def _user(place: Path) -> str:
    path, file = _read_dockerfile(Project.find(place))
    user = file.final.last("USER") if file.final is not None else None
    if user is None:
        raise Doubt(
            f"{path} has no USER: the environment, and whatever an agent has it do, runs as root.",
            "add `RUN useradd --create-home --uid 1000 openenv` and `USER 1000` to the last stage",
        )
    name = user.text.partition(":")[0].strip()
    if name in {"root", "0"}:
        raise Fault(
            f"{path}, line {user.line}: USER {user.text}: the environment runs as root.",
            "end with `USER 1000`, after what needs root",
        )
    return f"USER {user.text}"


def _healthcheck(place: Path) -> str:
    path, file = _read_dockerfile(Project.find(place))
    check = file.final.last("HEALTHCHECK") if file.final is not None else None
    if check is None or check.text.strip().upper() == "NONE":
        raise Doubt(
            f"{path} has no HEALTHCHECK: nobody notices when the server hangs.",
            "add a HEALTHCHECK that asks http://127.0.0.1:PORT/ready",
        )
    return f"HEALTHCHECK {check.text[:60]}"


def _port(place: Path) -> str:
    project = Project.find(place)
    path, file = _read_dockerfile(project)
    ports = file.ports()
    for what, (port, line) in ports.items():
        exposed = [each for name, (each, _) in ports.items() if name.startswith("EXPOSE")]
        if what.startswith("EXPOSE") and project.manifest.port in exposed:
            continue  # one of several
        if port != project.manifest.port:
            raise Fault(
                f"{path}, line {line}: {what.partition(' ')[0]} says port {port}, and {FILE_NAME} says "
                f"{project.manifest.port}.",
                "let both say the same: whoever starts the image connects to the port of the manifest",
            )
    return f"port {project.manifest.port}, {', '.join(ports) if ports else 'which nothing in it contradicts'}"


def _readme(place: Path) -> str:
    project = Project.find(place)
    front = _front_matter(project)
    if front.get("sdk") != "docker":
        raise Fault(
            f"README.md says sdk: {front.get('sdk')}.", "write `sdk: docker`: environments are images, for the Hub"
        )
    port = front.get("app_port", 7860)
    if port != project.manifest.port:
        raise Fault(
            f"README.md says app_port: {front.get('app_port', 'nothing (7860)')}, and {FILE_NAME} says port "
            f"{project.manifest.port}.",
            f"write `app_port: {project.manifest.port}`",
        )
    for key in ("colorFrom", "colorTo"):
        if key in front and front[key] not in _COLORS:
            raise Fault(
                f"README.md says {key}: {front[key]}.", f"use one of {', '.join(_COLORS)}: the Hub has no others"
            )
    short = str(front.get("short_description", ""))
    if len(short) > _SHORT_DESCRIPTION:
        raise Fault(
            f"short_description has {len(short)} characters.", f"the Hub takes no more than {_SHORT_DESCRIPTION}"
        )
    for missing, why in (("title", "a Space has no name without it"), ("base_path", "a Space shows /web by it")):
        if not front.get(missing):
            raise Doubt(f"README.md has no {missing}.", f"add it: {why}")
    tags = front.get("tags")
    if not isinstance(tags, list) or "openenv" not in tags:
        raise Doubt("README.md has no tag openenv.", "add it to `tags`: people find environments on the Hub by it")
    return f"{front.get('title')}: sdk docker, app_port {port}, tags {', '.join(map(str, tags))}"


def _front_matter(project: Project) -> dict[str, Any]:
    """What stands between the two lines of --- at the top."""
    if project.readme is None:
        raise Doubt(
            "there is no README.md.", "write one: what the environment does, what its actions and observations are"
        )
    text = project.readme.read_text(encoding="utf-8", errors="replace")
    opening, _, rest = text.partition("\n")
    if opening.strip() != "---" or "\n---" not in f"\n{rest}":
        raise Doubt(  # trees of older style: `openenv push` writes it for them
            "README.md has no front matter.",
            "begin it with ---, title, sdk: docker, app_port, base_path, tags, and ---; `openenv push` does so too",
        )
    try:
        front = yaml.safe_load(f"\n{rest}".partition("\n---")[0])
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        said = f"the front matter of README.md{line} is no YAML: {getattr(error, 'problem', error)}."
        raise Fault(said, "correct it: the Hub refuses it") from None
    if not isinstance(front, dict):
        raise Fault(
            "the front matter of README.md has no keys.", "write title, sdk: docker, app_port, base_path, tags"
        )
    return front


def _read_dockerfile(project: Project) -> tuple[str, Dockerfile]:
    path = project.dockerfile
    if path is None:
        said = "there is no server/Dockerfile and no Dockerfile."
        raise Fault(said, "write one, or take that of `openenv init`: `openenv build` and Spaces need it")
    return str(path.relative_to(project.folder)), Dockerfile(path.read_text(encoding="utf-8", errors="replace"))


_OF_DOCKERFILE = ("static.dockerfile",)
PROBES = (
    Probe("static.manifest", "Is openenv.yaml valid?", _manifest),
    Probe("static.keys", "Do all keys of openenv.yaml have an effect?", _keys, ("static.manifest",)),
    Probe(
        "static.package",
        "Can it be installed: pyproject.toml, and a dependency on openenv?",
        _package,
        ("static.manifest",),
    ),
    Probe("static.dockerfile", "Is there a Dockerfile that starts something?", _dockerfile, ("static.manifest",)),
    Probe("static.user", "Does the image not run as root?", _user, _OF_DOCKERFILE),
    Probe("static.healthcheck", "Does the image tell whether it is healthy?", _healthcheck, _OF_DOCKERFILE),
    Probe("static.port", "Do Dockerfile and manifest say the same port?", _port, _OF_DOCKERFILE),
    Probe(
        "static.readme",
        "Has README.md the front matter that a Space of the Hub needs?",
        _readme,
        ("static.manifest",),
    ),
)
