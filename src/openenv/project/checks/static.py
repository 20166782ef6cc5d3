"""Static checks: of a project's files, and of the names that its modules define."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ...client import EnvClient
from ...client.schema_check import declared_contract
from ...errors import NotAProject, OpenEnvError, UsageError
from ...protocol.contract import first_misfit
from ...protocol.json_schema import schema_of
from ...providers.dockerfile import Dockerfile
from ...testing.check import Check, CheckFailure, CheckSkip, CheckWarning
from ...testing.harness import ConformanceHarness
from .. import target as targets
from ..hub.files import Tree
from ..manifest import FILE_NAME, FrontMatter, Project, remarks

# Values that the Hub accepts.
_COLORS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")
_SHORT_DESCRIPTION = 60
# Folders of a package whose files belong in no wheel.
_NO_DATA = {"tests", "docs"}
_OURS = re.compile(r"openenv(-core)?\b", re.IGNORECASE)


@Check.of("static.manifest", "Is openenv.yaml valid?")
def static_manifest(place: Path) -> str:
    try:
        project = Project.find(place)
    except NotAProject:
        raise
    except OpenEnvError as error:
        raise CheckFailure(f"{error.message}.", f"fix the keys of {FILE_NAME} that the messages name") from None
    manifest = project.manifest
    return (
        f"{manifest.name}, version {manifest.version or 'not given'}, serves {manifest.app} at port {manifest.port}"
    )


@Check.of("static.keys", "Do all keys of openenv.yaml have an effect?", "static.manifest")
def static_keys(place: Path) -> str:
    found = remarks(Project.find(place).manifest.path)
    if found:
        saw = "; ".join(f"{each.place}: {each.saw}" for each in found)
        raise CheckWarning(f"{FILE_NAME}, {saw}.", "; ".join(dict.fromkeys(each.fix for each in found)))
    return "no misspelt and no duplicate keys"


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
        raise CheckFailure(f"pyproject.toml cannot be read: {error}.", "fix it: pip and uv refuse it too") from None
    if not isinstance(project, dict) or not project.get("name"):
        raise CheckFailure("pyproject.toml has no [project] name.", "add a name: pip needs it")
    named = project.get("dependencies")
    wanted = [str(each) for each in named] if isinstance(named, list) else []
    if not any(_OURS.match(each) for each in wanted):
        raise CheckFailure(
            f"pyproject.toml does not depend on openenv; its dependencies are {', '.join(wanted) or 'none'}.",
            "add 'openenv' to [project] dependencies, or imports of openenv fail where it is installed",
        )
    return f"{project['name']}, which needs {', '.join(wanted)}"


@Check.of("static.data", "Does its wheel have the data files that its code names?", "static.package")
def static_data(place: Path) -> str:
    folder = Project.find(place).folder
    path = folder / "pyproject.toml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        wheel = _Setuptools.model_validate(tomllib.loads(text).get("tool", {}).get("setuptools", {}))
    except (AttributeError, ValidationError):
        return "[tool.setuptools] of pyproject.toml has no list of packages to compare"
    if (folder / "MANIFEST.in").is_file() or re.search("setuptools.scm", text):
        return "MANIFEST.in or setuptools-scm chooses them"
    homes = {folder / wheel.folder_of(name): name for name in wheel.packages}
    packed = {
        home / file
        for home, name in homes.items()
        for pattern in (*wheel.package_data.get(name, ()), *wheel.package_data.get("*", ()))
        for file in glob(pattern, root_dir=home, recursive=True)  # noqa: PTH207 - as setuptools reads them
    }
    files = [folder / name for name in Tree(folder).files]
    modules = (file for file in files if file.suffix == ".py" and file.parent in homes)
    code = "".join(module.read_text(encoding="utf-8", errors="replace") for module in modules)
    named = {part for quoted in re.findall(r"""(["'])(.+?)\1""", code) for part in quoted[1].split("/")}
    for file in files:
        # Beside pyproject.toml are files of the project itself: its README, a plot of its rewards.
        if file.suffix == ".py" or file.parent == folder or file in packed:
            continue
        home = next((home for home in file.parents if home in homes), None)
        if home is None or not _NO_DATA.isdisjoint((inside := file.relative_to(home)).parts):
            continue
        part = next((part for part in inside.parts if part in named), None)
        if part is not None:
            pattern = inside.with_name(f"*{file.suffix}" if file.suffix else file.name).as_posix()
            raise CheckWarning(
                f"the code names {part}, but a wheel leaves {file.relative_to(folder)} out.",
                f"add {pattern!r} to {homes[home]} under [tool.setuptools.package-data] of pyproject.toml",
            )
    return f"{sum(file.is_file() for file in packed)} files beside the modules"


class _Setuptools(BaseModel):
    """[tool.setuptools] of a project that lists its packages."""

    packages: list[str]
    package_dir: dict[str, str] = Field({}, alias="package-dir")
    package_data: dict[str, list[str]] = Field({}, alias="package-data")

    def folder_of(self, package: str) -> PurePosixPath:
        """The folder of a package: its own, or that below the folder of its closest parent."""
        parent, below = package, PurePosixPath()
        while parent and parent not in self.package_dir:
            parent, _, name = parent.rpartition(".")
            below = name / below
        return self.package_dir.get(parent, "") / below


@Check.of("static.dockerfile", "Is there a Dockerfile that starts a server?", "static.manifest")
def static_dockerfile(place: Path) -> str:
    file = _dockerfile_of(Project.find(place))
    stages = file.stages()
    if not stages:
        raise CheckFailure(f"{file.name} has no FROM.", "begin it with the base image: FROM python:3.12-slim")
    if stages[-1].last("CMD") is None and stages[-1].last("ENTRYPOINT") is None:
        raise CheckFailure(
            f"{file.name} has no CMD: a container of the image starts no server.",
            'add CMD ["openenv", "serve", ".", "--host", "0.0.0.0", "--port", "8000"]',
        )
    return f"{file.name}: {len(stages)} stage{'s' if len(stages) > 1 else ''}, from {stages[-1].image}"


@Check.of("static.user", "Does the image not run as root?", "static.dockerfile")
def static_user(place: Path) -> str:
    file = _dockerfile_of(Project.find(place))
    user = file.stages()[-1].last("USER")
    if user is None:
        raise CheckWarning(
            f"{file.name} has no USER: the environment, and all code that an agent runs in it, runs as root.",
            "add `RUN useradd --create-home --uid 1000 openenv` and `USER 1000` to the last stage",
        )
    name = user.rest.partition(":")[0].strip()
    if name in {"root", "0"}:
        raise CheckFailure(
            f"{file.name}, line {user.first}: USER {user.rest}: the environment runs as root.",
            "end with `USER 1000`, after the instructions that need root",
        )
    return f"USER {user.rest}"


@Check.of("static.healthcheck", "Does the image have a health check?", "static.dockerfile")
def static_healthcheck(place: Path) -> str:
    file = _dockerfile_of(Project.find(place))
    check = file.stages()[-1].last("HEALTHCHECK")
    if check is None or check.rest.upper() == "NONE":
        raise CheckWarning(
            f"{file.name} has no HEALTHCHECK: the engine does not notice a server that hangs.",
            "add a HEALTHCHECK that requests http://127.0.0.1:PORT/ready",
        )
    return f"HEALTHCHECK {check.rest}"


@Check.of("static.port", "Do Dockerfile and manifest have the same port?", "static.dockerfile")
def static_port(place: Path) -> str:
    project = Project.find(place)
    file = _dockerfile_of(project)
    ports = file.ports()
    exposed = [port for name, (port, _) in ports.items() if name.startswith("EXPOSE")]
    for what, (port, line) in ports.items():
        if what.startswith("EXPOSE") and project.manifest.port in exposed:
            continue  # one of several
        if port != project.manifest.port:
            raise CheckFailure(
                f"{file.name}, line {line}: {what.partition(' ')[0]} has port {port}, but {FILE_NAME} has port "
                f"{project.manifest.port}.",
                f"use one port in both: launchers connect to the port of {FILE_NAME}",
            )
    return f"port {project.manifest.port}, {', '.join(ports) if ports else 'and no other port in the Dockerfile'}"


@Check.of("static.readme", "Does README.md have the front matter that a Space of the Hub needs?", "static.manifest")
def static_readme(place: Path) -> str:
    project = Project.find(place)
    front = _front_matter_of(project)
    if front.get("sdk") != "docker":
        raise CheckFailure(
            f"README.md has sdk: {front.get('sdk')}.", "write `sdk: docker`: Spaces of environments run an image"
        )
    port = front.get("app_port", 7860)
    if port != project.manifest.port:
        raise CheckFailure(
            f"README.md has app_port: {front.get('app_port', 'none (7860)')}, but {FILE_NAME} has port "
            f"{project.manifest.port}.",
            f"write `app_port: {project.manifest.port}`",
        )
    for key in ("colorFrom", "colorTo"):
        if key in front and front[key] not in _COLORS:
            raise CheckFailure(f"README.md has {key}: {front[key]}.", f"use a color of the Hub: {', '.join(_COLORS)}")
    short = str(front.get("short_description", ""))
    if len(short) > _SHORT_DESCRIPTION:
        raise CheckFailure(
            f"short_description has {len(short)} characters.", f"shorten it: the Hub allows {_SHORT_DESCRIPTION}"
        )
    for missing, why in (
        ("title", "the Space shows it as its name"),
        ("base_path", "it opens /web there"),
    ):
        if not front.get(missing):
            raise CheckWarning(f"README.md has no {missing}.", f"add it: {why}")
    tags = front.get("tags")
    if not isinstance(tags, list) or "openenv" not in tags:
        raise CheckWarning(
            "README.md has no tag openenv.", "add it to `tags`: searches for environments on the Hub use it"
        )
    return f"{front.get('title')}: sdk docker, app_port {port}, tags {', '.join(map(str, tags))}"


FILE_CHECKS = Check.all_in(globals())
"""The checks that only read files."""


def _front_matter_of(project: Project) -> Mapping[str, Any]:
    if project.readme is None:
        raise CheckWarning(
            "there is no README.md.", "write one: what the environment does, what its actions and observations are"
        )
    try:
        front = FrontMatter.read(project.readme.read_text(encoding="utf-8", errors="replace"))
    except UsageError as error:
        raise CheckFailure(f"{error.message}.", "fix it: the Hub refuses invalid front matter") from None
    if front.block is None:
        raise CheckWarning(  # trees of older style: `openenv push` writes it for them
            "README.md has no front matter.",
            "begin it with ---, title, sdk: docker, app_port, base_path, tags, and ---; `openenv push` adds it, too",
        )
    if not front.values:
        raise CheckFailure(
            "the front matter of README.md has no keys.", "write title, sdk: docker, app_port, base_path, tags"
        )
    return front.values


def _dockerfile_of(project: Project) -> Dockerfile:
    path = project.dockerfile
    if path is None:
        said = "there is no server/Dockerfile and no Dockerfile."
        raise CheckFailure(said, "write one (`openenv init` has an example): `openenv build` and Spaces need it")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return Dockerfile(str(path.relative_to(project.folder)), tuple(lines))


@dataclass
class EnvironmentUnderTest:
    """The checked environment, in the process that runs its code.

    Attributes:
        target: Argument of `openenv serve`.
        folder: Folder of the project, if the target is one.
        call_s: Maximum of seconds for one call.
        sessions: Number of concurrent sessions.
        episodes: Number of episodes that are played to measure the growth of memory.
    """

    target: str
    folder: Path | None
    call_s: float
    sessions: int
    episodes: int
    app: Any = field(default=None, init=False)

    def load(self) -> None:
        """Makes the app. Raises as `openenv.project.target.load`."""
        if self.app is None:
            self.app = targets.load(self.target)

    @cached_property
    def harness(self) -> ConformanceHarness:
        """The harness that plays its episodes. Raises CheckSkip."""
        return ConformanceHarness(self.app, call_s=self.call_s, sessions=self.sessions, episodes=self.episodes)


@Check.of("static.import", "Can the app be imported?")
def static_import(subject: EnvironmentUnderTest) -> str:
    try:
        subject.load()
    except OpenEnvError as error:
        raise CheckFailure(
            f"{' '.join(error.message.split())}.", "fix the error: `openenv serve` fails with it, too"
        ) from None
    except Exception as error:  # noqa: BLE001 - the edge to foreign code
        raise CheckFailure(f"creating the app raised {type(error).__name__}: {error}.", "fix the module") from None
    return f"{type(subject.app).__name__} of {subject.target}"


@Check.of("static.models", "Do action, observation and state have a JSON Schema?", "static.import")
def static_models(subject: EnvironmentUnderTest) -> str:
    server = subject.harness.server
    opaque = []
    for name, kind in (
        ("action", server.action_cls),
        ("observation", server.observation_cls),
        ("state", server.state_cls),
    ):
        schema = schema_of(kind)
        if schema is None:
            reason = "pydantic cannot generate it"
            try:
                TypeAdapter(kind).json_schema()
            except Exception as error:  # noqa: BLE001 - foreign code: types bring their own schema functions
                reason = str(error).partition("\n")[0]
            raise CheckFailure(
                f"the {name} {_named(kind)} has no JSON Schema: {reason}.",
                "declare its fields with types that JSON has: numbers, strings, lists, dicts, models, enums",
            )
        parts = {"": schema, **{f"{part}.": each for part, each in schema.get("$defs", {}).items()}}
        opaque += [
            f"{name}.{prefix}{field}"
            for prefix, part in parts.items()
            for field, each in part.get("properties", {}).items()
            if "'$comment': 'opaque'" in repr(each)
        ]
    unmade = [place for place in opaque if place.startswith("action.")]
    if unmade:
        raise CheckFailure(
            f"{', '.join(unmade)} cannot be converted to JSON, so clients cannot send it.",
            "use a type that JSON has; for arrays list[float], or a type that validates lists",
        )
    said = f"action {_named(server.action_cls)}, observation {_named(server.observation_cls)}"
    return f"{said}, state {_named(server.state_cls)}" + (f"; no schema: {', '.join(opaque)}" if opaque else "")


@Check.of("static.client", "Do the types of the client in client.py match the server's?", "static.models")
def static_client(subject: EnvironmentUnderTest) -> str:
    folder = subject.folder
    if folder is None:
        raise CheckSkip("the target is not a folder, so it has no client.py")
    project = Project.find(folder)
    reference = project.manifest.client
    module = reference.partition(":")[0] if reference is not None and ":" in reference else "client"
    if not (folder / f"{module.replace('.', '/')}.py").is_file():
        raise CheckSkip(f"there is no {module}.py: clients use GenericEnvClient")
    names = [module]  # preceded by the names of its parent packages
    package = folder
    while (package / "__init__.py").is_file():
        names.insert(0, package.name)
        package = package.parent
    try:
        found = targets.import_module(".".join(names), str(project.manifest.path))
    except OpenEnvError as error:
        raise CheckFailure(f"{' '.join(error.message.split())}.", f"correct {module}.py") from None
    classes = [each for each in vars(found).values() if inspect.isclass(each) and each.__module__ == found.__name__]
    clients = [each for each in classes if issubclass(each, EnvClient)]
    if not clients:
        said = f"{module}.py defines no subclass of EnvClient."
        raise CheckFailure(said, "write class MyEnv(EnvClient[MyAction, MyObservation, State])")
    for client in clients:
        misfit = first_misfit(declared_contract(client), subject.harness.server.contract)
        if misfit is not None:
            raise CheckFailure(
                f"{client.__name__} does not match the server: {misfit.sentence('in the client', 'on the server')}.",
                "import the models of both from the same module",
            )
    return f"the types of {', '.join(client.__name__ for client in clients)} match the server's"


def _named(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


IMPORT_CHECKS = (static_import, static_models, static_client)
"""The checks that import the modules of an environment without calling its functions."""
