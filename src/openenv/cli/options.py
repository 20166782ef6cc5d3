"""Options that several commands take, and completion of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from ..providers.redaction import secrets_of
from ..settings import variable_here


def variable(text: str) -> tuple[str, str]:
    """The name and value of `NAME=VALUE`, or of `NAME`, whose value is the one that it has here.

    Raises:
        UsageError: It is not set here; or a secret stands on the command line.
    """
    name, given, value = text.partition("=")
    if given:
        if secrets_of({name: value}):
            raise UsageError(f"a command line can be read by everybody: set {name} here, and give --env {name} alone")
        return name, value
    here = variable_here(name)
    if here is None:
        raise UsageError(f"--env {name}: it is not set here; give --env {name}=VALUE")
    return name, here


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _targets(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Bundled environments, and folders. Not `type="dir"`: shells then offer nothing else."""
    from ..project.target import bundled

    names = [CompletionItem(name, help="comes with openenv") for name in bundled() if name.startswith(incomplete)]
    return [*names, *map(CompletionItem, _folders(incomplete))]


def _folders(incomplete: str) -> list[str]:
    base, slash, start = incomplete.rpartition("/")
    try:
        return [
            f"{base}{slash}{place.name}"
            for place in sorted(Path(f"{base}{slash}" or ".").expanduser().iterdir())
            if place.name.startswith(start) and place.is_dir() and (start or not place.name.startswith("."))
        ]
    except (OSError, RuntimeError):  # nothing to look into, or nobody of that name (~nobody/)
        return []


TARGET: Complete = _targets
"""For arguments that are targets, as those of `openenv serve`."""
