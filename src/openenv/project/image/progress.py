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

from ...providers.redaction import redact
from ..dockerfile import Dockerfile


@contextmanager
def engine_stream(api: Any, call: Callable[[], Any]) -> Iterator[Iterator[Mapping[str, Any]]]:
    """The messages of the engine, in their order. Leaving the block early cancels the request.

    Args:
        api: The SDK's API client.
        call: Asks the engine, and returns the SDK's iterator of its answer.
    """
    answers: list[Any] = []

    def keep(answer: Any, *_: Any, **__: Any) -> None:
        answers.append(answer)

    api.hooks["response"].append(keep)
    try:
        # Nothing bounds the time between two events.
        limit, api.timeout = api.timeout, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a store of credentials that is not there: it fails then
                events = iter(call())
            yield events
        finally:
            api.timeout = limit
    finally:
        api.hooks["response"].remove(keep)
        # The SDK's iterators leave the connection open, and the engine at work.
        for answer in answers:
            answer.close()


TAIL_LINES = 20
"""How much of a step's output an error shows."""
# Docker's words, and podman's.
_STEP = re.compile(r"(?:\[\d+/\d+\] )?step (\d+)/(\d+) ?: ?(.*)", re.IGNORECASE)
_CACHED = re.compile(r" ?--+> Using cache")
_BUILT = re.compile(r"Successfully built (\S+)")
_NOISE = re.compile(r" ?--+> |[0-9a-f]{64}$|Removing intermediate container|Successfully (built|tagged)")
# Colours, and control sequences that move a cursor.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(slots=True)
class BuildStep:
    """One instruction that is executed.

    Attributes:
        number: Which one, from 1.
        text: The instruction.
        line: Its line in the Dockerfile, if that is known.
        cached: Whether it was there from an earlier build.
        seconds: How long it took; None while it does.
    """

    number: int
    text: str
    line: int | None = None
    cached: bool = False
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic, repr=False)


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build has come.

    Attributes:
        step: The instruction that is executed.
        total: How many there are.
        line: The latest output; "" when the step begins or ends.
        running: Whether it is known to be executed, and not to be there from an earlier build.
        ended: Whether the step has just ended.
    """

    step: BuildStep
    total: int
    line: str = ""
    running: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """Why there is no image.

    Attributes:
        reason: In one line.
        step: At which instruction; 0: before the first one.
        text: The instruction.
        line: Its line in the Dockerfile, if that is known.
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
        secrets: Texts that are masked.

    Attributes:
        all: All steps so far, in their order.
        total: How many there are.
        image: The id of the image, as soon as there is one.
        failure: Why there is no image.
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
        if "status" in event:  # a base that is pulled
            line = f"{event['id']}: {event['status']}" if event.get("id") else str(event["status"])
            # How many bytes are fetched comes too often to be kept.
            return self._shown(["" if event.get("progressDetail") else line])
        return [shown for line in str(event.get("stream", "")).splitlines() for shown in self._line(line)]

    def finish(self) -> list[BuildProgress]:
        """The step that is executed has ended."""
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
            # The next instruction of that kind: some engines count each stage anew, or leave out an ARG.
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
    """How far the pushing of an image has come.

    Attributes:
        layers: How many layers it has, as far as that is known.
        done: How many of them are at the registry.
        there: How many of those were there before.
        sent: Bytes that were sent.
        total: How many there will be, as far as that is known.
    """

    layers: int = 0
    done: int = 0
    there: int = 0
    sent: int = 0
    total: int = 0


@dataclass(slots=True)
class _PushedLayer:
    sent: int = 0
    total: int = 0
    done: bool = False
    there: bool = False


class ImageUpload:
    """The pushing of one image.

    Attributes:
        digest: Of the image, as soon as it is there.
        failure: Why it cannot be.
    """

    def __init__(self) -> None:
        self.digest: str | None = None
        self.failure: str | None = None
        self._layers: dict[str, _PushedLayer] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Takes one thing that the engine said."""
        if "error" in event or "message" in event:
            self.failure = str(event.get("error") or event["message"])
            return
        aux, status = event.get("aux") or {}, str(event.get("status", ""))
        said = _DIGEST.search(status)
        self.digest = aux.get("Digest") or (said[1] if said is not None else self.digest)
        if event.get("id") is None or said is not None or status.startswith("The push refers"):
            return
        layer = self._layers.setdefault(event["id"], _PushedLayer())
        layer.there = layer.there or status.startswith(_PRESENT)
        layer.done = layer.done or layer.there or status == "Pushed"
        if status == "Pushing":
            sizes = event.get("progressDetail") or {}
            layer.sent = int(sizes.get("current") or 0)
            layer.total = max(int(sizes.get("total") or 0), layer.sent)
        elif layer.done:
            layer.sent = layer.total

    @property
    def progress(self) -> PushProgress:
        """How far it is."""
        layers = self._layers.values()
        return PushProgress(
            layers=len(layers),
            done=sum(layer.done for layer in layers),
            there=sum(layer.there for layer in layers),
            sent=sum(layer.sent for layer in layers),
            total=sum(layer.total for layer in layers),
        )
