"""Imports every module of openenv where Linux's extras are absent, then as Windows: prints those that fail."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import socket
import sys
import traceback

import openenv
from openenv.errors import MissingExtra

# What Python of Windows also lacks, and only openenv must do without.
WINDOWS = {
    os: [
        "killpg",
        "getpgid",
        "geteuid",
        "getuid",
        "set_blocking",
        "sysconf",
        "uname",
        "wait",
        "waitpid",
        "O_CLOEXEC",
    ],
    signal: ["SIGKILL", "SIGHUP", "SIGBUS", "SIGSYS", "SIGTRAP", "SIG_BLOCK"],
    socket: ["AF_UNIX", "MSG_DONTWAIT", "CMSG_SPACE"],
}


def load(names: list[str]) -> list[str]:
    """The errors of the modules, without those that need a package that is not installed."""
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in {"openenv", "fcntl", "resource", "pwd", "grp"}:
                failed.append(f"{name}: {error}")
        except MissingExtra:
            pass
        except Exception as error:  # noqa: BLE001 - any of them fails the test
            place = traceback.extract_tb(error.__traceback__)[-1].filename
            if f"{os.sep}openenv{os.sep}" in place:  # else a package that another system's wheel would replace
                failed.append(f"{name}: {error!r}")
    return failed


def main() -> None:
    found = (each.name for each in pkgutil.walk_packages(openenv.__path__, "openenv.", onerror=lambda _: None))
    names = [name for name in found if ".templates." not in name and not name.endswith("__main__")]
    failed = load(names)
    if os.environ["OPENENV_TEST_PLATFORM"] == "windows":
        for name in [
            name for name in sys.modules if name.partition(".")[0] == "openenv" and name != "openenv.errors"
        ]:
            del sys.modules[name]
        for module, gone in WINDOWS.items():
            for name in gone:
                if hasattr(module, name):
                    delattr(module, name)
        sys.platform = "win32"
        failed += load(names)
    print(len(names), *failed, sep="\n")  # noqa: T201
    sys.stdout.flush()
    os._exit(bool(failed))


if __name__ == "__main__":
    main()
