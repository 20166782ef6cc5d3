"""Frames as bytes, there and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Opcode

from openenv.bench.thin_client import FrameReader, client_frame
from openenv.errors import ProtocolViolation


def server_frame(opcode, payload, final=True):
    size = len(payload)
    head = bytes(((0x80 if final else 0) | opcode,))
    if size < 126:
        return head + bytes((size,)) + payload
    return head + (b"\x7e" + size.to_bytes(2, "big") if size < 65536 else b"\x7f" + size.to_bytes(8, "big")) + payload


def read(*chunks):
    reader = FrameReader()
    return [message for chunk in chunks for message in reader.feed(chunk)]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_frame_of_a_client_is_masked_and_tells_its_length(size):
    payload = bytes(size)
    frame = client_frame(Opcode.TEXT, payload)
    assert frame[0] == 0x81
    assert frame[1] & 0x80
    length = frame[1] & 0x7F
    extra = {126: 2, 127: 8}.get(length, 0)
    assert (int.from_bytes(frame[2 : 2 + extra], "big") if extra else length) == size
    assert frame[2 + extra :] == bytes(4) + payload  # a mask of zeros


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_a_message_of_any_length_is_read(size):
    assert read(server_frame(Opcode.TEXT, b"x" * size)) == [(Opcode.TEXT, b"x" * size)]


@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(st.integers(1, 50), min_size=1))
def test_it_does_not_matter_where_the_network_cuts(payloads, sizes):
    data = b"".join(server_frame(Opcode.BINARY, payload) for payload in payloads)
    reader, found, turn = FrameReader(), [], 0
    while data:
        size = sizes[turn % len(sizes)]
        found += [payload for _, payload in reader.feed(data[:size])]
        data, turn = data[size:], turn + 1
    assert found == payloads


@pytest.mark.parametrize("size", [3, 300, 70_000])
def test_it_may_come_byte_by_byte(size):
    frame = server_frame(Opcode.TEXT, b"x" * size)
    assert read(*(frame[place : place + 1] for place in range(12)), frame[12:]) == [(Opcode.TEXT, b"x" * size)]


def test_parts_are_one_message_though_a_ping_comes_between():
    assert read(
        server_frame(Opcode.TEXT, b"one ", final=False),
        server_frame(Opcode.PING, b"there?") + server_frame(Opcode.CONT, b"two ", final=False),
        server_frame(Opcode.CONT, b"three") + server_frame(Opcode.TEXT, b"four"),
    ) == [(Opcode.PING, b"there?"), (Opcode.TEXT, b"one two three"), (Opcode.TEXT, b"four")]


def test_who_stops_reading_loses_nothing():
    reader = FrameReader()
    data = server_frame(Opcode.TEXT, b"one") + server_frame(Opcode.TEXT, b"two")
    assert next(reader.feed(data)) == (Opcode.TEXT, b"one")
    assert list(reader.feed(b"")) == [(Opcode.TEXT, b"two")]


@pytest.mark.parametrize(
    ("data", "message"), [(b"\x83\x00", "unknown opcode 3"), (client_frame(Opcode.TEXT, b"x"), "masked")]
)
def test_what_no_server_may_send_is_refused(data, message):
    with pytest.raises(ProtocolViolation, match=message):
        read(data)
