"""Arrays of replies in shared memory: for a client that asks for it, and proves that it is on this machine."""

from __future__ import annotations

import os
from hashlib import sha256

import numpy as np
import pytest

from openenv._shared_memory import open_segment
from openenv.protocol.codecs import codec_of
from openenv.protocol.shared_arrays import SharedArrayReader

from .probe import ProbeEnvironment, ProbeObservation
from .talk import Talk, error_of
from .wires import eventually

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are of Linux"),
    pytest.mark.parametrize(
        "line",
        [("memory", "openenv.v2.msgpack"), ("fast", "openenv.v2.msgpack")],
        ids=["memory", "fast"],
        indirect=True,
    ),
]
TOKEN = "a-token-that-nobody-guesses"
SIDE = 200


def image(number):
    return np.random.default_rng(number).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)


class ThreadImages(ProbeEnvironment):
    """Its images change after they were returned, as those of a renderer do."""

    def __init__(self):
        super().__init__()
        self._canvas = np.zeros((SIDE, SIDE), np.uint8)

    def do_image(self, action):
        self._canvas[:] = image(action.number)
        return ProbeObservation(value=self._canvas, step_count=self._steps)

    def do_wait(self, action):
        super().do_wait(action)
        return self.do_image(action)


class ImageProbe(ThreadImages):
    execution = "inline"


class Reader:
    """The rest of a client of shared memory, beside a `Talk` whose frames it reads."""

    def __init__(self, talk: Talk):
        self.talk = talk
        self.frames: list[bytes] = []
        self.codec = codec_of("openenv.v2.msgpack")
        self.shared: SharedArrayReader | None = None
        talk.read = self.read

    def read(self, frame):
        self.frames.append(frame)
        return self.codec.decode(frame)

    def begin(self):
        offer = self.talk.hello["shared_memory"]
        token, _ = open_segment(offer["process"], offer["descriptor"])
        assert sha256(token.encode()).hexdigest() == offer["digest"]
        descriptor = self.talk.ask("shared_memory", token=token)["descriptor"]
        self.token, data = open_segment(offer["process"], descriptor)
        self.codec = self.shared = SharedArrayReader()
        self.shared.use(data)
        assert self.talk.ask("shared_memory", token=self.token)["descriptor"] is None
        return self

    def step(self, session, number, **fields):
        """The image of a step, and the size of the frame it came in."""
        call = self.talk.step_call(session, "image", number)
        reply = self.talk.ask(**call, **fields)
        return reply["observation"]["value"], len(self.frames[-1])


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def test_images_leave_the_frames_of_a_client_that_has_opened_the_memory(line):
    with line(ImageProbe) as open_talk:
        reader = Reader(open_talk())
        reader.talk.open("one")
        found, size = reader.step("one", 1)
        assert same(found, image(1))
        assert size > SIDE * SIDE
        reader.begin()
        for number in range(50):
            found, size = reader.step("one", number, copied=reader.shared.copied)
            assert same(found, image(number))
            assert size < 1000
        assert reader.shared.copied == 50


def test_a_batch_has_images_in_memory_too(line):
    with line(ImageProbe) as open_talk:
        reader = Reader(open_talk()).begin()
        for name in "ab":
            reader.talk.open(name)
        for number in range(5):
            calls = [reader.talk.step_call(name, "image", number + ord(name)) for name in "ab"]
            (frame,) = reader.talk.batch(*calls, copied=reader.shared.copied)
            for result in frame["results"]:
                assert same(result["observation"]["value"], image(number + ord(result["session"])))
            assert len(reader.frames[-1]) < 1000


@pytest.mark.parametrize("token", ["", "0" * 32, "é"])
def test_a_client_without_the_token_gets_no_memory(line, token):
    with line(ImageProbe) as open_talk:
        reader = Reader(open_talk())
        assert reader.talk.ask("shared_memory", token=token)["descriptor"] is None
        reader.talk.open("one")
        assert same(reader.step("one", 3)[0], image(3))


def test_memory_is_used_only_after_its_own_token_came(line):
    with line(ImageProbe) as open_talk:
        talk = open_talk()
        reader = Reader(talk)
        offer = talk.hello["shared_memory"]
        token, _ = open_segment(offer["process"], offer["descriptor"])
        assert isinstance(talk.ask("shared_memory", token=token)["descriptor"], int)
        assert talk.ask("shared_memory", token=token)["descriptor"] is None  # one for each connection
        talk.open("one")
        assert reader.step("one", 3)[1] > SIDE * SIDE


def test_a_server_without_shared_memory_offers_none(line):
    with line(ImageProbe, shared_memory_mb=0) as open_talk:
        talk = open_talk()
        assert "shared_memory" not in talk.hello
        assert talk.ask("shared_memory", token="x")["descriptor"] is None


def test_a_client_that_copies_nothing_gets_its_images_in_frames_once_the_memory_is_full(line):
    with line(ImageProbe, shared_memory_mb=0.25) as open_talk:
        reader = Reader(open_talk()).begin()
        reader.talk.open("one")
        sizes = []
        for number in range(10):
            found, size = reader.step("one", number)
            assert same(found, image(number))
            sizes.append(size > SIDE * SIDE)
        assert sizes == [False] * 6 + [True] * 4
        found, size = reader.step("one", 3, copied=6)
        assert (same(found, image(3)), size < 1000) == (True, True)


def test_a_request_that_is_refused_loses_no_count(line):
    with line(ImageProbe, shared_memory_mb=0.25) as open_talk:
        reader = Reader(open_talk()).begin()
        reader.talk.open("one")
        for number in range(20):
            assert reader.step("one", number, copied=reader.shared.copied)[1] < 1000
            assert error_of(reader.talk.ask("jump", copied=reader.shared.copied))["error"] == "UnknownMessage"


@pytest.mark.parametrize("copied", [-1, "3", 1.5, 2**63])
def test_a_count_that_is_none_is_refused_and_one_in_a_call_too(line, copied):
    with line(ImageProbe) as open_talk:
        talk = open_talk()
        talk.open("one")
        fault = error_of(talk.ask("state", session="one", copied=copied))["data"]["errors"][0]
        assert fault["loc"] == ["copied"]
        (frame,) = talk.batch({"op": "state", "session": "one", "copied": 1})
        assert error_of(frame["results"][0])["data"]["errors"][0]["loc"] == ["copied"]


def test_a_reply_over_the_limit_is_refused_with_memory_as_without(line):
    with line(ImageProbe, max_reply_mb=0.03) as open_talk:
        reader = Reader(open_talk())
        reader.talk.open("one")
        for _ in range(2):
            refusal = error_of(reader.talk.step("one", "image", 1))
            assert "max_reply_mb" in refusal["message"]
            if reader.shared is None:
                reader.begin()


def test_a_repeated_call_has_the_same_image_over_any_connection(line):
    with line(ImageProbe) as open_talk:
        first = Reader(open_talk()).begin()
        first.talk.open("one", token=TOKEN)
        original, _ = first.step("one", 8)
        first.talk.seq["one"] -= 1
        again, size = first.step("one", 8)
        assert (same(again, original), size < 1000) == (True, True)
        for begins in (False, True):
            other = Reader(open_talk())
            if begins:
                other.begin()
            attached = other.talk.ask("attach", session="one", token=TOKEN)
            assert same(attached["last"]["observation"]["value"], original)
            other.talk.seq["one"] = 0
            assert same(other.step("one", 8)[0], original)
        assert other.talk.step("one")["observation"]["step_count"] == 2


def test_what_was_sent_before_a_cut_is_not_overwritten_by_a_call_that_ends_after_it(line):
    with line(ThreadImages) as open_talk:
        reader = Reader(open_talk()).begin()
        reader.talk.open("one", token=TOKEN)
        reader.talk.tell(**reader.talk.step_call("one", "image", 1))
        unread = reader.talk.wire.receive_frame()
        reader.talk.tell_step("one", "wait", 2)
        assert ProbeEnvironment.waiting.wait(20)
        if hasattr(reader.talk.wire, "socket"):  # in memory there is nothing that could be cut
            reader.talk.wire.socket.socket.close()
            reader.talk.wire.close()
        ProbeEnvironment.gate.set()
        other = Reader(open_talk())

        def ended():
            attached = other.talk.ask("attach", session="one", token=TOKEN)
            return attached["seq"] == 2 and same(attached["last"]["observation"]["value"], image(2))

        eventually(ended)
        assert same(reader.shared.decode(unread)["observation"]["value"], image(1))
