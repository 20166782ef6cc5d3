"""The filter of system calls for code in the sandbox: a program for the kernel, which bubblewrap loads."""

from __future__ import annotations

import platform
import struct

__all__ = ["compiled", "is_known"]

# The number of each call on x86_64 and on aarch64; None if the machine has no such call.
REFUSED: dict[str, tuple[int, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # namespaces and mounts: each gives access to more of the kernel
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # parts of the kernel without namespaces, or with many known vulnerabilities
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "perf_event_open": (298, 241),
    "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "mbind": (237, 235), "set_mempolicy": (238, 237), "personality": (135, 92),
    "modify_ldt": (154, None), "iopl": (172, None), "ioperm": (173, None), "syslog": (103, 116),
    # the kernel counts these per user of the machine, and other processes have the same user
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262),
    # the kernel counts these for the whole machine, and one process may take all
    "io_setup": (206, 0),
    # sockets: without a network they can only reach sockets of the host in readable folders, and the kernel counts
    # their memory for no process. Socket pairs, which event loops need, remain.
    "socket": (41, 198),
    # memory that no limit counts
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    # the machine itself
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58),
}  # fmt: skip
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _CLONE3, _PRLIMIT, _PAIR, _IOCTL = (56, 220), (435, 435), (302, 261), (53, 199), (16, 29)
_SETSOCKOPT = (54, 208)
_NEW_NAMESPACES = 0x7E02_0080
_UNIX = 1
# SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE: the buffers of a socket pair keep their default size.
_BUFFERS = (7, 8, 32, 33)
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _EPERM, _ENOSYS, _EAFNOSUPPORT = 0x7FFF_0000, 0x8000_0000, 0x0005_0001, 0x0005_0026, 0x0005_0061
_NUMBER_AT, _MACHINE_AT, _FIRST_AT, _SECOND_AT, _THIRD_AT = 0, 4, 16, 24, 32  # offsets in struct seccomp_data
_X32 = 0x4000_0000


def is_known(machine: str = "") -> bool:
    """Whether this module has the numbers of the machine's system calls."""
    return (machine or platform.machine()) in _MACHINES


def compiled(machine: str = "") -> bytes:
    """The filter for a kind of machine.

    Args:
        machine: Name of the kind; empty: this machine.

    Raises:
        KeyError: The kind is not known.
    """
    column, audit = _MACHINES[machine or platform.machine()]
    program = [_line(_LOAD, _MACHINE_AT), _line(_EQUAL, audit, 1, 0), _line(_RETURN, _KILL), _line(_LOAD, _NUMBER_AT)]
    if column == 0:  # x32 has the same calls with other numbers
        program += [_line(_AT_LEAST, _X32, 0, 1), _line(_RETURN, _EPERM)]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [_line(_EQUAL, number, 0, 1), _line(_RETURN, _EPERM)]
    # The flags of clone3 are in memory, which a filter cannot read. Without clone3, the C library calls clone.
    program += [_line(_EQUAL, _CLONE3[column], 0, 1), _line(_RETURN, _ENOSYS)]
    program += _when(_CLONE[column], _FIRST_AT, [_line(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _line(_RETURN, _EPERM)])
    # A process may only change its own limits.
    program += _when(_PRLIMIT[column], _FIRST_AT, [_line(_EQUAL, 0, 1, 0), _line(_RETURN, _EPERM)])
    program += _when(_PAIR[column], _FIRST_AT, [_line(_EQUAL, _UNIX, 1, 0), _line(_RETURN, _EAFNOSUPPORT)])
    sizes = [line for option in _BUFFERS for line in (_line(_EQUAL, option, 0, 1), _line(_RETURN, _EPERM))]
    program += _when(_SETSOCKOPT[column], _THIRD_AT, sizes)
    typing = [line for code in _TERMINAL for line in (_line(_EQUAL, code, 0, 1), _line(_RETURN, _EPERM))]
    program += _when(_IOCTL[column], _SECOND_AT, typing)
    return b"".join([*program, _line(_RETURN, _ALLOW)])


def _when(number: int, argument_at: int, checks: list[bytes]) -> list[bytes]:
    """Checks an argument of one call. A call that passes all checks is allowed."""
    body = [_line(_LOAD, argument_at), *checks, _line(_RETURN, _ALLOW)]
    return [_line(_EQUAL, number, 0, len(body)), *body]


def _line(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
