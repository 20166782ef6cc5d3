"""Pictures of recorded episodes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ..bench.canvas import COLOURS, canvas, require_matplotlib
from ..errors import UsageError
from ..recording.reader import Episode

__all__ = ["episode_picture", "returns_picture"]

# Panels of one picture, and points of one panel that still can be told apart.
MOST_PANELS = 8
MOST_POINTS = 20_000
# The running mean is over this share of the episodes.
WINDOW = 20


def returns_picture(episodes: Iterator[Episode], kind: str) -> tuple[bytes, int]:
    """The return of each episode in the order in which they began, with its running mean.

    Args:
        episodes: Of one environment or several; each has a panel of its own.
        kind: `png` or `svg`.

    Returns:
        The picture, and how many episodes are in it.

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
        return _file_of(figure, kind), sum(len(found[name]) for name in names)


def episode_picture(episode: Episode, kind: str) -> bytes:
    """The reward of each step of an episode, and what they come to. Raises as `returns_picture`."""
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
        drawn = above.vlines if len(steps) <= 200 else None
        if drawn is not None:
            drawn(steps, 0, rewards, color=COLOURS[0], linewidth=1)
        above.plot(steps, rewards, "." if drawn else "-", color=COLOURS[0], markersize=4, linewidth=1)
        above.set_ylabel("reward")
        seed = "" if episode.seed is None else f", seed {episode.seed}"
        above.set_title(f"{episode.environment}, episode {episode.episode_id}{seed}: {episode.outcome}")
        below.step(steps, list(accumulate(rewards)), where="post", color=COLOURS[2])
        below.set_ylabel("return so far")
        below.set_xlabel("step")
        for panel in (above, below):
            for step in errors:
                panel.axvline(step, color=COLOURS[1], linewidth=1, linestyle=":")
        return _file_of(figure, kind)


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


def _file_of(figure: Any, kind: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()
