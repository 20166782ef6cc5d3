"""Puts arrays and bytes back into what was read: those in the text, and those that it names by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MissingArray, MissingExtra, UnreadableRecord
from ..protocol.binary import read_array
from ..protocol.json_codec import unmarked
from .blobs import elements_of
from .files import array_path

__all__ = ["named_in", "restored"]

SUFFIXES = {"$array": ".npy", "$bytes": ".bin"}
"""Of the files that hold what a mark names."""
_HASH_DIGITS = 64


def restored(value: Any, folder: str) -> Any:
    """A value with what its marks stand for.

    Args:
        value: As it was decoded from JSON.
        folder: The record's folder, in which `arrays/` is.

    Raises:
        MissingArray: What it names is not there, or is not what it was.
        UnreadableRecord: A mark is wrong.
        MissingExtra: numpy is not installed.
    """
    try:
        return _restored(value, Path(folder))
    except ValueError as error:
        if isinstance(error, UnreadableRecord):
            raise
        raise UnreadableRecord(f"a value cannot be read: {error}") from None


def named_in(value: Any) -> Iterator[tuple[str, str]]:
    """Hash and suffix of each array, and of each bytes, that a value names; marks are as they were decoded."""
    if isinstance(value, list):
        for each in value:
            yield from named_in(each)
    elif isinstance(value, dict):
        for key, suffix in SUFFIXES.items():
            facts = value.get(key)
            if len(value) == 1 and isinstance(facts, dict) and "sha256" in facts:
                yield _digest(key, facts), suffix
                return
        for each in value.values():
            yield from named_in(each)


def _restored(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_restored(each, folder) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, content),) = value.items()
        if key in {"$array", "$bytes"}:
            named = isinstance(content, dict) and "sha256" in content
            return _named(key, content, folder) if named else unmarked(value)
        if key == "$object" and isinstance(content, dict):
            value = content
    return {name: _restored(each, folder) for name, each in value.items()}


def _named(key: str, facts: dict[str, Any], folder: Path) -> Any:
    digest = _digest(key, facts)
    file = array_path(folder, digest, SUFFIXES[key])
    try:
        content = file.read_bytes()
    except OSError as error:
        raise MissingArray(
            f"{file} cannot be read: {error.strerror}; copy the record together with its folder `arrays`"
        ) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise MissingArray(f"{file} is not what it was: its content has another hash than its name")
    return content if key == "$bytes" else _array(file, content, facts)


def _digest(key: str, facts: dict[str, Any]) -> str:
    digest = facts["sha256"]
    if not (isinstance(digest, str) and len(digest) == _HASH_DIGITS and digest.isalnum()):
        raise UnreadableRecord(f"{key} names {digest!r:.100}, which is no SHA-256")
    return digest


def _array(file: Path, content: bytes, facts: dict[str, Any]) -> Any:
    if find_spec("numpy") is None:
        raise MissingExtra("numpy", None)
    try:
        return read_array(facts["dtype"], facts["shape"], elements_of(content))
    except (ValueError, KeyError) as error:
        raise UnreadableRecord(f"{file} is no array of {facts.get('dtype')} {facts.get('shape')}: {error}") from None
