"""The sandbox of a task: its Dockerfile built by Docker, or what it copies laid over this machine's programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any, Literal, get_args

from .._asyncio import on_thread
from ..agents import DockerSandbox, ProcessSandbox, Sandbox, SandboxLimits
from ..errors import UsageError
from ..providers.docker_engine import docker_client, docker_errors
from ..providers.dockerfile import Dockerfile, Instruction
from ..settings import variable_here
from .tasks import HarborTask

SandboxKind = Literal["process", "docker"]
SANDBOXES: tuple[SandboxKind, ...] = get_args(SandboxKind)
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
# Instructions that change nothing for the commands of a task.
_WITHOUT_EFFECT = {
    "FROM",
    "LABEL",
    "EXPOSE",
    "CMD",
    "ENTRYPOINT",
    "MAINTAINER",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "VOLUME",
}


@dataclass(slots=True)
class FileLayout:
    """What a Dockerfile that only copies files makes.

    Attributes:
        workdir: Its last WORKDIR.
        variables: Its ENV.
        copies: For each COPY the files by name, and the folder that they go into.
    """

    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[dict[str, Path], str]] = field(default_factory=list)


@asynccontextmanager
async def task_sandbox(
    task: HarborTask, kind: SandboxKind, allow: Sequence[str] = (), mounts: Sequence[Path] = ()
) -> AsyncIterator[Sandbox]:
    """A sandbox with the files of a task, without its tests and its solution.

    Args:
        task: The task.
        kind: `process`: no image is built; `docker`: its Dockerfile is built.
        allow: Addresses (`host:port`) that commands may connect to.
        mounts: Folders of this machine that commands see under the same path, and cannot change.

    Raises:
        UsageError: The task cannot run there, and why.
        LaunchFailed, ProviderFailed: The sandbox does not start.
    """
    variables = resolved(task.variables, task)
    limits = SandboxLimits(**({} if task.memory_mb is None else {"memory_mb": task.memory_mb}))
    options: dict[str, Any] = {"allow": allow, "mounts": mounts, "limits": limits}
    if kind == "docker":
        image, workdir = await task_image(task)
        async with DockerSandbox(image, workdir=workdir, variables=variables, **options) as sandbox:
            yield sandbox
        return
    layout = layout_of(task)
    workdir = task.workdir or layout.workdir
    async with ProcessSandbox(workdir=workdir, variables={**layout.variables, **variables}, **options) as sandbox:
        for files, folder in layout.copies:
            await sandbox.put(files, folder)
        yield sandbox


def resolved(variables: Mapping[str, str], task: HarborTask) -> dict[str, str]:
    """Environment variables with the values of this process in place of `${NAME}` and `${NAME:-default}`.

    Raises:
        UsageError: One without a default is not set here.
    """

    def value(found: re.Match[str]) -> str:
        given = variable_here(found[1])
        if given is None and found[2] is None:
            raise UsageError(f"task {task.name} takes ${{{found[1]}}} from this process: set {found[1]}")
        return found[2] if given is None else given

    return {name: _VARIABLE.sub(value, text) for name, text in variables.items()}


def layout_of(task: HarborTask) -> FileLayout:
    """What the Dockerfile of a task makes.

    Raises:
        UsageError: It does more than copy files, so the task needs Docker.
    """
    path = task.context / "Dockerfile"
    if task.image is not None or not path.is_file():
        what = f"its image {task.image} is not" if task.image else "it has no Dockerfile, so it has no files that are"
        raise UsageError(
            f"task {task.name} does not run in the process sandbox: {what} here; choose the sandbox docker"
        )
    layout = FileLayout()
    arguments: dict[str, str] = {}
    stages = Dockerfile.read(path).stages()
    instructions = stages[-1].instructions
    for each in instructions:
        rest = (
            each.rest
            if each.word in {"ENV", "ARG"}
            else Template(each.rest).safe_substitute({**arguments, **layout.variables})
        )
        match each.word:
            case "WORKDIR":
                layout.workdir = str(PurePosixPath(layout.workdir, rest))
            case "ENV" | "ARG":
                known = {**arguments, **layout.variables}
                (layout.variables if each.word == "ENV" else arguments).update(_assignments(rest, known))
            case "COPY" | "ADD" if "--from=" not in rest and "://" not in rest and "<<" not in rest:
                layout.copies.append(_copied(task, each, rest, layout.workdir))
            case "USER" if rest in {"root", "0"}:
                pass
            case word if word not in _WITHOUT_EFFECT:
                raise UsageError(
                    f"task {task.name} does not run in the process sandbox: line {each.first} of its Dockerfile is "
                    f"`{each.text[:80]}`, and only files are copied there; choose the sandbox docker"
                )
    return layout


def _assignments(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """The variables of an ENV or ARG."""
    words = shlex.split(Template(text).safe_substitute(known))
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.partition("=")[::2] for word in words)


def _copied(task: HarborTask, each: Instruction, rest: str, workdir: str) -> tuple[dict[str, Path], str]:
    """The files of a COPY, and the folder that they go into."""
    words = [word.strip('[]",') for word in rest.split() if not word.startswith("--")]
    *sources, last = words if len(words) > 1 else (*words, ".")
    target = PurePosixPath(workdir, last)
    context = task.context.resolve()
    found = {path: None for source in sources for path in _matches(context, source)}
    if not found:
        raise UsageError(
            f"task {task.name}: line {each.first} of its Dockerfile copies {sources}, which are not there"
        )
    files: dict[str, Path] = {}
    for path in found:
        if not path.resolve().is_relative_to(context):
            raise UsageError(f"task {task.name}: line {each.first} of its Dockerfile copies {path} from elsewhere")
        inner = sorted(path.rglob("*")) if path.is_dir() else [path]
        base = path if path.is_dir() else path.parent
        files |= {
            file.relative_to(base).as_posix(): file.resolve()
            for file in inner
            if file.is_file() and file.resolve().is_relative_to(context)
        }
    is_file = len(found) == 1 and all(path.is_file() for path in found)
    if is_file and not last.endswith("/") and last not in {".", ".."} and str(target) != workdir:
        return dict.fromkeys([target.name], *files.values()), str(target.parent)
    return files, str(target)


def _matches(context: Path, source: str) -> list[Path]:
    name = source.lstrip("/")
    return [context] if name in {"", ".", "./"} else sorted(context.glob(name))


async def task_image(task: HarborTask) -> tuple[str, str]:
    """The image of a task (its ready one, or its Dockerfile, built), and the folder in which its commands start.

    Raises:
        UsageError: The task has neither.
        MissingExtra, ProviderFailed: There is no engine, or it cannot build or pull the image.
    """
    if task.image is None and not (task.context / "Dockerfile").is_file():
        raise UsageError(f"task {task.name} has no image: add {task.context.name}/Dockerfile, or name a docker_image")

    def build() -> tuple[str, str]:
        what = f"pulling {task.image}" if task.image else "building its image"
        with docker_errors(f"task {task.name}: {what}", {}):
            images = docker_client().images
            if task.image is None:
                image, _ = images.build(path=str(task.context), rm=True, timeout=int(task.build_timeout_s))
            elif any(task.image in each.tags for each in images.list(task.image)):
                image = images.get(task.image)
            else:
                image = images.pull(task.image)
        return str(image.id), task.workdir or image.attrs["Config"]["WorkingDir"] or "/"

    return await on_thread(build)
