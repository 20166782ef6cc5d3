"""`openenv episodes plot`: a picture of returns, or of the rewards of one episode."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..errors import UsageError
from .episodes_reading import chosen, environment_option, path_argument, reading
from .replay_view import say_damage

__all__ = ["plot"]

_SUFFIXES = (".png", ".svg")


@click.command(short_help="Draw returns, or the rewards of one episode.")
@path_argument
@click.argument("episode_id", metavar="[ID]", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="episodes.png",
    show_default=True,
    help="The picture: .png or .svg.",
)
@environment_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the picture.")
def plot(path: Path, episode_id: str | None, output: Path, environment: str | None, as_json: bool) -> None:
    """Draws the return of each episode of PATH in the order in which they began, with its running mean, one panel for
    each environment; with ID, the reward and the return of each step of one episode. (Extra `bench`.)

    \b
    Examples:
      openenv episodes plot records
      openenv episodes plot records Xb3-1 -o episode.svg
    """
    if output.suffix.lower() not in _SUFFIXES:
        raise click.UsageError(f"{output} is no name for a picture: let it end in {' or '.join(_SUFFIXES)}")
    from ..replay.picture import episode_picture, returns_picture

    kind = output.suffix.lower().removeprefix(".")
    with reading(path, environment) as recording:
        if episode_id is None:
            picture, count = returns_picture(recording.episodes(), kind)
        else:
            there = chosen(recording, episode_id)
            picture, count = episode_picture(there[0], kind), 1
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(picture)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    if as_json:
        facts = {"file": str(output), "episodes": count, "bytes": len(picture)}
        click.echo(json.dumps({**facts, "faults": recording.damage.sentences()}))
        return
    say_damage(recording.damage)
    click.echo(f"{output}: {count:,} episode{'' if count == 1 else 's'}")
