"""Ctrl-C while a library waits for the network on threads of its own."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

__all__ = ["INTERRUPTED", "leave", "told_when_interrupted"]

INTERRUPTED = 130


@contextmanager
def told_when_interrupted(words: str) -> Iterator[None]:
    """Says something when the block is interrupted, and lets nothing keep the process from ending then, nor when a
    signal ends it otherwise (SystemExit).

    Args:
        words: What the interruption has left, and what to do.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(words, err=True)
        leave()
        raise
    except SystemExit as ended:
        if isinstance(ended.code, int):
            leave(ended.code)
        raise


def leave(code: int = INTERRUPTED) -> None:
    """Ends the process at once where threads would keep it from ending; comes back where there are none."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for pools of threads, though they are daemons
