"""What `openenv replay` prints."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from .terminal import plural, tame

if TYPE_CHECKING:
    from ..recording.reader import Damage, Episode
    from ..recording.transition import Transition
    from ..replay import ReplayedTransition, ReplayResult, ReplaySummary


MOST_NOTED = 10
_NARROWEST, _WIDEST = 60, 400
_CALL_WIDTH = 9


def say_title(episode: Episode, against: str | None = None) -> None:
    """Begins an episode."""
    seed = "no seed" if episode.seed is None else f"seed {episode.seed}"
    played = "" if against is None else f", played against {against}"
    click.secho(tame(f"episode {episode.episode_id} of {episode.environment}, {seed}{played}"), bold=True)


def say_transition(recorded: Transition, observation: Any, reward: float | None, error: str | None) -> None:
    """One reset or step, in a line or two."""
    call = f"step {recorded.step}" if recorded.step else "reset"
    given = recorded.action if recorded.step else {"seed": recorded.seed, **(recorded.arguments or {})}
    got = "" if reward is None else f"  reward {reward:g}"
    end = "  done" if recorded.done else ""
    click.echo(_cut(f"{call:<{_CALL_WIDTH}}{shown(given)}{got}{end}"))
    click.echo(_cut(f"{'':<{_CALL_WIDTH}}{f'error: {error}' if error else shown(observation)}"))


def say_replayed(transition: ReplayedTransition) -> None:
    """A transition as it was played, and what differs."""
    error = None if transition.error is None else f"{type(transition.error).__name__}: {transition.error.message}"
    played = transition.played
    observation, reward = (None, None) if played is None else (played.observation, played.reward)
    say_transition(transition.recorded, observation, reward, error)
    if transition.divergence is not None:
        click.echo(f"{'':<{_CALL_WIDTH}}{click.style('differs:', fg='red')} {tame(transition.divergence.sentence())}")


def say_note(verdict: ReplayResult) -> None:
    """Why an episode was not played, or not to its end."""
    if verdict.note:
        click.echo(f"{'':<{_CALL_WIDTH}}{click.style('ends here:', fg='yellow')} {tame(verdict.note)}")


def say_damage(damage: Damage) -> None:
    """What could not be read; on stderr."""
    for sentence in damage.sentences():
        click.echo(f"{click.style('not read:', fg='yellow')} {tame(sentence)}", err=True)


def say_result(summary: ReplaySummary, against: list[str], seconds: float, check: bool) -> None:
    """What came of all."""
    if check and summary.compared:
        different = [verdict for verdict in summary.kept if verdict.divergence is not None]
        for verdict in different[:MOST_NOTED]:
            click.echo(tame(verdict.sentence()))
        if len(different) > MOST_NOTED:
            click.echo(f"... and {len(different) - MOST_NOTED:,} more (--json lists them)")
        # What is true of several episodes is said once for all of them.
        notes = Counter(verdict.note for verdict in summary.kept if verdict.note)
        for note, count in notes.most_common(MOST_NOTED):
            click.echo(f"{plural(count, 'episode')}: {tame(note)}")
    if summary.episodes:
        places = f" against {', '.join(against)}" if against else ""
        played = f"{plural(summary.episodes, 'episode')}, {summary.steps:,} steps"
        click.echo(f"{played} in {seconds:.1f} s{places}: {summary.sentence()}")


def shown(value: Any) -> str:
    """A value in one line; of lists, dicts and texts no more than the widest line can hold."""
    return msgspec.json.encode(_plain(value), enc_hook=repr).decode()


def _plain(value: Any) -> Any:
    """Arrays by type and shape: their elements fill the screen."""
    if isinstance(value, dict):
        return {str(name)[:_WIDEST]: _plain(value[name]) for name in islice(value, _WIDEST)}
    if isinstance(value, list):
        return [_plain(each) for each in value[:_WIDEST]]
    if isinstance(value, str):
        return value[:_WIDEST]
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return worded(value) if dtype is None else f"<{dtype} {'x'.join(map(str, shape or ()))}>"


def worded(value: Any) -> Any:
    """A value with words for the floats that JSON does not have, as records write them."""
    if isinstance(value, dict):
        return {name: worded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [worded(each) for each in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut(text: str) -> str:
    width = max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
    return tame(text) if len(text) <= width else f"{tame(text[: width - 3])}..."
