"""What an evaluation found: the episodes, what they say together, and all that must be known to do it again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UsageError
from .episode import Episode
from .statistics import Sample, Share, sample_of, share_of

__all__ = ["About", "Report", "Summary", "check_output", "read_report", "successes_of", "summary_of", "write_report"]


class About(BaseModel):
    """What was evaluated, and how.

    Attributes:
        target: What was served, or the address of the server.
        environment: The environment's name, as it says itself; None if it does not.
        policy: Who acted.
        split: Of the tasks that were played; None: seeds were.
        concurrency, max_steps, retries, success_at: As asked for.
        openenv: Version of this package.
        began: When, in seconds since 1970.
        seconds: How long it took.
        record: Where the episodes were recorded; None: nowhere.
    """

    model_config = ConfigDict(extra="forbid")

    target: str
    environment: str | None = None
    policy: str
    split: str | None = None
    concurrency: int
    max_steps: int
    retries: int
    success_at: float | None = None
    openenv: str
    began: float
    seconds: float = 0.0
    record: str | None = None


class Summary(BaseModel):
    """What the episodes say together. Episodes that failed have no part in any score.

    Attributes:
        planned, played: How many episodes there were to be, and how many there are.
        scored: How many have a return.
        returns: Of those; None: there is none.
        success: How many of those that tell of success had it: by their last observation (`success`), or by
            `success_at`. None: none tells.
        lengths: Steps of the episodes that did not fail.
        ends: How many episodes ended in each way.
        failures: How many failed, by whom it is to be mended and the error's class.
        examples: A message of each such class.
        repeated: How many were played more than once, after failures of the infrastructure.
    """

    model_config = ConfigDict(extra="forbid")

    planned: int
    played: int
    scored: int
    returns: Sample | None
    success: Share | None
    lengths: Sample | None
    ends: dict[str, int]
    failures: dict[str, dict[str, int]]
    examples: dict[str, str]
    repeated: int

    @property
    def failed(self) -> int:
        """How many episodes failed."""
        return sum(sum(counts.values()) for counts in self.failures.values())


class Report(BaseModel):
    """An evaluation: what `openenv eval --json` prints, and `--output` writes.

    Attributes:
        openenv_result: What this document is: `eval`.
        version: Of its form.
        interrupted: It was ended before all episodes were played.
        about, summary, episodes: What was done, what it says, and what became of each case.
    """

    model_config = ConfigDict(extra="forbid")

    openenv_result: Literal["eval"] = "eval"
    version: Literal[1] = 1
    interrupted: bool = False
    about: About
    summary: Summary
    episodes: list[Episode] = Field(default_factory=list)


def summary_of(episodes: Sequence[Episode], planned: int, success_at: float | None = None) -> Summary:
    """What episodes say together.

    Args:
        episodes: In any order.
        planned: How many there were to be.
        success_at: The least return that is a success; None: what the environment says.
    """
    scores = [episode.score for episode in episodes if episode.score is not None]
    successes = successes_of(episodes, success_at)
    failures = [episode.failure for episode in episodes if episode.failure is not None]
    by_blame: dict[str, Counter[str]] = {}
    for failure in failures:
        by_blame.setdefault(failure.blame, Counter())[failure.error] += 1
    return Summary(
        planned=planned,
        played=len(episodes),
        scored=len(scores),
        returns=sample_of(scores),
        success=share_of(sum(successes.values()), len(successes)),
        lengths=sample_of([float(episode.length) for episode in episodes if episode.failure is None]),
        ends=dict(Counter(episode.end for episode in episodes)),
        failures={blame: dict(counts.most_common()) for blame, counts in sorted(by_blame.items())},
        examples={failure.error: failure.message for failure in reversed(failures)},
        repeated=sum(episode.attempts > 1 for episode in episodes),
    )


def successes_of(episodes: Sequence[Episode], success_at: float | None) -> dict[tuple[Any, ...], bool]:
    """Whether episodes succeeded, by their keys, of those for which that is known.

    Where the environment tells of success, an episode that was cut short before it did has none.

    Args:
        episodes: In any order.
        success_at: The least return that is a success; None: what the environment says.
    """
    if success_at is not None:
        return {episode.key: episode.score >= success_at for episode in episodes if episode.score is not None}
    told = {episode.key: episode.success for episode in episodes if episode.success is not None}
    cut = {episode.key: False for episode in episodes if episode.end == "max_steps"}
    return {**cut, **told} if told else {}


def check_output(path: Path) -> None:
    """Whether a report could be written there, before it is made. Raises `UsageError`."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written: {path.parent} is no folder that you may write to (--output)")


def write_report(report: Report, path: Path) -> None:
    """Writes a report to a file, whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        _tried(part.unlink)
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; give another --output") from None


def read_report(path: Path) -> Report:
    """Reads what `write_report` wrote.

    Raises:
        UsageError: It cannot be read, or is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return Report.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise UsageError(
            f"{path} is no result of an evaluation ({place}: {first['msg']}): give what "
            "`openenv eval --output` wrote, or `openenv eval --json` printed"
        ) from None


def _tried(act: Callable[[], Any]) -> None:
    try:
        act()
    except OSError:
        return
