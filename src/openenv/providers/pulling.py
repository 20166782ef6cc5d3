"""Images that are fetched from their registry, and how far that has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..background import on_thread
from ..errors import LaunchFailed, ProviderBusy
from .engine import refused, translated
from .secrecy import masked, secrets_of

__all__ = ["PullProgress", "pull"]

logger = logging.getLogger("openenv.providers")
# Between two reports to the caller, and between two lines in the log.
REPORT_S, LOG_S = 0.25, 5.0
_DONE = {"Pull complete", "Already exists", "Download complete"}
_PASSING = ("timeout", "timed out", "eof", "connection", "unexpected http status: 5", "temporary", "unavailable")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far the fetching of an image has come.

    Attributes:
        image: Its name.
        layers: How many layers it has, as far as that is known.
        done: How many of them are here.
        received: Bytes of the layers that are here or on their way, as they are sent.
        total: How many there will be, as far as that is known: layers that wait for their turn tell nothing yet.
        finished: Whether the image is here.
    """

    image: str
    layers: int = 0
    done: int = 0
    received: int = 0
    total: int = 0
    finished: bool = False

    def __str__(self) -> str:
        if self.finished:
            return f"pulled {self.image}: {self.layers} layers, {self.total / 1e6:.1f} MB"
        sizes = f"{self.received / 1e6:.1f} of {self.total / 1e6:.1f} MB"
        return f"pulling {self.image}: {self.done} of {self.layers} layers, {sizes}"


Report = Callable[[PullProgress], object]


@dataclass(slots=True)
class _Layer:
    received: int = 0
    total: int = 0
    done: bool = False


@dataclass
class _Pull:
    """One image on its way. `run` blocks; `abandon` ends it from another thread."""

    engine: Any
    image: str
    platform: str | None
    report: Report | None
    secrets: list[str]
    layers: dict[str, _Layer] = field(default_factory=dict)
    over: bool = False
    reported: float = 0.0
    logged: float = 0.0

    def abandon(self) -> None:
        self.over = True

    def run(self) -> None:
        repository, tag = _split(self.image)
        # Events come as long as anything goes on: closing their stream ends the pull at the engine, too.
        events = self.engine.api.pull(repository, tag=tag, platform=self.platform, stream=True, decode=True)
        try:
            for event in events:
                if self.over:
                    return
                self._note(event)
                self._tell(finished=False)
        finally:
            events.close()
        self._tell(finished=True)

    def _note(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            detail = event.get("errorDetail") or {}
            raise _failure(self.image, masked(str(event["error"]), self.secrets), detail.get("code"))
        name, status = event.get("id"), str(event.get("status", ""))
        if name is None or status.startswith(("Pulling from", "Digest", "Status")):
            return
        layer = self.layers.setdefault(name, _Layer())
        layer.done = layer.done or status in _DONE
        if status == "Downloading":
            sizes = event.get("progressDetail") or {}
            layer.received = int(sizes.get("current") or 0)
            layer.total = max(int(sizes.get("total") or 0), layer.received)
        elif layer.done:
            layer.received = layer.total

    def _tell(self, finished: bool) -> None:
        now = time.monotonic()
        to_caller = self.report is not None and (finished or now - self.reported >= REPORT_S)
        to_log = finished or now - self.logged >= LOG_S
        if not (to_caller or to_log):
            return
        progress = self._progress(finished)
        if to_log:
            self.logged = now
            logger.info("%s", progress)
        if self.report is not None and to_caller:
            self.reported = now
            self.report(progress)

    def _progress(self, finished: bool) -> PullProgress:
        layers = self.layers.values()
        done = sum(layer.done for layer in layers)
        received, total = sum(layer.received for layer in layers), sum(layer.total for layer in layers)
        return PullProgress(self.image, len(layers), done, received, total, finished)


async def pull(
    engine: Any,
    image: str,
    platform: str | None = None,
    report: Report | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Fetches an image. May be cancelled, which ends it at the engine, too.

    Args:
        engine: A client of the SDK.
        image: Its name; without a tag, `latest`.
        platform: As in `linux/amd64`; None: the engine's.
        report: Told how far it has come, on another thread; what it raises ends the pull.
        variables: Environment variables, whose secrets no error repeats.

    Raises:
        LaunchFailed: There is no such image, or it may not be had.
        ProviderBusy: The registry has too much to do, or does not answer.
    """
    given = dict(variables or {})
    order = _Pull(engine, image, platform, report, secrets_of(given))

    def fetch() -> None:
        with translated(f"pulling {image}", given):
            order.run()

    # Nothing bounds the time between two events: it must keep no program from ending.
    await on_thread(fetch, order.abandon, detached=True)


def _failure(image: str, reason: str, code: object) -> LaunchFailed:
    """What a registry's refusal in the midst of a pull stands for. There, engines tell no status but in words."""
    what = f"pulling {image}"
    if any(word in reason.lower() for word in _PASSING):
        return ProviderBusy(f"{what} failed: {reason}")
    return refused(what, reason, code if isinstance(code, int) else 400)


def _split(image: str) -> tuple[str, str | None]:
    """An image's repository and tag; one that is named by its digest has no tag of its own."""
    if "@" in image:
        return image, None
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")
