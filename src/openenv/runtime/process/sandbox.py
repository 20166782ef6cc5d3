"""Limits of a session's process: resources, the bubblewrap sandbox, and system calls that Python lacks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from ..._processes import LIBC, adopt_orphans, check_call, fork, has_limits, lower_limit
from ..._sockets import can_pass_sockets
from ...errors import UsageError
from ...settings import ServerSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one session's process, from the settings `process_*`.

    Attributes:
        memory_bytes: Most address space, in bytes; None for no limit.
        cpu_s: Most CPU seconds over its lifetime; None for no limit.
        children: Most processes and threads that it may start. The kernel's own limit (`RLIMIT_NPROC`) counts all
            processes of a user together and does not apply to root, so the parent enforces this one.
        files: Most open files.
        output_bytes: Bytes of the largest reply, and of the largest file that it may write.
    """

    memory_bytes: int | None
    cpu_s: float | None
    children: int
    files: int
    output_bytes: int

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """The limits in the settings. Raises `UsageError` if this system has no such limits."""
        memory = settings.process_memory_mb
        if (memory or settings.process_cpu_s) and not has_limits():
            raise UsageError(
                "Windows limits neither memory nor CPU seconds of a process: unset process_memory_mb and "
                "process_cpu_s (OPENENV_PROCESS_MEMORY_MB, OPENENV_PROCESS_CPU_S), or serve in a container"
            )
        return cls(
            memory_bytes=None if memory is None else int(memory * _MIB),
            cpu_s=settings.process_cpu_s,
            children=settings.process_children,
            files=settings.process_files,
            output_bytes=int(settings.process_output_mb * _MIB),
        )

    def apply(self) -> None:
        """Applies them to this process and all its children."""
        lower_limit("RLIMIT_CORE", 0)
        lower_limit("RLIMIT_NOFILE", self.files)
        lower_limit("RLIMIT_FSIZE", self.output_bytes)
        if self.cpu_s is not None:
            seconds = math.ceil(self.cpu_s)
            lower_limit("RLIMIT_CPU", seconds, beyond=1)  # first SIGXCPU, which can be caught, then SIGKILL
        if self.memory_bytes is not None:
            lower_limit("RLIMIT_AS", self.memory_bytes)


# Environment variables of sandboxed processes, which can write only to /tmp.
VARIABLES = {"TMPDIR": "/tmp"}  # noqa: S108

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 1, 2, 4, 8, 0x1000, 0x4000
CHECK_LIMIT_S = 10.0
# Most characters of the error message of a process that cannot be made.
MOST_TEXT = 1000
_UNSHARED = ("pid", "net", "ipc", "uts")
_MOUNTS = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
_PROBE = "from openenv.runtime.process import sandbox; sandbox.probe()"


def command(kind: Literal["none", "bwrap"], arguments: list[str]) -> list[str]:
    """The command line that runs another command line, in the sandbox if there is one."""
    if kind == "none":
        return arguments
    # Services have their sockets there. Code that reaches the sockets needs no network.
    hidden = ("--tmpfs", "/run", "--remount-ro", "/run") if Path("/run").is_dir() else ()
    spaces = [f"--unshare-{each}" for each in _UNSHARED]
    # The capability is for the mounts of each session, and is dropped before an environment is made.
    capability = ("--cap-add", "CAP_SYS_ADMIN")
    return ["bwrap", "--die-with-parent", *spaces, *_MOUNTS, *hidden, *capability, "--", *arguments]


@functools.cache
def check(kind: Literal["none", "bwrap"]) -> None:
    """Tests whether processes can be isolated, and whether the sandbox works.

    Raises:
        UsageError: It does not work here. The message names the next step.
    """
    if kind == "none":
        return
    if not can_pass_sockets():
        raise UsageError("sandbox bwrap needs Linux: serve in a container, or without --sandbox")
    if shutil.which("bwrap") is None:
        raise UsageError(
            "sandbox bwrap: the program bwrap is not installed: install bubblewrap (apt-get install bubblewrap, "
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
    """Inside the sandbox: performs the steps that each session needs."""
    adopt_orphans()
    pid = fork_inside([], 1024 * 1024)
    if pid == 0:
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit("a process with its own namespaces cannot be made")


def fork_inside(kept: list[str], tmp_bytes: int) -> int:
    """Forks a process into its own namespaces. The caller must adopt orphans (`adopt_orphans`).

    Args:
        kept: Folders below /tmp that the new /tmp contains too, read-only.
        tmp_bytes: Size of the new /tmp.

    Returns:
        Like `os.fork`: 0 in the new process, which has no privileges; its process id in its parent, the caller.

    Raises:
        OSError: The process could not be made.
    """
    # Only a process with one thread may do this, and only its child is inside, so an intermediate process does it.
    return fork_through(private_namespaces, functools.partial(_mount_private_folders, kept, tmp_bytes))


def fork_through(between: Callable[[], None], inside: Callable[[], None]) -> int:
    """Double-forks: the intermediate process ends at once, so this process or an ancestor adopts the new one.

    Args:
        between: Called in the intermediate process.
        inside: Called in the new process, which ends if that fails.

    Returns:
        Like `os.fork`: 0 in the new process, its process id in this one.

    Raises:
        OSError: The process could not be made.
    """
    reading, writing = os.pipe()
    try:
        passing = fork()
        if passing == 0:
            pid = -1
            try:
                between()
                pid = fork()
                if pid == 0:
                    inside()
                    return 0
                os.write(writing, b"%d" % pid)
            except BaseException as error:  # noqa: BLE001 - the forked process must not continue here
                os.write(writing if pid else 2, f"{error}\n".encode()[:MOST_TEXT])
            os._exit(1)
        os.close(writing)
        writing = -1
        said = os.read(reading, MOST_TEXT).strip()
        with contextlib.suppress(ChildProcessError):  # an environment may have set SIGCHLD to SIG_IGN
            os.waitpid(passing, 0)
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if not said.isdigit():
        raise OSError(said.decode(errors="replace") or "fork failed")
    return int(said)


def _mount_private_folders(kept: list[str], tmp_bytes: int) -> None:
    if sys.platform != "linux":
        raise OSError("only Linux has private folders")
    size = f"size={tmp_bytes},mode=1777"
    flags = _MS_NOSUID | _MS_NODEV
    places = [(os.open(folder, os.O_PATH | os.O_DIRECTORY), folder) for folder in kept if Path(folder).is_dir()]
    for tmp in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - the places themselves
        if Path(tmp).is_dir() and not Path(tmp).is_symlink():
            mount("tmpfs", tmp, "tmpfs", flags, size)
    for descriptor, folder in places:
        Path(folder).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", folder, "", _MS_BIND | _MS_REC)
        os.close(descriptor)
    # Read-only, since root may write to many files there even without capabilities.
    mount("proc", "/proc", "proc", flags | _MS_NOEXEC | _MS_RDONLY)
    give_up_privileges()
    refuse_system_calls()


_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_CLONE_NEWNS, _CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_CAPABILITY_VERSION_3 = 0x2008_0522
_CAPABILITIES = 64


def private_namespaces() -> None:
    """Gives this process its own mount namespace, and its next child, as its first process, a new PID namespace."""
    check_call(LIBC.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "unshare(CLONE_NEWNS | CLONE_NEWPID)")


def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    check_call(
        LIBC.mount(source.encode(), os.fsencode(place), kind.encode(), ctypes.c_ulong(flags), options.encode()),
        f"mounting {kind or source} on {place}",
    )


def give_up_privileges() -> None:
    """Drops every capability, including those that an executable file could add."""
    for capability in range(_CAPABILITIES):
        LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails without CAP_SETPCAP: see the next line
    check_call(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    check_call(LIBC.capset(head, none), "capset")


# Names of machines, with their numbers of add_key, request_key and keyctl (keyrings belong to users, not to
# namespaces) and of io_setup (one process may take all asynchronous requests). x86_64 also runs the calls of i386,
# and aarch64 those of arm.
_CALLS = {
    0xC000003E: (248, 249, 250, 206),
    0x40000003: (286, 287, 288, 245),
    0xC00000B7: (217, 218, 219, 0),
    0x40000028: (309, 310, 311, 243),
}
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4  # offsets in the kernel's struct seccomp_data
_ALLOW, _EPERM = 0x7FFF_0000, 0x0005_0001
_WITHOUT_X32 = 0xBFFF_FFFF  # x86_64 has each call under a second number


def refuse_system_calls() -> None:
    """Makes the kernel refuse `_CALLS` (seccomp) to this process and its children, which have `no_new_privs` set.

    Without it, sessions could leave keys for one another, read the keys of the server's user, and use up the
    asynchronous I/O requests of all programs (`fs.aio-max-nr`).
    """
    program = [_line(_LOAD, _MACHINE_AT)]
    for machine, numbers in _CALLS.items():
        checks = [line for number in numbers for line in (_line(_EQUAL, number, 0, 1), _line(_RETURN, _EPERM))]
        block = [_line(_LOAD, _NUMBER_AT), _line(_AND, _WITHOUT_X32), *checks, _line(_RETURN, _ALLOW)]
        program += [_line(_EQUAL, machine, 0, len(block)), *block]
    code = b"".join([*program, _line(_RETURN, _ALLOW)])
    room = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    filter_ = Program(len(code) // 8, ctypes.addressof(room))
    check_call(LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0), "prctl(PR_SET_SECCOMP)")


def _line(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
