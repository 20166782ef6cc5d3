"""The pictures of a scale measurement."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import batch_bars, heat_map, latency_lines, scale_figures, success_lines

from ..bench.pictures import is_png, size_of
from ..bench.rows import summary

GRID = [
    summary(size, wait=wait, repetition=repetition, total=wait + size / 100)
    for wait in (0.1, 1.0, 10.0)
    for size in (32, 128, 512)
    for repetition in (1, 2)
]
FAILING = [summary(32), summary(128, successful=100), summary(512, successful=0)]
PICTURES = [success_lines, latency_lines, heat_map, lambda summaries: batch_bars(summaries, cores=4)]


@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize(
    "summaries",
    [GRID, FAILING, [summary(1, wait=0.0)], [summary(8, successful=0)]],
    ids=["grid", "failing", "one batch", "no success"],
)
def test_every_picture_can_be_drawn(draw, summaries):
    png = draw(summaries)
    assert is_png(png)
    assert min(size_of(png)) > 300


def test_there_are_four_of_them():
    pictures = scale_figures(GRID, cores=2)
    assert sorted(pictures) == ["latency.png", "max_batch.png", "p99_heatmap.png", "success_rate.png"]
    assert all(map(is_png, pictures.values()))


def test_latency_has_a_panel_for_each_wait():
    one, three = size_of(latency_lines(GRID[:6])), size_of(latency_lines(GRID))
    assert three[0] > 1.5 * one[0]
    assert three[1] == one[1]


def test_lines_show_the_worst_repetition(monkeypatch):
    drawn = axes_of(monkeypatch, success_lines, [summary(100), summary(100, successful=60, repetition=2)])
    assert list(drawn[0].lines[0].get_ydata()) == [60.0]


def test_lines_show_the_mean_latency(monkeypatch):
    drawn = axes_of(monkeypatch, latency_lines, [summary(10, total=2.0), summary(10, total=4.0, repetition=2)])
    assert [line.get_ydata()[0] for line in drawn[0].lines[:3]] == [3.0, 3.0, 3.0]


def test_bars_show_the_max_batch_and_its_share_of_a_core(monkeypatch):
    drawn = axes_of(monkeypatch, lambda summaries: batch_bars(summaries, cores=4), FAILING)
    assert [axes.patches[0].get_height() for axes in drawn] == [32, 8]


def test_the_heat_map_is_number_by_wait_and_says_where_nothing_succeeded(monkeypatch):
    summaries = [
        summary(8, wait=1.0, total=1.5),
        summary(16, successful=0, wait=1.0),
        summary(8, wait=2.0, total=2.5),
    ]
    drawn = axes_of(monkeypatch, heat_map, summaries)
    assert [text.get_text() for text in drawn[0].texts] == ["1.5 s", "none", "2.5 s", "none"]


def test_nothing_is_drawn_on_a_screen_and_nothing_imported_before_it_is_needed():
    code = (
        "import sys, benchmarks.report, benchmarks.demo_report, openenv.bench.scale, benchmarks.demo;"
        "assert not {'matplotlib', 'httpx', 'gymnasium'} & set(sys.modules);"
        "benchmarks.report.require_matplotlib();"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def axes_of(monkeypatch, draw, summaries):
    """The panels of a picture, before it becomes one."""
    kept = []
    monkeypatch.setattr(report, "file_of", lambda figure: kept.append(figure.axes) or b"")
    draw(summaries)
    return kept[0]
