"""The pictures of the demo."""

import pytest

from benchmarks import demo_report
from benchmarks.demo_report import open_sessions, outcome_histograms, phase_curves

from ..bench.pictures import is_png


@pytest.fixture
def panels(monkeypatch):
    """Draws, and gives the panels instead of the picture."""
    kept = []
    monkeypatch.setattr(demo_report, "file_of", lambda figure: kept.append(figure.axes) or b"")

    def draw(picture, *arguments):
        picture(*arguments)
        return kept[-1]

    return draw


@pytest.mark.parametrize(
    "latencies",
    [
        {"connect": {"a": [0.001, 0.5], "b": [0.1]}, "step": {"a": [1.0], "b": []}},
        {"connect": {"a": []}},
        {"connect": {"a": [0.01]}},
        {"connect": {"a": [0.0]}},
    ],
    ids=["two by two", "nothing", "one value", "no time at all"],
)
def test_curves_can_be_drawn(latencies):
    assert is_png(phase_curves(latencies))


def test_a_curve_rises_to_100_percent(panels):
    (axes,) = panels(phase_curves, {"step": {"a": [0.004, 0.001, 0.002, 0.003]}})
    line = axes.lines[0]
    assert list(line.get_xdata()) == [1.0, 2.0, 3.0, 4.0]
    assert list(line.get_ydata()) == [25.0, 50.0, 75.0, 100.0]
    assert axes.get_xlim() == (1.0, 10.0)


@pytest.mark.parametrize(
    "outcomes",
    [
        {"game": ([1.0, -1.0, 0.0], [1, 2, 1])},
        {"one": ([0.5], [200]), "two": ([float(n) for n in range(300)], list(range(300)))},
        {"nothing": ([], [])},
    ],
    ids=["few outcomes", "many outcomes", "none"],
)
def test_histograms_can_be_drawn(outcomes):
    assert is_png(outcome_histograms(outcomes))


def test_few_outcomes_get_a_bar_each(panels):
    returns, lengths = panels(outcome_histograms, {"game": ([1.0, -1.0, -1.0], [3, 3, 5])})
    assert [bar.get_height() for bar in returns.patches] == [2, 0, 1]
    assert list(returns.get_xticks()) == [-1, 0, 1]
    assert [bar.get_height() for bar in lengths.patches] == [2, 0, 1]
    assert "mean -0.333" in returns.get_title(loc="left")


def test_open_sessions_are_counted_over_time(panels):
    (axes,) = panels(open_sessions, {"game": [(10.0, 13.0), (11.0, 12.0)]})
    line = axes.lines[0]
    assert list(line.get_xdata()) == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert list(line.get_ydata()) == [0, 1, 2, 1, 0]


def test_no_sessions_are_a_picture_too():
    assert is_png(open_sessions({"game": []}))
