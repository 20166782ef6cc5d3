"""Changes the name, the time and the settings of the machine."""
# ruff: noqa
# without the sandbox: not run: it would change them
# ends: ok error

import ctypes
import os
import socket
import time

libc = ctypes.CDLL(None, use_errno=True)
for attempt in (
    lambda: socket.sethostname("escaped"),
    lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
    lambda: open("/proc/sys/kernel/hostname", "w").write("escaped"),
    lambda: open("/proc/sysrq-trigger", "w").write("h"),
    lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write("1"),
    lambda: os.chroot("/desk"),
    lambda: os.nice(-5),
    lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
):
    try:
        attempt()
        print(ESCAPED)
    except OSError as error:
        print(error)
print(ESCAPED if libc.syscall(169 if os.uname().machine == "x86_64" else 142, 0, 0, 0, 0) == 0 else "refused")
