"""Takes away what Linux has and other systems lack, from every Python that has this folder in its PYTHONPATH.

`OPENENV_TEST_PLATFORM` says how much: `macos` what macOS lacks, `windows` also what Windows lacks; else nothing.
"""

# Modules that keep a copy of what is taken away, or that choose their system when they are imported.
import asyncio  # noqa: F401
import ctypes
import importlib
import os
import signal
import socket
import sys

# They keep copies of what is taken away, or choose their system when they are imported.
for early in ("asyncio", "multiprocessing.util", "selectors", "subprocess", "tempfile"):
    importlib.import_module(early)

PLATFORM = os.environ.get("OPENENV_TEST_PLATFORM", "")
LINUX = {
    os: ["memfd_create", "pidfd_open", "waitid", "setns", "unshare", "eventfd", "splice"],
    signal: ["pidfd_send_signal"],
    socket: ["SOCK_SEQPACKET", "MSG_CMSG_CLOEXEC"],
}
POSIX = {
    os: ["fork", "forkpty", "register_at_fork", "pread", "nice", "getpgid", "getpgrp", "setsid"],
    signal: ["pthread_sigmask", "SIGUSR1", "SIGUSR2", "SIGCHLD"],
    socket: ["send_fds", "recv_fds"],
}
MODULES = {"fcntl", "resource", "grp", "uvloop"}


class Hiding:
    """A finder of modules that does not find some of those that another one finds."""

    def __init__(self, finder: object):
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._finder, name)

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return None if name in MODULES else self._finder.find_spec(name, path, target)


def refuse(event: str, arguments: tuple) -> None:
    """Hides /proc, and the C library, whose system calls are those of Linux."""
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))
    if event == "ctypes.dlopen" and not arguments[0]:
        raise OSError("this system has another C library")


def take_away() -> None:
    for module, names in [*LINUX.items(), *(POSIX.items() if PLATFORM == "windows" else ())]:
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in [name for name in dir(os) if name.startswith(("sched_", "SCHED_"))]:
        delattr(os, name)
    if PLATFORM == "windows":
        import fcntl
        import types

        def locking(descriptor: int, mode: int, count: int) -> None:
            fcntl.flock(descriptor, mode)

        # As on Windows, to the callers of `locking`.
        stand_in = types.ModuleType("msvcrt")
        stand_in.__dict__.update(locking=locking, LK_NBLCK=fcntl.LOCK_EX | fcntl.LOCK_NB)
        stand_in.__spec__ = types.SimpleNamespace(name="msvcrt", loader=None)
        sys.modules["msvcrt"] = stand_in
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.meta_path[:] = map(Hiding, sys.meta_path)
    sys.addaudithook(refuse)


if PLATFORM:
    ctypes.pythonapi  # noqa: B018 - it has opened the C library
    take_away()
