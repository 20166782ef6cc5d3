"""Opens parts of the kernel with many known vulnerabilities."""
# ruff: noqa
# without the sandbox: escapes
# ends: ok error

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (298, 321, 323, 425, 16), "aarch64": (241, 280, 282, 425, 29)}
perf, bpf, faults, ring, ioctl = numbers[os.uname().machine]
room = ctypes.create_string_buffer(256)
room[4] = 112
for name, number, arguments in (
    ("perf_event_open", perf, (room, 0, -1, -1, 0)),
    ("bpf", bpf, (0, room, 72)),
    ("userfaultfd", faults, (1,)),
    ("io_uring_setup", ring, (1, ctypes.create_string_buffer(256))),
    ("typing into a terminal", ioctl, (0, 0x5412, room)),
    ("the console's selection", ioctl, (0, 0x541C, room)),
):
    at = libc.syscall(number, *arguments)
    print(name, ESCAPED if at >= 0 or ctypes.get_errno() != 1 else os.strerror(ctypes.get_errno()))
