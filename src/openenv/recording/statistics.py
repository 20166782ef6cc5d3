"""Summarise recorded episodes: figures and plots."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from statistics import fmean, quantiles, stdev
from typing import Any, NamedTuple

from .._plots import COLOURS, canvas, file_of, require_matplotlib
from ..errors import UsageError
from .reader import Episode

_ENDED = ("terminated", "truncated", "done")
# Index of each among the 19 cut points of `quantiles(n=20)`.
_SHARES = {"p5": 0, "p25": 4, "median": 9, "p75": 14, "p95": 18}


class DistributionSummary(NamedTuple):
    """Summary of a set of values; `std` is None for a single value."""

    episodes: int
    mean: float
    std: float | None
    least: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    most: float

    @classmethod
    def of(cls, values: array[float]) -> DistributionSummary | None:
        """Summarises values; None if there are no values. Quantiles are interpolated."""
        if not values:
            return None
        parts = quantiles(values, n=20, method="inclusive") if len(values) > 1 else [values[0]] * 19
        shares = {name: parts[index] for name, index in _SHARES.items()}
        std = stdev(values) if len(values) > 1 else None
        return cls(episodes=len(values), mean=fmean(values), std=std, least=min(values), most=max(values), **shares)


class Statistics:
    """Counts the episodes of one environment.

    Returns and lengths are those of episodes that ended, since an unfinished or failed episode does not show how well
    it was played. If no episode ended, they are those of all episodes that did not fail.

    Attributes:
        episodes, steps: Number of episodes and of steps.
        outcomes: Number of episodes by outcome.
        errors: Number of failed calls by error class.
        failing: Number of episodes with a failed call.
        began, ended: Start of the first call and end of the last one, Unix seconds.
        play_s: Total duration of the episodes, in seconds.
    """

    def __init__(self) -> None:
        self.episodes = self.steps = self.failing = 0
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.began = float("inf")
        self.ended = float("-inf")
        self.play_s = 0.0
        self._ended = (array("d"), array("d"))
        self._open = (array("d"), array("d"))

    def add(self, episode: Episode) -> None:
        """Counts an episode."""
        outcome = episode.outcome
        self.episodes += 1
        self.steps += episode.steps - episode.first_step + (episode.first_step > 0)
        self.outcomes[outcome] += 1
        self.failing += bool(episode.errors)
        self.errors.update(episode.errors)
        self.began = min(self.began, episode.began)
        self.ended = max(self.ended, episode.ended)
        self.play_s += max(0.0, episode.ended - episode.began)
        if not episode.whole or outcome == "failed":
            return
        returns, lengths = self._ended if outcome in _ENDED else self._open
        lengths.append(episode.steps)
        if episode.episode_return is not None:
            returns.append(episode.episode_return)

    @property
    def of_ended(self) -> bool:
        """Whether returns and lengths are those of episodes that ended."""
        return bool(self._ended[1])

    @property
    def returns(self) -> DistributionSummary | None:
        """Returns of the episodes with a reward; None if there are none."""
        return DistributionSummary.of((self._ended if self.of_ended else self._open)[0])

    @property
    def lengths(self) -> DistributionSummary | None:
        """Lengths of the episodes in steps; None if there are none."""
        return DistributionSummary.of((self._ended if self.of_ended else self._open)[1])

    def facts(self) -> dict[str, Any]:
        """The statistics as JSON values."""
        returns, lengths = self.returns, self.lengths
        return {
            "episodes": self.episodes,
            "steps": self.steps,
            "began": self.began if self.episodes else None,
            "ended": self.ended if self.episodes else None,
            "play_s": round(self.play_s, 6),
            "outcomes": dict(self.outcomes),
            "of_ended": self.of_ended,
            "returns": None if returns is None else returns._asdict(),
            "lengths": None if lengths is None else lengths._asdict(),
            "failing": self.failing,
            "errors": dict(self.errors),
        }


# Most panels of a picture, and most points of a panel that can still be distinguished.
MOST_PANELS = 8
MOST_POINTS = 20_000
# The running mean covers one in this many episodes.
WINDOW = 20


def returns_picture(episodes: Iterator[Episode], kind: str) -> tuple[bytes, int]:
    """Plots the returns of episodes by their start, with a running mean and one panel per environment.

    Args:
        episodes: Episodes of one or more environments.
        kind: `png` or `svg`.

    Returns:
        The picture, and the number of episodes in it.

    Raises:
        UsageError: No episode has a return.
        MissingExtra: matplotlib is not installed.
    """
    require_matplotlib()
    found: dict[str, list[tuple[float, float]]] = {}
    for episode in episodes:
        if episode.episode_return is not None and episode.outcome != "failed":
            found.setdefault(episode.environment, []).append((episode.began, episode.episode_return))
    if not found:
        raise UsageError("there is no episode with a reward to draw: `openenv episodes ls` lists what there is")
    names = sorted(found, key=lambda name: -len(found[name]))[:MOST_PANELS]
    with canvas(len(names), 1) as (figure, panels):
        for panel, name in zip(panels, names, strict=True):
            values = [value for _, value in sorted(found[name])]
            _draw_returns(panel, values)
            panel.set_title(f"{name}: {len(values):,} episodes")
        return file_of(figure, kind), sum(len(found[name]) for name in names)


def episode_picture(episode: Episode, kind: str) -> bytes:
    """Plots the reward of each step of an episode, and their sum. Raises the errors of `returns_picture`."""
    require_matplotlib()
    steps, rewards, errors = [], [], []
    for each in episode.transitions(arrays=False):
        if each.error is not None:
            errors.append(each.step)
        if each.step and each.reward is not None:
            steps.append(each.step)
            rewards.append(each.reward)
    if not steps:
        raise UsageError(f"episode {episode.episode_id} has no rewards to draw")
    with canvas(2, 1) as (figure, (above, below)):
        few = len(steps) <= 200
        if few:
            above.vlines(steps, 0, rewards, color=COLOURS[0], linewidth=1)
        above.plot(steps, rewards, "." if few else "-", color=COLOURS[0], markersize=4, linewidth=1)
        above.set_ylabel("reward")
        seed = "" if episode.seed is None else f", seed {episode.seed}"
        above.set_title(f"{episode.environment}, episode {episode.episode_id}{seed}: {episode.outcome}")
        below.step(steps, list(accumulate(rewards)), where="post", color=COLOURS[2])
        below.set_ylabel("return so far")
        below.set_xlabel("step")
        for panel in (above, below):
            for step in errors:
                panel.axvline(step, color=COLOURS[1], linewidth=1, linestyle=":")
        return file_of(figure, kind)


def _draw_returns(panel: Any, values: list[float]) -> None:
    numbers = range(1, len(values) + 1)
    every = max(1, len(values) // MOST_POINTS)
    panel.plot(numbers[::every], values[::every], ".", color=COLOURS[0], alpha=0.35, markersize=4, label="episode")
    window = max(1, len(values) // WINDOW)
    if window > 1:
        sums = [0.0, *accumulate(values)]
        means = [(sums[end] - sums[end - window]) / window for end in range(window, len(sums))]
        label = f"mean of {window:,} episodes"
        panel.plot(numbers[window - 1 :: every], means[::every], color=COLOURS[1], linewidth=1.6, label=label)
        panel.legend()
    panel.set_ylabel("return")
    panel.set_xlabel("episode, in the order in which they began")
