"""One recorded episode: what is known of it, and its transitions when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from .head import Head, Transition

__all__ = ["Episode", "Source"]


class Source(Protocol):
    """A file of transitions.

    Attributes:
        path: The file.
    """

    path: Path

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at some places."""
        ...


class Episode:
    """From one reset of a session to the next one.

    Only what is counted is in memory; `transitions` reads the files.

    Args:
        first: The first of its lines.

    Attributes:
        episode_id, session_id: Where it happened. Several episodes may have one id: clients choose it.
        environment: Name of what was played.
        versions: Of `openenv` and of the `environment`.
        schema: Hash of the environment's contract; None if the record does not say it.
        seed: Of its reset; None: there was none, or the record lacks the reset.
        first_step: The first step in the record; 0, the reset, unless its beginning is missing.
        source: Session, episode and step that it was forked from, or restored to; None for most.
        steps: Number of its last step.
        episode_return: Sum of its rewards; None if no step had one.
        began, ended: Unix seconds of its first call and of the end of its last one.
        done, terminated, truncated: Of its last transition that says so.
        errors: How many of its calls failed with an error of which class.
    """

    __slots__ = (
        "_parts",
        "began",
        "done",
        "ended",
        "environment",
        "episode_id",
        "episode_return",
        "errors",
        "failed_last",
        "first_step",
        "schema",
        "seed",
        "session_id",
        "source",
        "steps",
        "terminated",
        "truncated",
        "versions",
    )

    def __init__(self, first: Head):
        self.episode_id = first.episode_id or ""
        self.session_id = first.session_id or ""
        self.environment = first.environment or "unknown"
        self.versions: Mapping[str, str | None] = first.versions
        self.schema = first.schema
        self.seed = first.seed
        self.first_step = first.step
        self.source = first.source
        self.steps = first.step
        self.episode_return: float | None = None
        self.began = self.ended = first.time
        self.done = False
        self.terminated: bool | None = None
        self.truncated: bool | None = None
        self.failed_last = False
        self.errors: dict[str, int] = {}
        self._parts: list[tuple[Source, array[int]]] = []

    @property
    def whole(self) -> bool:
        """Whether it begins with its reset."""
        return self.first_step == 0 and self.source is None

    @property
    def outcome(self) -> str:
        """How it ended: terminated, truncated, done (nobody said which), failed (its last call did), or open."""
        if self.done:
            if self.truncated and not self.terminated:
                return "truncated"
            return "terminated" if self.terminated else "done"
        return "failed" if self.failed_last else "open"

    def add(self, head: Head, source: Source, place: int) -> None:
        """One more of its lines."""
        if not self._parts or self._parts[-1][0] is not source:
            self._parts.append((source, array("Q")))
        self._parts[-1][1].append(place)
        self.steps = max(self.steps, head.step)
        self.ended = head.time + head.duration_s
        self.failed_last = head.error is not None
        if head.error is not None:
            name = head.error.partition(":")[0]
            self.errors[name] = self.errors.get(name, 0) + 1
        if head.reward is not None and head.step:
            self.episode_return = (self.episode_return or 0.0) + head.reward
        if head.done:
            self.done, self.terminated, self.truncated = True, head.terminated, head.truncated

    def transitions(self, arrays: bool = True) -> Iterator[Transition]:
        """Its transitions in their order, read from the files one after the other.

        Args:
            arrays: Put arrays and bytes back into actions and observations; else their marks stay.

        Raises:
            UnreadableRecord: A file was changed meanwhile, or is damaged.
            MissingArray: An array is not there, or is not what it was.
        """
        return chain.from_iterable(source.read(places, arrays) for source, places in self._parts)

    def lines(self) -> Iterator[tuple[dict[str, Any], Path]]:
        """Each transition as a line of a record, with the folder that its arrays are in. Raises as `transitions`."""
        names = {
            "environment": self.environment,
            "versions": {"openenv": None, "environment": None, **self.versions},
            "schema": self.schema,
        }
        for source, places in self._parts:
            for transition in source.read(places, arrays=False):
                begins = {"episode_id": self.episode_id, "session_id": self.session_id}
                yield {**begins, **transition.facts(), **names}, source.path.parent

    def facts(self) -> dict[str, Any]:
        """What is known of it, for JSON."""
        return {
            "episode_id": self.episode_id,
            "session_id": self.session_id,
            "environment": self.environment,
            "versions": dict(self.versions),
            "schema": self.schema,
            "seed": self.seed,
            "first_step": self.first_step,
            "source": self.source,
            "steps": self.steps,
            "return": self.episode_return,
            "began": self.began,
            "ended": self.ended,
            "outcome": self.outcome,
            "errors": dict(self.errors),
        }
