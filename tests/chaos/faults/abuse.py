"""Clients that mean harm, or are broken: on the wire itself, where no client library would go."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from ...server.raw import TEXT, close_frame, frame, read_frame, read_until, shake_hands
from ..served import Served, holds
from ..trial import Trial, fault

EACH = 10
# Each of these keeps as much of the server's memory as it may have unsent.
SLOW_READERS = 5
PATIENCE_S = 3.0
FLAT_MB = 20
# Of the deflate bomb: frames on each connection, connections on each path, and what the server may make of them.
BOMBS = 40
BOMBERS = 2
BOMB_BYTES = 16 * 2**20
BOMB_MB = 200
HEALTH_S = 1.0
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
    "closed with the named error; memory flat; no other session affected",
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

    def grown() -> float:
        return (server.resident_bytes() - memory) / 2**20

    # A server returns the memory of clients that did not read a second after they have ended.
    flat = holds(lambda: grown() <= FLAT_MB, PATIENCE_S) is not None
    trial.check(flat, f"memory {grown():+.0f} MB", f"memory {grown():+.0f} MB")


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
    said = f"{name}: {named} of {len(told)} got the reason, {closed} closed"
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
            words += _reply(raw)
        raw.sendall(frame(TEXT, json.dumps({"type": "state"}).encode()))
        goes_on = b'"state"' in _reply(raw)
        return _Told(words if goes_on else b"it does not go on", True)


def _reply(raw: socket.socket) -> bytes:
    """The next message; pings, which a busy server sends in between, are not one."""
    while True:
        kind, payload = read_frame(raw)
        if kind == TEXT:
            return payload


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


@fault(
    "deflate bomb: frames of 16 KiB that inflate to 16 MiB, and frames of 16 MiB behind a step that never returns",
    "compression is not negotiated, compressed frames close their connection with code 1002; memory grows by at most "
    f"{BOMB_MB} MB; /health answers within {HEALTH_S:g} s; no other session affected",
)
def deflate_bomb(trial: Trial) -> None:
    server = trial.serve("async", sessions=1000)
    crowd = trial.crowd(server.url)
    crowd.say("phase before")
    time.sleep(1)
    crowd.say("phase during")
    memory = server.resident_bytes()
    bomb = _bomb()
    acts = [lambda path=path: _bombed(server, path, bomb) for path in ("/ws", "/mcp")] * BOMBERS
    with _watched(server) as seen, ThreadPoolExecutor(len(acts) + BOMBERS) as threads:
        piles = [threads.submit(_pile, server) for _ in range(BOMBERS)]
        told = [each.result() for each in [threads.submit(act) for act in acts]]
        taken = sum(pile.result() for pile in piles)
    agreed = sum(each.agreed for each in told)
    trial.check(not agreed, "no compression negotiated", f"{agreed} of {len(told)} connections negotiate compression")
    refused = sum(each.refused for each in told)
    trial.check(refused == len(told), f"{refused} of {len(told)} closed with 1002")
    trial.note(f"{taken / 2**20:.0f} MB taken of {BOMBERS * BOMBS * BOMB_BYTES / 2**20:.0f} behind the hung steps")
    grown = (seen.bytes - memory) / 2**20
    trial.check(grown <= BOMB_MB, f"memory {grown:+.0f} MB at most", f"memory {grown:+.0f} MB")
    trial.in_time(seen.health_s <= HEALTH_S, f"/health within {seen.health_s:.2f} s")
    crowd.say("phase after")
    report = crowd.report()
    trial.no_errors(report)
    trial.counts(server, report)
    trial.unmoved(report)


class _Bombed(NamedTuple):
    """What became of a connection that offered compression: whether it was agreed to, and its frames refused."""

    agreed: bool
    refused: bool


@dataclass
class _Seen:
    """The most memory that a server had, and the longest that /health took."""

    bytes: int = 0
    health_s: float = 0.0


def _bomb() -> bytes:
    """A compressed frame: a JSON text of `BOMB_BYTES`."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    text = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"a" * (BOMB_BYTES - 100) + b'"}}'
    data = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return frame(TEXT, data[:-4], rsv1=True)


def _bombed(server: Served, path: str, bomb: bytes) -> _Bombed:
    more = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
    agreed = refused = False
    with suppress(OSError), shake_hands(f"127.0.0.1:{server.port}", path=path, more=more) as raw:
        agreed = b"permessage-deflate" in read_until(raw, b"\r\n\r\n")
        with suppress(OSError):
            raw.sendall(BOMBS * bomb)
        refused = b"\x03\xea" in _read_to_the_end(raw).words
    return _Bombed(agreed, refused)


def _pile(server: Served) -> int:
    """Bytes that a server takes of frames of the largest size while a step of the same session hangs."""
    state = json.dumps({"type": "state", "padding": "x" * (BOMB_BYTES - 100)}).encode()
    sent = 0
    with suppress(OSError), _shaken(server) as raw:
        raw.sendall(frame(TEXT, b'{"type":"reset","data":{"seed":990000002}}'))
        read_frame(raw)
        raw.sendall(frame(TEXT, json.dumps({"type": "step", "data": {"request": 0, "what": "hang"}}).encode()))
        for _ in range(BOMBS):
            large = memoryview(frame(TEXT, state))
            while large:
                count = raw.send(large)
                sent += count
                large = large[count:]
    return sent


@contextmanager
def _watched(server: Served) -> Iterator[_Seen]:
    seen, over = _Seen(), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.bytes = max(seen.bytes, server.resident_bytes())
            began = time.monotonic()
            with suppress(OSError):
                server.get("/health")
            seen.health_s = max(seen.health_s, time.monotonic() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


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
