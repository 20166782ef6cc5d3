"""The report of an evaluation, and the comparison of two reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from pydantic import Field, ValidationError

from .. import __version__
from .._statistics import welch_interval
from ..errors import UsageError
from .runner import CutShort, EpisodeResult
from .statistics import (
    EvalModel,
    PassAtK,
    Sample,
    Share,
    clustered_share,
    mean_interval,
    pass_at,
    sample_of,
    share_interval,
    share_of,
)

# Values of a metric, by the keys of its cases.
Values = Mapping[tuple[Any, ...], float]


class RunInfo(EvalModel):
    """The subject and settings of an evaluation.

    Attributes:
        target: The served target, or the URL of the server.
        environment: Name of the environment; None if unknown.
        policy: The policy, or the model.
        sampling, budget: How the model sampled, and how far an episode could go; empty for other policies.
        split: Split of the tasks that were played; None for seeds.
        concurrency, max_steps, retries, success_at: Requested values.
        openenv: Version of this package.
        began: Start, Unix seconds.
        seconds: Duration in seconds.
        record: Folder of the records; None if the episodes were not recorded.
    """

    target: str
    environment: str | None = None
    policy: str
    sampling: dict[str, Any] = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)
    split: str | None = None
    concurrency: int
    max_steps: int
    retries: int
    success_at: float | None = None
    openenv: str = __version__
    began: float = 0.0
    seconds: float = 0.0
    record: str | None = None


class TaskSummary(EvalModel):
    """The repeats of one task, or of one seed.

    Attributes:
        index: Index of the task, or the seed.
        returns: Returns of its episodes; None if there are none. The interval is over repeats of this task.
        success: Share of successes among its episodes that report success or failure; None if none reports.
    """

    index: int
    returns: Sample | None
    success: Share | None


class EvalSummary(EvalModel):
    """The summary of the episodes. Failed episodes are not part of any score.

    Attributes:
        planned, played: Number of planned and of finished episodes.
        scored: Number of episodes with a return.
        returns: Their returns; None if there are none.
        success: Share of successes, by the last observation (`success`) or by `success_at`, among the episodes for
            which it is known. None if it is known for none.
        rubric: The scores of the rubric's parts, summed over the steps of each episode that did not fail.
        lengths: Steps of the episodes that did not fail.
        ends: Number of episodes by how they ended.
        failures: Number of failed episodes, by who must fix them and the error's class.
        examples: One message of each error class.
        repeated: Number of episodes played more than once, after failures of the infrastructure.
        intervals_over: The randomness that intervals cover: other seeds, other tasks (repeats of one task are one
            cluster), or other repeats of the only task. None in results of earlier versions.
        tasks: Summary of each task, if tasks have repeats.
        pass_at: pass@k, if tasks have repeats that report success, for k = 2, 4, 8, ... and all repeats; pass@1 is
            `success`.
        tokens: Tokens that the model sampled in each episode that did not fail.
        cost: Price of all episodes; None if unknown.
    """

    planned: int
    played: int
    scored: int
    returns: Sample | None
    success: Share | None
    lengths: Sample | None
    rubric: dict[str, Sample] = Field(default_factory=dict)
    ends: dict[str, int]
    failures: dict[str, dict[str, int]]
    examples: dict[str, str]
    repeated: int
    intervals_over: Literal["seeds", "tasks", "repeats"] | None = None
    tasks: list[TaskSummary] = Field(default_factory=list)
    pass_at: list[PassAtK] = Field(default_factory=list)
    tokens: Sample | None = None
    cost: float | None = None

    @property
    def failed(self) -> int:
        """Number of failed episodes."""
        return sum(sum(counts.values()) for counts in self.failures.values())


class EvalReport(EvalModel):
    """The report of an evaluation, which `openenv eval --json` prints and `--output` writes.

    Attributes:
        openenv_result: Type of the document: `eval`.
        version: Version of the format.
        interrupted: Whether the run stopped before all episodes were played.
        about, summary, episodes: Settings, results, and the result of each case.
    """

    openenv_result: Literal["eval"] = "eval"
    version: Literal[1] = 1
    interrupted: bool = False
    about: RunInfo
    summary: EvalSummary
    episodes: list[EpisodeResult] = Field(default_factory=list)


def summary_of(episodes: Sequence[EpisodeResult], planned: int, success_at: float | None = None) -> EvalSummary:
    """Summarises episodes.

    Args:
        episodes: The episodes, in any order.
        planned: Number of planned episodes.
        success_at: Lowest return that is a success; None to let the environment decide.
    """
    scores, lengths, tokens = _scores(episodes), _lengths(episodes), _tokens(episodes)
    costs = [episode.cost for episode in episodes if episode.cost is not None]
    successes = successes_of(episodes, success_at)
    tasks = _tasks(scores, successes)
    tried = [(task.success.hits, task.success.count) for task in tasks if task.success is not None]
    most = max((count for _, count in tried), default=1)
    chances = [pass_at(k, tried) for k in sorted({2**power for power in range(1, most.bit_length())} | {most})]
    failures = [episode.failure for episode in episodes if episode.failure is not None]
    by_blame: dict[str, Counter[str]] = {}
    for failure in failures:
        by_blame.setdefault(failure.blame, Counter())[failure.error] += 1
    clusters = _clusters(episode.key for episode in episodes)
    varied: Literal["seeds", "tasks", "repeats"] = "repeats" if len(set(clusters)) == 1 < len(clusters) else "tasks"
    if any(episode.index is None for episode in episodes):
        varied = "seeds"
    return EvalSummary(
        planned=planned,
        played=len(episodes),
        scored=len(scores),
        returns=sample_of([*scores.values()], _clusters(scores)),
        success=clustered_share([*successes.values()], _clusters(successes)),
        lengths=sample_of([*lengths.values()], _clusters(lengths)),
        rubric=_rubric(episodes),
        ends=dict(Counter(episode.end for episode in episodes)),
        failures={blame: dict(counts.most_common()) for blame, counts in sorted(by_blame.items())},
        examples={failure.error: failure.message for failure in reversed(failures)},
        repeated=sum(episode.attempts > 1 for episode in episodes),
        intervals_over=varied,
        tasks=tasks,
        pass_at=[chance for chance in chances if chance is not None and chance.k > 1],
        tokens=sample_of([*tokens.values()], _clusters(tokens)),
        cost=fsum(costs) if costs else None,
    )


def report_of(episodes: list[EpisodeResult], planned: int, about: RunInfo) -> EvalReport:
    """The report on finished episodes.

    Args:
        episodes: The episodes, in the order of the report.
        planned: Number of planned episodes.
        about: What was evaluated.
    """
    summary = summary_of(episodes, planned, about.success_at)
    return EvalReport(interrupted=len(episodes) < planned, about=about, summary=summary, episodes=episodes)


def _clusters(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The cluster of each case, by its key: one per task or seed, with its repeats."""
    return [key[:2] for key in keys]


def _tasks(scores: Values, successes: Mapping[tuple[Any, ...], bool]) -> list[TaskSummary]:
    """The summaries of tasks by index, or of seeds; empty if each was played once."""
    keys: dict[int, list[tuple[Any, ...]]] = {}
    for key in {**scores, **successes}:
        keys.setdefault(key[1], []).append(key)
    if all(len(repeats) == 1 for repeats in keys.values()):
        return []
    found: list[TaskSummary] = []
    for index, repeats in sorted(keys.items()):
        hits = [successes[key] for key in repeats if key in successes]
        returns = sample_of([scores[key] for key in repeats if key in scores])
        found.append(TaskSummary(index=index, returns=returns, success=share_of(sum(hits), len(hits))))
    return found


def _scores(episodes: Sequence[EpisodeResult]) -> dict[tuple[Any, ...], float]:
    return {episode.key: episode.score for episode in episodes if episode.score is not None}


def _rubric(episodes: Sequence[EpisodeResult]) -> dict[str, Sample]:
    parts: dict[str, dict[tuple[Any, ...], float]] = {}
    for episode in episodes:
        for name, score in episode.rubric.items():
            parts.setdefault(name, {})[episode.key] = score
    samples = {name: sample_of([*scores.values()], _clusters(scores)) for name, scores in parts.items()}
    return {name: sample for name, sample in samples.items() if sample is not None}


def _lengths(episodes: Sequence[EpisodeResult]) -> dict[tuple[Any, ...], float]:
    return {episode.key: float(episode.length) for episode in episodes if episode.failure is None}


def _tokens(episodes: Sequence[EpisodeResult]) -> dict[tuple[Any, ...], float]:
    return {
        episode.key: float(episode.tokens)
        for episode in episodes
        if episode.tokens is not None and episode.failure is None
    }


def successes_of(episodes: Sequence[EpisodeResult], success_at: float | None) -> dict[tuple[Any, ...], bool]:
    """Whether episodes succeeded, by key, as far as it is known.

    If the environment reports success, an episode that was cut short before its report has failed.

    Args:
        episodes: The episodes, in any order.
        success_at: Lowest return that is a success; None to let the environment decide.
    """
    if success_at is not None:
        return {episode.key: episode.score >= success_at for episode in episodes if episode.score is not None}
    known = {episode.key: episode.success for episode in episodes if episode.success is not None}
    cut = {episode.key: False for episode in episodes if episode.end in get_args(CutShort)}
    return {**cut, **known} if known else {}


def check_output(path: Path) -> None:
    """Checks that a report can be written to a path. Raises `UsageError`."""
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written: {path.parent} is not a folder that you may write to (--output)")


def write_report(report: EvalReport, path: Path) -> None:
    """Writes a report to a file atomically.

    Raises:
        UsageError: The file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise UsageError(f"{path} cannot be written: {error.strerror or error}; give another --output") from None


def read_report(path: Path) -> EvalReport:
    """Reads the file of `write_report`.

    Raises:
        UsageError: The file cannot be read, or is not a report.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return EvalReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise UsageError(
            f"{path} is not the result of an evaluation ({place}: {first['msg']}): give what "
            "`openenv eval --output` wrote, or `openenv eval --json` printed"
        ) from None


NO_DIFFERENCE = "no difference shown"
PAIRED, WELCH, NEWCOMBE = "paired", "Welch", "Newcombe"
# With fewer pairs, a comparison of independent samples says more.
FEWEST_PAIRS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two evaluations.

    Attributes:
        figure: `return`, `success`, `length`, and for models `tokens` and `cost`.
        method: `paired` compares the cases (seeds, or tasks) of both in pairs; `Welch`, or `Newcombe` for shares,
            compares all values.
        first_count, second_count: Number of values compared; for pairs, both are the number of pairs.
        first, second: Means of these values.
        difference: Second minus first.
        low, high: 95 % confidence interval of the difference; None if the values are too few.
        verdict: `higher` (the second), `lower`, or `no difference shown`.
    """

    figure: str
    method: str
    first_count: int
    second_count: int
    first: float
    second: float
    difference: float
    low: float | None
    high: float | None
    verdict: str


def compare(first: EvalReport, second: EvalReport) -> list[Comparison]:
    """Compares every metric that both reports have.

    The two values of a case in both reports are a pair: the differences of pairs have Student's interval, which
    differences between cases do not widen. Runs without two common cases are compared as independent samples, by
    Welch's interval. Shares of successes have Newcombe's interval in both cases. Repeats of one task are one cluster.
    Episodes without a score are left out, as in the means.

    Raises:
        UsageError: The reports are of different environments or splits, or have no metric in common.
    """
    for what, ours, theirs in (
        ("environment", first.about.environment, second.about.environment),
        ("split", first.about.split, second.about.split),
    ):
        if ours != theirs and None not in (ours, theirs):
            raise UsageError(f"A is of the {what} {ours!r}, and B of {theirs!r}: evaluate both on the same one")
    if (first.about.split is None) != (second.about.split is None):
        raise UsageError("one of them played tasks of a split, and the other seeds: evaluate both in the same way")
    threshold = second.about.success_at if first.about.success_at is None else first.about.success_at
    figures: dict[str, Callable[[EvalReport], Values]] = {
        "return": lambda report: _scores(report.episodes),
        "success": lambda report: {**successes_of(report.episodes, threshold)},
        "length": lambda report: _lengths(report.episodes),
        "tokens": lambda report: _tokens(report.episodes),
        "cost": lambda report: {each.key: each.cost for each in report.episodes if each.cost is not None},
    }
    found = [_compare_figure(name, values(first), values(second)) for name, values in figures.items()]
    comparisons = [comparison for comparison in found if comparison is not None]
    if not any(comparison.figure == "return" for comparison in comparisons):
        raise UsageError(f"nothing can be compared: {_scored(first)} of A and {_scored(second)} of B have a return")
    return comparisons


def _compare_figure(figure: str, ours: Values, theirs: Values) -> Comparison | None:
    if not ours or not theirs:
        return None
    common = [key for key in ours if key in theirs]
    paired = len(common) >= FEWEST_PAIRS
    if paired:
        ours, theirs = ({key: values[key] for key in common} for values in (ours, theirs))
    first, second = list(ours.values()), list(theirs.values())
    clusters = _clusters(ours), _clusters(theirs)
    shares = figure == "success"
    if shares:
        interval = share_interval([each > 0 for each in first], [each > 0 for each in second], paired, clusters)
    elif paired:
        interval = mean_interval([there - here for here, there in zip(first, second, strict=True)], clusters[0])
    else:
        interval = welch_interval(first, second, clusters=clusters)
    low, high = interval or (None, None)
    verdict = NO_DIFFERENCE
    if low is not None and high is not None and (low > 0 or high < 0):
        verdict = "higher" if low > 0 else "lower"
    return Comparison(
        figure=figure,
        method=PAIRED if paired else NEWCOMBE if shares else WELCH,
        first_count=len(first),
        second_count=len(second),
        first=fmean(first),
        second=fmean(second),
        difference=fmean(second) - fmean(first),
        low=low,
        high=high,
        verdict=verdict,
    )


def _scored(report: EvalReport) -> str:
    return f"{report.summary.scored} of {len(report.episodes)} episodes"
