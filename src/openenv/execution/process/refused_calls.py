"""System calls that processes in a sandbox must do without: what they take is counted for the whole machine."""

from __future__ import annotations

import struct

from . import linux

__all__ = ["refuse"]

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


def refuse() -> None:
    """Has the kernel refuse them to this process and all that it starts, which have no new privileges.

    Without it, sessions could leave keys for one another, see those of the server's user, and take the asynchronous
    requests of all programs (`fs.aio-max-nr`).
    """
    program = [_line(_LOAD, _MACHINE_AT)]
    for machine, numbers in _CALLS.items():
        checks = [line for number in numbers for line in (_line(_EQUAL, number, 0, 1), _line(_RETURN, _EPERM))]
        block = [_line(_LOAD, _NUMBER_AT), _line(_AND, _WITHOUT_X32), *checks, _line(_RETURN, _ALLOW)]
        program += [_line(_EQUAL, machine, 0, len(block)), *block]
    linux.filter_calls(b"".join([*program, _line(_RETURN, _ALLOW)]))


def _line(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
