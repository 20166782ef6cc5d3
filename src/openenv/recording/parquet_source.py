"""One file of Parquet: a file of lines after its rotation."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from ..errors import MissingExtra, UnreadableRecord
from .damage import Damage, Fault
from .head import HEAD_COLUMNS, Head, Transition, Values, transition_of

__all__ = ["ParquetSource"]

BATCH_ROWS = 4096
# Of an episode that lies in several row groups, and of its neighbours.
GROUPS_KEPT = 2
_VALUES = ("arguments", "action", "step_arguments", "observation")


class ParquetSource:
    """A file of Parquet with our columns.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: It is gone.
        MissingExtra: pyarrow is not installed.
        UnreadableRecord: It is damaged, or it has other columns.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            from pyarrow import ArrowException, parquet
        except ModuleNotFoundError:
            raise MissingExtra("pyarrow", "recording") from None
        self._damages: tuple[type[Exception], ...] = (ArrowException, OSError, ValueError)
        try:
            self._file = parquet.ParquetFile(path)
        except FileNotFoundError:
            raise
        except self._damages as error:
            raise UnreadableRecord(f"{path} is no Parquet that can be read: {_first_line(error)}") from None
        missing = {*HEAD_COLUMNS, *_VALUES} - {*self._file.schema_arrow.names}
        if missing:
            raise UnreadableRecord(
                f"{path} is no record of openenv: it lacks the columns {', '.join(sorted(missing))}"
            )
        metadata = self._file.metadata
        groups = range(metadata.num_row_groups)
        self._starts = [0, *accumulate(metadata.row_group(group).num_rows for group in groups)]
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def heads(self, damage: Damage) -> Iterator[tuple[int, Head]]:
        """Each transition and where it is. What is none is in `damage`."""
        place = 0
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, columns=list(HEAD_COLUMNS)):
                for row in batch.to_pylist():
                    head = self._head(row, place, damage)
                    if head is not None:
                        yield place, head
                    place += 1
        except self._damages as error:
            damage.add(Fault(self.path, f"from row {place + 1} on", f"it is damaged: {_first_line(error)}"))

    def read(self, places: Sequence[int], arrays: bool) -> Iterator[Transition]:
        """The transitions at some places of `heads`, in their order. Raises as `transition_of`."""
        folder = str(self.path.parent) if arrays else None
        for group, rows in self._by_group(places):
            for first in range(0, len(rows), BATCH_ROWS):
                for row in self._group(group).take(rows[first : first + BATCH_ROWS]).to_pylist():
                    try:
                        yield transition_of(_head(row), _values(row), folder)
                    except (msgspec.DecodeError, RecursionError, UnreadableRecord) as error:
                        kind = type(error) if isinstance(error, UnreadableRecord) else UnreadableRecord
                        raise kind(f"{self.path}, step {row['step']} of {row['episode_id']}: {error}") from None

    def _head(self, row: dict[str, Any], place: int, damage: Damage) -> Head | None:
        try:
            head = _head(row)
        except (msgspec.DecodeError, RecursionError) as error:
            damage.add(Fault(self.path, f"row {place + 1}", f"it is no transition: {error}"))
            return None
        return head

    def _by_group(self, places: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        rows: list[int] = []
        last = -1
        for place in places:
            group = bisect_right(self._starts, place) - 1
            if group != last and rows:
                yield last, rows
                rows = []
            last = group
            rows.append(place - self._starts[group])
        if rows:
            yield last, rows

    def _group(self, number: int) -> Any:
        if number not in self._groups:
            try:
                self._groups[number] = self._file.read_row_group(number)
            except self._damages as error:
                raise UnreadableRecord(f"{self.path} is damaged: {_first_line(error)}") from None
            while len(self._groups) > GROUPS_KEPT:
                self._groups.popitem(last=False)
        self._groups.move_to_end(number)
        return self._groups[number]


def _head(row: dict[str, Any]) -> Head:
    facts = {name: row[name] for name in HEAD_COLUMNS if row[name] is not None}
    if "source" in facts:
        facts["source"] = msgspec.json.decode(facts["source"])
    return msgspec.convert(facts, Head)


def _values(row: dict[str, Any]) -> Values:
    arguments, action, step_arguments = (
        None if row[name] is None else msgspec.json.decode(row[name]) for name in _VALUES[:3]
    )
    return Values(msgspec.Raw((row["observation"] or "null").encode()), arguments, action, step_arguments)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
