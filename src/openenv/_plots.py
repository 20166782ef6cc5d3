"""Size, style and colours of all figures; matplotlib is imported when the first figure is made."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Dark enough on white; colour-blind readers can distinguish them.
COLOURS = ("#2166ac", "#d6604d", "#1b7837", "#8073ac", "#b8860b", "#444444")
DPI = 110
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.grid": True,
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.size": 10,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "text.color": "#222222",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


def require_matplotlib() -> None:
    """Raises `MissingExtra` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("matplotlib", "bench") from None


@contextmanager
def canvas(rows: int, columns: int, *, panel_width: float | None = None) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in our style, and its panels, row by row. It uses neither a window nor matplotlib's global state."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = panel_width or (7.5 if columns == 1 else 5.0)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width * columns, 3.6 * rows), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, columns, squeeze=False)
        yield figure, [axes for line in panels for axes in line]


def file_of(figure: Figure, kind: str = "png") -> bytes:
    """A finished figure as a file: `png` or `svg`."""
    file = io.BytesIO()
    figure.savefig(file, format=kind, facecolor="white", metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()
