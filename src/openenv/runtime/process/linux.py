"""System calls that Python has no function for, and the seccomp filter of sandboxed processes."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
_PR_SET_SECCOMP = 22
_CLONE_NEWNS, _CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_CAPABILITY_VERSION_3 = 0x2008_0522
_CAPABILITIES = 64

_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent(number: int = 9) -> None:
    """Has the kernel send this process a signal when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def adopt_orphans(wanted: bool = True) -> None:
    """Makes this process the parent of descendants whose own parent ends, or leaves them to one above it."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def private_namespaces() -> None:
    """Gives this process mounts of its own, and its next child a process namespace whose first process it is."""
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID), "unshare(CLONE_NEWNS | CLONE_NEWPID)")


def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(source.encode(), os.fsencode(place), kind.encode(), ctypes.c_ulong(flags), options.encode()),
        f"mounting {kind or source} on {place}",
    )


def give_up_privileges() -> None:
    """Drops every capability, and those that a program could bring with it."""
    for capability in range(_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused without CAP_SETPCAP: the next line covers it
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(head, none), "capset")


def filter_calls(program: bytes) -> None:
    """Has the kernel ask a program (of seccomp) about each system call of this process and of what it starts."""
    room = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("lines", ctypes.c_void_p))

    filter_ = Program(len(program) // 8, ctypes.addressof(room))
    _check(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0), "prctl(PR_SET_SECCOMP)")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# How a machine calls itself, and its numbers of add_key, request_key and keyctl (keyrings know users and no
# namespaces) and of io_setup (one process may take all asynchronous requests). x86_64 runs the calls of i386 too, and
# aarch64 those of arm.
_CALLS = {
    0xC000003E: (248, 249, 250, 206),
    0x40000003: (286, 287, 288, 245),
    0xC00000B7: (217, 218, 219, 0),
    0x40000028: (309, 310, 311, 243),
}
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER_AT, _MACHINE_AT = 0, 4  # in what the kernel tells of a call
_ALLOW, _EPERM = 0x7FFF_0000, 0x0005_0001
_WITHOUT_X32 = 0xBFFF_FFFF  # x86_64 has each call under a second number


def refuse_system_calls() -> None:
    """Has the kernel refuse them to this process and all that it starts, which have no new privileges.

    Without it, sessions could leave keys for one another, see those of the server's user, and take the asynchronous
    requests of all programs (`fs.aio-max-nr`).
    """
    program = [_line(_LOAD, _MACHINE_AT)]
    for machine, numbers in _CALLS.items():
        checks = [line for number in numbers for line in (_line(_EQUAL, number, 0, 1), _line(_RETURN, _EPERM))]
        block = [_line(_LOAD, _NUMBER_AT), _line(_AND, _WITHOUT_X32), *checks, _line(_RETURN, _ALLOW)]
        program += [_line(_EQUAL, machine, 0, len(block)), *block]
    filter_calls(b"".join([*program, _line(_RETURN, _ALLOW)]))


def _line(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
