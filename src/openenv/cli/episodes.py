"""`openenv episodes`: what lies in a record."""

from __future__ import annotations

import heapq
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .episodes_export import export
from .episodes_plot import plot
from .episodes_reading import chosen, environment_option, path_argument, reading
from .episodes_stats import stats
from .replay_view import say_damage, say_title, say_transition, tame

if TYPE_CHECKING:
    from ..recording.reader import Episode

__all__ = ["episodes"]

Row = TypeVar("Row")
_HEADS = ("began (UTC)", "episode", "environment", "seed", "steps", "return", "end", "errors")
_RIGHT = {"seed", "steps", "return"}


@click.group(name="episodes", short_help="Look into recorded episodes.")
def episodes() -> None:
    """Looks into the episodes that `openenv serve --record DIR` and clients with `record=DIR` write, also while they
    are written, and into those that the web page has saved. PATH is a file or a folder.

    \b
    Examples:
      openenv episodes ls records
      openenv episodes show records Xb3-1
      openenv episodes stats records
    """


episodes.add_command(export)
episodes.add_command(plot)
episodes.add_command(stats)


@episodes.command(short_help="List episodes, one a line.")
@path_argument
@environment_option
@click.option("--errors", is_flag=True, help="Only those with a call that failed.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def ls(path: Path, environment: str | None, errors: bool, limit: int | None, as_json: bool) -> None:
    """Lists the episodes of PATH in the order in which they began: when, id, environment, seed, number of steps, sum
    of rewards, how each ended, and its errors. Ends: terminated, truncated, done (nobody said which of both), failed
    (its last call did), open (no end is recorded). What cannot be read is told, and the rest is listed.

    \b
    Examples:
      openenv episodes ls records --limit 20
      openenv episodes ls records --environment CartPole-v1 --errors
      openenv episodes ls records --json
    """
    with reading(path, environment) as recording:
        found = (each for each in recording.episodes() if each.errors or not errors)
        there = heapq.nlargest(limit, found, key=_began) if limit else list(found)
    there.sort(key=_began)
    if as_json:
        listed = [each.facts() for each in there]
        click.echo(json.dumps({"episodes": listed, "faults": recording.damage.sentences()}))
        return
    _table([_row(each) for each in there])
    say_damage(recording.damage)
    if not there:
        click.echo(f"no such episodes in {path}", err=True)


@episodes.command(short_help="Show the transitions of an episode.")
@path_argument
@click.argument("episode_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(path: Path, episode_id: str | None, as_json: bool) -> None:
    """Shows each transition of an episode: what was done, the reward, what was seen. ID is one of `openenv episodes
    ls`, or its beginning; it may be left out where PATH holds one episode. Of several episodes with one id all are
    shown.

    \b
    Examples:
      openenv episodes show episode.jsonl
      openenv episodes show records Xb3-1 --json
    """
    with reading(path) as recording:
        there = chosen(recording, episode_id)
        if as_json:
            click.echo(json.dumps({"episodes": [_facts(each) for each in there]}))
            return
        for episode in there:
            _show(episode)
    say_damage(recording.damage)


def _facts(episode: Episode) -> dict[str, Any]:
    return {**episode.facts(), "transitions": [each.facts() for each in episode.transitions(arrays=False)]}


def _show(episode: Episode) -> None:
    say_title(episode)
    for each in episode.transitions(arrays=False):
        say_transition(each, each.observation, each.reward, each.error)
    total = "" if episode.episode_return is None else f", return {episode.episode_return:g}"
    click.echo(f"{episode.outcome} after {episode.steps:,} steps{total}")


def _began(episode: Episode) -> float:
    return episode.began


def _row(episode: Episode) -> tuple[str, ...]:
    total = episode.episode_return
    errors = ", ".join(name if count == 1 else f"{name} x{count}" for name, count in episode.errors.items())
    return (
        f"{datetime.fromtimestamp(episode.began, UTC):%Y-%m-%d %H:%M:%S}",
        tame(episode.episode_id),
        tame(episode.environment),
        "-" if episode.seed is None else str(episode.seed),
        str(episode.steps) if episode.whole else f"{episode.first_step}-{episode.steps}",
        "-" if total is None else f"{total:.6g}",
        episode.outcome,
        tame(errors),
    )


def _table(rows: list[tuple[str, ...]]) -> None:
    if not rows:
        return
    widths = [max(len(head), *(len(row[column]) for row in rows)) for column, head in enumerate(_HEADS)]
    for number, row in enumerate([_HEADS, *rows]):
        cells = (
            cell.rjust(width) if head in _RIGHT else cell.ljust(width)
            for head, cell, width in zip(_HEADS, row, widths, strict=True)
        )
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, dim=True) if number == 0 else line)
