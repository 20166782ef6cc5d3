"""Clients that say nothing any more, and what becomes of their sessions."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator

import pytest

from openenv.runtime.session import Session
from openenv.server.timers import LOOKS, PATIENCE
from openenv.server.transports.uvicorn import FastPath

from .beats import ByHand, beats_by_hand
from .probe import InlineProbe, app_of
from .raw import CLOSE, PING, TEXT, frame, read_frame, read_until, shake_hands
from .talk import Talk
from .wires import SocketWire, eventually, served

PERIOD_S = 0.2
OFFER = "Sec-WebSocket-Protocol: openenv.v2.json\r\n"
NO_PINGS = {"ws_ping_interval": None}


@pytest.fixture(params=["websockets-sansio", FastPath], ids=["stock", "fast"])
def ws(request):
    return request.param


@pytest.fixture
def pings(monkeypatch) -> Callable[[], ByHand]:
    return beats_by_hand(monkeypatch)


def app_keepalive(app) -> ByHand:
    return app.state.openenv.app_keepalive


def opened(address: str):
    """A v2 connection with one session, by hand: it answers no ping and says nothing of itself."""
    raw = shake_hands(address, more=OFFER)
    read_until(raw, b"\r\n\r\n")
    read_frame(raw)
    raw.sendall(frame(TEXT, b'{"id":1,"op":"open","session":"one"}'))
    assert json.loads(read_frame(raw)[1])["ok"] is True
    return raw


def sessions(app) -> list[Session]:
    return app.state.openenv.manager.sessions


def frames_until_the_end(raw) -> Iterator[int]:
    opcode = TEXT
    try:
        while opcode != CLOSE:
            opcode, _ = read_frame(raw)
            yield opcode
    except (AssertionError, ConnectionResetError):
        return


def test_who_says_nothing_for_two_periods_is_cut(ws, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    with served(app_of(InlineProbe, heartbeat_s=PERIOD_S), ws=ws, **NO_PINGS) as address:
        begun = time.monotonic()
        with shake_hands(address, more=OFFER) as raw:
            read_until(raw, b"\r\n\r\n")
            list(frames_until_the_end(raw))
            assert time.monotonic() - begun > 1.5 * PERIOD_S
    assert "heartbeat_s" in caplog.text


def test_the_session_of_who_was_cut_waits(ws, pings, caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S)
    with served(app, ws=ws, **NO_PINGS) as address, opened(address) as raw:
        app_keepalive(app).beats(PATIENCE)
        assert not sessions(app)[0].detached
        app_keepalive(app).beats()
        list(frames_until_the_end(raw))
        eventually(lambda: sessions(app)[0].detached)
        assert "heartbeat_s" in caplog.text
        # Its client comes back, and finds it.
        assert app.state.openenv.active_sessions == 1


def test_without_a_window_to_come_back_it_ends(ws, pings):
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S, resume_window_s=0)
    with served(app, ws=ws, **NO_PINGS) as address, opened(address):
        app_keepalive(app).beats(PATIENCE + 1)
        eventually(lambda: not sessions(app))


def test_who_speaks_in_every_period_stays(ws, pings):
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S)
    with served(app, ws=ws, **NO_PINGS) as address:
        talk = Talk(SocketWire(f"ws://{address}/ws", subprotocols=["openenv.v2.json"]))
        assert talk.hello["heartbeat_s"] == PERIOD_S
        talk.open("one")
        for _ in range(6):
            app_keepalive(app).beats(LOOKS)
            assert talk.ask("heartbeat")["ok"] is True
        talk.assert_lives("one")
        talk.wire.close()


def test_heartbeats_can_be_off(ws):
    app = app_of(InlineProbe, heartbeat_s=0)
    with served(app, ws=ws, **NO_PINGS) as address, opened(address) as raw:
        assert app.state.openenv.app_keepalive._timer is None
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1)


def test_v1_knows_no_heartbeats(ws):
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S)
    with served(app, ws=ws, **NO_PINGS) as address:
        wire = SocketWire(f"ws://{address}/ws")
        wire.ask({"type": "reset"})
        assert app.state.openenv.app_keepalive._timer is None
        wire.close()


def test_a_pong_is_a_sign_of_life_for_the_sessions(pings):
    app = app_of(InlineProbe, heartbeat_s=0)
    with served(app, ws=FastPath) as address:
        wire = SocketWire(f"ws://{address}/ws")
        wire.ask({"type": "reset"})
        (session,) = sessions(app)
        used_at = session.used_at
        pings().beats()
        heard_at = session.idle_since
        pings().wait_for_a_sign()
        pings().beats()
        assert session.idle_since > heard_at >= used_at
        assert session.used_at == used_at
        wire.close()


def test_who_answers_pings_needs_no_words(pings):
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S)
    with served(app, ws=FastPath) as address:
        wire = SocketWire(f"ws://{address}/ws", subprotocols=["openenv.v2.json"])
        talk = Talk(wire)
        talk.open("one")
        for _ in range(5 * LOOKS):
            app_keepalive(app).beats()
            pings().beats()
            # The library answers by itself.
            pings().wait_for_a_sign()
        talk.assert_lives("one")
        wire.close()


def test_a_half_open_connection_is_cut_by_pings_and_its_session_waits(pings):
    app = app_of(InlineProbe, heartbeat_s=0)
    with served(app, ws=FastPath) as address, opened(address) as raw:
        pings().beats(2)
        assert PING in list(frames_until_the_end(raw))
        eventually(lambda: sessions(app)[0].detached)


def test_a_v1_session_ends_with_its_half_open_connection(pings):
    app = app_of(InlineProbe)
    with served(app, ws=FastPath) as address, shake_hands(address) as raw:
        read_until(raw, b"\r\n\r\n")
        eventually(lambda: len(sessions(app)) == 1)
        pings().beats(2)
        list(frames_until_the_end(raw))
        eventually(lambda: not sessions(app))


def test_who_does_not_read_is_found_without_pings(pings, caplog):
    """Nothing is heard of it since nothing is read from it; but it takes nothing either."""
    caplog.set_level(logging.WARNING, "openenv.server")
    app = app_of(InlineProbe, heartbeat_s=PERIOD_S)

    def found() -> bool:
        app_keepalive(app).beats()
        return "heartbeat_s" in caplog.text

    with served(app, ws=FastPath, **NO_PINGS) as address, opened(address) as raw:
        step = {"op": "step", "session": "one", "action": {"kind": "large", "number": 500_000}}
        calls = [{**step, "seq": seq} for seq in range(1, 41)]
        raw.sendall(frame(TEXT, json.dumps({"id": 2, "op": "batch", "calls": calls}).encode()))
        eventually(lambda: sessions(app)[0].steps == len(calls))
        eventually(found)
        eventually(lambda: sessions(app)[0].detached)
