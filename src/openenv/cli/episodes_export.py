"""`openenv episodes export`: chosen episodes as a file of their own."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .episodes_reading import environment_option, path_argument, reading
from .progress import Progress
from .replay_view import say_damage

__all__ = ["export"]


@click.command(short_help="Write chosen episodes into one file.")
@path_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The new file; its suffix says what it is: .jsonl or .parquet.",
)
@environment_option
@click.option("--episode", "wanted", metavar="ID", multiple=True, help="Only this episode; more than once: these.")
@click.option("--ended", is_flag=True, help="Only episodes with their beginning and their end, and without an error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the file.")
def export(
    path: Path, output: Path, environment: str | None, wanted: tuple[str, ...], ended: bool, as_json: bool
) -> None:
    """Writes episodes of PATH into one file, one after the other: lines of JSON, as the web page replays them,
    or Parquet (extra `recording`), as `datasets.load_dataset` reads it. Large arrays go into the folder `arrays`
    beside it. The file is there when it is whole.

    \b
    Examples:
      openenv episodes export records -o cartpole.parquet --environment CartPole-v1 --ended
      openenv episodes export records -o one.jsonl --episode Xb3-1
    """
    from ..recording.exporting import export as write

    with reading(path, environment) as recording, Progress() as progress:
        episodes = (
            each
            for each in recording.episodes()
            if (not wanted or each.episode_id in wanted)
            and (not ended or (each.whole and each.done and not each.errors))
        )
        count = write(episodes, output, lambda done: progress.show("exporting", done, 0, f"{done:,} episodes"))
    if as_json:
        facts = {"file": str(output), "episodes": count, "bytes": output.stat().st_size}
        click.echo(json.dumps({**facts, "faults": recording.damage.sentences()}))
        return
    say_damage(recording.damage)
    click.echo(f"{output}: {count:,} episode{'' if count == 1 else 's'}, {output.stat().st_size:,} bytes")
