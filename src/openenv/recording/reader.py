"""Read recorded episodes from a file or folder that is complete, being written or damaged."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from ..errors import UnreadableRecord
from .sources import Damage, JsonlSource, ParquetSource, ReadFault
from .storage import ARRAYS, JSONL, PARQUET
from .transition import Transition, TransitionHead

TransitionSource = JsonlSource | ParquetSource
"""A file of transitions."""


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

    def __init__(self, first: TransitionHead):
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
        self._parts: list[tuple[TransitionSource, array[int]]] = []

    @property
    def whole(self) -> bool:
        """Whether it begins with its reset."""
        return self.first_step == 0 and self.source is None

    @property
    def outcome(self) -> str:
        """How it ended: terminated, truncated, done (one of both), failed (its last call did), or open."""
        if self.done:
            if self.truncated and not self.terminated:
                return "truncated"
            return "terminated" if self.terminated else "done"
        return "failed" if self.failed_last else "open"

    def add(self, head: TransitionHead, source: TransitionSource, place: int) -> None:
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


# Sessions whose last episode may go on: of more, that of the session that has been silent for longest is complete.
MOST_OPEN = 32_768
_NUMBER_DIGITS = 6


class Recording:
    """Episodes on disk, read one after the other in bounded memory.

    Args:
        path: A file (`.jsonl` of a recorder or of the web page, `.parquet`), or a folder with such files, in which
            folders are looked through too.
        environment: Read those of an environment of this name alone.

    Raises:
        UnreadableRecord: There is no such file or folder.

    Attributes:
        path: The file or folder.
        damage: What could not be read, as far as was read.
    """

    def __init__(self, path: str | os.PathLike[str], environment: str | None = None):
        self.path = Path(path)
        self.damage = Damage()
        self._environment = environment
        if not self.path.exists():
            raise UnreadableRecord(
                f"{self.path} is not there: name a file or folder with recorded episodes (`openenv serve TARGET "
                "--record DIR` writes them)"
            )

    def episodes(self) -> Iterator[Episode]:
        """Each episode as soon as its last line was read, so their order is about that of their ends.

        What cannot be read is in `damage`, and the rest is read.

        Raises:
            UnreadableRecord: The path is one file, and nothing of it can be read.
        """
        self.damage = Damage()
        # The files of each recorder, in the order in which it wrote them.
        runs = (
            [[self.path]] if self.path.is_file() else (list(run) for _, run in groupby(_files(self.path), _recorder))
        )
        for run in runs:
            for episode in self._episodes(run):
                if self._environment is None or episode.environment == self._environment:
                    yield episode

    def _episodes(self, run: list[Path]) -> Iterator[Episode]:
        """The episodes in the files of one recorder."""
        going: OrderedDict[str, Episode] = OrderedDict()
        for path in run:
            source = self._source(path)
            if source is None:
                continue
            for place, head in source.heads(self.damage):
                episode = going.get(head.session_id or "")
                if episode is None or head.step == 0 or head.source is not None:
                    before, episode = episode, Episode(head)
                    going[episode.session_id] = episode
                    if before is not None:
                        yield before
                going.move_to_end(episode.session_id)
                episode.add(head, source, place)
                if len(going) > MOST_OPEN:
                    yield going.popitem(last=False)[1]
        yield from going.values()

    def _source(self, path: Path) -> TransitionSource | None:
        """A file, opened; None if it cannot be."""
        try:
            if path.suffix != PARQUET:
                with contextlib.suppress(FileNotFoundError):  # rotated since its folder was listed
                    return JsonlSource(path)
            return ParquetSource(path.with_suffix(PARQUET))
        except FileNotFoundError:
            fault = ReadFault(path, "", "it was removed meanwhile")
        except UnreadableRecord as error:
            if self.path.is_file():
                raise
            fault = ReadFault(path, "", error.message.removeprefix(f"{path} ").removeprefix("is "))
        self.damage.add(fault)
        return None


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ARRAYS)
        # A file that is there in both forms was rotated, and the first form not yet removed.
        paths = (Path(place, name) for name in sorted(names) if name.endswith((JSONL, PARQUET)))
        yield from {path.with_suffix(""): path for path in paths}.values()


def _recorder(path: Path) -> Path:
    """What the files of one recorder have in common."""
    stem, dash, number = path.stem.rpartition("-")
    numbered = dash and len(number) == _NUMBER_DIGITS and number.isdigit()
    return path.with_name(stem) if numbered else path.with_suffix("")
