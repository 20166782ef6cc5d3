"""The contract of a sandbox: files lie in it, commands run in it, and nothing else can be reached from it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from .._asyncio import on_thread
from ..errors import InvalidArgument, ProviderFailed, UsageError
from .network import NetworkRelay

Files = Mapping[str, "bytes | str | os.PathLike[str]"]
Command = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended.

    Attributes:
        exit_code: Its exit code; 128 and the number of the signal that ended it.
        stdout, stderr: What it printed. Of a longer output, the first and the last half of `output_bytes`.
        timed_out: Whether it was ended because its time was over.
        truncated: Whether it printed more than is kept.
    """

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What commands in a sandbox may use.

    Attributes:
        memory_mb: MiB of memory: of all processes of a container together, of each process in a `ProcessSandbox`.
        processes: Most processes and threads.
        file_mb: MiB of the largest file, and of what one `get` returns.
        output_bytes: Bytes of stdout that are kept of a command, and of stderr.
    """

    memory_mb: int = 4096
    processes: int = 1024
    file_mb: int = 4096
    output_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        for name in ("memory_mb", "processes", "file_mb", "output_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"limits.{name} must be at least 1, not {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class SandboxSnapshot:
    """The files of a sandbox at one moment. It stays until it is removed.

    Attributes:
        kind: The class of its sandbox.
        place: A folder, or the id of an image.
    """

    kind: str
    place: str


class Sandbox(ABC):
    """Files and commands, apart from this machine. Use it as `async with`, or call `start` and `close`.

    One command runs at a time. The folder, the mounts and the allowed addresses are all that it has of this machine.

    Args:
        folder: Copied to `workdir` at the start; the original never changes.
        workdir: Folder in the sandbox in which commands start.
        mounts: Folders of this machine that the sandbox sees under the same path, and cannot change.
        allow: Addresses (`host:port`) that commands may connect to, and no other.
        variables: Environment variables of every command.
        limits: What commands may use.

    Raises:
        InvalidArgument: An argument is invalid; the message names it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        workdir: str = "/workspace",
        mounts: Sequence[str | os.PathLike[str]] = (),
        allow: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        limits: SandboxLimits | None = None,
    ):
        if not workdir.startswith("/") or ".." in Path(workdir).parts:
            raise InvalidArgument(f"workdir must be an absolute path, not {workdir!r}")
        if folder is not None and not Path(folder).is_dir():
            raise InvalidArgument(f"folder {os.fspath(folder)!r} is no folder: give the one with the task's files")
        self.folder = None if folder is None else Path(folder)
        self.workdir = workdir
        self.mounts = [Path(mount).absolute() for mount in mounts]
        for mount in self.mounts:
            if not mount.exists():
                raise InvalidArgument(f"mounts: {str(mount)!r} does not exist")
        self.variables = dict(variables or {})
        self.limits = limits or SandboxLimits()
        self.network = NetworkRelay(allow)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def start(self) -> None:
        """Makes the files. Raises `LaunchFailed` or `ProviderFailed`; call `close` also then."""

    @abstractmethod
    async def run(
        self,
        command: Command,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Runs a command to its end. It has no input. If the caller is cancelled, it is killed.

        Args:
            command: A text for `sh -c`, or a program with its arguments.
            timeout_s: Seconds until it is killed, with every process that it started.
            env: Environment variables on top of those of the sandbox.
            user: User in the sandbox; None: its ordinary one.
            cwd: Folder in the sandbox; None: `workdir`.

        Raises:
            ProviderFailed: The sandbox failed, not the command.
            UsageError: It does not run: start it; or it has no such user.
        """

    @abstractmethod
    async def put(self, files: Files | str | os.PathLike[str], path: str) -> None:
        """Copies files into the sandbox.

        Args:
            files: A folder of this machine, or for each relative name its content, or a file of this machine.
            path: Folder in the sandbox; made if it is not there.

        Raises:
            InvalidArgument: A name leads out of `path`.
            ProviderFailed: The files cannot be written there.
        """

    @abstractmethod
    async def get(self, path: str, folder: str | os.PathLike[str]) -> bool:
        """Copies a file, or what a folder of the sandbox contains, into a folder of this machine.

        Devices, sockets, and symbolic links to outside of `path` are left out.

        Returns:
            Whether there is such a file or folder.

        Raises:
            UsageError: It is larger than `limits.file_mb`.
            ProviderFailed: The sandbox failed.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Kills what runs in it. Its files stay, and `run` goes on with them. Raises `ProviderFailed`."""

    @abstractmethod
    async def snapshot(self) -> SandboxSnapshot:
        """Copies all of its files. No command may run meanwhile. Raises `ProviderFailed`."""

    @abstractmethod
    def from_snapshot(self, snapshot: SandboxSnapshot, *, allow: Sequence[str] = ()) -> Sandbox:
        """A sandbox like this one, not yet started, with the files of a snapshot. Commands see what `allow` lists."""

    @abstractmethod
    async def remove_snapshot(self, snapshot: SandboxSnapshot) -> None:
        """Removes the files of a snapshot, if there are any."""

    @abstractmethod
    async def close(self) -> None:
        """Kills what runs in it, and removes its files. May be called repeatedly."""

    def _too_large(self, path: str) -> UsageError:
        return UsageError(f"{path} has over {self.limits.file_mb} MiB (limits.file_mb): get a part, or raise that")


class BoundedOutput:
    """The beginning and the end of an output, in bounded memory.

    Args:
        limit: Bytes that are kept.
    """

    def __init__(self, limit: int):
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Takes the next part."""
        self._size += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    async def read_from(self, stream: asyncio.StreamReader) -> None:
        """Takes all of a stream."""
        while data := await stream.read(65536):
            self.write(data)

    @property
    def truncated(self) -> bool:
        """Whether a part in the middle is missing."""
        return self._size > 2 * self._half

    def text(self) -> str:
        """What is kept, with a line in place of what is missing."""
        tail = self._tail[-self._half :]
        missing = self._size - len(self._head) - len(tail)
        middle = f"\n[{missing} bytes left out]\n".encode() if missing else b""
        return (bytes(self._head) + middle + bytes(tail)).decode(errors="replace")


def words_of(command: Command) -> list[str]:
    """A command as a program and its arguments. Raises `InvalidArgument` if it is empty."""
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    if not words or not words[-1]:
        raise InvalidArgument("command is empty: give a text for the shell, or a program and its arguments")
    return words


@contextlib.asynccontextmanager
async def packed(
    files: Files | str | os.PathLike[str], user: int = 0, group: int = 0, below: str = "."
) -> AsyncIterator[IO[bytes]]:
    """Files as a tar archive, in a temporary file that is ready to be read.

    Args:
        files: As for `Sandbox.put`.
        user, group: Numbers of the owner.
        below: The folder that all names begin with; `.` for none.
    """

    def own(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid, entry.gid, entry.uname, entry.gname = user, group, "", ""
        return entry

    def pack(archive: IO[bytes]) -> None:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            if not isinstance(files, Mapping):
                if not Path(files).is_dir():
                    raise InvalidArgument(f"{os.fspath(files)!r} is no folder: name a folder, or give files by name")
                for entry in sorted(Path(files).iterdir()):
                    tar.add(entry, f"{below}/{entry.name}", filter=own)
                return
            for name, content in files.items():
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise InvalidArgument(f"file name {name!r} must be relative, without '..'")
                if isinstance(content, os.PathLike):
                    tar.add(content, f"{below}/{name}", filter=own)
                    continue
                data = content.encode() if isinstance(content, str) else content
                made = own(tarfile.TarInfo(f"{below}/{name}"))
                made.size, made.mode, made.mtime = len(data), 0o644, time.time()
                tar.addfile(made, io.BytesIO(data))

    with tempfile.TemporaryFile() as archive:
        await on_thread(lambda: pack(archive))
        archive.seek(0)
        yield archive


def unpack(archive: IO[bytes], folder: Path) -> None:
    """Extracts files, folders, and links within the archive: one file, or what one folder contains.

    Args:
        archive: A tar archive from a sandbox, which may have been made to do harm.
        folder: Where its files go.

    Raises:
        ProviderFailed: It is no archive, or ends too early.
    """
    folder.mkdir(parents=True, exist_ok=True)
    links: list[tuple[Path, str]] = []
    try:
        with tarfile.open(fileobj=archive) as tar:
            for member in tar:
                parts = Path(member.name).parts
                if parts and (parts[0] == "/" or ".." in parts):
                    continue
                inner = parts[1:] if len(parts) > 1 or member.isdir() else parts
                place = folder.joinpath(*inner)
                if member.isdir():
                    place.mkdir(parents=True, exist_ok=True)
                elif member.issym() and _stays_within(member.linkname, len(inner) - 1):
                    links.append((place, member.linkname))
                elif member.isreg() or (member.islnk() and tar.getmember(member.linkname).isreg()):
                    content = tar.extractfile(member)
                    assert content is not None
                    place.unlink(missing_ok=True)
                    with content, place.open("wb") as copy:
                        shutil.copyfileobj(content, copy)
                    place.chmod(member.mode & 0o777 | 0o600)
    except (tarfile.TarError, KeyError) as error:
        raise ProviderFailed(f"what the sandbox sent is no readable archive: {error}") from error
    for place, target in links:  # last, so that no file is written through one
        place.unlink(missing_ok=True)
        place.symlink_to(target)


def _stays_within(target: str, depth: int) -> bool:
    """Whether a link that is `depth` folders below the top leads to a place below the top."""
    parts = Path(target).parts
    up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
    return not target.startswith("/") and up <= depth and ".." not in parts[up:]


def environment_of(*parts: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables; those of later parts win. Raises `InvalidArgument` for a malformed one."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged.update(part or {})
    for name, value in merged.items():
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise InvalidArgument(f"env: {name!r} is no environment variable: it is empty, or has '=' or a zero byte")
    return {name: str(value) for name, value in merged.items()}
