"""Files in a folder of records: names, the locked file of lines, large arrays by content hash, the disk quota."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import gmtime, strftime, time
from typing import NamedTuple

JSONL = ".jsonl"
"""A file that is being written, or was never rotated."""
PARQUET = ".parquet"
"""The same file after rotation. Where both are there, this one is whole and the other one about to go."""
PART = ".part"
"""The suffix of incomplete files, after their final name."""
ARRAYS = "arrays"
"""The folder of large arrays and bytes."""
_OURS = re.compile(r"\d{8}T\d+-[0-9a-f]{6}-\d{6}\.jsonl")


def new_stem() -> str:
    """The name prefix of one recorder's files: names sort by its start, and each is unique."""
    now = time()
    return f"{strftime('%Y%m%dT%H%M%S', gmtime(now))}{int(now % 1 * 1000):03d}-{secrets.token_hex(3)}"


def file_name(stem: str, number: int) -> str:
    """The name of a recorder's file of that number, from 1."""
    return f"{stem}-{number:06d}{JSONL}"


def record_files(folder: Path) -> list[Path]:
    """The files of lines that recorders made, by name. Others that lie there (exports, downloads) are the user's."""
    return sorted(path for path in folder.glob(f"*{JSONL}") if _OURS.fullmatch(path.name))


@contextlib.contextmanager
def replace_file(path: Path, mark: str = "") -> Iterator[Path]:
    """Gives the name under which to write a file: it gets its own name when it is whole, and goes if that fails.

    Args:
        path: The file.
        mark: Tells writers of the same file apart.
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
    """Where a large array (`.npy`) or large bytes (`.bin`) lie.

    Args:
        folder: Of the records.
        digest: SHA-256 of the file, in hex.
        suffix: One of the two.
    """
    return folder / ARRAYS / digest[:2] / f"{digest}{suffix}"


LARGE_BYTES = 4096
"""Arrays and bytes of this size and more are not written into their line."""
# Hashes that are known to be stored, so that the file system is not asked again.
_KNOWN = 65_536
_NPY = b"\x93NUMPY\x01\x00"


class Blob(NamedTuple):
    """A blob that is stored next to a line.

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
    """Writes a large value, if its file does not exist yet.

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
        for each in blob.parts:
            digest.update(each)
        name = digest.hexdigest()
        if name in self._known:
            self._known.move_to_end(name)
            return name
        path = array_path(self._folder, name, blob.suffix)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of this process alone: two that write the same content replace one whole file by another.
            with replace_file(path, f".{os.getpid()}") as part, part.open("wb") as file:
                file.writelines(blob.parts)
            self.written += blob.size
        self._known[name] = None
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return name


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


# Bytes that are written with one system call.
CHUNK_LINES = 512


class Journal:
    """Appends whole lines. What the kernel has taken survives the death of this process, however it dies.

    It holds a lock on the file, which goes with the process: no other process touches the file while it lives.

    Args:
        path: A new file.

    Raises:
        OSError: It cannot be made.

    Attributes:
        size: Bytes in it.
        lines: Lines in it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.size = 0
        self.lines = 0
        # Locked before it has its name: a compactor removes empty files that have no lock.
        made = path.with_name(path.name + PART) if os.name == "posix" else path
        self._fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _lock(self._fd)
        if made != path:
            made.rename(path)

    def append(self, lines: Sequence[bytes]) -> None:
        """Writes lines.

        Raises:
            OSError: Not all could be written, and of the one at which it ended nothing is left in the file; or the
                file was removed.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self.path))
        for start in range(0, len(lines), CHUNK_LINES):
            some = lines[start : start + CHUNK_LINES]
            self._write(b"".join(some))
            self.lines += len(some)

    def close(self, sync: bool = True) -> None:
        """Ends it. Raises `OSError` where the disk does not take what the kernel has."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)

    def _write(self, text: bytes) -> None:
        view, done = memoryview(text), 0
        try:
            while done < len(text):
                done += os.write(self._fd, view[done:])
        except OSError:
            whole = text.rfind(b"\n", 0, done) + 1
            self.size += whole
            self.lines += text.count(b"\n", 0, whole)
            if done > whole:
                os.ftruncate(self._fd, self.size)
            raise
        self.size += done


def run_locked(path: Path, work: Callable[[int], None]) -> bool:
    """Works on a file of lines that no process writes, and locks it meanwhile.

    Args:
        path: The file.
        work: Gets its file descriptor, to read and write.

    Returns:
        Whether it was done: not if another process writes the file, or has done the same meanwhile.

    Raises:
        OSError: The file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not _lock(fd) or not path.exists():
            return False
        work(fd)
        return True
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Locks a file. False: another process has locked it, or there are no locks here."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


# Others write into the folder too: it is measured anew whenever so much of the bound was added here.
_PART_OF_BOUND = 20


class DiskQuota:
    """Keeps a folder within a bound, give or take a twentieth for each process that writes there.

    Args:
        folder: With everything in it.
        bound: Most bytes; None: as many as there are.
    """

    def __init__(self, folder: Path, bound: int | None):
        self.bound = bound
        self._folder = os.fspath(folder)
        self._used = 0
        # Bytes added since the folder was measured; None: it never was.
        self._added: int | None = None

    def add(self, count: int) -> None:
        """So many bytes are new there."""
        if self._added is not None:
            self._added += count

    def is_full(self) -> bool:
        """Whether the bound is reached."""
        if self.bound is None:
            return False
        if (
            self._added is None
            or self._added >= self.bound // _PART_OF_BOUND
            or self._used + self._added >= self.bound
        ):
            self._used, self._added = _size_of(self._folder), 0
        return self._used + self._added >= self.bound


def _size_of(folder: str) -> int:
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it has gone meanwhile
                if entry.is_dir(follow_symlinks=False):
                    size += _size_of(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return size
