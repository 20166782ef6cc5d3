"""The pictures of `openenv bench demo`, as PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .canvas import COLOURS, canvas, colours, png_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["open_sessions", "outcome_histograms", "phase_curves"]

# Bars of a histogram; up to so many different whole numbers, each gets its own.
BINS = 24
FEW = 12
# A logarithmic axis has no place for 0.
LEAST_MS = 0.001


def phase_curves(latencies: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """How latencies are distributed: a panel a phase, a line a workload.

    Args:
        latencies: Seconds, by phase and workload.
    """
    with canvas(1, len(latencies), share_y=True, panel_width=3.4) as (figure, panels):
        for axes, (phase, workloads) in zip(panels, latencies.items(), strict=True):
            for colour, (name, values) in zip(colours(), workloads.items(), strict=False):
                ordered = sorted(max(LEAST_MS, 1000 * value) for value in values)
                shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
                axes.step(ordered, shares, where="post", color=colour, label=name)
            _decades(axes, [1000 * value for values in workloads.values() for value in values] or [1.0])
            axes.set_ylim(0, 101)
            axes.set_xlabel("milliseconds")
            axes.set_title(phase.capitalize())
        panels[0].set_ylabel("% took at most so long")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(COLOURS))
        return png_of(figure)


def outcome_histograms(outcomes: Mapping[str, tuple[Sequence[float], Sequence[int]]]) -> bytes:
    """Returns and lengths of episodes: a row of panels a workload.

    Args:
        outcomes: By workload, the returns and the lengths of its episodes.
    """
    with canvas(len(outcomes), 2) as (figure, panels):
        for number, (name, (returns, lengths)) in enumerate(outcomes.items()):
            for axes, colour, what, values in (
                (panels[2 * number], COLOURS[0], "return", returns),
                (panels[2 * number + 1], COLOURS[2], "length in steps", lengths),
            ):
                _histogram(axes, values, colour)
                axes.set_xlabel(what)
                axes.set_ylabel("episodes")
                mean = f", mean {sum(values) / len(values):.3g}" if values else ""
                axes.set_title(f"{name}: {what}{mean}")
                axes.grid(visible=False, axis="x")
        return png_of(figure)


def open_sessions(spans: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """How many sessions were open over time: a panel a workload.

    Args:
        spans: By workload, from when to when each session was open. Seconds, any origin.
    """
    with canvas(1, len(spans)) as (figure, panels):
        for axes, colour, (name, sessions) in zip(panels, colours(), spans.items(), strict=False):
            changes = sorted([(begin, 1) for begin, _ in sessions] + [(end, -1) for _, end in sessions])
            origin = changes[0][0] if changes else 0.0
            times, counts, count = [0.0], [0], 0
            for moment, change in changes:
                count += change
                times.append(moment - origin)
                counts.append(count)
            axes.step(times, counts, where="post", color=colour)
            axes.fill_between(times, counts, step="post", color=colour, alpha=0.15)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("seconds")
            axes.set_title(name)
        panels[0].set_ylabel("open sessions")
        return png_of(figure)


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis that begins and ends with a power of ten, in plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    low, high = (math.log10(max(LEAST_MS, value)) for value in (min(values), max(values)))
    low, high = math.floor(low), math.ceil(high)
    axes.set_xlim(10.0**low, 10.0 ** max(high, low + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _histogram(axes: Axes, values: Sequence[float], colour: str) -> None:
    """One bar a value where there are few, as the outcomes of a card game."""
    low, high = math.floor(min(values, default=0)), math.ceil(max(values, default=0))
    few = high - low < FEW and all(value == int(value) for value in values)
    bins: Any = [number - 0.5 for number in range(low, high + 2)] if few else BINS
    axes.hist(values, bins=bins, color=colour, edgecolor="white", linewidth=0.6)
    if few:
        axes.set_xticks(range(low, high + 1))
