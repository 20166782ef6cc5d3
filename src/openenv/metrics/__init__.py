"""What a process counts about itself: numbers in one block of memory, which several processes may show as one.

Counting is part of every step, so it is a few additions to an array and nothing else. Names, help and the text
that Prometheus reads are made where they are asked for.
"""

from .layout import BUCKET_BOUNDS, CELLS, Count, Gauge, Phase
from .meter import METER, Meter
from .reading import Histogram, Reading, quantile, total

__all__ = [
    "BUCKET_BOUNDS",
    "CELLS",
    "METER",
    "Count",
    "Gauge",
    "Histogram",
    "Meter",
    "Phase",
    "Reading",
    "quantile",
    "total",
]
