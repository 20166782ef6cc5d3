"""Report and figures of `openenv bench scale`, in one HTML file and as PNG files."""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from openenv._plots import COLOURS, canvas, file_of, require_matplotlib
from openenv.bench.batch import BatchSummary, max_batch
from openenv.bench.scale import ScaleResult
from openenv.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark;
  --paper: #fff; --ink: #222; --quiet: #555; --line: #ddd; --shade: rgb(0 0 0 / 0.2); }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181d; --ink: #e6e6e6; --quiet: #b4bac2; --line: #3a3f47; --shade: rgb(0 0 0 / 0.7); }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 72rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
p.note, figcaption { color: var(--quiet); }
p.note { max-width: 50rem; }
/* A table that is wider than the page scrolls in its frame; a shadow marks each side where columns are hidden. */
div.wide { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 30%, transparent) left / 3rem 100% local,
  linear-gradient(to left, var(--paper) 30%, transparent) right / 3rem 100% local,
  linear-gradient(to right, var(--shade), transparent) left / 1rem 100% scroll,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { border-bottom-width: 2px; vertical-align: bottom; }
tbody th { font-weight: normal; }
th:first-child { text-align: left; padding-left: 0; }
td.text { text-align: left; white-space: normal; }
div.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 2rem; }
figure { margin: 0; }
figure.sheet { grid-column: 1 / -1; }
figure.sheet img { background: #fff; width: auto; }
img { width: 100%; max-width: 100%; height: auto; margin: 0.6rem 0; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2rem 1rem; max-width: 60rem; }
dt { font-weight: 600; } dd { margin: 0; }
@media (max-width: 30rem) {
  th, td { padding: 0.25rem 0 0.25rem 0.5rem; }
  table { font-size: 0.78rem; }
  dl { grid-template-columns: auto; gap: 0; }
  dd { margin-bottom: 0.5rem; }
}
"""
# The colours of figures (`openenv._plots`) on a dark page.
_DARK = {
    "#ffffff": "#16181d",
    "#222222": "#e6e6e6",
    "#333333": "#d0d4da",
    "#555555": "#b4bac2",
    "#888888": "#7d858f",
    "#e4e4e4": "#2f343c",
    **dict(zip(COLOURS, ("#6cb2f0", "#f0937f", "#5cc27d", "#b3a8e0", "#dcb13c", "#b8b8b8"), strict=True)),
}


def themed_svg(figure: Figure) -> bytes:
    """A figure as SVG, with dark colours on a dark page."""
    svg = file_of(figure, "svg").decode()
    for colour in _DARK:
        svg = svg.replace(colour, f"var(--c{colour[1:]}, {colour})")
    dark = " ".join(f"--c{light[1:]}: {colour};" for light, colour in _DARK.items())
    style = f"<style>@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}</style>"
    return svg.replace("<defs>", f"<defs>{style}", 1).encode()


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report. Cells without numbers are aligned left."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A picture that answers one question.

    Attributes:
        question: The heading.
        image: The contents of a PNG file, or the SVG of `themed_svg`.
        answer: The answer in a sentence.
    """

    question: str
    image: bytes
    answer: str = ""


@dataclass(slots=True)
class HtmlReport:
    """The report of a measurement.

    Attributes:
        title: The headline.
        lead: The result in one or two sentences.
        facts: Conditions of the measurement, by name.
        tables: Tables in their order.
        charts: Charts in their order.
        terms: Meaning of each term of the report.
    """

    title: str
    lead: str
    facts: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[ReportTable] = ()
    charts: Sequence[ReportChart] = ()
    terms: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """The report as an HTML file."""
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head><body><main>",
            f"<h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p>",
            *(_table(table) for table in self.tables if table.rows),
            f'<div class="charts">{"".join(map(_chart, self.charts))}</div>' if self.charts else "",
            _list("Terms", self.terms),
            _list("How it was measured", self.facts),
            "</main></body></html>",
        ]
        return "\n".join(parts) + "\n"


def _table(table: ReportTable) -> str:
    header = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(map(_cell, cells))}</tr>' for name, *cells in table.rows
    )
    title = escape(table.title)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{title}</h2>{note}<div class="wide" role="region" aria-label="{title}" tabindex="0"><table>'
        f"<thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    words = any(letter.isalpha() for letter in text) and not text[:1].isdigit()
    return f'<td class="text">{escape(text)}</td>' if words else f"<td>{escape(text)}</td>"


def _chart(chart: ReportChart) -> str:
    question, data = escape(chart.question), base64.b64encode(chart.image).decode()
    png = chart.image.startswith(b"\x89PNG")
    kind, sheet = ("png", ' class="sheet"') if png else ("svg+xml", "")
    answer = f"<figcaption>{escape(chart.answer)}</figcaption>" if chart.answer else ""
    return (
        f'<figure{sheet}><h2>{question}</h2><img alt="{question}" '
        f'src="data:image/{kind};base64,{data}">{answer}</figure>\n'
    )


def _list(title: str, entries: Mapping[str, str]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries.items())
    return f"<h2>{escape(title)}</h2><dl>{lines}</dl>" if lines else ""


# Up to this number of labels fit side by side.
LABELS_IN_LINE = 5


def scale_figures(summaries: Sequence[BatchSummary], cores: int) -> dict[str, bytes]:
    """The pictures of `openenv bench scale`, by the names of their files.

    Args:
        summaries: At least one batch.
        cores: Cores of the server's machine.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    require_matplotlib()
    return {
        "success_rate.png": success_lines(summaries),
        "latency.png": latency_lines(summaries),
        "max_batch.png": batch_bars(summaries, cores),
        "p99_heatmap.png": heat_map(summaries),
    }


def success_lines(summaries: Sequence[BatchSummary]) -> bytes:
    """Success rate against the number of sessions: a line for each wait, the worst repetition of each point."""
    with canvas(1, 1) as (figure, (axes,)):
        groups = _by_wait(summaries)
        for number, (colour, (wait, group)) in enumerate(zip(cycle(COLOURS), groups.items(), strict=False)):
            sizes = _by_size(group)
            worst = [100 * min(s.successful / s.num_requests for s in batch) for batch in sizes.values()]
            # Lines often coincide, so the lower ones are wider.
            width = 1.5 + 1.2 * (len(groups) - 1 - number)
            line = axes.plot(list(sizes), worst, linewidth=width, color=colour, label=_wait_label(wait))[0]
            line.set(marker="o", markersize=4 + width, clip_on=False)
        axes.axhline(95, color="#999999", linewidth=1, linestyle="--")
        axes.annotate("95 %", (0.005, 94), xycoords=("axes fraction", "data"), va="top", color="#777777", size=9)
        _size_axis(axes, summaries)
        axes.set_ylim(0, 102)
        axes.set_ylabel("successful requests, %")
        axes.set_title("Success rate (worst repetition)")
        axes.legend(loc="lower left")
        return file_of(figure)


def latency_lines(summaries: Sequence[BatchSummary]) -> bytes:
    """Latency of a whole request against the number of sessions: a panel for each wait, means of the repetitions."""
    groups = _by_wait(summaries)
    with canvas(1, len(groups)) as (figure, panels):
        for axes, (wait, group) in zip(panels, groups.items(), strict=True):
            sizes = _by_size(group)
            for colour, name in zip(COLOURS, ("p50", "p95", "p99"), strict=False):
                points = [_mean(getattr(s, f"total_{name}") for s in batch) for batch in sizes.values()]
                axes.plot(list(sizes), points, marker="o", color=colour, label=name.upper())
            if wait:
                axes.axhline(wait, color="#999999", linewidth=1, linestyle="--", label="wait")
            _size_axis(axes, summaries)
            axes.set_ylim(bottom=0)
            axes.set_title(f"Connect + reset + step, {_wait_label(wait)}")
        panels[0].set_ylabel("seconds")
        panels[0].legend(loc="upper left")
        return file_of(figure)


def batch_bars(summaries: Sequence[BatchSummary], cores: int) -> bytes:
    """The largest batch with 95 % success, by wait: for the whole server, and per core."""
    from matplotlib.ticker import MaxNLocator

    groups = _by_wait(summaries)
    names = [_wait_label(wait) for wait in groups]
    largest = [max_batch(group) for group in groups.values()]
    panels_of = {
        "Max batch (at least 95 % success)": [float(size) for size in largest],
        f"Max batch per core ({cores} core{'s' if cores > 1 else ''})": [size / cores for size in largest],
    }
    with canvas(1, 2) as (figure, panels):
        for axes, colour, (title, heights) in zip(panels, COLOURS, panels_of.items(), strict=False):
            bars = axes.bar(names, heights, color=colour, width=min(0.6, 0.18 * len(names) + 0.1))
            axes.bar_label(bars, [f"{height:,.0f}" for height in heights], padding=3)
            axes.set_xlim(-0.7, len(names) - 0.3)
            axes.set_ylim(0, 1.15 * max(*heights, 1.0))
            axes.grid(visible=False, axis="x")
            axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_ylabel("sessions")
            axes.set_title(title)
        return file_of(figure)


def heat_map(summaries: Sequence[BatchSummary]) -> bytes:
    """P99 of a whole request, number of sessions by wait, the worst repetition of each."""
    waits, sizes = _by_wait(summaries), sorted({s.num_requests for s in summaries})
    cells = [
        [
            max((s.total_p99 for s in group if s.num_requests == size and s.total_p99 is not None), default=math.nan)
            for size in sizes
        ]
        for group in waits.values()
    ]
    with canvas(1, 1) as (figure, (axes,)):
        image = axes.imshow(cells, cmap="YlOrRd", aspect="auto", vmin=0, origin="lower")
        top = max((value for row in cells for value in row if not math.isnan(value)), default=1.0)
        for y, row in enumerate(cells):
            for x, value in enumerate(row):
                text = "none" if math.isnan(value) else f"{value:.3g} s"
                dark = not math.isnan(value) and value > 0.6 * top
                axes.text(x, y, text, ha="center", va="center", color="white" if dark else "#222222")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_yticks(range(len(waits)), [f"{wait:g} s" for wait in waits])
        axes.grid(visible=False)
        axes.set_xlabel("sessions at once")
        axes.set_ylabel("wait of the step")
        axes.set_title("P99 of connect + reset + step (worst repetition)")
        figure.colorbar(image, ax=axes, label="seconds")
        return file_of(figure)


def _by_wait(summaries: Iterable[BatchSummary]) -> dict[float, list[BatchSummary]]:
    groups: dict[float, list[BatchSummary]] = {}
    for summary in sorted(summaries, key=lambda s: s.wait_seconds):
        groups.setdefault(summary.wait_seconds, []).append(summary)
    return groups


def _by_size(summaries: Iterable[BatchSummary]) -> dict[int, list[BatchSummary]]:
    groups: dict[int, list[BatchSummary]] = {}
    for summary in sorted(summaries, key=lambda s: s.num_requests):
        groups.setdefault(summary.num_requests, []).append(summary)
    return groups


def _mean(values: Iterable[float | None]) -> float:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else math.nan


def _wait_label(wait: float) -> str:
    return f"{wait:g} s wait"


def _size_axis(axes: Axes, summaries: Sequence[BatchSummary]) -> None:
    sizes = sorted({summary.num_requests for summary in summaries})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30 if len(sizes) > LABELS_IN_LINE else 0)
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.minorticks_off()
    axes.set_xlabel("sessions at once")


ERRORS_SHOWN = 20
_BATCHES_NOTE = (
    "Max batch is the largest number of concurrent sessions with at least 95 % success in every repetition. "
    "Latencies are seconds, by nearest rank over the requests that succeeded. Total is connect + reset + step; "
    "the close follows. Concurrency is the sum of the totals divided by the wall time."
)
_CAPTIONS = {
    "success_rate.png": "Success rate against the number of sessions",
    "latency.png": "Latency against the number of sessions",
    "max_batch.png": "Max batch",
    "p99_heatmap.png": "P99 by number of sessions and wait",
}
_HOSTS_NOTE = (
    "A host is a server, by the name from the gateway or by the address that the load chose. If neither is known, it "
    "is the machine or container that the environment names. Spread is the difference between the fullest and the "
    "emptiest host, divided by the mean of the hosts."
)


def write_scale_report(folder: Path) -> None:
    """Writes `report.html` and its figures beside the `result.json` and `raw.jsonl` of `openenv bench scale`.

    Args:
        folder: The output folder of `openenv bench scale`.

    Raises:
        UsageError: The files are missing, or do not describe the load.
        MissingExtra: matplotlib is not installed.
    """
    require_matplotlib()
    try:
        document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        with (folder / "raw.jsonl").open(encoding="utf-8") as raw:
            rows = (json.loads(line) for line in raw)
            errors = Counter((row["error_type"], row["error_message"]) for row in rows if not row["success"])
        batches = [
            {key: value for key, value in each.items() if key != "host_spread"} for each in document["batches"]
        ]
        summaries = [BatchSummary(**batch) for batch in batches]
        load, server, mode = document["load"], document["server"], document["workload"]["mode"]
        cores, processes, timeout_s = load["server_cores"], load["processes"], load["timeout_s"]
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"{folder} has no result of `openenv bench scale` of this version") from None
    pictures = scale_figures(summaries, cores)
    for name, png in pictures.items():
        (folder / name).write_bytes(png)
    report = HtmlReport(
        title="How many sessions at once",
        lead=" ".join(ScaleResult(cores, summaries).verdicts()),
        facts={
            "server": server,
            "cores of the server": str(cores),
            "mode": mode,
            "load": f"{processes} process(es), timeout of {timeout_s:g} s for each phase",
            **{f"{name} (load)": value for name, value in document["machine"].items()},
        },
        tables=[_batches_table(summaries), *hosts_tables(summaries), _failures_table(errors)],
        charts=[ReportChart(_CAPTIONS[name], png) for name, png in pictures.items()],
    )
    (folder / "report.html").write_text(report.html(), encoding="utf-8")


def _batches_table(summaries: Sequence[BatchSummary]) -> ReportTable:
    header = ["sessions", "wait s", "rep.", "success %", "wall s"]
    header += [f"{phase} {name.upper()}" for phase in ("connect", "reset", "step") for name in ("p50", "p95", "p99")]
    header += [f"total {name}" for name in ("P50", "P90", "P95", "P99")]
    header += ["sessions/s", "concurrency", "processes", "hosts"]
    return ReportTable("All batches", header, [_batch_cells(summary) for summary in summaries], _BATCHES_NOTE)


def _batch_cells(summary: BatchSummary) -> list[str]:
    phases = [getattr(summary, f"{p}_{q}") for p in ("connect", "reset", "step") for q in ("p50", "p95", "p99")]
    totals = [summary.total_p50, summary.total_p90, summary.total_p95, summary.total_p99]
    return [
        f"{summary.num_requests:,}",
        f"{summary.wait_seconds:g}",
        str(summary.repetition),
        f"{100 * summary.successful / summary.num_requests:.2f}",
        f"{summary.total_wall_time:.2f}",
        *("-" if value is None else f"{value:.3f}" for value in phases + totals),
        f"{summary.requests_per_second:,.0f}",
        f"{summary.effective_concurrency:,.0f}",
        str(summary.unique_pids),
        str(summary.unique_hosts),
    ]


def hosts_tables(summaries: Sequence[BatchSummary]) -> list[ReportTable]:
    """A table of the hosts of each batch; empty if the hosts are unknown."""
    names = sorted({name for summary in summaries for name in summary.hosts})
    if not names:
        return []
    rows = [
        [
            f"{summary.num_requests:,}",
            f"{summary.wait_seconds:g}",
            str(summary.repetition),
            f"{100 * (summary.host_spread or 0.0):.1f}" if summary.hosts else "-",
            *(f"{summary.hosts.get(name, 0):,}" for name in names),
        ]
        for summary in summaries
    ]
    return [ReportTable("Hosts", ["sessions", "wait s", "rep.", "spread %", *names], rows, _HOSTS_NOTE)]


def _failures_table(errors: Counter[tuple[str, str]]) -> ReportTable:
    rows = [[kind, message, f"{count:,}"] for (kind, message), count in errors.most_common(ERRORS_SHOWN)]
    return ReportTable("Failures", ["error", "message", "requests"], rows, "The most frequent failures.")
