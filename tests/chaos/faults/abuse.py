"""Clients that mean harm, or are broken: on the wire itself, where no client library would go."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ...server.raw import TEXT, close_frame, frame, read_frame, read_until, shake_hands
from ..served import Served
from ..trial import Trial, fault

EACH = 10
# Each of these keeps as much of the server's memory as it may have unsent.
SLOW_READERS = 5
PATIENCE_S = 3.0
FLAT_MB = 20
SETTINGS = {
    "OPENENV_HANDSHAKE_TIMEOUT_S": 1,
    "OPENENV_MAX_HEADER_KB": 16,
    "OPENENV_MAX_MESSAGE_MB": 1,
    "OPENENV_MAX_UNSENT_MB": 4,
    "OPENENV_PING_INTERVAL_S": 2,
}


class _Told(NamedTuple):
    """How one of them ended: what it was told, whether its connection was closed, and how much it could send."""

    words: bytes
    closed: bool
    sent: int = 0


@fault(
    "slow reader, slow sender, header flood, oversize frames, garbage",
    "closed with the named error; memory flat; nobody else concerned",
)
def abuse(trial: Trial) -> None:
    server = trial.serve(
        "async",
        sessions=1000,
        settings=SETTINGS,
        options=trial.peer_options("--ws-max-size", str(2**20), "--ws-ping-interval", "2", "--ws-ping-timeout", "2"),
    )
    crowd = trial.crowd(server.url)
    time.sleep(1)
    chance = random.Random(trial.seed)
    # Once for what an allocator keeps; what the second time adds would be added each time.
    _misuse(server, chance)
    memory = server.resident_bytes()
    for name, told in _misuse(server, chance).items():
        _judge(trial, name, told, MISUSES[name][2])
    report = crowd.report()
    trial.no_errors(report)
    trial.counts(server, report)
    grown = (server.resident_bytes() - memory) / 2**20
    trial.check(grown <= FLAT_MB, f"memory {grown:+.0f} MB", f"memory {grown:+.0f} MB")


def _misuse(server: Served, chance: random.Random) -> dict[str, list[_Told]]:
    """All of it at one time: each takes its patience."""
    with ThreadPoolExecutor(sum(count for _, count, _ in MISUSES.values())) as threads:
        begun = {
            name: [threads.submit(act, server, chance) for _ in range(count)]
            for name, (act, count, _) in MISUSES.items()
        }
        return {name: [each.result() for each in told] for name, told in begun.items()}


def _judge(trial: Trial, name: str, told: list[_Told], words: str) -> None:
    named = sum(bool(re.search(words.encode(), each.words)) for each in told)
    closed = sum(each.closed for each in told)
    said = f"{name}: {named} of {len(told)} told why, {closed} closed"
    if any(each.sent for each in told):
        said += f", {max(each.sent for each in told) / 2**20:.1f} MB sent"
    held = named == closed == len(told)
    trial.check(held, said, f"{said}, as {told[0].words[:120]!r}")


def _garbage(server: Served, chance: random.Random) -> _Told:
    with _connected(server) as raw:
        with suppress(OSError):
            raw.sendall(chance.randbytes(64 * 1024))
        return _rest(raw)


def _garbled_frames(server: Served, chance: random.Random) -> _Told:
    """After a handshake, bytes that are no frames: the reserved bits are set."""
    with _shaken(server) as raw:
        with suppress(OSError):
            raw.sendall(b"\xff\xff" + chance.randbytes(4096))
        return _rest(raw)


def _noise_in_frames(server: Served, chance: random.Random) -> _Told:
    """Frames in order with noise in them; such a connection may go on, so it is asked whether it does."""
    with _shaken(server) as raw:
        words = b""
        for _ in range(20):
            raw.sendall(frame(TEXT, chance.randbytes(64).hex().encode()))
            words += read_frame(raw)[1]
        raw.sendall(frame(TEXT, json.dumps({"type": "state"}).encode()))
        goes_on = b'"state"' in read_frame(raw)[1]
        return _Told(words if goes_on else b"it does not go on", True)


def _header_flood(server: Served, chance: random.Random) -> _Told:
    with _connected(server) as raw:
        sent, end = 0, time.monotonic() + PATIENCE_S
        with suppress(OSError):
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            value = chance.randbytes(2000).hex().encode()
            while time.monotonic() < end:
                # What comes after the answer is thrown away for a while, so that the answer arrives; then it is cut.
                line = b"X-%d: " % sent + value + b"\r\n"
                raw.sendall(line)
                sent += len(line)
                time.sleep(0.001)
        return _rest(raw)._replace(sent=sent)


def _slow_sender(server: Served, _: random.Random) -> _Told:
    """A byte of the head now and then."""
    with _connected(server) as raw:
        for byte in b"GET /health HT":
            with suppress(OSError):
                raw.send(bytes([byte]))
            time.sleep(0.2)
        return _rest(raw)


def _oversize(server: Served, _: random.Random) -> _Told:
    with _shaken(server) as raw:
        size = 8 * 2**20
        sent = 0
        with suppress(OSError):
            raw.sendall(struct.pack("!BBQ", 0x80 | TEXT, 0x80 | 127, size) + bytes(4))
            while sent < size:
                sent += raw.send(b"x" * 65536)
        return _rest(raw)._replace(sent=sent)


def _slow_reader(server: Served, _: random.Random) -> _Told:
    """Asks for much, and reads nothing until the server has had time to find out."""
    with _greedy(server) as raw:
        time.sleep(1.0)
        return _read_to_the_end(raw)


def _never_reads(server: Served, _: random.Random) -> _Told:
    """The same for so long that the server does not wait for it any more."""
    with _greedy(server) as raw:
        time.sleep(PATIENCE_S)
        return _read_to_the_end(raw)


@contextmanager
def _greedy(server: Served) -> Iterator[socket.socket]:
    with _shaken(server) as raw:
        step = json.dumps({"type": "step", "data": {"request": 0, "size": 900_000}}).encode()
        raw.sendall(frame(TEXT, b'{"type":"reset","data":{"seed":990000001}}') + 60 * frame(TEXT, step))
        yield raw


def _read_to_the_end(raw: socket.socket) -> _Told:
    raw.settimeout(PATIENCE_S)
    try:
        return _Told(close_frame(raw), True)
    except (OSError, AssertionError) as error:
        return _Told(str(error).encode(), not isinstance(error, TimeoutError))


@contextmanager
def _connected(server: Served) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        yield raw


@contextmanager
def _shaken(server: Served) -> Iterator[socket.socket]:
    with shake_hands(f"127.0.0.1:{server.port}") as raw:
        raw.settimeout(PATIENCE_S)
        read_until(raw, b"\r\n\r\n")
        yield raw


def _rest(raw: socket.socket) -> _Told:
    """What is said until the connection ends, or nothing more comes."""
    raw.settimeout(PATIENCE_S)
    words = b""
    try:
        while more := raw.recv(65536):
            words += more
    except TimeoutError:
        return _Told(words, False)
    except OSError:
        pass
    return _Told(words, True)


# By name: what is done, by how many at one time, and what the answer must say.
MISUSES: dict[str, tuple[Callable[[Served, random.Random], _Told], int, str]] = {
    "garbage": (_garbage, EACH, "400"),
    "garbled frames": (_garbled_frames, EACH, r"\x03\xea"),  # close code 1002
    "noise in frames": (_noise_in_frames, EACH, "INVALID_JSON"),
    "header flood": (_header_flood, EACH, "431"),
    "slow sender": (_slow_sender, EACH, "408"),
    "oversize frame": (_oversize, EACH, r"max_message_mb|\x03\xf1"),  # close code 1009
    "slow reader": (_slow_reader, SLOW_READERS, "SlowReader"),
    "one that never reads": (_never_reads, SLOW_READERS, ""),
}
