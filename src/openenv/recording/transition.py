"""A recorded transition: its head, which groups transitions into episodes, and its values with arrays restored."""

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
"""Suffixes of stored files, by JSON mark."""
_HASH_DIGITS = 64


def referenced_arrays(value: Any) -> Iterator[tuple[str, str]]:
    """Hash and suffix of each stored file that a decoded value refers to."""
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
            f"{file} is not an array of {facts.get('dtype')} {facts.get('shape')}: {error}"
        ) from None


def _digest(key: str, facts: dict[str, Any]) -> str:
    digest = facts["sha256"]
    if not (isinstance(digest, str) and len(digest) == _HASH_DIGITS and digest.isalnum()):
        raise errors.UnreadableRecord(f"{key} names {digest!r:.100}, which is not a SHA-256 hash")
    return digest


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer that fits into a column of Parquet."""
# Up to the year 9999, since it is converted to a date.
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]


class TransitionFacts(msgspec.Struct, gc=False):
    """The scalar fields of a line. Fields are the line's keys; None if missing."""

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


class TransitionHead(TransitionFacts, gc=False):
    """A line without actions, arguments and observations."""

    source: dict[str, Any] | None = None


class ReadableLine(TransitionHead, gc=False, kw_only=True):
    """A head with the field that every line must have, left encoded."""

    observation: msgspec.Raw


class Transition(msgspec.Struct, frozen=True):
    """One reset or step, and its result.

    Attributes:
        step: Number of the step; 0 is the reset.
        seed, arguments: Seed of a reset, and its other arguments without the episode's id.
        action, step_arguments: Fields of a step's action, and its further arguments if any.
        observation: All fields but reward and done; None if the call failed. NaN and infinity are the strings `NaN`,
            `Infinity` and `-Infinity`.
        reward: The reward; None if there was none.
        terminated, truncated: How the episode ended; None if the server does not report it.
        done: Whether the episode is over.
        time: Start of the call, Unix seconds.
        duration_s: Duration of the call, seconds.
        error: `ClassName: message` of the error; None if the call succeeded.
        source: Session, episode and step that a fork or a restored session continues from; None for all other lines.
    """

    step: int
    seed: int | None = None
    arguments: dict[str, Any] | None = None
    action: Any = None
    step_arguments: dict[str, Any] | None = None
    observation: Any = None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    done: bool = False
    time: float = 0.0
    duration_s: float = 0.0
    error: str | None = None
    source: dict[str, Any] | None = None

    @property
    def error_class(self) -> str | None:
        """The error's class name in `openenv.errors`; empty if the record has none, None without an error."""
        if self.error is None:
            return None
        name = self.error.partition(":")[0]
        return name if isinstance(getattr(errors, name, None), type) else ""

    def facts(self) -> dict[str, Any]:
        """The transition as a line's JSON values, without absent fields."""
        optional = ("arguments", "action", "step_arguments", "source")
        facts = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.step:
            del facts["seed"]
        return {name: value for name, value in facts.items() if value is not None or name not in optional}

    def restored(self, folder: str) -> Transition:
        """The transition with its arrays and bytes, of which the record has only marks.

        Args:
            folder: The record's folder, which contains `arrays/`.

        Raises:
            UnreadableRecord: A mark is invalid.
            MissingArray: A stored file is missing or was changed.
            MissingExtra: numpy is not installed.
        """
        names, place = ("observation", "action", "arguments"), Path(folder)
        try:
            return msgspec.structs.replace(self, **{name: _restore(getattr(self, name), place) for name in names})
        except errors.UnreadableRecord:
            raise
        except ValueError as error:
            raise errors.UnreadableRecord(f"a value cannot be read: {error}") from None
