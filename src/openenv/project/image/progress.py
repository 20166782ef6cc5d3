"""Progress of builds and pushes, parsed from the engine's event streams."""

from __future__ import annotations

import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...providers.docker_engine import ImageLayer
from ...providers.dockerfile import Dockerfile
from ...providers.redaction import redact


@contextmanager
def engine_stream(api: Any, call: Callable[[], Any]) -> Iterator[Iterator[Mapping[str, Any]]]:
    """The messages of the engine in order. Leaving the block early cancels the request.

    Args:
        api: The SDK's API client.
        call: Sends the request, and returns the SDK's iterator of the answer.
    """
    answers: list[Any] = []

    def keep(answer: Any, *_: Any, **__: Any) -> None:
        answers.append(answer)

    api.hooks["response"].append(keep)
    try:
        # The time between two events has no limit.
        limit, api.timeout = api.timeout, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about a missing store of credentials: the call then fails anyway
                events = iter(call())
            yield events
        finally:
            api.timeout = limit
    finally:
        api.hooks["response"].remove(keep)
        # The SDK's iterators leave the connection open, so that the engine continues.
        for answer in answers:
            answer.close()


TAIL_LINES = 20
"""Lines of a step's output in an error."""
# Messages of Docker and of podman.
_STEP = re.compile(r"(?:\[\d+/\d+\] )?step (\d+)/(\d+) ?: ?(.*)", re.IGNORECASE)
_CACHED = re.compile(r" ?--+> Using cache")
_BUILT = re.compile(r"Successfully built (\S+)")
_NOISE = re.compile(r" ?--+> |[0-9a-f]{64}$|Removing intermediate container|Successfully (built|tagged)")
# Control sequences for colours and for the cursor.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(slots=True)
class BuildStep:
    """One instruction of a build.

    Attributes:
        number: Its number, from 1.
        text: The instruction.
        line: Its line in the Dockerfile, if known.
        cached: Whether the result is that of an earlier build.
        seconds: Duration in seconds. None while it runs.
    """

    number: int
    text: str
    line: int | None = None
    cached: bool = False
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic, repr=False)


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build.

    Attributes:
        step: The current instruction.
        total: Number of instructions.
        line: The latest line of output; "" when the step begins or ends.
        running: Whether it is known that the instruction is executed, not cached.
        ended: Whether the step has just ended.
    """

    step: BuildStep
    total: int
    line: str = ""
    running: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The failure of a build.

    Attributes:
        reason: The reason, in one line.
        step: Number of the failed instruction. 0 if the first one was not reached.
        text: The instruction.
        line: Its line in the Dockerfile, if known.
        log: The end of its output.
    """

    reason: str
    step: int = 0
    text: str = ""
    line: int | None = None
    log: tuple[str, ...] = ()


class BuildSteps:
    """The steps of one build.

    Args:
        dockerfile: The Dockerfile of the build.
        secrets: Strings to mask.

    Attributes:
        all: All steps so far, in order.
        total: Number of instructions.
        image: Id of the image, once it exists.
        failure: The failure of the build, if it failed.
        warnings: The warnings of the engine.
    """

    def __init__(self, dockerfile: Dockerfile, secrets: list[str]):
        self._instructions = dockerfile.instructions()
        self._next = 0
        self._secrets = secrets
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.all: list[BuildStep] = []
        self.total = len(self._instructions)
        self.image: str | None = None
        self.failure: BuildFailure | None = None
        self.warnings: list[str] = []

    def note(self, event: Mapping[str, Any]) -> list[BuildProgress]:
        """Handles one message of the engine; returns the progress to show."""
        if "error" in event or ("message" in event and "stream" not in event):
            self._fail(str(event.get("error") or event["message"]))
            return []
        if "aux" in event:
            self.image = (event["aux"] or {}).get("ID") or self.image
            return []
        if "status" in event:  # the pull of a base image
            line = f"{event['id']}: {event['status']}" if event.get("id") else str(event["status"])
            # Reports of fetched bytes are too frequent to keep.
            return self._shown(["" if event.get("progressDetail") else line])
        return [shown for line in str(event.get("stream", "")).splitlines() for shown in self._line(line)]

    def finish(self) -> list[BuildProgress]:
        """Ends the current step."""
        if not self.all or self.all[-1].seconds is not None:
            return []
        step = self.all[-1]
        step.seconds = time.monotonic() - step.began
        return [BuildProgress(step, self.total, ended=True)]

    def _line(self, raw: str) -> list[BuildProgress]:
        line = _CONTROL.sub("", raw).rstrip()
        found = _STEP.fullmatch(line)
        if found is not None:
            ended = self.finish()
            self.total = int(found[2])
            text = " ".join(found[3].split())
            # Search for the next instruction of that kind: some engines count each stage from 1, or leave out an ARG.
            word, place = text.partition(" ")[0].upper(), None
            for at in range(self._next, len(self._instructions)):
                if self._instructions[at].word == word:
                    self._next, place = at + 1, self._instructions[at].first
                    break
            self.all.append(BuildStep(int(found[1]), self._masked(text), place))
            self._tail.clear()
            return [*ended, BuildProgress(self.all[-1], self.total)]
        if line.startswith("[Warning]"):
            self.warnings.append(self._masked(line.removeprefix("[Warning]").strip()))
        elif _CACHED.match(line) and self.all:
            self.all[-1].cached = True
        elif line.startswith(" ---> Running in") and self.all:
            return [BuildProgress(self.all[-1], self.total, running=True)]
        elif built := _BUILT.fullmatch(line):
            self.image = self.image or built[1]
        return [] if _NOISE.match(line) else self._shown([line])

    def _shown(self, lines: list[str]) -> list[BuildProgress]:
        masked = [self._masked(line) for line in lines if line]
        self._tail.extend(masked)
        return [BuildProgress(self.all[-1], self.total, line, running=True) for line in masked if self.all]

    def _fail(self, said: str) -> None:
        reason = self._masked(_CONTROL.sub("", said).strip())
        ended = re.match(r"The command '.*' returned a non-zero code: (\d+)$", reason, re.DOTALL)
        if ended is not None:
            reason = f"the command ended with exit code {ended[1]}"
        step = self.all[-1] if self.all else None
        text = "" if step is None else step.text
        line = None if step is None else step.line
        named = re.search(r"(?:parse error|syntax error)[^\n]*?line (\d+)", reason, re.IGNORECASE)
        unknown = re.search(r"unknown instruction: (\S+)", reason)
        if named is not None:
            line = int(named[1])
        elif unknown is not None:
            line = next((each.first for each in self._instructions if each.word == unknown[1].upper()), None)
        self.failure = BuildFailure(reason, 0 if step is None else step.number, text, line, tuple(self._tail))

    def _masked(self, text: str) -> str:
        return redact(text, self._secrets)


_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")
_PRESENT = ("Layer already exists", "Mounted from")


@dataclass(frozen=True, slots=True)
class PushProgress:
    """Progress of a push.

    Attributes:
        layers: Number of layers, as far as known.
        done: Number of layers at the registry.
        there: Number of those that the registry already had.
        sent: Number of sent bytes.
        total: Number of bytes to send, as far as known.
    """

    layers: int = 0
    done: int = 0
    there: int = 0
    sent: int = 0
    total: int = 0


class ImageUpload:
    """The push of one image.

    Attributes:
        digest: Digest of the image, once the registry has it.
        failure: The registry's error, if the push failed.
    """

    def __init__(self) -> None:
        self.digest: str | None = None
        self.failure: str | None = None
        self._layers: dict[str, ImageLayer] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Handles one message of the engine."""
        if "error" in event or "message" in event:
            self.failure = str(event.get("error") or event["message"])
            return
        aux, status = event.get("aux") or {}, str(event.get("status", ""))
        said = _DIGEST.search(status)
        self.digest = aux.get("Digest") or (said[1] if said is not None else self.digest)
        if event.get("id") is None or said is not None or status.startswith("The push refers"):
            return
        layer = self._layers.setdefault(event["id"], ImageLayer())
        layer.there = layer.there or status.startswith(_PRESENT)
        layer.note(event, "Pushing", layer.there or status == "Pushed")

    @property
    def progress(self) -> PushProgress:
        """The current progress."""
        layers = self._layers.values()
        return PushProgress(
            layers=len(layers),
            done=sum(layer.done for layer in layers),
            there=sum(layer.there for layer in layers),
            sent=sum(layer.moved for layer in layers),
            total=sum(layer.total for layer in layers),
        )
