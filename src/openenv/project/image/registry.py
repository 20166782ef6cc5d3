"""Images that are pushed to a registry."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import LaunchFailed, ProviderBusy, ProviderFailed, UsageError
from ...providers.engine import connected, translated
from ...providers.secrecy import masked
from ..project import Project
from .names import image_name, plain, tag_of
from .streams import streamed
from .upload import PushProgress, Upload

__all__ = ["Pushed", "push_image", "remote_name"]

Report = Callable[[PushProgress], object]
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_HOME = "docker.io"


@dataclass(frozen=True, slots=True)
class _Hint:
    """What to do, by what registries and engines say.

    Attributes:
        words: Any of these are in it.
        advice: With HOST and REPOSITORY in place of the names.
        passing: Whether the same may succeed later.
    """

    words: tuple[str, ...]
    advice: str
    passing: bool = False


_HINTS = (
    _Hint(("credentials store", "docker-credential-"), "then push again"),
    _Hint(
        ("unauthorized", "authentication required", "no basic auth", "denied", "incorrect username", "forbidden"),
        "log in with `docker login HOST`, as somebody who may push to REPOSITORY",
    ),
    _Hint(
        ("http response to https",),
        "it speaks plain HTTP: name HOST in insecure-registries of the engine's daemon.json, and restart the engine",
    ),
    _Hint(("x509", "certificate", "tls:"), "give the engine its certificate: /etc/docker/certs.d/HOST/ca.crt"),
    _Hint(("toomanyrequests", "too many requests"), "try it later", passing=True),
    _Hint(
        ("refused", "no such host", "no route", "unreachable", "timeout", "timed out", "misbehaving", "eof", "reset"),
        "is HOST right, and does the engine reach it (`docker login HOST`)? If so, try it again",
        passing=True,
    ),
    _Hint(("unsupported", "read-only", "not allowed"), "it takes no images: give another --registry"),
    _Hint(("not found", "unknown"), "make REPOSITORY there first, or give another --registry"),
)


@dataclass(frozen=True, slots=True)
class Pushed:
    """An image at a registry.

    Attributes:
        name: Its name, with its tag.
        digest: Of its contents.
        layers: How many it has.
        there: How many of them were there before.
    """

    name: str
    digest: str
    layers: int
    there: int

    @property
    def reference(self) -> str:
        """The name of just these contents."""
        return f"{self.name.rpartition(':')[0]}@{self.digest}"


def remote_name(registry: str, project: Project, tag: str | None) -> str:
    """What the image of a project is called at a registry.

    Args:
        registry: HOST[:PORT][/NAMESPACE].
        project: The project.
        tag: The image's tag; None: the project's version.

    Raises:
        UsageError: It is no registry, or no tag.
    """
    if not _REGISTRY.fullmatch(registry):
        bare = registry.partition("://")[2].rstrip("/") or registry.rstrip("/")
        hint = f": write {bare}" if bare != registry and _REGISTRY.fullmatch(bare) else ""
        raise UsageError(f"--registry {masked(registry, ())} is none{hint or ': HOST/NAMESPACE, as docker.io/me'}")
    return image_name(f"{registry}/{plain(project.manifest.name)}:{tag or tag_of(project)}")


def push_image(image: str, name: str, report: Report = lambda _: None) -> Pushed:
    """Gives an image a name, and pushes it by that. Interrupted, it ends that at the engine, too.

    Args:
        image: An image of the engine's.
        name: Its name at the registry, with its tag.
        report: Told how far it is.

    Raises:
        UsageError: There is no such image here.
        ProviderFailed: The registry does not take it, or cannot be reached, or there is no engine.
    """
    upload = Upload()
    with contextlib.closing(connected()) as engine, _named(engine.api, image, name):
        _push(engine.api, name, upload, report)
    assert upload.digest is not None
    progress = upload.progress
    return Pushed(name, upload.digest, progress.layers, progress.there)


@contextlib.contextmanager
def _named(api: Any, image: str, name: str) -> Iterator[None]:
    """Gives an image a name, which it keeps only when it is pushed."""
    from docker.errors import DockerException, ImageNotFound

    with translated(f"naming {image}", {}):
        try:
            # Engines leave out the registry that they know best.
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


def _push(api: Any, name: str, upload: Upload, report: Report) -> None:
    repository, _, tag = name.rpartition(":")

    def ask() -> Any:
        return api.push(repository, tag=tag, stream=True, decode=True)

    try:
        with translated(f"pushing {name}", {}), streamed(api, ask) as events:
            for event in events:
                upload.note(event)
                if upload.progress.layers:
                    report(upload.progress)
    except LaunchFailed as error:
        raise _refused(name, error.message.partition("failed: ")[2]) from None
    if upload.failure is not None:
        raise _refused(name, masked(upload.failure, ()))
    if upload.digest is None:
        raise ProviderBusy(f"pushing {name} failed: the engine ended it, and says nothing; try it again")


def _refused(name: str, said: str) -> ProviderFailed:
    """What a refusal means, and what to do then."""
    reason = " ".join(said.split())
    repository = name.rpartition(":")[0]
    host = _host(repository)
    for hint in _HINTS:
        if any(word in reason.lower() for word in hint.words):
            kind = ProviderBusy if hint.passing else LaunchFailed
            advice = hint.advice.replace("HOST", host).replace("REPOSITORY", repository)
            return kind(f"pushing {name} failed: {reason}; {advice}")
    return LaunchFailed(f"pushing {name} failed: {reason}")


def _host(repository: str) -> str:
    first = repository.partition("/")[0]
    return first if "." in first or ":" in first or first == "localhost" else _HOME
