"""Build the image of a project, with the engine of `DOCKER_HOST` or of this machine."""

from __future__ import annotations

import contextlib
import io
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...errors import ProviderBusy, UsageError
from ...providers.docker_engine import docker_client, docker_errors
from ...providers.dockerfile import BASE, Dockerfile
from ...providers.redaction import is_secret, secrets_of
from ..manifest import Project
from .progress import BuildFailure, BuildProgress, BuildStep, BuildSteps, engine_stream
from .registry import image_name, local_name
from .wheel import NAME, from_index, own_wheel

IGNORE_FILE = ".dockerignore"
WHEELS = "wheels"
# Default for folders without one: files that images do not need, and files that must not be in one.
_IGNORED = (".git", ".venv", "venv", ".env", "**/__pycache__", "**/*.pyc", "**/.*_cache")


@dataclass(frozen=True, slots=True)
class Context:
    """The files of a build.

    Attributes:
        folder: The folder of the files.
        files: Names of the sent files in their order, without those that `.dockerignore` excludes.
        added: Files that are sent in addition or instead, by name.
    """

    folder: Path
    files: tuple[str, ...]
    added: dict[str, bytes]

    @classmethod
    def of(cls, folder: Path, added: Mapping[str, bytes]) -> Context:
        """Lists the files of a folder.

        Args:
            folder: The folder.
            added: Files that are sent in addition, by name.

        Raises:
            UsageError: The folder or its `.dockerignore` cannot be read.
        """
        from docker.utils.build import exclude_paths

        if not folder.is_dir():
            raise UsageError(
                f"there is no folder {folder}: set the folder that the Dockerfile copies from with --context"
            )
        try:
            patterns = list(_IGNORED)
            if (folder / IGNORE_FILE).is_file():
                lines = [line.strip() for line in (folder / IGNORE_FILE).read_text(encoding="utf-8-sig").splitlines()]
                patterns = [line for line in lines if line and not line.startswith("#")]
            found = exclude_paths(str(folder), patterns)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{folder} cannot be read: {error}; exclude it in {IGNORE_FILE} if the image does not need it"
            ) from None
        return cls(folder, tuple(sorted(found)), dict(added))

    @property
    def wheels(self) -> list[str]:
        """Names of the wheels in the folder for wheels."""
        return [name for name in self.files if name.startswith(f"{WHEELS}/") and name.endswith(".whl")]

    def sizes(self) -> Counter[str]:
        """Bytes of each entry at the top of the folder."""
        sizes: Counter[str] = Counter()
        for name in self.files:
            path = self.folder / name
            if name not in self.added and path.is_file() and not path.is_symlink():
                sizes[name.partition("/")[0]] += path.stat().st_size
        for name, contents in self.added.items():
            sizes[name.partition("/")[0]] += len(contents)
        return sizes

    def write(self, file: IO[bytes]) -> None:
        """Writes the context as a tar file, with fixed owners.

        Raises:
            UsageError: A file cannot be read.
        """
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in self.files:
                if name in self.added:
                    continue
                path = self.folder / name
                try:
                    entry: Any = archive.gettarinfo(path, arcname=name)
                    if entry is None or not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
                        continue  # a socket or a device, which cannot be copied into an image
                    entry.uid = entry.gid = 0
                    entry.uname = entry.gname = ""
                    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
                    entry.mtime = int(max(entry.mtime, 0))
                    with path.open("rb") if entry.isfile() else contextlib.nullcontext() as source:
                        archive.addfile(entry, source)
                except OSError as error:
                    raise UsageError(
                        f"{path} cannot be read: {error.strerror}; exclude it in {IGNORE_FILE}, or make it readable"
                    ) from None
            for name, contents in self.added.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(contents), 0o644
                archive.addfile(entry, io.BytesIO(contents))


BuildCallback = Callable[[BuildProgress | str], object]
OUTSIDE = ".openenv.Dockerfile"
"""Name in the context for a Dockerfile from another folder."""
# Number of folders above a project that are searched for the files that its Dockerfile copies.
ABOVE = 3
# Bytes of a context above which a warning names its largest entry.
LARGE = 100_000_000
# Maximum of characters quoted from an instruction in an error.
SHOWN = 100
# Hints, by fragments of the engine's message.
_HINTS = (
    (
        ("no such file or directory", "file not found in build context", "forbidden path"),
        "; it copies from {context}: set another folder with --context",
    ),
    (("no space left on device",), "; free disk space: docker system prune"),
    (("requires buildkit", "buildkit is enabled"), "; leave it out, or build with `docker buildx build`"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """Options of a build.

    Attributes:
        tags: Names of the image. If empty, it gets the name of the project.
        context: The folder that the Dockerfile copies from. None for the project's folder.
        dockerfile: The Dockerfile. None for that of the context, or of the project.
        base_image: Base image that replaces that of the Dockerfile.
        cache: Whether to reuse the steps of earlier builds.
        arguments: Build arguments of the Dockerfile (ARG).
        platform: Platform such as `linux/amd64`. None for that of the engine.
        variables: Environment variables that are added to those of the Dockerfile.
    """

    tags: Sequence[str] = ()
    context: Path | None = None
    dockerfile: Path | None = None
    base_image: str | None = None
    cache: bool = True
    arguments: Mapping[str, str] = field(default_factory=dict, repr=False)  # secrets may be among them
    platform: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Built:
    """An image.

    Attributes:
        id: Its id at the engine.
        names: Its names, with tags.
        size: Size in bytes, including its base.
        seconds: Duration of the build, in seconds.
        steps: The executed steps, in order.
        base: The base image, as its Dockerfile names it.
        wheel: Name of the added wheel of openenv. None if openenv comes from an index or from the project.
        warnings: Warnings for the user.
    """

    id: str
    names: tuple[str, ...]
    size: int
    seconds: float
    steps: tuple[BuildStep, ...]
    base: str
    wheel: str | None
    warnings: tuple[str, ...]

    @property
    def executed(self) -> int:
        """Number of steps that were not cached. FROM and ARG do not count: engines report no cache for them."""
        return sum(not step.cached and not step.text.upper().startswith(("FROM ", "ARG ")) for step in self.steps)


def build(project: Project, request: BuildRequest, report: BuildCallback = lambda _: None) -> Built:
    """Builds the image of a project. An interruption also ends the build at the engine.

    Args:
        project: The project.
        request: Options of the build.
        report: Called with progress and each step.

    Raises:
        UsageError: The request is invalid, or the Dockerfile fails. The message has the line, and the end of its
            output.
        MissingExtra: The Docker SDK is not installed.
        ProviderFailed: No engine answers, or the engine cannot build at the moment.
    """
    order = _Build(project, request)
    with contextlib.closing(docker_client()) as engine:
        return order.run(engine, report)


class _Build:
    """One build. The constructor checks everything that needs no engine."""

    def __init__(self, project: Project, request: BuildRequest):
        self._request = request
        self._names = tuple(image_name(tag) for tag in request.tags or (local_name(project),))
        self._folder = (request.context or project.folder).resolve()
        path = _dockerfile(project, request, self._folder)
        if request.context is None:
            # The project's folder, or for older trees a folder above it with the files that the Dockerfile copies.
            sources = [source.lstrip("/") for source in Dockerfile.read(path).sources()]
            near = (project.folder, path.parent.resolve(), *project.folder.parents[:ABOVE])
            fitting = (each for each in near if all((each / source).exists() for source in sources))
            self._folder = next(fitting, project.folder)
        inside = path.is_relative_to(self._folder)
        self._place = path.relative_to(self._folder).as_posix() if inside else OUTSIDE
        dockerfile = Dockerfile.read(path, self._place if inside else str(path))
        if request.base_image is not None:
            if BASE in request.arguments:
                raise UsageError(f"the base image is given twice: leave out --base-image or --build-arg {BASE}")
            dockerfile = dockerfile.with_base(request.base_image)
        for name, value in request.variables.items():
            dockerfile = dockerfile.with_variable(name, value)
        self._dockerfile = dockerfile.for_any_engine()
        self._warnings: list[str] = []

    def run(self, engine: Any, report: BuildCallback) -> Built:
        began = time.monotonic()
        with tempfile.TemporaryFile(prefix="openenv-context-") as file:
            wheel = self._stage(file, report)
            steps = self._build(engine.api, file, report)
        assert steps.image is not None
        with docker_errors("naming the image", {}):
            for name in self._names[1:]:
                engine.api.tag(steps.image, *name.rsplit(":", 1))
            facts = engine.api.inspect_image(steps.image)
        return Built(
            id=facts["Id"],
            names=self._names,
            size=int(facts["Size"]),
            seconds=time.monotonic() - began,
            steps=tuple(steps.all),
            base=self._dockerfile.base,
            wheel=wheel,
            warnings=(*self._warnings, *steps.warnings),
        )

    def _stage(self, file: IO[bytes], report: BuildCallback) -> str | None:
        """Writes the context for the engine; returns the name of the wheel that was added."""
        context = Context.of(self._folder, {self._place: self._dockerfile.text.encode()})
        if self._place == OUTSIDE:  # the engine removes it before the first COPY
            ignores = self._folder / IGNORE_FILE
            before = ignores.read_bytes() if ignores.is_file() else b""
            context.added[IGNORE_FILE] = before + f"\n{OUTSIDE}\n{IGNORE_FILE}\n".encode()
        has_own = any(wheel.startswith(f"{WHEELS}/{NAME}-") for wheel in context.wheels)
        wheel = None if has_own else self._add_wheel(context.added, report)
        for argument, value in self._request.arguments.items():
            if is_secret(argument, value):
                self._warnings.append(
                    f"the build argument {argument} looks like a secret: it can be read in the layers of the build"
                )
        sizes = context.sizes()
        if sizes.total() > LARGE:
            name, size = sizes.most_common(1)[0]
            self._warnings.append(
                f"the context has {sizes.total() / 1e6:.0f} MB, of which {name} has {size / 1e6:.0f} MB: exclude "
                f"files that the image does not need in {IGNORE_FILE}"
            )
        for warning in self._warnings:
            report(f"warning: {warning}")
        context.write(file)
        report(f"sending {len(context.files)} files of {self._folder}, {file.tell() / 1e6:.1f} MB")
        file.seek(0)
        return wheel

    def _add_wheel(self, added: dict[str, bytes], report: BuildCallback) -> str | None:
        if WHEELS not in self._dockerfile.text:
            if not from_index():
                self._warnings.append(
                    f"{self._dockerfile.name} does not use the folder {WHEELS}/: the image installs {NAME} from an "
                    "index, not the one that runs here, which did not come from an index"
                )
            return None
        with tempfile.TemporaryDirectory(prefix="openenv-wheel-") as folder:
            wheel = own_wheel(Path(folder))
            if wheel is None:
                return None
            report(f"adding {wheel.name} of the {NAME} that runs here, which did not come from a package index")
            added[f"{WHEELS}/{wheel.name}"] = wheel.read_bytes()
            return wheel.name

    def _build(self, api: Any, file: IO[bytes], report: BuildCallback) -> BuildSteps:
        from docker.errors import APIError

        arguments = dict(self._request.arguments)
        steps = BuildSteps(self._dockerfile, secrets_of(arguments))

        def ask() -> Any:
            return api.build(
                fileobj=file,
                custom_context=True,
                dockerfile=self._place,
                tag=self._names[0],
                nocache=not self._request.cache,
                buildargs=arguments,
                platform=self._request.platform,
                rm=True,
                forcerm=True,
                decode=True,
            )

        with docker_errors("the build", arguments), engine_stream(api, ask) as events:
            try:
                for event in events:
                    for shown in steps.note(event):
                        report(shown)
            except APIError as error:  # such as an invalid Dockerfile
                if not error.is_client_error():
                    raise
                steps.note({"error": str(error.explanation or error)})
        if steps.failure is not None:
            raise self._failed(steps.failure, steps.total)
        if steps.image is None:
            raise ProviderBusy("the build failed: the engine ended it without a message; try it again")
        for shown in steps.finish():
            report(shown)
        return steps

    def _failed(self, failure: BuildFailure, total: int) -> UsageError:
        where = self._dockerfile.name + (f", line {failure.line}" if failure.line is not None else "")
        reason = failure.reason
        if failure.step:
            text = failure.text if len(failure.text) <= SHOWN else failure.text[: SHOWN - 3] + "..."
            reason = f"step {failure.step} of {total} (`{text}`) failed: {reason}"
        said, hint = failure.reason.lower(), ""
        if failure.text.upper().startswith("FROM "):
            hint = "; set another base image with --base-image"
        elif not failure.text.upper().startswith("RUN "):
            hint = next((hint for words, hint in _HINTS if any(word in said for word in words)), "")
        message = f"{where}: {reason}{hint.format(context=self._folder)}"
        if failure.log:
            message += "; the end of its output:\n" + "\n".join(f"  {line}" for line in failure.log)
        facts = {"dockerfile": self._dockerfile.name, "line": failure.line, "step": failure.step}
        return UsageError(message, data={**facts, "log": list(failure.log)})


def _dockerfile(project: Project, request: BuildRequest, folder: Path) -> Path:
    if request.dockerfile is not None:
        here = request.dockerfile.absolute()
        return here if here.exists() or request.dockerfile.is_absolute() else folder / request.dockerfile
    in_context = folder / "Dockerfile"
    found = in_context if request.context is not None and in_context.is_file() else project.dockerfile
    if found is None:
        raise UsageError(
            f"{project.folder} has no server/Dockerfile and no Dockerfile: set one with --dockerfile, or copy that "
            "of a new project (`openenv init NAME`)"
        )
    return found
