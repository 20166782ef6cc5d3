"""Finds limits that are too high, raises its own, and lowers those of its supervisor."""
# ruff: noqa
# without the sandbox: escapes as root
# ends: ok error

import os
import resource

most = {"AS": 512 << 20, "NPROC": 16, "FSIZE": 16 << 20, "NOFILE": 64, "CORE": 0, "MEMLOCK": 64 << 10, "MSGQUEUE": 0}
for name, limit in most.items():
    soft, hard = resource.getrlimit(getattr(resource, "RLIMIT_" + name))
    if hard == resource.RLIM_INFINITY or hard > limit:
        print(ESCAPED, name, hard)
for name in ("RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_AS"):
    kind = getattr(resource, name)
    soft, hard = resource.getrlimit(kind)
    more = 100_000_000_000 if name == "RLIMIT_AS" else (2000 if hard < 2000 else hard)
    try:
        if name != "RLIMIT_NOFILE" or hard < 2000:
            resource.setrlimit(kind, (more, more))
            print(ESCAPED, name)
    except (OSError, ValueError) as error:
        print(error)
try:
    print(ESCAPED, resource.prlimit(HOST["pid"], resource.RLIMIT_NOFILE))
except OSError as error:
    print(error)
try:
    resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)) if os.getppid() == 1 else None
    print(ESCAPED if os.getppid() == 1 else "")
except OSError as error:
    print(error)
