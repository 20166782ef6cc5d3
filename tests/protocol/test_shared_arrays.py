"""Arrays in memory that two codecs share: what is written is what is read, whatever becomes of the memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

from openenv.errors import InvalidMessage
from openenv.protocol.codecs import codec_of
from openenv.protocol.shared_arrays import MIN_SHARED_BYTES, SharedArrayReader, SharedArrayWriter

PLAIN = codec_of("openenv.v2.msgpack")


class Ends:
    """A writer and a reader of the same memory."""

    def __init__(self, size: int = 16 * MIN_SHARED_BYTES):
        self.memory = bytearray(size)
        self.writer = SharedArrayWriter(memoryview(self.memory))
        self.reader = SharedArrayReader()
        self.reader.use(memoryview(self.memory).toreadonly())

    def send(self, body):
        return self.reader.decode(self.writer.reply(1, body))


@pytest.fixture
def ends():
    return Ends()


def image(number: int = 0, size: int = MIN_SHARED_BYTES):
    return np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize(
    "array",
    [
        image().reshape(4, -1, 4),
        image().astype(np.float32).reshape(8, -1),
        np.asfortranarray(image().reshape(128, -1)),
        image(size=2 * MIN_SHARED_BYTES)[::2],
        image().astype(np.dtype(">f8")),
        image().astype(np.float16).reshape(2, -1),
        image().astype(np.complex64).reshape(2, -1),
        image() > 100,
        np.zeros((0, 84)),
        np.ones((), np.int64),
    ],
    ids=["bytes", "float", "fortran", "strided", "big endian", "half", "complex", "bool", "empty", "one number"],
)
def test_an_array_is_read_as_it_was_written(ends, array):
    read = ends.send(ends.writer.body({"ok": True, "observation": {"image": array, "text": "é"}}))
    copy = read["observation"]["image"]
    assert (copy.shape, copy.dtype) == (array.shape, array.dtype.newbyteorder("<"))
    assert copy.tolist() == array.tolist()
    assert copy.flags.writeable
    assert read["observation"]["text"] == "é"


def test_a_bfloat16_tensor_is_read_as_it_was_written(ends):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(MIN_SHARED_BYTES).to(torch.bfloat16)
    assert torch.equal(ends.send(ends.writer.body({"ok": True, "state": {"x": tensor}}))["state"]["x"], tensor)


def test_large_arrays_leave_the_frame_and_small_ones_stay(ends):
    large = ends.writer.body({"ok": True, "image": image()})
    small = ends.writer.body({"ok": True, "image": image(size=MIN_SHARED_BYTES - 1)})
    assert len(ends.writer.reply(1, large)) < 100
    assert PLAIN.fields(small)["image"].tolist() == image(size=MIN_SHARED_BYTES - 1).tolist()
    assert large.size >= MIN_SHARED_BYTES  # a limit of replies means the same for both


def test_a_copy_keeps_its_values_when_the_place_is_used_again(ends):
    copies = []
    for number in range(100):
        ends.writer.note_copied(ends.reader.copied)
        copies.append(ends.send(ends.writer.body({"ok": True, "image": image(number)}))["image"])
    assert [copy.tobytes() for copy in copies] == [image(number).tobytes() for number in range(100)]
    assert not any(ends.memory[3 * MIN_SHARED_BYTES :])  # the same few places all the time


def test_memory_that_is_full_sends_arrays_in_frames(ends):
    bodies = [ends.writer.body({"ok": True, "image": image(number)}) for number in range(20)]
    assert [bool(body.blocks) for body in bodies] == [True] * 16 + [False] * 4
    for number, body in enumerate(bodies):
        assert ends.send(body)["image"].tolist() == image(number).tolist()


def test_a_place_is_free_when_the_reply_is_forgotten_and_every_copy_of_it_made():
    ends = Ends(MIN_SHARED_BYTES)
    body = ends.writer.body({"ok": True, "image": image()})
    ends.send(body)
    ends.send(body)  # the call was repeated
    ends.writer.note_copied(2)
    assert not ends.writer.body({"image": image()}).blocks  # the reply is still stored
    ends.send(body)
    del body
    ends.writer.note_copied(2)
    assert not ends.writer.body({"image": image()}).blocks  # the third copy is to come
    ends.writer.note_copied(3)
    assert ends.writer.body({"image": image()}).blocks


@pytest.mark.parametrize("count", [0, 1, 2**63 - 1])
def test_a_wrong_count_of_copies_does_no_harm_to_stored_replies(ends, count):
    stored = ends.writer.body({"ok": True, "image": image(1)})
    ends.send(stored)
    for number in range(40):
        ends.writer.note_copied(count)
        body = ends.writer.body({"ok": True, "image": image(number)})
        assert ends.writer.fields(body)["image"].tolist() == image(number).tolist()
    assert ends.writer.fields(stored)["image"].tolist() == image(1).tolist()


def test_a_batch_counts_each_array_of_its_results(ends):
    bodies = [ends.writer.body({"ok": True, "images": [image(number), image(0)]}) for number in range(1, 4)]
    frame = ends.writer.results(7, ((place, "s", body) for place, body in enumerate(bodies)), False)
    results = ends.reader.decode(frame)["results"]
    assert [result["images"][0].tolist() for result in results] == [image(number).tolist() for number in (1, 2, 3)]
    assert ends.reader.copied == 6


def test_what_was_sent_before_the_end_of_a_connection_can_be_read_after_it(ends):
    frame = ends.writer.reply(1, ends.writer.body({"ok": True, "image": image(1)}))
    ends.writer.end()
    later = ends.writer.body({"ok": True, "image": image(2)})
    assert not later.blocks
    assert ends.reader.decode(frame)["image"].tolist() == image(1).tolist()


def test_the_fields_of_a_body_become_a_body_of_another_codec(ends):
    body = ends.writer.body({"ok": True, "image": image(3)})
    for codec in (PLAIN, codec_of("openenv.v2.json"), Ends().writer):
        assert codec.fields(codec.body(ends.writer.fields(body)))["image"].tolist() == image(3).tolist()


def header(dtype=b"|u1", shape=(4,)):
    return bytes([len(dtype)]) + dtype + bytes([len(shape)]) + b"".join(n.to_bytes(8, "little") for n in shape)


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"1234567",
        (0).to_bytes(8, "little"),
        (2**64 - 1).to_bytes(8, "little") + header(),
        (1021).to_bytes(8, "little") + header(),
        (0).to_bytes(8, "little") + header(shape=(1025,)),
        (0).to_bytes(8, "little") + header(shape=(2**40, 2**40)),
        (0).to_bytes(8, "little") + header(b"|O8"),
        (0).to_bytes(8, "little") + header()[:-1],
    ],
)
def test_a_place_outside_the_memory_is_refused(packed):
    reader = SharedArrayReader()
    reader.use(memoryview(bytes(1024)))
    with pytest.raises(InvalidMessage, match="Invalid msgpack"):
        reader.decode(msgspec.msgpack.encode({"ok": True, "x": Ext(2, packed)}))
    assert reader.copied == 0


def test_a_reader_tells_whether_memory_would_be_of_use(ends):
    for size, found in ((MIN_SHARED_BYTES - 100, False), (MIN_SHARED_BYTES, True)):
        frame = PLAIN.reply(1, PLAIN.body({"ok": True, "image": image(size=size), "text": "x" * MIN_SHARED_BYTES}))
        ends.reader.decode(frame)
        assert ends.reader.has_large is found


@pytest.mark.parametrize("array", [image().reshape(4, -1), image() > 100, image(size=100)])
def test_borrowed_arrays_are_the_memory_until_they_are_owned(ends, array):
    ends.reader.borrow()
    for codec in (PLAIN, ends.writer):
        frame = bytearray(codec.reply(1, codec.body({"image": array, "more": [{"image": array}, 1]})))
        read = ends.reader.decode(memoryview(frame))
        borrowed = array.nbytes >= MIN_SHARED_BYTES and array.dtype != bool
        assert ends.reader.has_borrowed is borrowed
        assert read["image"].flags.writeable is not borrowed
        ends.reader.owned(read)
        frame[:], ends.memory[:] = bytes(len(frame)), bytes(len(ends.memory))
        for copy in (read["image"], read["more"][0]["image"]):
            assert copy.flags.writeable
            np.testing.assert_array_equal(copy, array)
    ends.reader.decode(PLAIN.reply(1, PLAIN.body({"ok": True})))
    assert not ends.reader.has_borrowed


def test_without_the_memory_the_extension_is_unknown(ends):
    frame = ends.writer.reply(1, ends.writer.body({"ok": True, "image": image()}))
    with pytest.raises(InvalidMessage, match="unknown extension type 2"):
        PLAIN.decode(frame)
    with pytest.raises(InvalidMessage, match="unknown extension type 2"):
        ends.writer.decode(frame)  # the server trusts no place that a client names
