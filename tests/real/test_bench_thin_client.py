"""The light session of a storm, against servers that do and do not do what they should."""

import asyncio
import gc
import socket

import pytest

from openenv.bench import thin_client
from openenv.bench.thin_client import SESSIONS_PER_SOURCE, ThinClient, destination_of
from openenv.errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    ProtocolViolation,
    ServerFull,
    StepFailed,
    StepTimeout,
)

from ..asynchronous import PATIENCE_S
from ..client.peers import CLOSE, CONTINUATION, PING, PONG, TEXT, observation, serving

pytestmark = pytest.mark.real
SHORT_S = 0.1


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No socket is left for the garbage collector to find, and to warn about."""
    yield
    gc.collect()


def connect(place, number=0, timeout_s=PATIENCE_S):
    return ThinClient.connect(destination_of(place.url), number, timeout_s)


def call(client, kind="reset", data=None, timeout_s=PATIENCE_S):
    return client.call(kind, {} if data is None else data, timeout_s)


async def say_goodbye(peer):
    assert (await peer.receive())[0] == CLOSE
    peer.close(1000)
    await peer.ended()


async def test_a_session_from_connect_to_close(loop_factory):
    async def behave(peer):
        await peer.accept()
        assert await peer.message() == {"type": "reset", "data": {}}
        peer.reply(observation(None, n=0))
        assert await peer.message() == {"type": "step", "data": {"wait_seconds": 0.5}}
        peer.reply(observation(1.0, n=1))
        await say_goodbye(peer)

    async with serving(behave) as place:
        client = await connect(place)
        assert await call(client) == {"n": 0}
        assert await call(client, "step", {"wait_seconds": 0.5}) == {"n": 1}
        await client.close()
        await client.close()


async def test_sessions_come_from_the_addresses_that_they_are_dealt():
    async def behave(peer):
        await peer.accept()
        await say_goodbye(peer)

    async with serving(behave) as place:
        for number in (0, SESSIONS_PER_SOURCE):
            await (await connect(place, number)).close()
        hosts = [peer.writer.get_extra_info("peername")[0] for peer in place.peers]
    assert hosts == ["127.0.1.1", "127.0.1.2"]


async def test_a_reply_may_come_with_the_handshake_and_in_parts():
    async def behave(peer):
        await peer.read_request()
        peer.writer.write(b"HTTP/1.1 101 Switching")
        await peer.writer.drain()
        peer.writer.write(b" Protocols\r\nUpgrade: websocket\r\n\r\n")
        peer.send(PING, b"there?")
        assert await peer.receive() == (PONG, b"there?")
        await peer.message()
        peer.send(TEXT, b'{"type":"observation",', fin=False)
        peer.send(CONTINUATION, b'"data":{"observation":{"n":1},"reward":null,"done":false}}')
        await say_goodbye(peer)

    async with serving(behave) as place:
        client = await connect(place)
        assert await call(client) == {"n": 1}
        await client.close()


class Wire(asyncio.Transport):
    """Takes what is written, and nothing comes of it."""

    def write(self, data):
        pass


async def test_a_handshake_may_come_byte_by_byte():
    client = ThinClient(destination_of("127.0.0.1:8000"))
    client.connection_made(Wire())
    answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    for place in range(len(answer)):
        assert not client._answer.done()
        client.data_received(answer[place : place + 1])
    assert client._answer.done()


async def test_an_error_of_the_server_is_raised_by_its_name():
    async def behave(peer):
        await peer.accept()
        await peer.message()
        peer.reply({"type": "error", "data": {"message": "no", "code": "EXECUTION_ERROR", "error": "StepFailed"}})
        await peer.message()
        peer.reply(observation())
        await say_goodbye(peer)

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(StepFailed, match="no"):
            await call(client)
        assert await call(client) == {}
        await client.close()


async def test_a_refusal_that_came_unasked_is_what_the_first_call_raises():
    async def behave(peer):
        await peer.accept()
        refusal = {"message": "full", "code": "CAPACITY_REACHED", "active_sessions": 3, "max_sessions": 3}
        peer.reply({"type": "error", "data": refusal})
        peer.close(1000)
        await peer.ended()

    async with serving(behave) as place:
        client = await connect(place)
        await place.finish()
        with pytest.raises(ServerFull):
            await call(client)
        await client.close()


@pytest.mark.parametrize("close", [True, False])
async def test_a_connection_that_ends_ends_the_call(close):
    async def behave(peer):
        await peer.accept()
        await peer.message()
        if close:
            peer.close(1011)
            await peer.ended()

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(ConnectionLost, match="has ended.*1011" if close else "has ended without a word"):
            await call(client)
        with pytest.raises(ConnectionLost):
            await call(client)
        await client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload", [b"[]", b"not JSON", b'{"type":"state","data":{}}', b'{"type":"observation","data":{}}']
)
async def test_what_is_no_reply_is_a_violation(payload):
    async def behave(peer):
        await peer.accept()
        await peer.message()
        peer.send(TEXT, payload)
        await peer.ended()

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(ProtocolViolation):
            await call(client)
        await client.close()


async def test_a_frame_that_no_server_may_send_ends_the_connection():
    async def behave(peer):
        await peer.accept()
        await peer.message()
        peer.writer.write(b"\x81\x81....x")
        await peer.ended()

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(ProtocolViolation, match="masked"):
            await call(client)
        await client.close()


async def test_a_server_without_a_websocket_is_named():
    async with serving(lambda peer: peer.refuse("403 Forbidden")) as place:
        with pytest.raises(ConnectionFailed, match=r"does not speak WebSocket: 'HTTP/1.1 403 Forbidden'"):
            await connect(place)


async def test_a_server_that_hangs_up_during_the_handshake_is_an_error():
    async with serving(lambda peer: peer.read_request()) as place:
        with pytest.raises(ConnectionLost):
            await connect(place)


async def test_where_nobody_listens_connecting_fails():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionFailed, match="is the server up"):
        await ThinClient.connect(destination_of(f"127.0.0.1:{port}"), 0, PATIENCE_S)


async def test_a_handshake_that_takes_too_long_is_left():
    async def behave(peer):
        await peer.ended()

    async with serving(behave) as place:
        with pytest.raises(ConnectTimeout, match=r"within 0\.1 s"):
            await connect(place, timeout_s=SHORT_S)


async def test_a_call_that_takes_too_long_is_left():
    async def behave(peer):
        await peer.accept()
        await peer.message()
        await say_goodbye(peer)

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(StepTimeout, match=r"no answer to reset within 0\.1 s"):
            await call(client, timeout_s=SHORT_S)
        await client.close()


async def test_the_timeout_of_a_server_keeps_its_words():
    async def behave(peer):
        await peer.accept()
        await peer.message()
        error = {"message": "the step took too long", "code": "EXECUTION_ERROR", "error": "StepTimeout"}
        peer.reply({"type": "error", "data": error})
        await say_goodbye(peer)

    async with serving(behave) as place:
        client = await connect(place)
        with pytest.raises(StepTimeout, match="the step took too long"):
            await call(client)
        await client.close()


async def test_a_server_that_does_not_say_goodbye_is_left(monkeypatch):
    monkeypatch.setattr(thin_client, "CLOSE_TIMEOUT_S", SHORT_S)

    async def behave(peer):
        await peer.accept()
        assert (await peer.receive())[0] == CLOSE
        await peer.ended()

    async with serving(behave) as place:
        client = await connect(place)
        async with asyncio.timeout(PATIENCE_S):
            await client.close()
