"""All commands under one name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from .. import __version__
from ..errors import OpenEnvError
from . import bench, serve

__all__ = ["app", "main"]

app = typer.Typer(
    name="openenv",
    help="Serve typed reinforcement-learning environments, and measure them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("serve")(serve.serve)
app.add_typer(bench.app, name="bench")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"openenv {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve typed reinforcement-learning environments, and measure them."""


def main() -> None:
    """Runs a command; an error that we know is one line and exit code 1, Ctrl-C is exit code 130."""
    try:
        app()
    except OpenEnvError as error:
        Console(stderr=True, highlight=False).print(f"[red]error:[/red] {error.message}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
