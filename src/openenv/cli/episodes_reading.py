"""What the commands of `openenv episodes` have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import UnreadableRecord, UsageError

if TYPE_CHECKING:
    from ..recording.reader import Episode, Recording

__all__ = ["chosen", "environment_option", "path_argument", "reading"]

path_argument = click.argument("path", type=click.Path(path_type=Path))
environment_option = click.option("--environment", metavar="NAME", help="Only episodes of this environment.")
MOST_NAMED = 5


class _Unreadable(click.ClickException):
    """There is nothing that could be read."""

    exit_code = 2


@contextmanager
def reading(path: Path, environment: str | None = None) -> Iterator[Recording]:
    """A record to read; what cannot be read is exit code 2."""
    from ..recording.reader import Recording

    try:
        yield Recording(path, environment)
    except UnreadableRecord as error:
        raise _Unreadable(error.message) from error


def chosen(recording: Recording, episode_id: str | None) -> list[Episode]:
    """The episodes of an id, or of the id that begins so; without one, the only episode there is.

    Raises:
        UsageError: There is none, or nobody can say which one is meant.
    """
    there = [each for each in recording.episodes() if each.episode_id.startswith(episode_id or "")]
    exact = [each for each in there if each.episode_id == episode_id] or there
    names = list(dict.fromkeys(each.episode_id for each in exact))
    if not names:
        what = "no episode" if episode_id is None else f"no episode {episode_id!r}"
        raise UsageError(
            f"{recording.path} has {what}: `openenv episodes ls {recording.path}` lists those that it has"
        )
    if len(names) > 1:
        more = ", ..." if len(names) > MOST_NAMED else ""
        what = "episodes" if episode_id is None else f"episodes whose ids begin with {episode_id!r}"
        raise UsageError(
            f"{recording.path} has {len(names):,} {what}: say which one ({', '.join(names[:MOST_NAMED])}{more})"
        )
    return exact
