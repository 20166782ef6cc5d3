"""Without matplotlib there are no pictures, and the error says what to install."""

import sys

import pytest

from benchmarks.report import scale_figures
from openenv._plots import canvas, file_of, require_matplotlib
from openenv.errors import MissingExtra

from .pictures import is_png, size_of
from .rows import summary


def test_a_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"matplotlib is not installed: pip install 'openenv\[bench\]'"):
        require_matplotlib()
    with pytest.raises(MissingExtra):
        scale_figures([summary(4)], cores=1)


def test_a_canvas_has_its_panels_row_by_row():
    with canvas(2, 3) as (figure, panels):
        assert len(panels) == 6
        assert [panel.get_subplotspec().rowspan.start for panel in panels] == [0, 0, 0, 1, 1, 1]
        assert is_png(file_of(figure))


def test_the_style_ends_with_the_canvas():
    import matplotlib

    before = matplotlib.rcParams["axes.grid"]
    with canvas(1, 1, panel_width=4.0) as (figure, _):
        assert matplotlib.rcParams["axes.grid"] is True
        assert size_of(file_of(figure)) == (440, 396)
    assert matplotlib.rcParams["axes.grid"] == before
