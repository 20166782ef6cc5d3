"""Reads recorded episodes: a file or a folder, complete, being written, or damaged."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from ..errors import UnreadableRecord
from .damage import Damage, Fault
from .episode import Episode
from .files import ARRAYS, JSONL, PARQUET
from .head import Transition
from .jsonl_source import JsonlSource
from .parquet_source import ParquetSource

__all__ = ["Episode", "Recording", "Transition"]

# Sessions whose last episode may go on: of more, that of the session that has been silent for longest is complete.
MOST_OPEN = 32_768
_NUMBER_DIGITS = 6


class Recording:
    """Episodes on disk, read one after the other in bounded memory.

    Args:
        path: A file (`.jsonl` of a recorder or of the web page, `.parquet`), or a folder with such files, in which
            folders are looked through too.
        environment: Read those of an environment of this name alone.

    Raises:
        UnreadableRecord: There is no such file or folder.

    Attributes:
        path: The file or folder.
        damage: What could not be read, as far as was read.
    """

    def __init__(self, path: str | os.PathLike[str], environment: str | None = None):
        self.path = Path(path)
        self.damage = Damage()
        self._environment = environment
        if not self.path.exists():
            raise UnreadableRecord(
                f"{self.path} is not there: name a file or folder with recorded episodes (`openenv serve TARGET "
                "--record DIR` writes them)"
            )

    def episodes(self) -> Iterator[Episode]:
        """Each episode as soon as its last line was read, so their order is about that of their ends.

        What cannot be read is in `damage`, and the rest is read.

        Raises:
            UnreadableRecord: The path is one file, and nothing of it can be read.
        """
        self.damage = Damage()
        for run in self._runs():
            yield from self._episodes(run)

    def _episodes(self, run: list[Path]) -> Iterator[Episode]:
        """The episodes in the files of one recorder."""
        going: OrderedDict[str, Episode] = OrderedDict()
        for path in run:
            source = self._source(path)
            if source is None:
                continue
            for place, head in source.heads(self.damage):
                episode = going.get(head.session_id or "")
                if episode is None or head.step == 0 or head.source is not None:
                    before, episode = episode, Episode(head)
                    going[episode.session_id] = episode
                    if before is not None:
                        yield from self._chosen(before)
                going.move_to_end(episode.session_id)
                episode.add(head, source, place)
                if len(going) > MOST_OPEN:
                    yield from self._chosen(going.popitem(last=False)[1])
        for episode in going.values():
            yield from self._chosen(episode)

    def _chosen(self, episode: Episode) -> Iterator[Episode]:
        if self._environment is None or episode.environment == self._environment:
            yield episode

    def _source(self, path: Path) -> JsonlSource | ParquetSource | None:
        """A file, opened; None if it cannot be."""
        try:
            return _opened(path)
        except FileNotFoundError:
            fault = Fault(path, "", "it was removed meanwhile")
        except UnreadableRecord as error:
            if self.path.is_file():
                raise
            fault = Fault(path, "", error.message.removeprefix(f"{path} ").removeprefix("is "))
        self.damage.add(fault)
        return None

    def _runs(self) -> Iterator[list[Path]]:
        """Files of one recorder each, in the order in which it wrote them."""
        if self.path.is_file():
            yield [self.path]
            return
        run: list[Path] = []
        for path in _files(self.path):
            if run and _recorder(run[-1]) != _recorder(path):
                yield run
                run = []
            run.append(path)
        if run:
            yield run


def _opened(path: Path) -> JsonlSource | ParquetSource:
    if path.suffix == PARQUET:
        return ParquetSource(path)
    try:
        return JsonlSource(path)
    except FileNotFoundError:  # rotated since its folder was listed
        return ParquetSource(path.with_suffix(PARQUET))


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ARRAYS)
        # A file that is there in both forms was rotated, and the first form not yet removed.
        found = {Path(place, name).with_suffix(""): Path(place, name) for name in sorted(names) if _is_ours(name)}
        yield from found.values()


def _is_ours(name: str) -> bool:
    return name.endswith((JSONL, PARQUET))


def _recorder(path: Path) -> Path:
    """What the files of one recorder have in common."""
    stem, dash, number = path.stem.rpartition("-")
    numbered = dash and len(number) == _NUMBER_DIGITS and number.isdigit()
    return path.with_name(stem) if numbered else path.with_suffix("")
