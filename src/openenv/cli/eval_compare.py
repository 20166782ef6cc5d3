"""`openenv eval compare`: two evaluations side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .eval_tables import comparison_lines

if TYPE_CHECKING:
    from ..evals.report import Report

__all__ = ["compare", "show_comparison"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Whether one evaluation differs from another.")
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a figure.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Says how B stands to A in return, success and length, with the 95 % confidence interval of each difference. A
    and B are what `openenv eval --output` wrote.

    Episodes of the same seed or task are compared with one another, so that the luck of easy seeds is no difference:
    give both runs the same --seeds. Without common ones the two are compared as independent samples (Welch).

    \b
    Examples:
      openenv eval gymnasium:CartPole-v1 --policy my_policy:act --seeds 0-199 -o first.json
      openenv eval gymnasium:CartPole-v1 --policy my_policy:better --seeds 0-199 -o second.json
      openenv eval compare first.json second.json
    """
    from ..evals.comparison import compare as compare_reports
    from ..evals.report import read_report

    ours, theirs = read_report(first), read_report(second)
    if as_json:
        click.echo(json.dumps([asdict(comparison) for comparison in compare_reports(ours, theirs)]))
    else:
        show_comparison(ours, theirs)


def show_comparison(first: Report, second: Report, on_stderr: bool = False) -> None:
    """Prints how the second stands to the first.

    Raises:
        UsageError: They cannot be compared.
    """
    from ..evals.comparison import compare as compare_reports

    for line in comparison_lines(compare_reports(first, second), first, second):
        click.echo(line, err=on_stderr)
