"""Cleaning up after an error, which goes first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["kept"]


@contextlib.contextmanager
def kept(error: BaseException | None) -> Iterator[None]:
    """Cleaning up after an error, which goes first: what goes wrong here becomes a note of it."""
    try:
        yield
    except Exception as failure:
        if error is None:
            raise
        error.add_note(f"and cleaning up failed: {type(failure).__name__}: {failure}")
