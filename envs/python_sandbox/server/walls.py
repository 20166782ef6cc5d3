"""The limits of the sandbox: the command line of bubblewrap, and checks that it works on this machine."""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

from openenv.errors import UsageError

from . import seccomp

__all__ = ["RESOURCES", "check", "command", "require"]

MIB = 1024 * 1024
# Limits of each process in the sandbox. NPROC counts the processes of its user, which no other session has.
RESOURCES = {
    "RLIMIT_AS": 512 * MIB,
    "RLIMIT_NPROC": 16,
    "RLIMIT_FSIZE": 16 * MIB,
    "RLIMIT_NOFILE": 64,
    "RLIMIT_CORE": 0,
    "RLIMIT_MEMLOCK": 64 * 1024,
    "RLIMIT_SIGPENDING": 128,
    "RLIMIT_MSGQUEUE": 0,
}
INSIDE = Path(__file__).parent / "inside"
# The same for all episodes, so that the same code prints the same text.
VARIABLES = {"PATH": "/usr/bin:/bin", "HOME": "/desk", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
DEVICES = ("null", "zero", "full", "random", "urandom")
_NEEDED = (1 << 6) | (1 << 7) | (1 << 21)  # CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN
_FIRST_USER = 0x6000_0000
_HOW = (
    "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap) and allow unprivileged user namespaces "
    "(in a container: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined); "
    "code never runs here without it"
)
# The supervisor only needs to start processes as another user, and to signal them.
_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL")
_USER = ("--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL")
_count = itertools.count()


def command(seccomp_at: int) -> list[str]:
    """The command line that starts the supervisor in a sandbox.

    The sandbox sees the programs and libraries of /usr and Python, read-only, and the devices that hold no data. It
    has no /proc, no /sys, no files of /etc but the linker's cache, and no network. /desk, /tmp and /dev/shm are in
    memory, with a size limit.

    Args:
        seccomp_at: Descriptor of the file with the filter of system calls.
    """
    privileged = _is_privileged()
    user = _FIRST_USER + (os.getpid() << 6) % (1 << 28) + next(_count) % 64 if privileged else 0
    limits = {"resources": RESOURCES, "user": user}
    python = os.path.realpath(sys.executable)
    return [
        "bwrap", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv",
        "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        *(_ROOT if privileged else _USER),
        *(word for name, value in VARIABLES.items() for word in ("--setenv", name, value)),
        *_system(), *_python(python),
        "--ro-bind", str(INSIDE), "/inside",
        "--perms", "0755", "--size", str(MIB), "--tmpfs", "/dev",
        *(word for name in DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")),
        *_memory("/dev/shm", 16), *_memory("/tmp", 32), *_memory("/desk", 32),  # noqa: S108
        "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/desk", "--seccomp", str(seccomp_at),
        "--", python, "-s", "-S", "-B", "/inside/supervisor.py", json.dumps(limits),
    ]  # fmt: skip


@functools.cache
def check() -> None:
    """Runs empty code in a sandbox.

    Raises:
        UsageError: The sandbox does not work here; the message says what to do.
    """
    from .sandbox import Sandbox

    require()
    try:
        with Sandbox() as sandbox:
            reply = sandbox.ask({"kind": "run", "code": ""})
    except OSError as error:
        raise UsageError(f"python_sandbox: bubblewrap does not work here ({error}): {_HOW}") from error
    if reply.status != "done":
        said = "; ".join([reply.reason, *reply.output.splitlines()[-1:]])
        raise UsageError(f"python_sandbox: no code runs in its sandbox here ({said}): {_HOW}")


def require() -> None:
    """Checks the requirements of the sandbox that need no process.

    Raises:
        UsageError: A requirement is missing; the message says what to do.
    """
    if not sys.platform.startswith("linux") or shutil.which("bwrap") is None:
        raise UsageError(f"python_sandbox: the program bwrap is missing: {_HOW}")
    if os.statvfs("/proc").f_flag & os.ST_RDONLY:
        raise UsageError("python_sandbox: no sandbox can be made in another one: serve it without --sandbox bwrap")
    if not seccomp.is_known():
        raise UsageError("python_sandbox: its filter of system calls knows x86_64 and aarch64, not this machine")


def _is_privileged() -> bool:
    """Whether this process may change its user. Then the code of each session runs as a separate user."""
    if os.geteuid() != 0:
        return False
    found = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "CapEff" in line]
    return bool(found) and int(found[0], 16) & _NEEDED == _NEEDED


def _system() -> list[str]:
    """Options for /usr and the links into it, as on this machine."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "lib", "lib32", "lib64"):
        place = Path("/", name)
        if place.is_symlink():
            words += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            words += ["--ro-bind", str(place), str(place)]
    return [*words, "--perms", "0755", "--dir", "/etc", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]


def _python(program: str) -> list[str]:
    """Options for the program and library of this Python outside /usr, without its virtual environment."""
    prefix = os.path.realpath(sys.base_prefix)
    if prefix.startswith("/usr/") or prefix == "/usr":
        return []
    # Other users may have no access to a parent folder, such as /root. The sandbox creates these folders empty.
    way = [
        word for folder in reversed(Path(prefix).parents[:-1]) for word in ("--perms", "0755", "--dir", str(folder))
    ]
    return [*way, "--ro-bind", prefix, prefix, "--ro-bind", program, program]


def _memory(place: str, mib: int) -> list[str]:
    return ["--perms", "1777", "--size", str(mib * MIB), "--tmpfs", place]
