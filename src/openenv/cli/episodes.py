"""`openenv episodes`: list, show, view, export, plot and count recorded episodes."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UnreadableRecord, UsageError
from .replay import say_damage, say_title, say_transition
from .terminal import COUNT, FILE, PATH, NoAnswer, ProgressBar, plural, table_lines, tame

if TYPE_CHECKING:
    from ..recording.reader import Episode, Recording
    from ..recording.statistics import Statistics

path_argument = click.argument("path", type=PATH)
environment_option = click.option("--environment", metavar="NAME", help="Only episodes of this environment.")
MOST_NAMED = 5


@contextmanager
def reading(path: Path, environment: str | None = None) -> Iterator[Recording]:
    """Opens a record. A record that cannot be read ends the command with exit code 2."""

    from ..recording.reader import Recording

    try:
        yield Recording(path, environment)
    except UnreadableRecord as error:
        raise NoAnswer(error.message) from error


def chosen(recording: Recording, episode_id: str | None) -> list[Episode]:
    """The episodes of an id, or of the only id with this prefix; without an id, the only episode.

    Raises:
        UsageError: No id matches, or several ids have this prefix.
    """
    there = [each for each in recording.episodes() if each.episode_id.startswith(episode_id or "")]
    exact = [each for each in there if each.episode_id == episode_id] or there
    names = list(dict.fromkeys(each.episode_id for each in exact))
    if not names:
        what = "no episode" if episode_id is None else f"no episode {episode_id!r}"
        raise UsageError(f"{recording.path} has {what}: `openenv episodes ls {recording.path}` lists its episodes")
    if len(names) > 1:
        more = ", ..." if len(names) > MOST_NAMED else ""
        what = "episodes" if episode_id is None else f"episodes with ids that begin with {episode_id!r}"
        raise UsageError(
            f"{recording.path} has {len(names):,} {what}: say which one ({', '.join(names[:MOST_NAMED])}{more})"
        )
    return exact


@click.command(short_help="Write chosen episodes into one file.")
@path_argument
@click.option(
    "-o",
    "--output",
    type=FILE,
    required=True,
    help="The new file; its suffix selects the format: .jsonl or .parquet.",
)
@environment_option
@click.option(
    "--episode", "wanted", metavar="ID", multiple=True, help="Only the episode with this id; may be repeated."
)
@click.option("--ended", is_flag=True, help="Only episodes that are recorded from reset to end, without an error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the file.")
def export(
    path: Path, output: Path, environment: str | None, wanted: tuple[str, ...], ended: bool, as_json: bool
) -> None:
    """Writes episodes of PATH into one file, one after the other: lines of JSON, as the web page replays them,
    or Parquet (extra `recording`), as `datasets.load_dataset` reads it. Large arrays go into the folder `arrays`
    beside it. The file appears only when it is complete.

    \b
    Examples:
      openenv episodes export records -o cartpole.parquet --ended
      openenv episodes export records -o one.jsonl --episode Xb3-1
    """

    from ..recording.parquet import export as write

    with reading(path, environment) as recording, ProgressBar() as progress:
        episodes = (
            each
            for each in recording.episodes()
            if (not wanted or each.episode_id in wanted)
            and (not ended or (each.whole and each.done and not each.errors))
        )
        count = write(episodes, output, lambda done: progress.show("exporting", done, 0, f"{done:,} episodes"))
    size = output.stat().st_size
    if as_json:
        _print_json(recording, {"file": str(output), "episodes": count, "bytes": size})
        return
    say_damage(recording.damage)
    click.echo(f"{output}: {plural(count, 'episode')}, {size:,} bytes")


def _print_json(recording: Recording, facts: dict[str, Any]) -> None:
    click.echo(json.dumps({**facts, "faults": recording.damage.sentences()}))


_SUFFIXES = (".png", ".svg")


@click.command(short_help="Draw returns, or the rewards of one episode.")
@path_argument
@click.argument("episode_id", metavar="[ID]", required=False)
@click.option(
    "-o",
    "--output",
    type=FILE,
    default="episodes.png",
    show_default=True,
    help="The image file: .png or .svg.",
)
@environment_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document about the image file.")
def plot(path: Path, episode_id: str | None, output: Path, environment: str | None, as_json: bool) -> None:
    """Draws the return of each episode of PATH in the order in which they began, with its running mean, one panel for
    each environment; with ID, the reward and the return of each step of one episode. (Extra `bench`.)

    \b
    Examples:
      openenv episodes plot records
      openenv episodes plot records Xb3-1 -o episode.svg
    """

    from ..recording.statistics import episode_picture, returns_picture

    if output.suffix.lower() not in _SUFFIXES:
        raise click.UsageError(f"{output} is not the name of an image file: it must end in {' or '.join(_SUFFIXES)}")

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
        _print_json(recording, {"file": str(output), "episodes": count, "bytes": len(picture)})
        return
    say_damage(recording.damage)
    click.echo(f"{output}: {plural(count, 'episode')}")


_COLUMNS = ("mean", "std", "least", "p5", "p25", "median", "p75", "p95", "most")
_WIDTH = 9


@click.command(short_help="Returns, lengths and errors, for each environment.")
@path_argument
@environment_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def stats(path: Path, environment: str | None, as_json: bool) -> None:
    """Counts the episodes of PATH for each environment: returns and lengths with mean, standard deviation and
    quantiles, how episodes ended, and errors by their class.

    Returns and lengths are of episodes that ended: failed and unfinished episodes are counted separately, and never
    as a low return. If no episode ended, they are of all episodes that did not fail.

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
        _print_json(recording, {"environments": {name: each.facts() for name, each in sorted(found.items())}})
        return
    for name, each in sorted(found.items()):
        click.secho(f"{tame(name)}: {plural(each.episodes, 'episode')}, {each.steps:,} steps", bold=True)
        click.echo(
            f"  ended     {', '.join(f'{count:,} {outcome}' for outcome, count in each.outcomes.most_common())}"
        )
        if each.errors:
            errors = ", ".join(f"{count:,} {error}" for error, count in each.errors.most_common())
            click.echo(f"  errors    {tame(errors)}, in {plural(each.failing, 'episode')}")
        if each.lengths is not None:
            click.echo(f"  {'':<10}{''.join(column.rjust(_WIDTH) for column in _COLUMNS)}")
            for label, spread in (("return", each.returns), ("steps", each.lengths)):
                values = [getattr(spread, column) for column in _COLUMNS] if spread is not None else []
                cells = "".join(("-" if value is None else f"{value:.4g}").rjust(_WIDTH) for value in values)
                if cells:
                    click.echo(f"  {label:<10}{cells}")
            which = " that ended" if each.of_ended else ", none of which has an end"
            click.echo(f"  {'':<10}of {plural(each.lengths.episodes, 'episode')}{which}")
    say_damage(recording.damage)
    if not found:
        click.echo(f"no such episodes in {path}", err=True)


_HEADS = ("began (UTC)", "episode", "environment", "seed", "steps", "return", "end", "errors")
_RIGHT = {_HEADS.index(head) for head in ("seed", "steps", "return")}


@click.group(name="episodes")
def episodes() -> None:
    """Reads the episodes that `openenv serve --record DIR`, clients with `record=DIR` and the web page write, also
    while they are being written. PATH is a file or a folder.

    \b
    Examples:
      openenv episodes ls records
      openenv episodes show records Xb3-1
      openenv episodes stats records
      openenv episodes view runs
    """


episodes.add_command(export)
episodes.add_command(plot)
episodes.add_command(stats)


@episodes.command(short_help="List episodes, one per line.")
@path_argument
@environment_option
@click.option("--errors", is_flag=True, help="Only episodes with a failed call.")
@click.option("--limit", type=COUNT, help="Only this number of episodes, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def ls(path: Path, environment: str | None, errors: bool, limit: int | None, as_json: bool) -> None:
    """Lists the episodes of PATH by their start: time, id, environment, seed, number of steps, sum of rewards,
    outcome and errors. Outcomes: terminated, truncated, done (the environment reported neither), failed (the last
    call failed), open (no end is recorded). Parts that cannot be read are reported, and the rest is listed.

    \b
    Examples:
      openenv episodes ls records --limit 20
      openenv episodes ls records --environment CartPole-v1 --errors
      openenv episodes ls records --json
    """
    with reading(path, environment) as recording:
        found = (each for each in recording.episodes() if each.errors or not errors)
        there = heapq.nlargest(limit, found, key=attrgetter("began")) if limit else list(found)
    there.sort(key=attrgetter("began"))
    if as_json:
        _print_json(recording, {"episodes": [each.facts() for each in there]})
        return
    head, *lines = table_lines([_HEADS, *map(_row, there)], _RIGHT)
    if there:
        click.secho(head, dim=True)
        click.echo("\n".join(lines))
    say_damage(recording.damage)
    if not there:
        click.echo(f"no such episodes in {path}", err=True)


@episodes.command(short_help="Show the transitions of an episode.")
@path_argument
@click.argument("episode_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def show(path: Path, episode_id: str | None, as_json: bool) -> None:
    """Shows each transition of an episode: action, reward, observation. ID is an id that `openenv episodes ls`
    prints, or a prefix of one; it may be left out if PATH contains one episode. If several episodes have the same id,
    all of them are shown.

    \b
    Examples:
      openenv episodes show episode.jsonl
      openenv episodes show records Xb3-1 --json
    """
    with reading(path) as recording:
        there = chosen(recording, episode_id)
        if as_json:
            documents = [
                {**each.facts(), "transitions": [part.facts() for part in each.transitions(arrays=False)]}
                for each in there
            ]
            click.echo(json.dumps({"episodes": documents}))
            return
        for episode in there:
            say_title(episode)
            for each in episode.transitions(arrays=False):
                say_transition(each, each.observation, each.reward, each.error)
            total = "" if episode.episode_return is None else f", return {episode.episode_return:g}"
            click.echo(f"{episode.outcome} after {episode.steps:,} steps{total}")
    say_damage(recording.damage)


@episodes.command(short_help="Show the rollouts of a model in a web page.")
@click.argument("path", metavar="DIR", type=PATH)
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default="a free one",
    help="Port on 127.0.0.1. Every user of this machine can open the page.",
)
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Folder or name on the Hub of the model's tokenizer, which shows tokens as text. (Extra `transformers`.)",
)
def view(path: Path, port: int, tokenizer: str | None) -> None:
    """Serves a page on this machine with the rollouts that `openenv rollout -o DIR` writes, also while they are being
    written: runs, groups and rollouts to filter, sort and search, and each as a conversation with its rewards and
    tokens. DIR may contain the folders of many runs. Ctrl-C ends it.

    \b
    Examples:
      openenv episodes view runs
      openenv episodes view runs/monday --port 8080 --tokenizer Qwen/Qwen3-0.6B
    """
    from ..rollouts.viewer import load_tokenizer, viewer_app
    from ..server.auth import NO_KEYS
    from ..settings import ServerSettings
    from ..telemetry.logs import configure_logging
    from .serve import listen, run_here

    settings = ServerSettings.read(host="127.0.0.1", port=port, api_keys=NO_KEYS)
    settings = settings.model_copy(update={"ssl_certfile": None})
    configure_logging(settings.log_format, settings.log_level)
    try:
        app = viewer_app(path, settings, None if tokenizer is None else load_tokenizer(tokenizer))
    except UnreadableRecord as error:
        raise NoAnswer(error.message) from error
    listener = listen(settings)
    click.echo(f"rollouts of {path} on http://127.0.0.1:{listener.getsockname()[1]}", err=True)
    run_here(app, settings, listener)


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
