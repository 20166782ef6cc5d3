"""What is particular to plain ASGI servers. What all transports share: `test_behaviour.py` and `test_v2_*.py`."""

from __future__ import annotations

import logging
import struct
import threading

import pytest

from .probe import InlineProbe, app_of
from .raw import close_frame, slow_reader
from .talk import Talk
from .wires import PATIENCE_S, SocketWire, eventually, served


@pytest.fixture
def address():
    with served(
        app_of(InlineProbe, max_message_mb=1, max_unsent_mb=64, resume_window_s=0), ws="websockets-sansio"
    ) as address:
        yield address


def test_a_client_that_never_reads_is_left_when_too_much_waits_for_it(address, caplog, monkeypatch):
    monkeypatch.setattr("openenv.server.transports.asgi.LAST_WORDS_S", PATIENCE_S)  # to read 64 MiB takes its time
    released = threading.Event()
    monkeypatch.setattr("openenv.server.timers.release_free_memory", released.set)
    caplog.set_level(logging.WARNING, "openenv.server")
    with slow_reader(address, kind="large", number=1_000_000) as raw:
        eventually(lambda: "SlowReader" in caplog.text)
        assert not released.is_set()
        code = close_frame(raw)
        assert code[:2] == struct.pack("!H", 1008)
        assert b"SlowReader" in code
    assert released.wait(PATIENCE_S)


def test_v1_where_v2_is_not_offered(address):
    for offers in (None, ["chat"]):
        wire = SocketWire(f"ws://{address}/ws", subprotocols=offers)
        assert wire.subprotocol is None
        assert wire.ask({"type": "state"})["type"] == "state"
        wire.close()


def test_what_a_client_offers_first_is_spoken(address):
    wire = SocketWire(f"ws://{address}/ws", subprotocols=["chat", "openenv.v2.json", "openenv.v2.msgpack"])
    assert wire.subprotocol == "openenv.v2.json"
    assert Talk(wire).hello["protocol"] == 2
    wire.close()
