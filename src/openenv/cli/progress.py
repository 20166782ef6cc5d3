"""Progress of a long command on stderr, and its end by Ctrl-C."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import click

INTERRUPTED = 130


@contextmanager
def message_on_interrupt(words: str) -> Iterator[None]:
    """Says something when the block is interrupted, and lets nothing keep the process from ending then, nor when a
    signal ends it otherwise (SystemExit).

    Args:
        words: What the interruption has left, and what to do.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(words, err=True)
        exit_now()
        raise
    except SystemExit as ended:
        if isinstance(ended.code, int):
            exit_now(ended.code)
        raise


def exit_now(code: int = INTERRUPTED) -> None:
    """Ends the process at once where threads would keep it from ending; comes back where there are none."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for pools of threads, though they are daemons


# Seconds between two lines about the same, where there is no bar.
LINE_S = 2.0
# What of a note is shown.
WIDTH = 80


class Progress:
    """Says what is done. Leave it, and the bar is gone; what was said stays."""

    def __init__(self) -> None:
        self._bar = _bar()
        self._task: Any = None
        self._label = ""
        self._at = 0.0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def live(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    def say(self, text: str) -> None:
        """Something that stays."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def show(self, label: str, done: int, total: int, note: str = "") -> None:
        """How far it is.

        Args:
            label: What is done.
            done: How much of it is.
            total: Of how much; 0: nobody knows.
            note: What else there is to say.
        """
        if self._bar is None:
            self._line(label, note)
            return
        if self._task is None:
            self._task = self._bar.add_task(label, note="")
        whole = total or None
        self._bar.update(self._task, description=label, completed=done, total=whole, note=note[:WIDTH])

    def _line(self, label: str, note: str) -> None:
        now = time.monotonic()
        if label != self._label or now - self._at >= LINE_S:
            self._label, self._at = label, now
            click.echo(f"{label}: {note[:WIDTH]}" if note else label, err=True)


def _bar() -> Any:
    """What rich draws; None: there is no terminal, or no rich."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich import progress
        from rich.console import Console
        from rich.table import Column
    except ImportError:
        return None
    console = Console(stderr=True, highlight=False)
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=30),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
    )
