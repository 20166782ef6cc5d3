"""Image names, and pushing an image to a registry."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import LaunchFailed, ProviderBusy, ProviderFailed, UsageError
from ...providers.docker_engine import docker_client, docker_errors
from ...providers.redaction import redact
from ..manifest import Project
from .progress import ImageUpload, PushProgress, engine_stream

LOCAL = "openenv-"
"""The prefix of image names for this machine."""
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")


def image_word(name: str) -> str:
    """The name of a project as a valid name of an image."""
    word = re.sub(r"[^a-z0-9_.-]+", "-", name.lower())
    word = re.sub(r"[-._]*-[-._]*|\.[._]+|_[.]+|_{3,}", "-", word).strip("-._")
    if not word:
        raise UsageError(f"`name: {name}` of openenv.yaml cannot be the name of an image: set one with --tag")
    return word


def local_name(project: Project) -> str:
    """The default name of a project's image."""
    return LOCAL + image_word(project.manifest.name)


def image_name(text: str) -> str:
    """A valid name of an image, with a tag.

    Raises:
        UsageError: It cannot be the name of an image.
    """
    if not _NAME.fullmatch(text):
        lower = text.lower()
        hint = f"write {lower}" if _NAME.fullmatch(lower) else "write NAME[:TAG] in lowercase, such as my-env:1.0"
        raise UsageError(f"{text!r} is not a valid image name: {hint}")
    return text if ":" in text.rpartition("/")[2] else f"{text}:latest"


def tag_of(project: Project) -> str:
    """The tag of a project's image: its version."""
    version = re.sub(r"[^A-Za-z0-9_.-]+", "-", project.manifest.version or "")[:128].lstrip(".-")
    return version or "latest"


_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_HOME = "docker.io"


# Hints, by fragments of the messages of registries and engines. HOST and REPOSITORY are placeholders.
_HINTS: tuple[tuple[tuple[str, ...], str, type[ProviderFailed]], ...] = (
    (("credentials store", "docker-credential-"), "then push again", LaunchFailed),
    (
        ("unauthorized", "authentication required", "no basic auth", "denied", "incorrect username", "forbidden"),
        "run `docker login HOST` with an account that may push to REPOSITORY",
        LaunchFailed,
    ),
    (
        ("http response to https",),
        "it uses plain HTTP: add HOST to insecure-registries in the engine's daemon.json, and restart the engine",
        LaunchFailed,
    ),
    (
        ("x509", "certificate", "tls:"),
        "install its certificate for the engine: /etc/docker/certs.d/HOST/ca.crt",
        LaunchFailed,
    ),
    (("toomanyrequests", "too many requests"), "try again later", ProviderBusy),
    (
        ("refused", "no such host", "no route", "unreachable", "timeout", "timed out", "misbehaving", "eof", "reset"),
        "check HOST, and whether the engine reaches it (`docker login HOST`), then try again",
        ProviderBusy,
    ),
    (("unsupported", "read-only", "not allowed"), "it does not accept images: set another --registry", LaunchFailed),
    (("not found", "unknown"), "create REPOSITORY there first, or set another --registry", LaunchFailed),
)


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image at a registry.

    Attributes:
        name: Its name, with its tag.
        digest: Digest of its contents.
        layers: Number of layers.
        there: Number of layers that the registry already had.
    """

    name: str
    digest: str
    layers: int
    there: int

    @property
    def reference(self) -> str:
        """Its name with the digest, which always means these contents."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}"


def remote_name(registry: str, project: Project, tag: str | None) -> str:
    """The name of a project's image at a registry.

    Args:
        registry: Registry as HOST[:PORT][/NAMESPACE].
        project: The project.
        tag: The image's tag. None for the project's version.

    Raises:
        UsageError: The registry or the tag is invalid.
    """
    if not _REGISTRY.fullmatch(registry):
        bare = registry.partition("://")[2].rstrip("/") or registry.rstrip("/")
        hint = f": write {bare}" if bare != registry and _REGISTRY.fullmatch(bare) else ""
        raise UsageError(
            f"--registry {redact(registry, ())} is invalid{hint or ': write HOST/NAMESPACE, such as docker.io/me'}"
        )
    return image_name(f"{registry}/{image_word(project.manifest.name)}:{tag or tag_of(project)}")


def push_image(image: str, name: str, report: Callable[[PushProgress], object] = lambda _: None) -> Pushed:
    """Pushes an image under a name. An interruption also ends the push at the engine.

    Args:
        image: Name of an image at the engine.
        name: Its name at the registry, with its tag.
        report: Called with the progress.

    Raises:
        UsageError: The engine does not have the image.
        ProviderFailed: The registry refuses it or cannot be reached, or no engine answers.
    """
    upload = ImageUpload()
    repository, _, tag = name.rpartition(":")
    with contextlib.closing(docker_client()) as engine, _temporary_name(engine.api, image, name):

        def ask() -> Any:
            return engine.api.push(repository, tag=tag, stream=True, decode=True)

        try:
            with docker_errors(f"pushing {name}", {}), engine_stream(engine.api, ask) as events:
                for event in events:
                    upload.note(event)
                    if upload.progress.layers:
                        report(upload.progress)
        except LaunchFailed as error:
            raise _push_error(name, error.message.partition("failed: ")[2]) from None
        if upload.failure is not None:
            raise _push_error(name, redact(upload.failure, ()))
        if upload.digest is None:
            raise ProviderBusy(f"pushing {name} failed: the engine ended it without a message; try it again")
    progress = upload.progress
    return Pushed(name, upload.digest, progress.layers, progress.there)


@contextlib.contextmanager
def _temporary_name(api: Any, image: str, name: str) -> Iterator[None]:
    """Gives an image a name, and removes the name if the push fails."""
    from docker.errors import DockerException, ImageNotFound

    with docker_errors(f"naming {image}", {}):
        try:
            # Engines leave out their default registry.
            known = name.removeprefix(f"{_HOME}/") in (api.inspect_image(image)["RepoTags"] or ())
        except ImageNotFound:
            raise UsageError(f"there is no image {image} here: build it with `openenv build -t {image}`") from None
        api.tag(image, *name.rsplit(":", 1))
    try:
        yield
    except BaseException:
        if not known:
            with contextlib.suppress(DockerException):
                api.remove_image(name, noprune=True)
        raise


def _push_error(name: str, said: str) -> ProviderFailed:
    """The error for a failed push, with a hint."""
    reason = " ".join(said.split())
    repository = name.rpartition(":")[0]
    first = repository.partition("/")[0]
    host = first if "." in first or ":" in first or first == "localhost" else _HOME
    for words, hint, kind in _HINTS:
        if any(word in reason.lower() for word in words):
            advice = hint.replace("HOST", host).replace("REPOSITORY", repository)
            return kind(f"pushing {name} failed: {reason}; {advice}")
    return LaunchFailed(f"pushing {name} failed: {reason}")
