"""Static checks of a project's files. Nothing is executed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ...errors import NotAProject, OpenEnvError
from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning
from ..manifest import FILE_NAME, Project, remarks

_CONTINUED = re.compile(r"\\[ \t]*$")
_PORT_OPTION = re.compile(r"--port[\"',=\s]+(\d+)")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?:\]|):(\d+)")


class StageInstruction(NamedTuple):
    """One instruction.

    Attributes:
        line: Where it begins, from 1.
        name: In capitals.
        text: The rest, on one line.
    """

    line: int
    name: str
    text: str


@dataclass
class BuildStage:
    """One image of several that a file builds.

    Attributes:
        base: What it starts from.
        name: What it is called, if it has a name.
        instructions: Its own, and before them those of the stage that it starts from.
    """

    base: str
    name: str | None
    instructions: list[StageInstruction] = field(default_factory=list)

    def last(self, name: str) -> StageInstruction | None:
        """The last instruction of a name, which is the one that counts."""
        return next((each for each in reversed(self.instructions) if each.name == name), None)


class Dockerfile:
    """A Dockerfile.

    Args:
        text: Its contents.

    Attributes:
        stages: In their order; the last one is what is built.
    """

    def __init__(self, text: str):
        self.stages: list[BuildStage] = []
        named: dict[str, BuildStage] = {}
        for each in _stage_instructions(text):
            if each.name == "FROM":
                words = [word for word in each.text.split() if not word.startswith("--")]
                name = words[2].lower() if len(words) > 2 and words[1].upper() == "AS" else None
                base = words[0] if words else ""
                inherited = named.get(base.lower())
                stage = BuildStage(base, name, list(inherited.instructions) if inherited else [])
                self.stages.append(stage)
                if name is not None:
                    named[name] = stage
            elif self.stages:
                self.stages[-1].instructions.append(each)

    @property
    def final(self) -> BuildStage | None:
        """The image that is built; None for a file that builds none."""
        return self.stages[-1] if self.stages else None

    def ports(self) -> dict[str, tuple[int, int]]:
        """Ports that the final image names: by what names them, the port and the line."""
        found: dict[str, tuple[int, int]] = {}
        if self.final is None:
            return found
        for each in self.final.instructions:
            if each.name == "EXPOSE":
                for word in each.text.split():
                    number = word.partition("/")[0]
                    if number.isdigit():
                        found[f"EXPOSE {word}"] = (int(number), each.line)
        for name, pattern in (("CMD", _PORT_OPTION), ("ENTRYPOINT", _PORT_OPTION), ("HEALTHCHECK", _ADDRESS)):
            last = self.final.last(name)
            for number in pattern.findall(last.text) if last is not None else ():
                assert last is not None
                found[name] = (int(number), last.line)
        return found


def _stage_instructions(text: str) -> Iterator[StageInstruction]:
    began = 0
    parts: list[str] = []
    for line, written in enumerate(text.splitlines(), 1):
        if not written.strip() or written.lstrip().startswith("#"):  # within an instruction too
            continue
        began = began if parts else line
        parts.append(_CONTINUED.sub("", written).strip())
        if not _CONTINUED.search(written):
            yield _stage_instruction(began, parts)
            parts = []
    if parts:
        yield _stage_instruction(began, parts)


def _stage_instruction(line: int, parts: list[str]) -> StageInstruction:
    name, _, rest = " ".join(parts).partition(" ")
    return StageInstruction(line, name.upper(), rest.strip())


# What the Hub takes.
_COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_SHORT_DESCRIPTION = 60
_OURS = re.compile(r"openenv(-core)?\b", re.IGNORECASE)


@Check.of("static.manifest", "Is openenv.yaml valid?")
def static_manifest(place: Path) -> str:
    try:
        project = Project.find(place)
    except NotAProject:
        raise
    except OpenEnvError as error:
        raise CheckFailure(f"{error.message}.", f"correct {FILE_NAME}; the messages name the keys") from None
    manifest = project.manifest
    return (
        f"{manifest.name}, version {manifest.version or 'not given'}, serves {manifest.app} at port {manifest.port}"
    )


@Check.of("static.keys", "Do all keys of openenv.yaml have an effect?", "static.manifest")
def static_keys(place: Path) -> str:
    found = remarks(Project.find(place).manifest.path)
    if found:
        told = "; ".join(f"{each.place}: {each.saw}" for each in found)
        raise CheckWarning(f"{FILE_NAME}, {told}.", "; ".join(dict.fromkeys(each.mend for each in found)))
    return "none looks misspelt, and none is given twice"


@Check.of("static.package", "Can it be installed: pyproject.toml, and a dependency on openenv?", "static.manifest")
def static_package(place: Path) -> str:
    folder = Project.find(place).folder
    path = folder / "pyproject.toml"
    if not path.is_file():
        if (folder.parent / "__init__.py").is_file():
            raise CheckSkip(f"the folder is part of the package {folder.parent.name}, which is installed as a whole")
        raise CheckWarning(
            "there is no pyproject.toml: the environment cannot be installed.",
            "add one with [project] name, version and dependencies = ['openenv']",
        )
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise CheckFailure(
            f"pyproject.toml cannot be read: {error}.", "correct it: pip and uv refuse it too"
        ) from None
    if not isinstance(project, dict) or not project.get("name"):
        raise CheckFailure("pyproject.toml has no [project] name.", "give it one: it cannot be installed without")
    named = project.get("dependencies")
    wanted = [str(each) for each in named] if isinstance(named, list) else []
    if not any(_OURS.match(each) for each in wanted):
        raise CheckFailure(
            f"pyproject.toml does not depend on openenv; its dependencies are {', '.join(wanted) or 'none'}.",
            "add 'openenv' to [project] dependencies, or what imports it fails where it is installed",
        )
    return f"{project['name']}, which needs {', '.join(wanted)}"


@Check.of("static.dockerfile", "Is there a Dockerfile that starts something?", "static.manifest")
def static_dockerfile(place: Path) -> str:
    project = Project.find(place)
    path, file = _read_dockerfile(project)
    final = file.final
    if final is None:
        raise CheckFailure(f"{path} has no FROM.", "begin it with the image that it starts from")
    if final.last("CMD") is None and final.last("ENTRYPOINT") is None:
        raise CheckFailure(
            f"{path} has no CMD: the image does nothing when it is started.",
            'add CMD ["openenv", "serve", ".", "--host", "0.0.0.0", "--port", "8000"]',
        )
    return f"{path}: {len(file.stages)} stage{'s' if len(file.stages) > 1 else ''}, from {final.base}"


@Check.of("static.user", "Does the image not run as root?", "static.dockerfile")
def static_user(place: Path) -> str:
    path, file = _read_dockerfile(Project.find(place))
    user = file.final.last("USER") if file.final is not None else None
    if user is None:
        raise CheckWarning(
            f"{path} has no USER: the environment, and whatever an agent has it do, runs as root.",
            "add `RUN useradd --create-home --uid 1000 openenv` and `USER 1000` to the last stage",
        )
    name = user.text.partition(":")[0].strip()
    if name in {"root", "0"}:
        raise CheckFailure(
            f"{path}, line {user.line}: USER {user.text}: the environment runs as root.",
            "end with `USER 1000`, after what needs root",
        )
    return f"USER {user.text}"


@Check.of("static.healthcheck", "Does the image tell whether it is healthy?", "static.dockerfile")
def static_healthcheck(place: Path) -> str:
    path, file = _read_dockerfile(Project.find(place))
    check = file.final.last("HEALTHCHECK") if file.final is not None else None
    if check is None or check.text.strip().upper() == "NONE":
        raise CheckWarning(
            f"{path} has no HEALTHCHECK: nobody notices when the server hangs.",
            "add a HEALTHCHECK that asks http://127.0.0.1:PORT/ready",
        )
    return f"HEALTHCHECK {check.text[:60]}"


@Check.of("static.port", "Do Dockerfile and manifest say the same port?", "static.dockerfile")
def static_port(place: Path) -> str:
    project = Project.find(place)
    path, file = _read_dockerfile(project)
    ports = file.ports()
    for what, (port, line) in ports.items():
        exposed = [each for name, (each, _) in ports.items() if name.startswith("EXPOSE")]
        if what.startswith("EXPOSE") and project.manifest.port in exposed:
            continue  # one of several
        if port != project.manifest.port:
            raise CheckFailure(
                f"{path}, line {line}: {what.partition(' ')[0]} says port {port}, and {FILE_NAME} says "
                f"{project.manifest.port}.",
                "let both say the same: whoever starts the image connects to the port of the manifest",
            )
    return f"port {project.manifest.port}, {', '.join(ports) if ports else 'which nothing in it contradicts'}"


@Check.of("static.readme", "Has README.md the front matter that a Space of the Hub needs?", "static.manifest")
def static_readme(place: Path) -> str:
    project = Project.find(place)
    front = _front_matter(project)
    if front.get("sdk") != "docker":
        raise CheckFailure(
            f"README.md says sdk: {front.get('sdk')}.", "write `sdk: docker`: environments are images, for the Hub"
        )
    port = front.get("app_port", 7860)
    if port != project.manifest.port:
        raise CheckFailure(
            f"README.md says app_port: {front.get('app_port', 'nothing (7860)')}, and {FILE_NAME} says port "
            f"{project.manifest.port}.",
            f"write `app_port: {project.manifest.port}`",
        )
    for key in ("colorFrom", "colorTo"):
        if key in front and front[key] not in _COLORS:
            raise CheckFailure(
                f"README.md says {key}: {front[key]}.", f"use one of {', '.join(_COLORS)}: the Hub has no others"
            )
    short = str(front.get("short_description", ""))
    if len(short) > _SHORT_DESCRIPTION:
        raise CheckFailure(
            f"short_description has {len(short)} characters.", f"the Hub takes no more than {_SHORT_DESCRIPTION}"
        )
    for missing, why in (("title", "a Space has no name without it"), ("base_path", "a Space shows /web by it")):
        if not front.get(missing):
            raise CheckWarning(f"README.md has no {missing}.", f"add it: {why}")
    tags = front.get("tags")
    if not isinstance(tags, list) or "openenv" not in tags:
        raise CheckWarning(
            "README.md has no tag openenv.", "add it to `tags`: people find environments on the Hub by it"
        )
    return f"{front.get('title')}: sdk docker, app_port {port}, tags {', '.join(map(str, tags))}"


def _front_matter(project: Project) -> dict[str, Any]:
    """What stands between the two lines of --- at the top."""
    if project.readme is None:
        raise CheckWarning(
            "there is no README.md.", "write one: what the environment does, what its actions and observations are"
        )
    text = project.readme.read_text(encoding="utf-8", errors="replace")
    opening, _, rest = text.partition("\n")
    if opening.strip() != "---" or "\n---" not in f"\n{rest}":
        raise CheckWarning(  # trees of older style: `openenv push` writes it for them
            "README.md has no front matter.",
            "begin it with ---, title, sdk: docker, app_port, base_path, tags, and ---; `openenv push` does so too",
        )
    try:
        front = yaml.safe_load(f"\n{rest}".partition("\n---")[0])
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        said = f"the front matter of README.md{line} is no YAML: {getattr(error, 'problem', error)}."
        raise CheckFailure(said, "correct it: the Hub refuses it") from None
    if not isinstance(front, dict):
        raise CheckFailure(
            "the front matter of README.md has no keys.", "write title, sdk: docker, app_port, base_path, tags"
        )
    return front


def _read_dockerfile(project: Project) -> tuple[str, Dockerfile]:
    path = project.dockerfile
    if path is None:
        said = "there is no server/Dockerfile and no Dockerfile."
        raise CheckFailure(said, "write one, or take that of `openenv init`: `openenv build` and Spaces need it")
    return str(path.relative_to(project.folder)), Dockerfile(path.read_text(encoding="utf-8", errors="replace"))


CHECKS = (
    static_manifest,
    static_keys,
    static_package,
    static_dockerfile,
    static_user,
    static_healthcheck,
    static_port,
    static_readme,
)
