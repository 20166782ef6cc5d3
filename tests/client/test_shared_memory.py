"""A server that offers shared memory, right or wrong: its client plays on, or says what the server has done wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

from openenv._shared_memory import digest_of
from openenv.client import GenericEnvClient
from openenv.errors import ProtocolViolation
from openenv.protocol.shared_arrays import MIN_SHARED_BYTES

from .scripted import ScriptedApp, outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory files are of Linux")
LARGE = np.zeros(MIN_SHARED_BYTES, np.uint8)
PROGRAM = """
import sys
from openenv._shared_memory import SharedSegment
probe, memory = SharedSegment(0), SharedSegment(4096)
memory.data[:4] = b"abcd"
print(probe.descriptor, probe.token, memory.descriptor, memory.token, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner():
    """Another process, with memory to offer: its id, and descriptor and token of a probe and of the memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    probe, probe_token, memory, token = process.stdout.readline().split()
    yield process.pid, int(probe), probe_token, int(memory), token
    process.communicate()


class Game:
    """A client that plays with a scripted server."""

    def __init__(self, offer):
        app = ScriptedApp()
        app.hello["shared_memory"] = offer
        self.app, self.env = app, GenericEnvClient(app=app)

    async def open(self):
        opening = asyncio.create_task(self.env.connect())
        self.peer = await self.app.peer()
        request = await self.peer.asked(1)
        self.peer.reply(request, {"ok": True, "session": request["session"], "token": "t", "seq": 0})
        await opening
        self.asked = 1

    async def next(self):
        self.asked += 1
        return await self.peer.asked(self.asked)

    async def step(self, **observation):
        """A step, and its request."""
        step = asyncio.create_task(self.env.step({}))
        request = await self.next()
        assert request["op"] == "step"
        self.peer.reply(request, outcome(**observation))
        return (await step).observation, request


def offer_of(owner, **changes):
    process, probe, token, *_ = owner
    return {"process": process, "descriptor": probe, "digest": digest_of(token), **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"process": -1},
        {"process": "self"},
        {"process": 2**40},
        {"process": os.getpid()},
        {"descriptor": None},
        {"descriptor": "../../etc/passwd"},
        {"descriptor": 0},
        {"descriptor": 10**6},
        {"digest": digest_of("another")},
        {"digest": 5},
    ],
)
async def test_an_offer_that_leads_nowhere_is_not_taken_up(owner, change):
    for offer in (offer_of(owner, **change), next(iter(change.values()))):
        game = Game(offer)
        await game.open()
        for _ in range(2):
            assert (await game.step(image=LARGE))[0]["image"].tobytes() == LARGE.tobytes()
        await game.env.close()


async def test_a_client_of_small_arrays_asks_for_none(owner):
    game = Game(offer_of(owner))
    await game.open()
    for _ in range(3):
        await game.step(image=LARGE[:100], text="x" * MIN_SHARED_BYTES)
    await game.env.close()


@pytest.mark.parametrize("descriptor", [None, "3", -1, 0, 10**6, 1.0])
async def test_a_client_that_is_shown_no_memory_plays_without(owner, descriptor):
    game = Game(offer_of(owner))
    await game.open()
    await game.step(image=LARGE)
    request = await game.next()
    assert (request["op"], request["token"]) == ("shared_memory", owner[2])
    game.peer.reply(request, {"ok": True, "descriptor": descriptor})
    _, request = await game.step(image=LARGE)
    assert "copied" not in request
    await game.env.close()


def place(offset, count):
    header = b"\x03|u1\x01" + count.to_bytes(8, "little")
    return msgspec.Raw(msgspec.msgpack.encode(Ext(2, offset.to_bytes(8, "little") + header)))


async def test_arrays_are_copied_and_counted_and_a_place_outside_ends_the_connection(owner):
    *_, memory, token = owner
    game = Game(offer_of(owner))
    await game.open()
    await game.step(image=LARGE)
    game.peer.reply(await game.next(), {"ok": True, "descriptor": memory})
    assert (await game.next())["token"] == token
    step = asyncio.create_task(game.env.step({}))
    raw = msgspec.msgpack.encode({"id": (await game.next())["id"], **outcome(image=place(1, 3))})
    game.peer.say_raw(raw)
    assert (await step).observation["image"].tobytes() == b"bcd"
    step = asyncio.create_task(game.env.step({}))
    request = await game.next()
    assert request["copied"] == 1
    game.peer.say_raw(msgspec.msgpack.encode({"id": request["id"], **outcome(image=place(4000, 97))}))
    with pytest.raises(ProtocolViolation, match="outside the 4096 bytes of shared memory"):
        await step
    await game.env.close()
