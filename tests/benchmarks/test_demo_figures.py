"""The pictures of the demo."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks import demo_report
from benchmarks.demo_report import latency_curves, open_sessions, outcome_histogram
from benchmarks.report import themed_svg
from openenv._plots import COLOURS, canvas


@pytest.fixture
def panels(monkeypatch):
    """Draws, and gives the panels instead of the picture."""
    kept = []
    monkeypatch.setattr(demo_report, "themed_svg", lambda figure: kept.append(figure.axes) or b"")

    def draw(picture, *arguments):
        picture(*arguments)
        return kept[-1]

    return draw


def is_svg(data):
    return ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize(
    "latencies",
    [{"a": [0.001, 0.5], "b": [0.1], "c": []}, {"a": []}, {"a": [0.01]}, {"a": [0.0]}],
    ids=["several", "nothing", "one value", "no time at all"],
)
def test_curves_can_be_drawn(latencies):
    assert is_svg(latency_curves(latencies))


def test_a_curve_rises_to_100_percent(panels):
    (axes,) = panels(latency_curves, {"a": [0.004, 0.001, 0.002, 0.003]})
    line = axes.lines[0]
    assert list(line.get_xdata()) == [1.0, 2.0, 3.0, 4.0]
    assert list(line.get_ydata()) == [25.0, 50.0, 75.0, 100.0]
    assert axes.get_xlim() == (1.0, 10.0)


@pytest.mark.parametrize("values", [[1.0, -1.0, 0.0], [0.5], [float(n) for n in range(300)], []])
def test_histograms_can_be_drawn(values):
    assert is_svg(outcome_histogram(values, "return", COLOURS[0]))


def test_few_outcomes_get_a_bar_each(panels):
    (axes,) = panels(outcome_histogram, [1.0, -1.0, -1.0], "return", COLOURS[0])
    assert [bar.get_height() for bar in axes.patches] == [2, 0, 1]
    assert list(axes.get_xticks()) == [-1, 0, 1]


def test_open_sessions_are_counted_over_time(panels):
    (axes,) = panels(open_sessions, {"game": [(10.0, 13.0), (11.0, 12.0)]})
    line = axes.lines[0]
    assert list(line.get_xdata()) == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert list(line.get_ydata()) == [0, 1, 2, 1, 0]


def test_no_sessions_are_a_picture_too():
    assert is_svg(open_sessions({"game": []}))


def test_every_colour_of_a_chart_has_one_of_the_dark_theme():
    with canvas(1, 1) as (figure, (axes,)):
        for colour in COLOURS:
            axes.plot([0, 1], [0, 1], color=colour)
        svg = themed_svg(figure).decode()
    styles = [node.get("style", "") for node in ElementTree.fromstring(svg).iter()]
    used = {colour for style in styles for colour in re.findall(r"#[0-9a-f]{6}", style)}
    themed = dict(re.findall(r"--c([0-9a-f]{6}): (#[0-9a-f]{6})", svg))
    assert used <= {f"#{colour}" for colour in themed}
    assert set(COLOURS) < used
