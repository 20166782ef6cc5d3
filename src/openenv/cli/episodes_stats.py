"""`openenv episodes stats`: what the episodes of a record say together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .episodes_reading import environment_option, path_argument, reading
from .replay_view import say_damage, tame

if TYPE_CHECKING:
    from ..recording.statistics import Spread, Statistics

__all__ = ["stats"]

_COLUMNS = ("mean", "std", "least", "p5", "p25", "median", "p75", "p95", "most")
_WIDTH = 9


@click.command(short_help="Returns, lengths and errors, for each environment.")
@path_argument
@environment_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def stats(path: Path, environment: str | None, as_json: bool) -> None:
    """Counts the episodes of PATH for each environment: returns and lengths with mean, standard deviation and
    quantiles, how episodes ended, and errors by their class.

    Returns and lengths are those of episodes that ended: what failed or was left in the middle is counted apart, and
    never as a low return. Where none ended, they are those of all that did not fail.

    \b
    Examples:
      openenv episodes stats records
      openenv episodes stats records --environment CartPole-v1 --json
    """
    from ..recording.statistics import Statistics

    found: dict[str, Statistics] = {}
    with reading(path, environment) as recording:
        for episode in recording.episodes():
            found.setdefault(episode.environment, Statistics()).add(episode)
    if as_json:
        facts = {name: each.facts() for name, each in sorted(found.items())}
        click.echo(json.dumps({"environments": facts, "faults": recording.damage.sentences()}))
        return
    for name, each in sorted(found.items()):
        _say(name, each)
    say_damage(recording.damage)
    if not found:
        click.echo(f"no such episodes in {path}", err=True)


def _say(name: str, found: Statistics) -> None:
    plural = "" if found.episodes == 1 else "s"
    click.secho(f"{tame(name)}: {found.episodes:,} episode{plural}, {found.steps:,} steps", bold=True)
    click.echo(f"  ended     {', '.join(f'{count:,} {outcome}' for outcome, count in found.outcomes.most_common())}")
    if found.errors:
        errors = ", ".join(f"{count:,} {error}" for error, count in found.errors.most_common())
        click.echo(f"  errors    {tame(errors)}, in {found.failing:,} episode{'' if found.failing == 1 else 's'}")
    returns, lengths = found.returns, found.lengths
    if lengths is not None:
        click.echo(f"  {'':<10}{''.join(column.rjust(_WIDTH) for column in _COLUMNS)}")
        _say_spread("return", returns)
        _say_spread("steps", lengths)
        which = "that ended" if found.of_ended else "none of which has an end"
        plural = "" if lengths.episodes == 1 else "s"
        click.echo(f"  {'':<10}of {lengths.episodes:,} episode{plural}{' ' if found.of_ended else ', '}{which}")


def _say_spread(name: str, spread: Spread | None) -> None:
    if spread is None:
        return
    values = (getattr(spread, column) for column in _COLUMNS)
    click.echo(f"  {name:<10}{''.join(_number(value).rjust(_WIDTH) for value in values)}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
