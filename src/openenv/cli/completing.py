"""What a shell is told that may stand where somebody is typing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

__all__ = ["TARGET"]

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
