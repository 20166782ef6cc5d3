"""How a command says that something is wrong."""

from __future__ import annotations

import importlib
import traceback
from types import TracebackType

import click

from ..errors import ImportFailed, OpenEnvError
from ..project import imports

__all__ = ["complain", "tell"]


def complain(text: str) -> None:
    """One line, on stderr."""
    click.echo(f"{click.style('error:', fg='red')} {text}", err=True)


def tell(error: OpenEnvError) -> None:
    """An error that we know; before it the traceback, if it is one of the user's own module."""
    cause = error.__cause__
    if isinstance(error, ImportFailed) and not isinstance(cause, ImportError):
        traceback.print_exception(cause.with_traceback(_of_user(cause.__traceback__)) if cause else None)
    complain(error.message)


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """What is left of a traceback without the way from here to the user's module."""
    while trace is not None and _on_the_way(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _on_the_way(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in {importlib.__file__, imports.__file__}
