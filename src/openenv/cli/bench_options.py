"""What the commands of `openenv bench` have in common."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from ..errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from ..bench.crew import Counts
    from ..bench.served import ServedTarget
    from .bench_display import Display

__all__ = [
    "COUNT",
    "FOLDER",
    "command_line",
    "display_module",
    "ended_in_order",
    "failures",
    "one_server",
    "phases",
    "processes_option",
    "serve_option",
    "served",
    "served_by",
    "url_option",
    "workers_option",
]

COUNT = click.IntRange(min=1)
FOLDER = click.Path(file_okay=False, path_type=Path)
# Room for sessions whose close is still under way.
SPARE_SESSIONS = 64

url_option = click.option("--url", help="Address of a running server.")
serve_option = click.option(
    "--serve", metavar="TARGET", help="Serve this for the measurement, as `openenv serve` would."
)
workers_option = click.option(
    "--workers", type=COUNT, default=1, show_default=True, help="Worker processes, with --serve."
)
processes_option = click.option(
    "--processes",
    type=COUNT,
    show_default="by the sessions and cores",
    help="Processes of the load, each with its share.",
)


def command_line() -> str:
    """What was typed."""
    return shlex.join(["openenv", *sys.argv[1:]])


def display_module() -> ModuleType:
    """How results look. Raises `MissingExtra` where rich is not installed."""
    try:
        from . import bench_display
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "rich", "bench") from None
    return bench_display


def served(stack: ExitStack, display: Display, target: str, workers: int, sessions: int) -> ServedTarget:
    """Serves a target until the stack is left."""
    from ..bench.served import ServedTarget

    display.say(f"serving {target} with {workers} worker{'s' if workers > 1 else ''}")
    return stack.enter_context(ServedTarget(target, workers, max_sessions=sessions + SPARE_SESSIONS))


def served_by(serve: str | None, url: str, workers: int) -> str:
    """What the server is, in words."""
    return f"{serve}, {workers} worker(s)" if serve else url


def phases(total: int, counts: Counts) -> dict[str, tuple[int, int]]:
    """How far sessions are, as bars."""
    done = {"connect": counts.connected, "reset": counts.reset, "step": counts.steps, "close": counts.closed}
    return {name: (count, total) for name, count in done.items()}


def failures(counts: Counts) -> str:
    """How many failed, if any did."""
    return f"{counts.failed:,} failed" if counts.failed else ""


def one_server(url: str | None, serve: str | None) -> None:
    """Raises `UsageError` unless it is said what to measure."""
    if (url is None) == (serve is None):
        raise UsageError("what shall be measured? give either --url of a running server, or --serve TARGET")


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM, and the SIGHUP of a terminal that goes, end this process as Ctrl-C does: servers and load first."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    # Who started this with nohup wants it to go on.
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
