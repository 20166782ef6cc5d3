"""`openenv bench`: measure an environment server."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(help="Measure an environment server.", no_args_is_help=True)
