"""Run an untrusted program with limits on time, memory and output."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass

__all__ = ["MOST_OUTPUT", "Run", "run"]

MOST_SECONDS = 5.0
MOST_MEMORY = 1024 * 1024 * 1024
MOST_OUTPUT = 16 * 1024
# The new process first sets the limits, which its children inherit, and then runs the program.
LIMITED = """
import resource, sys
for name, most in (("RLIMIT_AS", int(sys.argv[1])), ("RLIMIT_FSIZE", int(sys.argv[2]))):
    what = getattr(resource, name)
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
exec(compile(sys.stdin.read(), "program.py", "exec"), {"__name__": "__main__"})
"""

# What Python needs of this machine, to read only. The program has no other files, no network and no processes of it.
# Packages of a virtual environment are not there: add sys.prefix if programs need them.
PYTHON = getattr(sys, "_base_executable", sys.executable)
PLACES = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", sys.base_prefix)
SANDBOX = [
    "bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108 - the sandbox's own
    *(part for place in PLACES for part in ("--ro-bind-try", place, place)),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a program.

    Attributes:
        output: Its output and errors, up to `MOST_OUTPUT` bytes.
        exit_code: Its exit code, 0 for success. None if it took too long and was stopped.
    """

    output: str
    exit_code: int | None


def run(code: str, seconds: float = MOST_SECONDS) -> Run:
    """Runs a program in a new process, in an empty folder, without the environment variables of this process.

    Where bubblewrap works (`apt install bubblewrap`), it sees no other files. Elsewhere it has the rights of the
    server's user, and `openenv validate --level semantic` says so.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - what it runs is what it is for
            [*sandbox(folder), PYTHON, "-I", "-c", LIMITED, str(MOST_MEMORY), str(MOST_OUTPUT)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"PATH": os.defpath, "PYTHONIOENCODING": "utf-8", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        exit_code: int | None = None
        try:
            process.communicate(code.encode("utf-8", "replace"), timeout=seconds)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Kill the whole process group: children of the program must end with it.
            if sys.platform == "win32":  # it has no groups
                process.kill()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Run(output.read(MOST_OUTPUT).decode("utf-8", "replace"), exit_code)


def sandbox(folder: str) -> list[str]:
    """The beginning of a command line that runs in the sandbox, with one folder of this machine; empty without it."""
    return [*SANDBOX, "--bind", folder, folder, "--chdir", folder] if sandbox_works() else []


@functools.cache
def sandbox_works() -> bool:
    """Whether bubblewrap is installed, and may make namespaces here."""
    if shutil.which("bwrap") is None:
        return False
    return subprocess.run([*SANDBOX, PYTHON, "-I", "-c", ""], capture_output=True, check=False).returncode == 0  # noqa: S603
