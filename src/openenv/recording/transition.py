"""A recorded transition: the part needed to group episodes, and the values with their arrays restored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from .. import errors
from ..protocol.arrays import read_array
from ..protocol.codecs import unmarked
from .storage import array_path, elements_of

SUFFIXES = {"$array": ".npy", "$bytes": ".bin"}
"""The suffixes of stored files, by mark."""
_HASH_DIGITS = 64


def restore_arrays(value: Any, folder: str) -> Any:
    """A value with its marks replaced by the stored values.

    Args:
        value: As it was decoded from JSON.
        folder: The record's folder, in which `arrays/` is.

    Raises:
        MissingArray: What it names is not there, or is not what it was.
        UnreadableRecord: A mark is wrong.
        MissingExtra: numpy is not installed.
    """
    try:
        return _restore(value, Path(folder))
    except ValueError as error:
        if isinstance(error, errors.UnreadableRecord):
            raise
        raise errors.UnreadableRecord(f"a value cannot be read: {error}") from None


def referenced_arrays(value: Any) -> Iterator[tuple[str, str]]:
    """Hash and suffix of each array, and of each bytes, that a value names; marks are as they were decoded."""
    if isinstance(value, list):
        for each in value:
            yield from referenced_arrays(each)
    elif isinstance(value, dict):
        for key, suffix in SUFFIXES.items():
            facts = value.get(key)
            if len(value) == 1 and isinstance(facts, dict) and "sha256" in facts:
                yield _digest(key, facts), suffix
                return
        for each in value.values():
            yield from referenced_arrays(each)


def _restore(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_restore(each, folder) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, content),) = value.items()
        if key in {"$array", "$bytes"}:
            named = isinstance(content, dict) and "sha256" in content
            return _read_file(key, content, folder) if named else unmarked(value)
        if key == "$object" and isinstance(content, dict):
            value = content
    return {name: _restore(each, folder) for name, each in value.items()}


def _read_file(key: str, facts: dict[str, Any], folder: Path) -> Any:
    digest = _digest(key, facts)
    file = array_path(folder, digest, SUFFIXES[key])
    try:
        content = file.read_bytes()
    except OSError as error:
        raise errors.MissingArray(
            f"{file} cannot be read: {error.strerror}; copy the record together with its folder `arrays`"
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise errors.MissingArray(f"{file} is not what it was: its content has another hash than its name")
    if key == "$bytes":
        return content
    if find_spec("numpy") is None:
        raise errors.MissingExtra("numpy", None)
    try:
        return read_array(facts["dtype"], facts["shape"], elements_of(content))
    except (ValueError, KeyError) as error:
        raise errors.UnreadableRecord(
            f"{file} is no array of {facts.get('dtype')} {facts.get('shape')}: {error}"
        ) from None


def _digest(key: str, facts: dict[str, Any]) -> str:
    digest = facts["sha256"]
    if not (isinstance(digest, str) and len(digest) == _HASH_DIGITS and digest.isalnum()):
        raise errors.UnreadableRecord(f"{key} names {digest!r:.100}, which is no SHA-256")
    return digest


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits into a column of Parquet."""
# Up to the year 9999: a date is made of it.
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]


class TransitionHead(msgspec.Struct, gc=False):
    """A line of a record without the sent and received data. Keys as in the line; missing ones are None."""

    step: Int64
    episode_id: str | None = None
    session_id: str | None = None
    seed: Int64 | None = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    done: bool = False
    time: Seconds = 0.0
    duration_s: Seconds = 0.0
    error: str | None = None
    environment: str | None = None
    versions: dict[str, str | None] = {}
    schema: str | None = None
    source: dict[str, Any] | None = None


class ReadableLine(TransitionHead, gc=False, kw_only=True):
    """A line of JSON, as far as it must be read to be one."""

    observation: msgspec.Raw


class RecordLine(ReadableLine, gc=False):
    """A whole line."""

    arguments: dict[str, Any] | None = None
    action: Any = None
    step_arguments: dict[str, Any] | None = None


class Transition(msgspec.Struct, frozen=True):
    """One reset or step, and its outcome.

    Attributes:
        step: 0 is the reset.
        seed, arguments: Of a reset: its seed, and all other arguments but the episode's id.
        action, step_arguments: Of a step: all fields of its action, and further arguments if there were any.
        observation: All fields but reward and done; None where it failed. NaN and infinity are the texts `NaN`,
            `Infinity` and `-Infinity`.
        reward: None: there was none.
        terminated, truncated: How the episode ended; None where the server did not say so.
        done: It is over.
        time: Unix seconds at which it was asked for.
        duration_s: Seconds that it took.
        error: `ClassName: message` of what came in place of an observation; None: nothing did.
        source: Session, episode and step that a fork or a restored session goes on from; None for all other lines.
    """

    step: int
    seed: int | None
    arguments: dict[str, Any] | None
    action: Any
    step_arguments: dict[str, Any] | None
    observation: Any
    reward: float | None
    terminated: bool | None
    truncated: bool | None
    done: bool
    time: float
    duration_s: float
    error: str | None
    source: dict[str, Any] | None

    @property
    def error_class(self) -> str | None:
        """Name of the error's class in `openenv.errors`; empty where the record says none, None without an error."""
        if self.error is None:
            return None
        name = self.error.partition(":")[0]
        return name if isinstance(getattr(errors, name, None), type) else ""

    def facts(self) -> dict[str, Any]:
        """The transition as in a line of JSON, without absent fields."""
        optional = ("arguments", "action", "step_arguments", "source")
        facts = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.step:
            del facts["seed"]
        return {name: value for name, value in facts.items() if value is not None or name not in optional}


def transition_of(line: RecordLine, arrays: str | None) -> Transition:
    """A whole transition.

    Args:
        line: Of a record.
        arrays: Folder of the arrays that it names; None: they stay names.

    Raises:
        UnreadableRecord: A value is no JSON.
        MissingArray: An array is not there, or is not what it was.
    """
    facts = {name: getattr(line, name) for name in Transition.__struct_fields__}
    try:
        facts["observation"] = msgspec.json.decode(line.observation)
    except msgspec.DecodeError as error:
        raise errors.UnreadableRecord(f"the observation of step {line.step} is no JSON: {error}") from None
    if arrays is not None:
        for name in ("observation", "action", "arguments"):
            facts[name] = restore_arrays(facts[name], arrays)
    return Transition(**facts)
