"""`openenv bench compare`: two measurements side by side."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from . import bench_options as options

__all__ = ["compare"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Whether one measurement differs from another.")
@click.argument("first", metavar="A.json", type=_FILE)
@click.argument("second", metavar="B.json", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a figure.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Says for every figure how B stands to A, with the 95 % confidence interval of the ratio over the trials of both
    (Welch's, of the logarithms), and whether B is faster, slower, or no difference is shown. A and B are what
    `openenv bench steps --json` printed, or the result.json of `openenv bench scale`.

    \b
    Examples:
      openenv bench steps --serve benchmark --trials 5 --json > before.json
      openenv bench steps --serve benchmark --trials 5 --json > after.json
      openenv bench compare before.json after.json
    """
    shown = options.display_module()
    from ..bench.compare import compare as compare_results
    from ..bench.result import read_result

    found = compare_results(read_result(first), read_result(second))
    if as_json:
        print(json.dumps([asdict(comparison) for comparison in found]))
        return
    shown.stdout().print(shown.compare_table(found))
    if any(comparison.low is None for comparison in found):
        print("One trial says nothing about chance: measure both with --trials 5 (bench steps) or --reps 5 (scale).")
