"""What environments tell beside their spaces, such as `info`, as what JSON can say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["plain"]

_PLAIN = frozenset({bool, int, float, str})


def plain(value: Any) -> Any:
    """Anything as what JSON can say: arrays as lists, numpy's numbers as Python's, unknown objects as text."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float | str) else str(value)


def _plain_array(value: NDArray[Any] | np.generic) -> Any:
    items = value.tolist()
    if value.dtype.kind in "biuf" and not isinstance(items, np.generic):
        return items
    # The widest numbers of some machines are no Python number, and come out as themselves.
    return str(items) if isinstance(items, np.generic) else plain(items)
