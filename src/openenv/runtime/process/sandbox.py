"""What a session's process may use: resource limits, and the bubblewrap sandbox."""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from ...errors import UsageError
from ...settings import ServerSettings
from . import linux

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one session's process, from the settings `process_*`.

    Attributes:
        memory_bytes: Address space; None for as much as there is.
        cpu_s: CPU seconds over its life; None for no limit.
        children: Processes and threads that it may have started. The kernel's own limit (`RLIMIT_NPROC`) counts all
            processes of a user together and does not bind root, so the parent watches this one.
        files: Open files.
        output_bytes: Largest reply, and largest file it may write.
    """

    memory_bytes: int | None
    cpu_s: float | None
    children: int
    files: int
    output_bytes: int

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """As the settings say."""
        memory = settings.process_memory_mb
        return cls(
            memory_bytes=None if memory is None else int(memory * _MIB),
            cpu_s=settings.process_cpu_s,
            children=settings.process_children,
            files=settings.process_files,
            output_bytes=int(settings.process_output_mb * _MIB),
        )

    def apply(self) -> None:
        """Binds this process and all that it starts to them."""
        import resource

        _lower(resource.RLIMIT_CORE, 0)
        _lower(resource.RLIMIT_NOFILE, self.files)
        _lower(resource.RLIMIT_FSIZE, self.output_bytes)
        if self.cpu_s is not None:
            seconds = math.ceil(self.cpu_s)
            _lower(resource.RLIMIT_CPU, seconds, beyond=1)  # first SIGXCPU, which can be caught, then SIGKILL
        if self.memory_bytes is not None:
            _lower(resource.RLIMIT_AS, self.memory_bytes)


def most_output_bytes() -> int:
    """In the process of a session: its limit of replies, which is that of files too."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def _lower(kind: int, limit: int, beyond: int = 0) -> None:
    import resource

    _, hard = resource.getrlimit(kind)
    most = limit + beyond if hard == resource.RLIM_INFINITY else min(hard, limit + beyond)
    resource.setrlimit(kind, (min(limit, most), most))


# For processes in a sandbox: wherever it was before, this is the place that can be written to.
VARIABLES = {"TMPDIR": "/tmp"}  # noqa: S108

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 1, 2, 4, 8, 0x1000, 0x4000
CHECK_LIMIT_S = 10.0
# Sockets of services lie there: whoever reaches them needs no network.
_HIDDEN = ("/run",)
_OPTIONS = (
    "--die-with-parent",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
)
_PROBE = "from openenv.runtime.process import sandbox; sandbox.probe()"


def command(kind: Literal["none", "bwrap"], arguments: list[str]) -> list[str]:
    """The command line that runs another one in the sandbox, or as it is."""
    if kind == "none":
        return arguments
    hidden = [word for place in _HIDDEN if Path(place).is_dir() for word in ("--tmpfs", place, "--remount-ro", place)]
    # The capability is for the mounts of each session, and given up before any environment is made.
    return ["bwrap", *_OPTIONS, "--remount-ro", "/dev", *hidden, "--cap-add", "CAP_SYS_ADMIN", "--", *arguments]


@functools.cache
def check(kind: Literal["none", "bwrap"]) -> None:
    """Tries the sandbox out.

    Raises:
        UsageError: It does not work here; the message says what to do.
    """
    if kind == "none":
        return
    if shutil.which("bwrap") is None:
        raise UsageError(
            "sandbox bwrap: there is no program bwrap: install bubblewrap (apt-get install bubblewrap, "
            "dnf install bubblewrap), or serve without --sandbox"
        )
    boot = f"import sys; sys.path[:] = {sys.path!r}; {_PROBE}"
    try:
        tried = subprocess.run(  # noqa: S603 - our own command line
            command(kind, [sys.executable, "-c", boot]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=CHECK_LIMIT_S,
            check=False,
        )
        complaint = tried.stderr.decode(errors="replace").strip().splitlines()[-1:] if tried.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        complaint = [str(error)]
    else:
        if not tried.returncode:
            return
    raise UsageError(
        f"sandbox bwrap: bubblewrap is not permitted here ({''.join(complaint) or 'it failed'}): allow unprivileged "
        "user namespaces (sysctl kernel.unprivileged_userns_clone=1; in a container --privileged, or --security-opt "
        "with each of seccomp=unconfined, apparmor=unconfined and systempaths=unconfined), or serve without --sandbox"
    )


def probe() -> None:
    """Inside the sandbox: does what is done for each session."""
    linux.adopt_orphans()
    pid = fork_inside([], 1024 * 1024)
    if pid == 0:
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit("a process in namespaces of its own cannot be made")


def fork_inside(kept: list[str], tmp_bytes: int) -> int:
    """Forks a process into namespaces of its own. The caller adopts orphans (`linux.adopt_orphans`).

    Args:
        kept: Folders below /tmp that are seen, read-only, in the new /tmp too.
        tmp_bytes: Size of the new /tmp.

    Returns:
        As `os.fork` does: 0 in the new process, which has no privileges; its number in the caller, whose child it is.

    Raises:
        OSError: It could not be made.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        # Only a process of one thread may do this, and only its child is inside: so one stands between for a moment.
        os.close(reading)
        pid = -1
        try:
            linux.private_namespaces()
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                _mount_private_folders(kept, tmp_bytes)
                return 0
            os.write(writing, b"%d" % pid)
        except BaseException as error:  # noqa: BLE001 - a copy of the fork server must not go on here
            os.write(writing, str(error).encode()) if pid else os.write(2, f"{error}\n".encode())
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(between, 0)
    if not said.isdigit():
        raise OSError(said.decode(errors="replace") or "fork failed")
    return int(said)


def _mount_private_folders(kept: list[str], tmp_bytes: int) -> None:
    size = f"size={tmp_bytes},mode=1777"
    flags = _MS_NOSUID | _MS_NODEV
    places = [(os.open(folder, os.O_PATH | os.O_DIRECTORY), folder) for folder in kept if Path(folder).is_dir()]
    for tmp in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - the places themselves
        if Path(tmp).is_dir() and not Path(tmp).is_symlink():
            linux.mount("tmpfs", tmp, "tmpfs", flags, size)
    for descriptor, folder in places:
        Path(folder).mkdir(parents=True, exist_ok=True)
        linux.mount(f"/proc/self/fd/{descriptor}", folder, "", _MS_BIND | _MS_REC)
        os.close(descriptor)
    # Read-only: root without capabilities may write to much of what lies there.
    linux.mount("proc", "/proc", "proc", flags | _MS_NOEXEC | _MS_RDONLY)
    linux.give_up_privileges()
    linux.refuse_system_calls()
