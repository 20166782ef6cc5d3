"""What the options of several commands have in common: types, completion of values, groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])
COUNT = click.IntRange(min=1)
FILE = click.Path(dir_okay=False, path_type=Path)


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one, for commands that have them in common."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundled environments, and folders. Not `type="dir"`: shells then offer nothing else."""
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


TARGET: Complete = _targets
"""For arguments that are targets, as those of `openenv serve`."""
