"""The results of a batch of episodes, and their replies without a loop over episodes."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StepFailed
from ..protocol.codecs import Body, Codec, codec_of, map_header
from ..protocol.encoding import EncodedOutcome
from ..protocol.shared_arrays import MIN_SHARED_BYTES
from .columns import FACTS, BatchSpec, copied_columns, row_of

_BINARY = codec_of("openenv.v2.msgpack")
_encode = _BINARY.encode


class BatchOutcome(EncodedOutcome):
    """The result of a reset or a step of all episodes.

    Attributes:
        spec: The fields.
        observations: The observations, checked.
        rewards: float64 of shape (num_envs,), all finite; None after a reset.
        terminated, truncated: bool of shape (num_envs,).
        infos: Facts beside the observations, by name; arrays or lists of num_envs values, or dicts of such.
        started: Which episodes have started in this call, and so have the first observation of another one.
    """

    __slots__ = ("_rows", "infos", "observations", "rewards", "spec", "started", "terminated", "truncated")

    def __init__(
        self,
        spec: BatchSpec,
        observations: dict[str, Any],
        rewards: NDArray[np.float64] | None,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: Mapping[str, Any],
        started: NDArray[np.bool_],
    ):
        self.spec = spec
        self.observations = observations
        self.rewards = rewards
        self.terminated, self.truncated = terminated, truncated
        self.infos = infos
        self.started = started
        self._rows: tuple[bytes, int] | None = None

    def detach(self) -> None:
        """Takes the values into arrays of its own, which the environment does not change."""
        self.observations, self.infos = copied_columns(self.observations), copied_columns(self.infos)
        self.terminated, self.truncated = self.terminated.copy(), self.truncated.copy()
        self.rewards = None if self.rewards is None else self.rewards.copy()

    def replaced_by_first(self) -> BatchOutcome:
        """The same observations as the result of a reset."""
        none = np.zeros(self.spec.num_envs, np.bool_)
        return BatchOutcome(self.spec, self.observations, None, none, none, self.infos, self.started)

    def body(self, codec: Codec) -> Body:
        """The reply to the client that owns the batch."""
        rewards = np.zeros(self.spec.num_envs) if self.rewards is None else self.rewards
        reply = {
            "ok": True,
            "observation": self.observations,
            "reward": rewards,
            "done": False,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }
        if self.infos:
            reply["metadata"] = self.infos
        return _encoded(self.spec, codec, reply)

    def episode_body(self, codec: Codec, index: int) -> Body:
        """The reply to the client of one episode."""
        layout = None if self.infos or not codec.binary else _layout_of(self)
        # Another binary codec has a better place for large arrays.
        if layout is None or (codec is not _BINARY and layout.size >= MIN_SHARED_BYTES):
            fields = self.episode(index)
            reply = {
                "ok": True,
                "observation": fields,
                "reward": fields.pop("reward"),
                "done": fields.pop("done"),
                "terminated": bool(self.terminated[index]),
                "truncated": bool(self.truncated[index]),
            }
            if "metadata" in fields:
                reply["metadata"] = fields["metadata"]
            return _encoded(self.spec, codec, reply)
        if self._rows is None:
            self._rows = layout.encode(self), layout.size
        data, size = self._rows
        return Body(6, data[index * size : index * size + size])

    def episode(self, index: int) -> dict[str, Any]:
        """The observation of one episode, with `reward`, `done` and, if it is not empty, `metadata`."""
        fields = {
            field.name: field.row(self.observations[field.name], index)
            for field in self.spec.observations
            if field.name in self.observations
        }
        flags = {"terminated": bool(self.terminated[index]), "truncated": bool(self.truncated[index])}
        declared = [field.name for field in self.spec.observations if field.name in FACTS]
        fields |= {name: flags[name] for name in declared if name not in fields}
        fields["reward"] = None if self.rewards is None else float(self.rewards[index])
        fields["done"] = flags["terminated"] or flags["truncated"]
        if self.infos and (metadata := _info_row(self.infos, index)):
            fields["metadata"] = metadata
        return fields


def _info_row(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The infos of one episode. As in Gymnasium, `_name` says which episodes have the info `name`."""
    row = {}
    for name, column in infos.items():
        if name[:1] == "_" and name[1:] in infos:
            continue
        present = infos.get(f"_{name}")
        if present is None or present[index]:
            row[name] = _info_row(column, index) if isinstance(column, Mapping) else row_of(column, index)
    return row


def _encoded(spec: BatchSpec, codec: Codec, reply: dict[str, Any]) -> Body:
    try:
        return codec.body(reply if codec.list_bytes < 0 else _listed(reply, codec.list_bytes))
    except ValueError as error:
        raise StepFailed(f"the result of {spec.name} {error}") from error


def _listed(value: Any, most: float) -> Any:
    """The value with arrays of at most `most` bytes as nested lists."""
    if isinstance(value, Mapping):
        return {name: _listed(part, most) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) and value.nbytes <= most else value


class EpisodeOutcome(EncodedOutcome):
    """The result of a reset or a step of one episode of a batch: a `Mapping` of its observation's fields.

    Args:
        batch: The result of all episodes.
        index: The episode.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: BatchOutcome, index: int):
        self._batch, self._index = batch, index

    def body(self, codec: Codec) -> Body:
        return self._batch.episode_body(codec, self._index)

    def keys(self) -> KeysView[str]:
        return self._batch.episode(self._index).keys()

    def __getitem__(self, name: str) -> Any:
        return self._batch.episode(self._index)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


Mapping.register(EpisodeOutcome)


def _layout_of(outcome: BatchOutcome) -> RowLayout | None:
    """How to encode each row; None if rows differ in their length."""
    spec, fields = outcome.spec, tuple(outcome.observations)
    key = fields if outcome.rewards is not None else (*fields, "")
    layout: RowLayout | None = spec.layouts.get(key)
    if layout is None:
        if any(field.array is None for field in spec.observations if field.name in outcome.observations):
            return None
        layout = spec.layouts[key] = RowLayout(outcome)
    return layout


class RowLayout:
    """Writes the replies of all episodes to one buffer, with rows of equal length. Only for msgpack.

    Args:
        outcome: An outcome of this layout: it has the same fields, with or without rewards.

    Attributes:
        size: Bytes of a row.
    """

    def __init__(self, outcome: BatchOutcome):
        self._num_envs = outcome.spec.num_envs
        # Where in a row the bytes of a column are, and the column's name in the observation or in the reply.
        self._places: list[tuple[int, int, str, bool]] = []
        row = bytearray(_encode("ok") + _encode(True) + _encode("observation"))
        flags = [
            field.name
            for field in outcome.spec.observations
            if field.name in FACTS and field.name not in outcome.observations
        ]
        row += map_header(len(outcome.observations) + len(flags))
        for name, column in outcome.observations.items():
            self._add(row, name, column[0], inside=True)
        for name in flags:
            self._add(row, name, np.False_, inside=False)
        if outcome.rewards is None:
            row += _encode("reward") + _encode(None)
        else:
            self._add(row, "reward", outcome.rewards[0], inside=False)
        for name in ("done", "terminated", "truncated"):
            self._add(row, name, np.False_, inside=False)
        self.size = len(row)
        self._buffer = np.tile(np.frombuffer(bytes(row), np.uint8), (self._num_envs, 1))

    def _add(self, row: bytearray, name: str, value: Any, inside: bool) -> None:
        """Appends an entry to the row: its key, and the value of the first episode."""
        if isinstance(value, np.ndarray):
            encoded, width = _encode(value), value.nbytes
        else:
            columns = _number_bytes(value.reshape(1))
            encoded = _FIRST_BYTE.get(value.dtype.kind, b"") + columns.tobytes()
            width = columns.shape[1]
        row += _encode(name) + encoded
        if width:
            self._places.append((len(row) - width, len(row), name, inside))

    def encode(self, outcome: BatchOutcome) -> bytes:
        """The rows, one after the other."""
        beside: dict[str, Any] = {
            "reward": outcome.rewards,
            "done": outcome.terminated | outcome.truncated,
            "terminated": outcome.terminated,
            "truncated": outcome.truncated,
        }
        buffer = self._buffer
        for start, stop, name, inside in self._places:
            column = outcome.observations[name] if inside else beside[name]
            if column.ndim > 1:
                buffer[:, start:stop] = np.ascontiguousarray(column).reshape(self._num_envs, -1).view(np.uint8)
            else:
                buffer[:, start:stop] = _number_bytes(column)
        return buffer.tobytes()


# msgpack's first byte of a number, by the kind of the element type.
_FIRST_BYTE = {"i": b"\xd3", "u": b"\xcf", "f": b"\xcb"}


def _number_bytes(column: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of numbers in msgpack, after the first one; a bool is one byte."""
    if column.dtype.kind == "b":
        return (column.view(np.uint8) + np.uint8(0xC2))[:, None]
    return column.astype(f">{column.dtype.kind}8").view(np.uint8).reshape(-1, 8)
