"""`openenv replay`: play recorded episodes again and compare."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import OpenEnvError, SeedIgnored, UnknownEnvironment, UsageError
from ..project import Manifest
from ..project.target import bundled, is_project
from .options import COUNT, PATH, TARGET
from .replay_view import say_damage, say_note, say_replayed, say_result, say_title, worded
from .terminal import Progress, tame

if TYPE_CHECKING:
    from ..recording.reader import Episode, Recording
    from ..replay import ReplaySummary, ReplayTarget


def target_of(environment: str) -> str:
    """The target by which `openenv serve` serves an environment of that name.

    The name comes from a record and is not trusted: it is compared with the environments that are installed and with
    the project in the current folder; nothing else is imported.

    Raises:
        UsageError: Nothing here is called so.
    """
    if environment in bundled():
        return environment
    if is_project(".") and Manifest.read(Path.cwd()).name == environment:
        return "."
    if importlib.util.find_spec("gymnasium") is not None:
        from gymnasium.envs.registration import registry

        if environment in registry:
            return f"gymnasium:{environment}"
    from ..project.catalog import find

    try:
        entry = find(environment)
    except (UnknownEnvironment, UsageError):
        entry = None
    if entry is None or entry.manifest_path is None:
        raise UsageError(
            f"the record is of {environment!r}, and nothing here is called so: name it with --target (as for "
            "`openenv serve`), or a server that runs with --base-url"
        )
    return str(entry.manifest_path.parent)


DIFFERENT, NOT_COMPARED = 1, 2
SESSIONS = 16


class _NotCompared(click.ClickException):
    """There was nothing to compare, or no place to play."""

    exit_code = NOT_COMPARED


@click.command(short_help="Play recorded episodes again, and compare.")
@click.argument("path", type=PATH)
@click.option("--check", is_flag=True, help="Compare all of it, many episodes at a time, and show only what differs.")
@click.option(
    "--target",
    shell_complete=TARGET,
    help="What to play against, as for `openenv serve`. [default: what the record names, if that is here]",
)
@click.option("--base-url", metavar="URL", help="Play against a server that runs, in place of a target.")
@click.option("--api-key", envvar="OPENENV_API_KEY", help="Key to show to that server. [OPENENV_API_KEY]")
@click.option("--environment", metavar="NAME", help="Play the episodes of this environment alone.")
@click.option(
    "--episode", "wanted", metavar="ID", multiple=True, help="Play this episode alone; more than once: these."
)
@click.option("--limit", type=COUNT, help="Play so many episodes, the first of the record.")
@click.option(
    "--concurrency", type=COUNT, default=SESSIONS, show_default=True, help="Episodes at a time, with --check."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=1e-6,
    show_default=True,
    help="Floats may differ by this share of their size. 0: to the last digit.",
)
@click.option("--unseeded", is_flag=True, help="Compare also what was reset without a seed.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds that one call may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")
def replay(
    path: Path,
    check: bool,
    target: str | None,
    base_url: str | None,
    api_key: str | None,
    environment: str | None,
    wanted: tuple[str, ...],
    limit: int | None,
    concurrency: int,
    tolerance: float,
    unseeded: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Plays the episodes of PATH, a file or a folder that `openenv serve --record` or a client has written or the web
    page has saved, with their seeds and actions, against an environment: in this process, or at a server. Each has a
    session of its own.

    Compared are observations, rewards, errors, and how episodes end. Fields that are marked `seeded: False` in the
    schema (clocks, names of processes) are not.

    Without --check episodes are shown as they are played, one after the other, with what differs.

    Exit code 0: nothing differs; 1: with --check, something does, or could not be played or read; 2: nothing could be
    compared (no such file, no such environment, other schemas, no seeds).

    \b
    Examples:
      openenv replay episode.jsonl
      openenv replay records --check
      openenv replay records --check --base-url http://127.0.0.1:8000 --concurrency 64
      openenv replay records --check --target gymnasium:CartPole-v1 --tolerance 0 --json
    """
    if target is not None and base_url is not None:
        raise click.UsageError("give --target or --base-url, and not both")
    try:
        from ..recording.difference import within
        from ..recording.reader import Recording
        from ..replay import ReplayPlayer, ReplayResult, ReplayRules, ReplaySummary
        from ..replay import replay as play

        recording = Recording(path, environment)
        chosen = (each for each in recording.episodes() if not wanted or each.episode_id in wanted)
        episodes = islice(chosen, limit)
        targets = _ReplayTargets(target, base_url, api_key)
        rules = ReplayRules(within(tolerance), unseeded, timeout_s)
        summary, began = ReplaySummary(), time.monotonic()

        async def compare(progress: Progress) -> None:
            def heard(result: ReplayResult) -> None:
                summary.add(result)
                progress.show(
                    "playing", summary.episodes, 0, f"{summary.episodes:,} episodes, {summary.steps:,} steps"
                )

            async with targets.closed():
                await play(episodes, targets.of, rules, concurrency if check else 1, heard)

        async def show() -> None:
            warnings.simplefilter("ignore", SeedIgnored)  # it is said of each episode
            async with targets.closed():
                for episode in episodes:
                    target = targets.of(episode)
                    say_title(episode, target.name)
                    result = await ReplayPlayer(episode, target, rules).verdict(say_replayed)
                    summary.add(result)
                    say_note(result)

        if check or as_json:
            with redirect_stdout(sys.stderr), Progress() as progress:  # environments of this process may print
                asyncio.run(compare(progress))
        else:
            asyncio.run(show())
    except OpenEnvError as error:
        raise _NotCompared(tame(error.message)) from error
    _end(recording, summary, targets, time.monotonic() - began, check, as_json)


class _ReplayTargets:
    """Where episodes are played: what was named, or what each record names.

    Attributes:
        names: Of all places, as far as they were needed.
    """

    def __init__(self, target: str | None, base_url: str | None, api_key: str | None):
        self._target = target
        self._url = base_url
        self._key = api_key
        self._targets: dict[str, ReplayTarget] = {}

    @property
    def names(self) -> list[str]:
        return sorted({target.name for target in self._targets.values()})

    def of(self, episode: Episode) -> ReplayTarget:
        """The place of an episode. Raises OpenEnvError: There is none."""
        from ..project.target import load
        from ..replay import app_target, server_target

        named = self._target is not None or self._url is not None
        key = "" if named else episode.environment
        if key not in self._targets:
            if self._url is not None:
                self._targets[key] = server_target(self._url, self._key)
            else:
                target = self._target or target_of(episode.environment)
                self._targets[key] = app_target(target, load(target))
        return self._targets[key]

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Ends in the end what was begun in this process."""
        try:
            yield
        finally:
            for target in self._targets.values():
                await target.aclose()


def _end(
    recording: Recording, summary: ReplaySummary, targets: _ReplayTargets, seconds: float, check: bool, as_json: bool
) -> None:
    damage = recording.damage
    if as_json:
        facts = {
            "path": str(recording.path),
            "against": targets.names,
            **summary.facts(),
            "seconds": round(seconds, 3),
            "unreadable": damage.count,
            "torn": damage.torn,
            "faults": damage.sentences(),
        }
        click.echo(json.dumps(worded(facts), default=repr))
    else:
        say_damage(damage)
        say_result(summary, targets.names, seconds, check)
    if not summary.compared:
        if not summary.episodes:
            where = f"`openenv episodes ls {recording.path}` lists those that it has"
            raise _NotCompared(tame(f"{recording.path} has no such episode: {where}"))
        first: Any = summary.kept[0]
        hint = "; --unseeded compares it nevertheless" if first.outcome == "unseeded" else ""
        raise _NotCompared(tame(f"no episode of {recording.path} could be compared: {first.note}{hint}"))
    if check and (summary.wrong or damage.count):
        raise click.exceptions.Exit(DIFFERENT)
