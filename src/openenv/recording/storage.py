"""Files in a folder of records: names, the locked JSONL file, large arrays by content hash, the disk quota."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import gmtime, strftime, time
from typing import NamedTuple

from .._files import BINARY, RENAMES_OPEN_FILES, lock_file

JSONL = ".jsonl"
"""A file that is being written, or was never rotated."""
PARQUET = ".parquet"
"""The same file after rotation. If both exist, this one is complete and the other is about to be removed."""
PART = ".part"
"""The suffix of incomplete files, after their final name."""
ARRAYS = "arrays"
"""The folder of large arrays and bytes."""
_OURS = re.compile(r"\d{8}T\d+-[0-9a-f]{6}-\d{6}\.jsonl")


def new_stem() -> str:
    """The unique name prefix of one recorder's files, which sorts by its start."""
    now = time()
    return f"{strftime('%Y%m%dT%H%M%S', gmtime(now))}{int(now % 1 * 1000):03d}-{secrets.token_hex(3)}"


def file_name(stem: str, number: int) -> str:
    """The name of a recorder's file; numbers start at 1."""
    return f"{stem}-{number:06d}{JSONL}"


def record_files(folder: Path) -> list[Path]:
    """The JSONL files of recorders, by name. Other files there (exports, downloads) belong to the user."""
    return sorted(path for path in folder.glob(f"*{JSONL}") if _OURS.fullmatch(path.name))


@contextlib.contextmanager
def replace_file(path: Path, mark: str = "") -> Iterator[Path]:
    """Yields a temporary path, renamed to `path` on success and removed on failure.

    Args:
        path: The file.
        mark: Distinguishes several writers of the same file.
    """
    part = path.with_name(f"{path.name}{mark}{PART}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def array_path(folder: Path, digest: str, suffix: str) -> Path:
    """The file of a large array (`.npy`) or of large bytes (`.bin`).

    Args:
        folder: The folder of the records.
        digest: SHA-256 of the file, in hex.
        suffix: `.npy` or `.bin`.
    """
    return folder / ARRAYS / digest[:2] / f"{digest}{suffix}"


LARGE_BYTES = 4096
"""Arrays and bytes of at least this size are stored in separate files."""
# Most hashes kept in memory of files that are known to exist, to save a look-up on disk.
_KNOWN = 65_536
_NPY = b"\x93NUMPY\x01\x00"


class Blob(NamedTuple):
    """A large value that is stored in a file next to its line.

    Attributes:
        token: Placeholder of the hash in the line, of the same length.
        suffix: Suffix of the file.
        parts: The content, in pieces.
    """

    token: bytes
    suffix: str
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Size of the content in bytes."""
        return sum(map(len, self.parts))


class BlobStore:
    """Stores each large value in one file, named by its hash.

    Args:
        folder: The folder of the records.

    Attributes:
        written: Bytes written.
    """

    def __init__(self, folder: Path):
        self.written = 0
        self._folder = folder
        self._known: OrderedDict[str, None] = OrderedDict()

    def put(self, blob: Blob) -> str:
        """Writes a blob, if its file does not exist yet. Returns its hash.

        Raises:
            OSError: The file cannot be written.
        """
        digest = hashlib.sha256()
        for each in blob.parts:
            digest.update(each)
        name = digest.hexdigest()
        if name in self._known:
            self._known.move_to_end(name)
            return name
        path = array_path(self._folder, name, blob.suffix)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # A temporary name per process: two that write the same content replace one complete file by another.
            with replace_file(path, f".{os.getpid()}") as part, part.open("wb") as file:
                file.writelines(blob.parts)
            self.written += blob.size
        self._known[name] = None
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return name


def npy_of(dtype: str, shape: tuple[int, ...], data: bytes) -> tuple[bytes, bytes]:
    """An array in numpy's file format 1.0, as header and data. bfloat16 is written as `<u2`.

    Args:
        dtype, shape, data: The result of `protocol.binary.write_array`.
    """
    kind = "<u2" if dtype == "bfloat16" else dtype
    inside = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({inside}), }}"
    head += " " * (-(10 + len(head) + 1) % 64) + "\n"
    return _NPY + len(head).to_bytes(2, "little") + head.encode("latin-1"), data


def elements_of(content: bytes) -> bytes:
    """The elements of a `.npy` file, in C order. The type and shape in its header are not trusted.

    Raises:
        ValueError: The content is not in numpy's file format.
    """
    start = 10 + int.from_bytes(content[8:10], "little")
    if not content.startswith(_NPY) or b"'fortran_order': False" not in content[10:start]:
        raise ValueError("it is not in numpy's file format 1.0, in C order")
    return content[start:]


# Lines per system call.
CHUNK_LINES = 512


class Journal:
    """A file to which whole lines are appended. Lines that the kernel accepted survive a crash of this process.

    It holds a lock on the file until the process ends, so that no other process changes the file.

    Args:
        path: A new file.

    Raises:
        OSError: The file cannot be created.

    Attributes:
        size: Bytes in the file.
        lines: Lines in the file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self.lines = 0
        # Locked before it gets its name: a compactor removes empty files without a lock.
        made = path.with_name(path.name + PART) if RENAMES_OPEN_FILES else path
        self._fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | BINARY, 0o644)
        lock_file(self._fd)
        if made != path:
            made.rename(path)

    def append(self, lines: Sequence[bytes]) -> None:
        """Appends lines.

        Raises:
            OSError: The file was removed, or not all lines could be written; no partial line is left.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self.path))
        for start in range(0, len(lines), CHUNK_LINES):
            some = lines[start : start + CHUNK_LINES]
            text, done = b"".join(some), 0
            try:
                while done < len(text):
                    done += os.write(self._fd, memoryview(text)[done:])
            except OSError:
                whole = text.rfind(b"\n", 0, done) + 1
                self.size += whole
                self.lines += text.count(b"\n", 0, whole)
                if done > whole:
                    os.ftruncate(self._fd, self.size)
                raise
            self.size += done
            self.lines += len(some)

    def sync(self) -> None:
        """Waits until the lines are on the disk. Raises `OSError` if they cannot be."""
        os.fsync(self._fd)

    def close(self, sync: bool = True) -> None:
        """Closes the file. Raises `OSError` if the kernel cannot sync its data to the disk."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)


def run_locked(path: Path, work: Callable[[int], None]) -> bool:
    """Calls `work` on a JSONL file that no process writes, with the file locked.

    Args:
        path: The file.
        work: Gets its file descriptor, open for reading and writing.

    Returns:
        False if another process writes the file, or has removed it meanwhile.

    Raises:
        OSError: The file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | BINARY)
    except FileNotFoundError:
        return False
    try:
        if not lock_file(fd) or not path.exists():
            return False
        work(fd)
        return True
    finally:
        os.close(fd)


# Other processes also write there, so the folder is measured again after each 1/20 of the bound added here.
_PART_OF_BOUND = 20


class DiskQuota:
    """Limits the size of a folder, within 1/20 of the bound for each process that writes into it.

    Args:
        folder: The folder, with its subfolders.
        bound: Largest size in bytes; None for no limit.
    """

    def __init__(self, folder: Path, bound: int | None):
        self.bound = bound
        self._folder = os.fspath(folder)
        self._used = 0
        # Bytes added since the folder was measured; infinite before the first measurement.
        self._added = math.inf

    def add(self, count: int) -> None:
        """Counts bytes that were written into the folder."""
        self._added += count

    def is_full(self) -> bool:
        """Whether the bound is reached."""
        if self.bound is None:
            return False
        if self._added >= self.bound // _PART_OF_BOUND or self._used + self._added >= self.bound:
            self._used = self._added = 0
            for place, _, names in os.walk(self._folder):
                for name in names:
                    with contextlib.suppress(OSError):  # removed meanwhile
                        self._used += os.lstat(f"{place}/{name}").st_size
        return self._used + self._added >= self.bound
