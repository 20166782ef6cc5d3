"""`openenv replay`: play recorded episodes again and compare."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Awaitable
from contextlib import redirect_stdout
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ..errors import OpenEnvError, SeedIgnored, UnknownEnvironment, UsageError
from .terminal import COUNT, PATH, NoAnswer, ProgressBar, call_timeout, columns, complete_target, cut, plural, tame

if TYPE_CHECKING:
    from ..evals.rescore import StoredEpisode
    from ..recording.reader import Damage, Episode, Recording
    from ..recording.transition import Transition
    from ..replay import ReplayedTransition, ReplayResult, ReplaySummary, ReplayTarget

MOST_NOTED = 10
_WIDEST = 400
_CALL_WIDTH = 9


def say_title(episode: Episode, against: str | None = None) -> None:
    """Prints the heading of an episode."""
    seed = "no seed" if episode.seed is None else f"seed {episode.seed}"
    played = "" if against is None else f", played against {against}"
    click.secho(tame(f"episode {episode.episode_id} of {episode.environment}, {seed}{played}"), bold=True)


def say_transition(recorded: Transition, observation: Any, reward: float | None, error: str | None) -> None:
    """Prints one reset or step in one or two lines."""
    width = columns(_WIDEST)
    call = f"step {recorded.step}" if recorded.step else "reset"
    given = recorded.action if recorded.step else {"seed": recorded.seed, **(recorded.arguments or {})}
    got = "" if reward is None else f"  reward {reward:g}"
    end = "  done" if recorded.done else ""
    click.echo(tame(cut(f"{call:<{_CALL_WIDTH}}{shown(given)}{got}{end}", width)))
    click.echo(tame(cut(f"{'':<{_CALL_WIDTH}}{f'error: {error}' if error else shown(observation)}", width)))


def say_replayed(transition: ReplayedTransition) -> None:
    """Prints a replayed transition and its differences from the record."""
    error = None if transition.error is None else f"{type(transition.error).__name__}: {transition.error.message}"
    played = transition.played
    observation, reward = (None, None) if played is None else (played.observation, played.reward)
    say_transition(transition.recorded, observation, reward, error)
    if transition.divergence is not None:
        click.echo(f"{'':<{_CALL_WIDTH}}{click.style('differs:', fg='red')} {tame(transition.divergence.sentence())}")


def say_note(verdict: ReplayResult) -> None:
    """Prints why an episode was not played, or not to its end."""
    if verdict.note:
        click.echo(f"{'':<{_CALL_WIDTH}}{click.style('ends here:', fg='yellow')} {tame(verdict.note)}")


def say_damage(damage: Damage) -> None:
    """Prints the episodes that could not be read, on stderr."""
    for sentence in damage.sentences():
        click.echo(f"{click.style('not read:', fg='yellow')} {tame(sentence)}", err=True)


def say_result(summary: ReplaySummary, against: list[str], seconds: float, check: bool) -> None:
    """Prints the summary of all episodes."""
    if check and summary.compared:
        different = [verdict for verdict in summary.kept if verdict.divergence is not None]
        for verdict in different[:MOST_NOTED]:
            click.echo(tame(verdict.sentence()))
        if len(different) > MOST_NOTED:
            click.echo(f"... and {len(different) - MOST_NOTED:,} more (--json lists them)")
        # A message that applies to several episodes is printed once.
        notes = Counter(verdict.note for verdict in summary.kept if verdict.note)
        for note, count in notes.most_common(MOST_NOTED):
            click.echo(f"{plural(count, 'episode')}: {tame(note)}")
    if summary.episodes:
        places = f" against {', '.join(against)}" if against else ""
        played = f"{plural(summary.episodes, 'episode')}, {summary.steps:,} steps"
        click.echo(f"{played} in {seconds:.1f} s{places}: {summary.sentence()}")


def shown(value: Any) -> str:
    """A value in one line; lists, dicts and texts are cut to what the widest line can hold."""
    return msgspec.json.encode(_plain(value), enc_hook=repr).decode()


def _plain(value: Any) -> Any:
    """Replaces arrays by their type and shape, since their elements would fill the screen."""
    if isinstance(value, dict):
        return {str(name)[:_WIDEST]: _plain(value[name]) for name in islice(value, _WIDEST)}
    if isinstance(value, list):
        return [_plain(each) for each in value[:_WIDEST]]
    if isinstance(value, str):
        return value[:_WIDEST]
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return worded(value) if dtype is None else f"<{dtype} {'x'.join(map(str, shape or ()))}>"


def worded(value: Any) -> Any:
    """Replaces floats that JSON does not have (NaN, infinities) by the words that records use."""
    if isinstance(value, dict):
        return {name: worded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [worded(each) for each in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def target_of(environment: str) -> str:
    """The `openenv serve` target of an environment with that name.

    The name comes from a record and is not trusted: it is compared with the environments that are installed and with
    the project in the current folder; nothing else is imported.

    Raises:
        UsageError: No environment on this machine has this name.
    """

    from ..project import Manifest
    from ..project.catalog import find
    from ..project.target import bundled, is_project

    if environment in bundled():
        return environment
    if is_project(".") and Manifest.read(Path.cwd()).name == environment:
        return "."
    if importlib.util.find_spec("gymnasium") is not None:
        from gymnasium.envs.registration import registry

        if environment in registry:
            return f"gymnasium:{environment}"

    try:
        entry = find(environment)
    except (UnknownEnvironment, UsageError):
        entry = None
    if entry is None or entry.manifest_path is None:
        raise UsageError(
            f"the record is of {environment!r}, and no environment here has this name: give --target (as for "
            "`openenv serve`), or a running server with --base-url"
        )
    return str(entry.manifest_path.parent)


DIFFERENT = 1
SESSIONS = 16


@click.command()
@click.argument("path", type=PATH)
@click.option("--check", is_flag=True, help="Compare all episodes, many concurrently, and show only differences.")
@click.option(
    "--target",
    shell_complete=complete_target,
    help="Environment to play against, as for `openenv serve`. [default: the one that the record names]",
)
@click.option("--base-url", metavar="URL", help="Play against a running server instead of a target.")
@click.option("--api-key", envvar="OPENENV_API_KEY", help="API key for that server. [OPENENV_API_KEY]")
@click.option("--environment", metavar="NAME", help="Play only episodes of this environment.")
@click.option(
    "--episode", "wanted", metavar="ID", multiple=True, help="Play only the episode with this id; may be repeated."
)
@click.option("--limit", type=COUNT, help="Play only this number of episodes, from the beginning of the record.")
@click.option(
    "--concurrency", type=COUNT, default=SESSIONS, show_default=True, help="Concurrent episodes, with --check."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=1e-6,
    show_default=True,
    help="Relative difference that is allowed between floats; 0: exact comparison.",
)
@click.option("--unseeded", is_flag=True, help="Also compare episodes that were reset without a seed.")
@call_timeout
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
    """Plays recorded episodes again, with their seeds and actions, against an environment in this process or at a
    server. PATH is a file or a folder that `openenv serve --record`, a client or the web page wrote. Each episode has
    its own session.

    Observations, rewards, errors and the ends of episodes are compared, except fields that the schema marks
    `seeded: False` (clocks, names of processes).

    Without --check, episodes are played one after the other and shown with their differences.

    Exit code 0: no differences; 1: with --check, an episode differs or could not be played or read; 2: no comparison
    was possible (no such file, no such environment, different schemas, no seeds).

    \b
    Examples:
      openenv replay episode.jsonl
      openenv replay records --check
      openenv replay records --check --base-url http://127.0.0.1:8000
      openenv replay records --check --tolerance 0 --concurrency 64 --json
    """

    from .. import replay as replaying
    from ..recording.difference import within
    from ..recording.reader import Recording
    from ..replay import ReplaySummary

    if target is not None and base_url is not None:
        raise click.UsageError("give either --target or --base-url, not both")
    try:
        recording = Recording(path, environment)
        chosen = (each for each in recording.episodes() if not wanted or each.episode_id in wanted)
        episodes = islice(chosen, limit)
        targets = ReplayTargets(target, base_url, api_key)
        rules = replaying.ReplayRules(within(tolerance), unseeded, timeout_s)
        summary, began = ReplaySummary(), time.monotonic()

        def heard(result: ReplayResult) -> None:
            summary.add(result)
            progress.show("playing", summary.episodes, 0, f"{summary.episodes:,} episodes, {summary.steps:,} steps")

        async def show() -> None:
            warnings.simplefilter("ignore", SeedIgnored)  # each episode's heading names it
            for chain in replaying.episode_chains(episodes):
                target = targets.of(chain[0])
                title = partial(say_title, against=target.name)
                async for result in replaying.results_of(chain, target, rules, title, say_replayed):
                    summary.add(result)
                    say_note(result)

        if check or as_json:
            with redirect_stdout(sys.stderr), ProgressBar() as progress:  # environments in this process may print
                work = replaying.replay(episodes, targets.of, rules, concurrency if check else 1, heard)
                asyncio.run(targets.closed_after(work))
        else:
            asyncio.run(targets.closed_after(show()))
    except OpenEnvError as error:
        raise NoAnswer(tame(error.message)) from error
    _end(recording, summary, targets, time.monotonic() - began, check, as_json)


class ReplayTargets:
    """The servers to play against: the given target, or the environment that each record names.

    Attributes:
        names: Names of the servers that were needed so far.
    """

    def __init__(self, target: str | None, base_url: str | None, api_key: str | None):
        self._target = target
        self._url = base_url
        self._key = api_key
        self._targets: dict[str, ReplayTarget] = {}

    @property
    def names(self) -> list[str]:
        return sorted({target.name for target in self._targets.values()})

    def of(self, episode: Episode | StoredEpisode) -> ReplayTarget:
        """The server for an episode. Raises OpenEnvError if there is none."""

        from .. import replay as replaying
        from ..project.target import load

        named = self._target is not None or self._url is not None
        key = "" if named else episode.environment
        if key not in self._targets:
            if self._url is not None:
                self._targets[key] = replaying.server_target(self._url, self._key)
            else:
                target = self._target or target_of(episode.environment)
                self._targets[key] = replaying.app_target(target, load(target))
        return self._targets[key]

    async def closed_after(self, work: Awaitable[None]) -> None:
        """Stops the servers of this process when the work is done."""
        try:
            await work
        finally:
            for target in self._targets.values():
                await target.aclose()


def _end(
    recording: Recording, summary: ReplaySummary, targets: ReplayTargets, seconds: float, check: bool, as_json: bool
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
            where = f"`openenv episodes ls {recording.path}` lists its episodes"
            raise NoAnswer(tame(f"{recording.path} has no such episode: {where}"))
        first: Any = summary.kept[0]
        hint = "; --unseeded compares it anyway" if first.outcome == "unseeded" else ""
        raise NoAnswer(tame(f"no episode of {recording.path} could be compared: {first.note}{hint}"))
    if check and (summary.wrong or damage.count):
        raise click.exceptions.Exit(DIFFERENT)
