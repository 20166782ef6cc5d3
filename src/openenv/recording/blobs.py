"""Large arrays and bytes: each is stored once, under the hash of its content."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from .files import PART, array_path

__all__ = ["LARGE_BYTES", "Blob", "BlobStore", "elements_of", "npy_of"]

LARGE_BYTES = 4096
"""Arrays and bytes of this size and more are not written into their line."""
# Hashes that are known to be stored, so that nobody asks the file system again.
_KNOWN = 65_536
_NPY = b"\x93NUMPY\x01\x00"


class Blob(NamedTuple):
    """What is stored beside a line.

    Attributes:
        token: Stands in the line where its hash will, and is as long.
        suffix: Of its file.
        parts: The content, in pieces.
    """

    token: bytes
    suffix: str
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of its content."""
        return sum(map(len, self.parts))


class BlobStore:
    """Writes what is large, if it is not there yet.

    Args:
        folder: Of the records.

    Attributes:
        written: Bytes that were added.
    """

    def __init__(self, folder: Path):
        self.written = 0
        self._folder = folder
        self._known: OrderedDict[str, None] = OrderedDict()

    def put(self, blob: Blob) -> str:
        """Stores it. Returns its hash.

        Raises:
            OSError: It cannot be written.
        """
        digest = hashlib.sha256()
        for part in blob.parts:
            digest.update(part)
        name = digest.hexdigest()
        if name in self._known:
            self._known.move_to_end(name)
            return name
        path = array_path(self._folder, name, blob.suffix)
        if not path.exists():
            self._write(path, blob.parts)
        self._known[name] = None
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return name

    def _write(self, path: Path, parts: tuple[bytes, ...]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of this process alone: two that write the same content replace one whole file by another.
        part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
        try:
            with part.open("wb") as file:
                for each in parts:
                    file.write(each)
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        self.written += sum(map(len, parts))


def npy_of(dtype: str, shape: tuple[int, ...], data: bytes) -> tuple[bytes, bytes]:
    """An array as a file of numpy's format 1.0, in two pieces. Words of bfloat16 are written as `<u2`.

    Args:
        dtype, shape, data: As `protocol.binary.write_array` gives them.
    """
    kind = "<u2" if dtype == "bfloat16" else dtype
    inside = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({inside}), }}"
    head += " " * (-(10 + len(head) + 1) % 64) + "\n"
    return _NPY + len(head).to_bytes(2, "little") + head.encode("latin-1"), data


def elements_of(content: bytes) -> bytes:
    """The elements in such a file, in C order. What its head says of their type and shape is not believed.

    Raises:
        ValueError: It is another file.
    """
    start = 10 + int.from_bytes(content[8:10], "little")
    if not content.startswith(_NPY) or b"'fortran_order': False" not in content[10:start]:
        raise ValueError("it is no file of numpy's format 1.0 in C order")
    return content[start:]
