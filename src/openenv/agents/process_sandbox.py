"""A sandbox of this machine: its programs, read-only, in namespaces that bubblewrap makes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .._asyncio import on_thread, run_to_completion, shielded, start_task
from .._processes import KILL, signals
from .._shared_memory import memory_file
from ..errors import LaunchFailed, ProviderFailed, UsageError
from ..settings import variable_here
from .sandbox import (
    BoundedOutput,
    Command,
    CommandResult,
    Files,
    Sandbox,
    SandboxSnapshot,
    environment_of,
    packed,
    unpack,
    words_of,
)

USER = "agent"
_HOME = "/home/agent"
# Seconds within which files are copied in or out.
_COPY_S = 600.0
_MIB = 1024 * 1024
_VARIABLES = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": _HOME,
    "USER": USER,
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",  # noqa: S108
}
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
_DEVICES = ("null", "zero", "full", "random", "urandom")
# Configuration of this machine's programs, without which some do not start.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "localtime", "mime.types")
_NEEDED = (1 << 6) | (1 << 7) | (1 << 21)  # CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN
_FIRST_USER = 0x6000_0000
_HOW = (
    "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap) and allow unprivileged user namespaces "
    "(in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined), or use a "
    "DockerSandbox"
)


class ProcessSandbox(Sandbox):
    """Commands as processes of this machine, which see its /usr, a file system of their own, and no network.

    Started by root, each sandbox has a user of its own; by another user, a user namespace. No process outlives its
    command. The arguments are those of `Sandbox`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, **options: Any):
        super().__init__(folder, **options)
        self._root: Path | None = None
        self._from: Path | None = None
        self._user: int | None = None  # on this machine; None: the user of this process, in a namespace

    async def start(self) -> None:
        missing = [name for name in ("bwrap", "setpriv", "prlimit", "tar") if shutil.which(name) is None]
        if missing:
            raise LaunchFailed(f"a process sandbox needs {', '.join(missing)}: {_HOW}")
        if self._root is not None:
            raise UsageError("the sandbox runs already: close() it first")
        self._root = Path(tempfile.mkdtemp(prefix="openenv-sandbox-"))
        if _is_privileged():
            self._user = _FIRST_USER + secrets.randbelow(1 << 28)
        await run_to_completion(on_thread(self._make_files))
        tried = await self.run(["true"], timeout_s=_COPY_S)
        if tried.exit_code:
            raise LaunchFailed(f"bubblewrap does not work here ({tried.stderr.strip()[-500:]}): {_HOW}")

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        if user not in (None, USER):
            raise UsageError(f"a process sandbox has one user, {USER!r}, and no {user!r}: use a DockerSandbox")
        variables = environment_of(self.variables, env)
        limits = ["--core=0", f"--nproc={self.limits.processes}", f"--fsize={self.limits.file_mb * _MIB}"]
        limits.append(f"--data={self.limits.memory_mb * _MIB}")
        words = ["prlimit", *limits, "--", *words_of(command)]
        return await self._execute(words, timeout_s, variables, cwd or self.workdir)

    async def put(self, files: Files | str | os.PathLike[str], path: str) -> None:
        async with packed(files) as archive:
            # In the sandbox, where no link leads out of it.
            words = ["sh", "-c", 'mkdir -p -- "$1" && tar -x --no-same-owner -C "$1"', "put", path]
            copied = await self._execute(words, _COPY_S, {}, "/", stdin=archive)
        if copied.exit_code:
            raise ProviderFailed(f"files cannot be written to {path} in the sandbox: {copied.stderr.strip()[-500:]}")

    async def get(self, path: str, folder: str | os.PathLike[str]) -> bool:
        if (await self._execute(["test", "-e", path], _COPY_S, {}, "/")).exit_code:
            return False
        size = self.limits.file_mb * _MIB
        at = Path(path)
        words = ["prlimit", f"--fsize={size}", "tar", "-c", "-C", str(at.parent), "--", at.name or "."]
        with tempfile.TemporaryFile() as archive:
            copied = await self._execute(words, _COPY_S, {}, "/", stdout=archive)
            if copied.exit_code == 128 + sum(signals("SIGXFSZ")) or archive.seek(0, os.SEEK_END) >= size:
                raise self._too_large(path)
            if copied.timed_out:
                raise ProviderFailed(f"{path} could not be copied out of the sandbox within {_COPY_S:g} s")
            archive.seek(0)
            await on_thread(lambda: unpack(archive, Path(folder)))
        return True

    async def stop(self) -> None:
        self._files()  # no process outlives its command

    async def snapshot(self) -> SandboxSnapshot:
        root, place = self._files(), Path(tempfile.mkdtemp(prefix="openenv-snapshot-"))
        try:
            await run_to_completion(on_thread(lambda: _copy(root, place)))
        except BaseException:
            await run_to_completion(on_thread(lambda: shutil.rmtree(place, ignore_errors=True)))
            raise
        return SandboxSnapshot(type(self).__name__, str(place))

    def from_snapshot(self, snapshot: SandboxSnapshot, *, allow: Sequence[str] = ()) -> ProcessSandbox:
        if snapshot.kind != type(self).__name__ or not Path(snapshot.place).is_dir():
            raise UsageError(f"snapshot: there is no folder {snapshot.place!r} of a ProcessSandbox")
        other = ProcessSandbox(
            workdir=self.workdir, mounts=self.mounts, allow=allow, variables=self.variables, limits=self.limits
        )
        other._from = Path(snapshot.place)
        return other

    async def remove_snapshot(self, snapshot: SandboxSnapshot) -> None:
        await run_to_completion(on_thread(lambda: shutil.rmtree(snapshot.place, ignore_errors=True)))

    async def close(self) -> None:
        root, self._root = self._root, None
        if root is not None:
            await run_to_completion(on_thread(lambda: shutil.rmtree(root, ignore_errors=True)))

    def _files(self) -> Path:
        if self._root is None:
            raise UsageError("the sandbox does not run: start() it first, or use it as `async with`")
        return self._root

    def _make_files(self) -> None:
        """Fills the folder that is the root of the sandbox."""
        root = self._files()
        number = self._user or 1000
        if self._from is not None:
            _copy(self._from, root)
        else:
            for name, mode in (("etc", 0o755), ("home", 0o755), ("root", 0o755), ("tmp", 0o1777), (_HOME[1:], 0o755)):
                (root / name).mkdir()
                (root / name).chmod(mode)
            for name in _LINKS:
                if Path("/", name).is_symlink():
                    (root / name).symlink_to(Path("/", name).readlink())
            target = root / self.workdir[1:]
            target.mkdir(parents=True, exist_ok=True)
            if self.folder is not None:
                _copy(self.folder, target)
        if self._user is not None:
            own = [entry for entry in root.iterdir() if entry.name not in ("etc", "home", "root", "tmp", *_LINKS)]
            own += [root / _HOME[1:], *(root / "tmp").iterdir()]
            owner = f"{number}:{number}"
            # Options end before the names: those of a snapshot are an agent's.
            subprocess.run(["chown", "-hR", owner, "--", *map(str, own)], check=True, capture_output=True)  # noqa: S603, S607
        _make_parents(root, self.mounts)
        # The agent makes further folders at the top, and cannot replace those that bubblewrap mounts over.
        root.chmod(0o1777 if self._user is not None else 0o755)
        hosts = "".join(f"{inside} {host}\n" for host, inside in self.network.hosts.items())
        for name, text in (
            ("passwd", f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{number}:{number}:{USER}:{_HOME}:/bin/sh\n"),
            ("group", f"root:x:0:\n{USER}:x:{number}:\n"),
            ("hosts", f"127.0.0.1 localhost\n{hosts}"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
        ):
            (root / "etc" / name).unlink(missing_ok=True)
            (root / "etc" / name).write_text(text)

    def _options(self, env: Mapping[str, str]) -> list[str]:
        """The options of bubblewrap."""
        root = self._files()
        binds = [Path("/usr"), *(Path("/etc", name) for name in _ETC), *self.mounts]
        binds += [Path("/", name) for name in _LINKS if not Path("/", name).is_symlink()]
        mounts = ["--bind", str(root), "/"]
        for bind in binds:
            if bind.exists():
                _check_no_link(root, bind)
                mounts += ["--ro-bind", str(bind), str(bind)]
        for name in ("proc", "dev"):
            _check_no_link(root, Path("/", name))
        mounts += ["--proc", "/proc", "--perms", "0755", "--tmpfs", "/dev"]
        for name in _DEVICES:
            mounts += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            mounts += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
        mounts += ["--symlink", "/proc/self/fd", "/dev/fd", "--perms", "1777", "--size"]
        mounts += [str(self.limits.memory_mb * _MIB // 4), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
        user = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
        if self._user is not None:
            user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        variables = [word for name, value in {**_VARIABLES, **env}.items() for word in ("--setenv", name, value)]
        spaces = [f"--unshare-{kind}" for kind in ("pid", "net", "ipc", "uts", "cgroup-try")]
        options = ["--die-with-parent", "--new-session", "--clearenv", "--chdir", "/"]
        return [*options, *spaces, *user, *mounts, *variables]

    async def _spawn(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        outputs: Sequence[BoundedOutput],
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
    ) -> _Running:
        """Starts bubblewrap; its command waits for the gate. Must not be cancelled: it would leave a process."""
        options = "\0".join([*self._options(env), ""]).encode()
        status_in, status_out = os.pipe()
        gate_in, gate_out = os.pipe()
        # Not as arguments, which every user of this machine may read.
        options_in = memory_file("options")
        os.write(options_in, options)
        os.lseek(options_in, 0, os.SEEK_SET)
        line = ["bwrap", "--args", str(options_in), "--json-status-fd", str(status_out)]
        line += ["--block-fd", str(gate_in), "--"]
        if self._user is not None:
            line += ["setpriv", f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups", "--inh-caps=-all"]
        try:
            process = await asyncio.create_subprocess_exec(
                *line,
                *words,
                stdin=stdin or asyncio.subprocess.DEVNULL,
                stdout=stdout or asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(status_out, gate_in, options_in),
                start_new_session=True,
                env={"PATH": variable_here("PATH") or os.defpath},
            )
        except BaseException:
            os.close(status_in)
            os.close(gate_out)
            raise
        finally:
            for descriptor in (status_out, gate_in, options_in):
                os.close(descriptor)
        status, gate = os.fdopen(status_in), os.fdopen(gate_out, "w")
        streams = zip(outputs, (process.stdout, process.stderr), strict=True)
        reading = asyncio.gather(*(output.read_from(stream) for output, stream in streams if stream is not None))
        facts = await on_thread(lambda: _documents(status.readline()))
        return _Running(process, int(facts[0]["child-pid"]) if facts else 0, status, gate, reading)

    async def _execute(
        self,
        words: Sequence[str],
        timeout_s: float,
        env: Mapping[str, str],
        cwd: str,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
    ) -> CommandResult:
        outputs = [BoundedOutput(self.limits.output_bytes) for _ in range(2)]
        started = start_task(self._spawn(["env", "-C", cwd, *words], env, outputs, stdin, stdout))
        timed_out, code = False, None
        try:
            async with asyncio.timeout(timeout_s):
                running = await shielded(started)
                if running.pid:
                    await self.network.open(running.pid)
                running.gate.close()
                await running.process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            code = await run_to_completion(self._end(started))
        printed, complaint = (output.text() for output in outputs)
        if code is None and not timed_out:
            raise LaunchFailed(f"bubblewrap started no command: {complaint.strip()[-500:]}: {_HOW}")
        truncated = any(output.truncated for output in outputs)
        return CommandResult(128 + KILL if code is None else code, printed, complaint, timed_out, truncated)

    async def _end(self, started: asyncio.Future[_Running]) -> int | None:
        """Ends the first process of the sandbox, and so all of them; then bubblewrap ends, which waits for it.

        Returns:
            The exit code of the command; None if it was ended, or never began.
        """
        running = await started
        with contextlib.closing(running.status), contextlib.closing(running.gate):
            if running.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid, KILL) if running.pid else running.process.kill()
                await running.process.wait()
            await asyncio.gather(running.reading, self.network.close(), return_exceptions=True)
            ended = _documents(running.status.read())
        return next((int(each["exit-code"]) for each in ended if "exit-code" in each), None)


@dataclass
class _Running:
    """A sandbox with a command.

    Attributes:
        process: That of bubblewrap.
        pid: The first process in the sandbox; 0 if there is none.
        status: What bubblewrap reports.
        gate: The command begins when it is closed.
        reading: Reads the output.
    """

    process: asyncio.subprocess.Process
    pid: int
    status: IO[str]
    gate: IO[str]
    reading: asyncio.Future[Any]


def _documents(text: str) -> list[dict[str, Any]]:
    """What bubblewrap reports, a JSON document in each line."""
    return [json.loads(line) for line in text.splitlines()]


def _make_parents(root: Path, mounts: Sequence[Path]) -> None:
    """Makes the folders above mounts. Those that bubblewrap makes can be entered by root alone."""
    for place in [root / str(each)[1:] for mount in mounts for each in reversed(mount.parents[:-1])]:
        if not place.exists():
            place.mkdir()
            place.chmod(0o755)


def _check_no_link(root: Path, place: Path) -> None:
    """Refuses a folder of the sandbox that a command has replaced by a link: bubblewrap would follow it out."""
    at = root
    for part in place.parts[1:]:
        at /= part
        if at.is_symlink():
            raise ProviderFailed(f"a command has made {at.relative_to(root)} a link, so no other can run here")


def _copy(source: Path, target: Path) -> None:
    """Copies what a folder contains, with links as they are. Nothing writes to it meanwhile."""
    copied = subprocess.run(  # noqa: S603
        ["cp", "-a", "--reflink=auto", "--no-preserve=ownership", "--", f"{source}/.", str(target)],  # noqa: S607
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if copied.returncode:
        raise ProviderFailed(f"{source} cannot be copied to {target}: {copied.stderr.strip()[-500:]}")


def _is_privileged() -> bool:
    """Whether this process may change its user."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return False
    found = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line]
    return bool(found) and int(found[0], 16) & _NEEDED == _NEEDED
