"""Helpers for all commands: option types and values, printed output, and termination by a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar

import click
from click.shell_completion import CompletionItem

from .._processes import signals
from ..errors import MissingExtra, UsageError
from ..providers.redaction import is_secret, redact

Command = TypeVar("Command", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


call_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit of a call, in seconds.",
)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one, for commands that have them in common."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def complete_target(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes a target argument, such as that of `openenv serve`, with bundled environments and folders.

    Not `type="dir"`: shells then offer nothing else.
    """
    from ..project.target import bundled

    names = [CompletionItem(name, help="comes with openenv") for name in bundled() if name.startswith(incomplete)]
    base, slash, start = incomplete.rpartition("/")
    try:
        folders = [
            CompletionItem(f"{base}{slash}{place.name}")
            for place in sorted(Path(f"{base}{slash}" or ".").expanduser().iterdir())
            if place.name.startswith(start) and place.is_dir() and (start or not place.name.startswith("."))
        ]
    except (OSError, RuntimeError):  # no folder to look into, or no such user (~user/)
        folders = []
    return names + folders


def is_address(target: str) -> bool:
    """Whether a target is the address of a server: a URL, or host:port."""
    return "://" in target or target.rpartition(":")[2].isdigit()


def variable(text: str) -> tuple[str, str]:
    """The name and value of `NAME=VALUE`; a name alone takes that variable's value.

    Raises:
        UsageError: It is not set, or a secret is on the command line.
    """
    name, value = _pair("--env", text)
    if "=" in text and is_secret(name, value):
        raise UsageError(
            f"every user of this machine can read a command line: set {name} in this shell and pass --env {name} "
            "without a value"
        )
    return name, value


def _pair(option: str, text: str) -> tuple[str, str]:
    from ..settings import variable_here

    name, given, value = text.partition("=")
    here = value if given else variable_here(name)
    if not name or here is None:
        raise UsageError(
            f"{option} {redact(name, ())}: the variable is not set in this shell; "
            f"set it, or write {option} NAME=VALUE"
        )
    return name, here


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Names and values from a command line; a name alone takes that variable's value.

    Raises:
        UsageError: It is not set, or given twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, here = _pair(option, text)
        if found.setdefault(name, here) != here:
            raise UsageError(f"{option} {name} is given twice with different values: remove one")
    return found


def yaml_pairs(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Parses `NAME=VALUE` options. The value is YAML, so numbers, lists, true and false have their types."""
    import yaml

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} is {text!r}: write NAME=VALUE")
        if is_secret(name, value):
            raise UsageError(
                f"{option} {name}: every user of this machine can read a command line, and results repeat it: set a "
                "variable instead (HF_TOKEN, KUBECONFIG)"
            )
        try:
            found[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError(f"{option} {name}: {error}") from None
    return found


class TargetGroup(click.Group):
    """A command with subcommands: an argument that is not one of them is its target."""

    allow_interspersed_args = True
    allow_extra_args = False

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        # The target is not part of the path of a subcommand.
        return found if ctx.command is self else [each for each in found if not isinstance(each, click.Argument)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.meta[__name__] = list(args)
            return []
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if __name__ not in ctx.meta:
            return click.Command.invoke(self, ctx)
        name, *rest = ctx.meta[__name__]
        with self.commands[name].make_context(name, rest, parent=ctx) as inner:
            return inner.command.invoke(inner)


INTERRUPTED = 130


def print_error(text: str) -> None:
    """Prints an error in one line on stderr."""
    click.echo(f"{click.style('error:', fg='red')} {text}", err=True)


class NoAnswer(click.ClickException):
    """The command has no result, neither success nor failure: there was nothing to read or to compare."""

    exit_code = 2


def display_module() -> ModuleType:
    """The module that formats results. Raises `MissingExtra` if rich is not installed."""
    try:
        from . import display
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "rich", "bench") from None
    return display


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document, on stdout."""
    click.echo(json.dumps(document, indent=2))


def tame(text: str) -> str:
    """A text from a record or a server, without control characters that a terminal would execute."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def cut(text: str, width: int) -> str:
    """The text, shortened to at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def columns(most: int) -> int:
    """The width of the terminal, from 60 to `most`; `most` if the output is not a terminal."""
    return max(60, min(most, shutil.get_terminal_size((most, 24)).columns))


def plural(number: int, noun: str) -> str:
    """A number of things: `1 episode`, `2,000 episodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The rows as lines, with columns as wide as their widest cell. Cells may be styled.

    Args:
        rows: The cells of each.
        right: Indices of the right-aligned columns.
    """
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        spaces = [" " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)]
        cells = [s + c if n in right else c + s for n, (c, s) in enumerate(zip(row, spaces, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, end this process like Ctrl-C: servers and load first."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    # A command under nohup must continue.
    numbers = [each for each in signals("SIGTERM", "SIGHUP") if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def message_on_interrupt(words: str) -> Iterator[None]:
    """Prints a message if the block is interrupted. The process then ends even if threads still run, also when a
    signal ends it otherwise (SystemExit).

    Args:
        words: The state after the interruption, and the next step.
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
    """Ends the process at once if threads would keep it from ending; returns if there are none."""
    if threading.active_count() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the interpreter would wait for pools of threads, though they are daemons


# Without a bar, seconds between two lines about the same step.
LINE_S = 2.0
# Characters of a note that are shown.
WIDTH = 80


class ProgressBar:
    """Shows progress. After the block, the bar is gone and the lines stay."""

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
        """Prints a line that stays above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def show(self, label: str, done: int, total: int, note: str = "") -> None:
        """Shows the progress of a step.

        Args:
            label: The current step.
            done: Units of work that are done.
            total: Units of work in total; 0 if unknown.
            note: Further facts.
        """
        if self._bar is None:
            now = time.monotonic()
            if label != self._label or now - self._at >= LINE_S:
                self._label, self._at = label, now
                click.echo(f"{label}: {cut(note, WIDTH)}" if note else label, err=True)
            return
        if self._task is None:
            self._task = self._bar.add_task(label, note="")
        whole = total or None
        self._bar.update(self._task, description=label, completed=done, total=whole, note=cut(note, WIDTH))


def _bar() -> Any:
    """The live display of rich; None without a terminal or without rich."""
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
