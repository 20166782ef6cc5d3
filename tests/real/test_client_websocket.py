"""The client against servers on real sockets that do not do what they should."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import socket
from types import SimpleNamespace

import pytest
from websockets.asyncio.server import serve
from websockets.exceptions import NegotiationError
from websockets.utils import accept_key

from openenv.client import GenericEnvClient, handshake_errors, websocket
from openenv.errors import (
    ConnectionFailed,
    ConnectionLost,
    ConnectTimeout,
    Forbidden,
    MessageTooLarge,
    ProtocolViolation,
    ServerFull,
    SessionLost,
    StepFailed,
    StepTimeout,
    TooManyFailures,
    Unauthorized,
)
from openenv.protocol.codecs import codec_of

from ..asynchronous import PATIENCE_S, until
from ..chaos.proxy import RESET
from ..client.peers import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Peer, observation, serving
from ..client.scripted import HELLO, outcome

pytestmark = pytest.mark.real

MIB = 1024 * 1024
SHORT_S = 0.1


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No socket is left for the garbage collector to find, and to warn about."""
    yield
    gc.collect()


def client(place, **options):
    return GenericEnvClient(
        place.url, **{"connect_timeout_s": PATIENCE_S, "message_timeout_s": PATIENCE_S, **options}
    )


async def conversation(peer: Peer):
    """A server as it should be: replies to everything, with a reward that counts."""
    await peer.accept()
    reward = 1.0
    while True:
        try:
            kind, payload = await peer.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None  # the client has hung up
        if kind == CLOSE or b'"close"' in payload:
            peer.close(1000)
            return await peer.ended()
        if kind == TEXT:
            state = b'"state"' in payload
            peer.reply({"type": "state", "data": {"step_count": reward}} if state else observation(reward))
            reward += 1


def then(*behaviours):
    """The first connection gets the first behaviour, the next one the next, and so on."""
    waiting = list(behaviours)

    async def behave(peer):
        await waiting.pop(0)(peer)

    return behave


# Connecting.


async def test_a_conversation_as_it_should_be():
    async with serving(conversation) as place:
        async with client(place) as env:
            assert (await env.reset()).reward == 1.0
            assert (await env.step({})).reward == 2.0
            assert await env.state() == {"step_count": 3.0}
        assert len(place.peers) == 1


async def test_the_handshake_carries_the_path_the_query_and_the_headers():
    async with serving(conversation) as place:
        env = GenericEnvClient(f"{place.url}/team/echo?key=1", headers={"Authorization": "Bearer abc"})
        await env.reset()
        await env.close()
    (peer,) = place.peers
    assert peer.request.startswith(b"GET /team/echo/ws?key=1 HTTP/1.1\r\n")
    assert peer.header("Authorization") == "Bearer abc"
    assert peer.header("Host") == place.url.removeprefix("http://")


@pytest.mark.parametrize("form", ["ws://{}", "http://{}/", "{}", "{}/ws", "http://{}/ws/"])
async def test_every_form_of_an_address_leads_there(form):
    async with (
        serving(conversation) as place,
        GenericEnvClient(form.format(place.url.removeprefix("http://"))) as env,
    ):
        assert (await env.reset()).reward == 1.0


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
async def test_this_machine_is_reached_without_a_proxy(monkeypatch, variable):
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(conversation) as place, client(place) as env:
        assert (await env.reset()).reward == 1.0


async def test_another_machine_is_reached_through_the_proxy(monkeypatch):
    """The proxy is a peer that reads the request for a tunnel, and refuses it."""

    async def proxy(peer):
        await peer.refuse("403 Forbidden")

    async with serving(proxy) as place:
        monkeypatch.setenv("http_proxy", place.url)
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(ConnectionFailed):
            await GenericEnvClient("http://envs.example:8000", connect_timeout_s=PATIENCE_S).reset()
        (peer,) = place.peers
        assert peer.request.startswith(b"CONNECT envs.example:8000 ")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def test_nobody_listens():
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"{port}.*is the server up") as caught:
        await GenericEnvClient(f"localhost:{port}").reset()
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.retryable


async def test_a_name_that_nobody_has():
    with pytest.raises(ConnectionFailed, match=r"nowhere\.invalid"):
        await GenericEnvClient("http://nowhere.invalid:8000").reset()


@pytest.mark.parametrize("status", ["404 Not Found", "200 OK", "500 Internal Server Error"])
async def test_the_handshake_is_refused(status):
    async with serving(lambda peer: peer.refuse(status)) as place:
        with pytest.raises(ConnectionFailed, match=f"HTTP {status.split(maxsplit=1)[0]}"):
            await client(place).reset()


async def test_a_redirect_is_followed():
    async with serving(conversation) as goal:
        elsewhere = goal.url.replace("http", "ws") + "/elsewhere"
        async with (
            serving(lambda peer: peer.refuse("307 Temporary Redirect", f"Location: {elsewhere}")) as place,
            client(place) as env,
        ):
            assert (await env.reset()).reward == 1.0
        assert goal.peers[0].request.startswith(b"GET /elsewhere ")


KEY = "control-secret-of-this-test"


@pytest.mark.parametrize(
    ("status", "error", "after_s"),
    [
        ("401 Unauthorized", Unauthorized, None),
        ("403 Forbidden", Forbidden, None),
        ("429 Too Many Requests", TooManyFailures, 7.0),
    ],
)
async def test_a_key_that_is_not_accepted(status, error, after_s, caplog):
    caplog.set_level("DEBUG")
    async with serving(lambda peer: peer.refuse(status, "Retry-After: 7" if after_s else "X: y")) as place:
        env = client(place, api_key=KEY)
        with pytest.raises(error, match=r"api_key.*OPENENV_API_KEY") as caught:
            await env.reset()
        assert type(caught.value) is error
        assert caught.value.retry_after_s == after_s
        assert place.peers[0].header("Authorization") == f"Bearer {KEY}"
        assert len(place.peers) == 1
        said = [repr(caught.value), str(caught.value), repr(env), repr(env._options), caplog.text]
        assert not any(KEY in text for text in said)


async def test_a_key_is_shown_only_to_the_server_it_is_for():
    async with serving(conversation) as goal:
        elsewhere = f"Location: {goal.url}/ws"
        async with serving(lambda peer: peer.refuse("307 Temporary Redirect", elsewhere)) as place:
            async with client(place, api_key=KEY, headers={"X-Run": "7"}) as env:
                await env.reset()
            assert place.peers[0].header("Authorization") == f"Bearer {KEY}"
        assert goal.peers[0].header("Authorization") is None
        assert goal.peers[0].header("X-Run") == "7"


async def test_a_redirect_within_the_server_takes_the_key_along():
    async def moved(peer):
        await peer.refuse("308 Permanent Redirect", "Location: /there/ws")

    async with serving(then(moved, conversation)) as place, client(place, api_key=KEY) as env:
        await env.reset()
        assert place.peers[1].request.startswith(b"GET /there/ws ")
        assert place.peers[1].header("Authorization") == f"Bearer {KEY}"


async def test_redirects_end():
    async with serving(lambda peer: peer.refuse("302 Found", "Location: /ws")) as place:
        with pytest.raises(ConnectionFailed, match="HTTP 302"):
            await client(place).reset()
        assert len(place.peers) == 6


def test_a_redirect_never_gives_up_encryption():
    response = SimpleNamespace(status=302, headers={"Location": "ws://elsewhere/ws"})
    error = SimpleNamespace(response=response)
    with pytest.raises(ConnectionFailed, match="not encrypted"):
        handshake_errors.redirect_target("wss://here/ws", (), error)


async def test_a_server_of_another_protocol():
    async def mail(peer):
        peer.writer.write(b"220 mail.example ready\r\n\r\n")
        await peer.ended()

    async with serving(mail) as place:
        with pytest.raises(ConnectionFailed, match="does not speak WebSocket"):
            await client(place).reset()


async def test_the_handshake_is_answered_for_somebody_else():
    async def impostor(peer):
        await peer.read_request()
        peer.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n"
        )
        await peer.ended()

    async with serving(impostor) as place:
        with pytest.raises(ConnectionFailed, match=r"(?i)accept"):
            await client(place).reset()


async def test_a_server_that_does_not_encrypt():
    async def plain(peer):
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.ended()

    async with serving(plain) as place:
        with pytest.raises(ConnectionFailed, match="connect.* to wss://"):
            await GenericEnvClient(place.url.replace("http", "https"), connect_timeout_s=SHORT_S).reset()


async def closes_at_once(peer):
    """As a port that a container publishes does while nobody listens inside."""


async def closes_after_the_request(peer):
    await peer.read_request()


async def closes_in_the_middle_of_its_answer(peer):
    await peer.read_request()
    peer.writer.write(b"HTTP/1.1 101 Switching Pro")


async def resets_the_connection(peer):
    await peer.read_request()
    peer.writer.transport.abort()


@pytest.mark.parametrize(
    "behave", [closes_at_once, closes_after_the_request, closes_in_the_middle_of_its_answer, resets_the_connection]
)
async def test_the_connection_ends_before_the_handshake_does(behave):
    async with serving(then(behave, behave, conversation)) as place:
        async with client(place) as env:
            assert (await env.reset()).reward == 1.0
        assert len(place.peers) == 3


async def test_the_connection_ends_before_the_handshake_does_every_time(monkeypatch):
    monkeypatch.setattr(websocket, "_PAUSES_S", (0.001,) * 4)
    async with serving(closes_after_the_request) as place:
        with pytest.raises(ConnectionFailed, match="again and again") as caught:
            await client(place).reset()
        assert place.url.removeprefix("http://") in str(caught.value)
        assert len(place.peers) == 5


async def test_a_server_that_never_answers_the_handshake():
    async with serving(Peer.ended) as place:
        with pytest.raises(ConnectTimeout, match=r"within 0\.1 s \(connect_timeout_s\)") as caught:
            await client(place, connect_timeout_s=SHORT_S).reset()
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, ConnectionError)
        await place.finish()  # the client has hung up


async def test_a_server_that_never_accepts():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with pytest.raises(ConnectTimeout):
            await GenericEnvClient(f"127.0.0.1:{port}", connect_timeout_s=SHORT_S).reset()


async def test_a_handshake_that_is_answered_too_late_is_hung_up():
    """The redirect takes most of the time there is; the second server answers when it is over."""

    async def late(peer):
        await asyncio.sleep(0.2)
        await peer.accept()
        await peer.ended()

    async with serving(late) as goal:

        async def slow(peer):
            await asyncio.sleep(0.3)
            await peer.refuse("307 Temporary Redirect", f"Location: {goal.url.replace('http', 'ws')}/ws")

        async with serving(slow) as place:
            with pytest.raises(ConnectTimeout):
                await client(place, connect_timeout_s=0.4).reset()
            await goal.finish()


async def test_connecting_is_cancelled():
    async with serving(Peer.ended) as place:
        reset = asyncio.create_task(client(place, connect_timeout_s=0.3).reset())
        await until(lambda: place.peers)
        reset.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reset
        await place.finish()


async def test_connecting_is_cancelled_as_the_handshake_is_answered():
    async with serving(conversation) as place:
        for turns in range(12):
            reset = asyncio.create_task(client(place, connect_timeout_s=0.3).connect())
            await until(lambda turns=turns: len(place.peers) > turns)
            for _ in range(turns):
                await asyncio.sleep(0)
            reset.cancel()
            await asyncio.wait([reset])
            if not reset.cancelled():
                await reset.result().close()
        await place.finish()


@pytest.mark.parametrize("headers", [{"X-Key": 5}, {"X-Key": "a\r\nX-Other: b"}])
async def test_a_header_that_cannot_be_sent_is_refused(headers):
    async with serving(conversation) as place:
        with pytest.raises((TypeError, ValueError, RuntimeError), match="X-Key"):
            await client(place, headers=headers).connect()


# Versions.

OFFER = "openenv.v2.msgpack, openenv.v2.json"


async def test_every_version_is_offered_and_the_first_one_is_what_a_silent_server_speaks():
    async with serving(conversation) as place, client(place) as env:
        assert (await env.reset()).reward == 1.0
        assert place.peers[0].header("Sec-WebSocket-Protocol") == OFFER


@pytest.mark.slow
@pytest.mark.parametrize(("subprotocol", "kind"), [("openenv.v2.msgpack", BINARY), ("openenv.v2.json", TEXT)])
async def test_the_version_that_the_server_chooses_is_spoken(subprotocol, kind):
    codec = codec_of(subprotocol)
    calls = []

    async def second_version(peer):
        await peer.accept(subprotocol)
        peer.send(kind, codec.encode(HELLO))
        for number, reply in ((1, {"ok": True, "token": "t", "seq": 0}), (2, outcome(3.0, x=b"\x00\xff"))):
            found, payload = await peer.receive()
            assert found == kind
            calls.append(codec.decode(payload)["op"])
            peer.send(kind, codec.encode({"id": number, **reply}))
        await peer.ended()

    async with serving(second_version) as place:
        env = client(place)
        result = await env.reset()
        assert (result.reward, result.observation) == (3.0, {"x": b"\x00\xff"})
        await env.close()
    assert calls == ["open", "reset"]


async def test_a_server_that_refuses_what_it_does_not_know_is_asked_without_an_offer():
    async with serving(then(lambda peer: peer.refuse("400 Bad Request"), conversation)) as place:
        async with client(place, headers={"X-Key": "k"}) as env:
            assert (await env.reset()).reward == 1.0
        first, second = place.peers
        assert first.header("Sec-WebSocket-Protocol") == OFFER
        assert second.header("Sec-WebSocket-Protocol") is None
        assert second.header("X-Key") == "k"


async def test_a_server_of_subprotocols_of_its_own_is_spoken_to_in_v1():
    async def handler(connection):
        async for frame in connection:
            if '"close"' in frame:
                break
            await connection.send('{"type":"observation","data":{"observation":{},"reward":1.0,"done":false}}')

    async with serve(handler, "127.0.0.1", 0, subprotocols=["chat"], select_subprotocol=refuse_without) as server:
        port = server.sockets[0].getsockname()[1]
        async with GenericEnvClient(f"ws://127.0.0.1:{port}") as env:
            assert (await env.reset()).reward == 1.0


def refuse_without(connection, offered):
    """As websockets does by itself when it has subprotocols and none of them is offered."""
    if offered:
        raise NegotiationError("no subprotocols supported")


async def test_a_request_that_is_refused_for_another_reason_is_refused_again():
    async def bad(peer):
        await peer.refuse("400 Bad Request")

    async with serving(bad) as place:
        with pytest.raises(ConnectionFailed, match="HTTP 400"):
            await client(place).reset()
        assert len(place.peers) == 2


async def test_a_subprotocol_that_was_not_offered_is_a_fault_of_the_server():
    async def wrong(peer):
        await peer.accept("chat")
        await peer.ended()

    async with serving(wrong) as place:
        with pytest.raises(ProtocolViolation, match="'chat', which was not offered"):
            await client(place).reset()


# Ends.


async def closes_with(peer, code, reason=""):
    await peer.accept()
    await peer.receive()
    peer.close(code, reason)
    await peer.ended()


@pytest.mark.parametrize(
    ("code", "reason"), [(1000, ""), (1001, "going away"), (1011, "a fault"), (1012, ""), (4001, "ours")]
)
async def test_the_server_says_goodbye(code, reason):
    async with serving(then(lambda peer: closes_with(peer, code, reason), conversation)) as place:
        env = client(place)
        with pytest.raises(ConnectionLost, match=f"code {code}.*{reason}") as caught:
            await env.reset()
        assert caught.value.retryable
        for call in (env.step, lambda _: env.state()):
            with pytest.raises(SessionLost, match="reset"):
                await call({})
        assert len(place.peers) == 1
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_the_server_closes_right_after_the_handshake():
    async def hasty(peer):
        await peer.accept()
        peer.close(1013)
        await peer.ended()

    async with serving(hasty) as place:
        with pytest.raises(ConnectionFailed, match="1013"):
            await client(place).reset()


@pytest.mark.parametrize("hard", [False, True])
async def test_the_connection_drops_in_the_middle_of_a_call(hard):
    async def drop(peer):
        await peer.accept()
        await peer.receive()
        if hard:
            peer.writer.transport.abort()

    async with serving(then(drop, conversation)) as place:
        env = client(place)
        with pytest.raises(ConnectionLost, match="without a word"):
            await env.reset()
        with pytest.raises(SessionLost):
            await env.step({})
        assert (await env.reset()).reward == 1.0
        await env.close()


def reset_by(listener: socket.socket, sent: bytes):
    """Answers a call so, and resets. Runs on a thread of its own: the reset must come while the client reads."""
    with listener.accept()[0] as connection:
        key = re.search(rb"(?i)sec-websocket-key: (\S+)", connection.recv(5000))[1].decode()
        upgrade = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade"
        connection.sendall(f"{upgrade}\r\nSec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode())
        connection.recv(5000)
        connection.sendall(sent)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@pytest.mark.parametrize("sent", [b"", b"\x81\x7e\x01\x00{"], ids=["between frames", "amid a frame"])
async def test_a_reset_is_heard_of_without_a_ping(loop_factory, sent):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = SimpleNamespace(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(20):  # the next connection has the descriptor of the last one
            server = asyncio.create_task(asyncio.to_thread(reset_by, listener, sent))
            with pytest.raises(ConnectionLost, match="without a word"):
                await client(place, websocket_ping_interval_s=None).reset()
            await server


async def test_a_handshake_that_is_interrupted_at_any_moment_leaves_the_next_sockets_readable(loop_factory):
    """Event loops know sockets by their descriptors: one that a connection left behind would be read no more."""
    loop = asyncio.get_running_loop()
    for turns in range(30):
        with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listener, socket.socket() as kept:
            # The client tries again: without a socket that keeps the port, it would find the server of another test.
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            kept.bind(listener.getsockname())
            place = SimpleNamespace(url=f"http://127.0.0.1:{listener.getsockname()[1]}")
            attempt = asyncio.create_task(client(place).reset())
            for _ in range(turns):
                await asyncio.sleep(0)
            listener.close()
            for _ in range(10):
                await asyncio.sleep(0)
            one, other = socket.socketpair()
            with one, other:
                for reader, writer in ((one, other), (other, one)):
                    reader.setblocking(False)
                    received = asyncio.create_task(loop.sock_recv(reader, 1))
                    await asyncio.sleep(0)
                    writer.send(b"x")
                    async with asyncio.timeout(PATIENCE_S):
                        assert await received == b"x"
            with pytest.raises(ConnectionFailed):
                await attempt


async def test_every_call_that_waits_hears_of_the_end():
    async def drop(peer):
        await peer.accept()
        for _ in range(4):
            await peer.receive()

    async with serving(drop) as place:
        env = client(place)
        calls = [asyncio.create_task(call) for call in (env.reset(), env.step({}), env.step({}), env.state())]
        await asyncio.wait(calls)
        assert [type(call.exception()) for call in calls] == [ConnectionLost] * 4


async def test_the_connection_drops_between_calls():
    async def one_reply(peer):
        await peer.accept()
        await peer.receive()
        peer.reply(observation(1.0))

    async with serving(then(one_reply, conversation)) as place:
        env = client(place)
        await env.reset()
        await until(lambda: env._held.error)
        with pytest.raises(SessionLost) as caught:
            await env.step({})
        assert isinstance(caught.value.__cause__, ConnectionLost)
        assert not caught.value.retryable
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_a_server_that_never_says_goodbye_is_left(monkeypatch):
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", SHORT_S)
    heard = []

    async def stubborn(peer):
        await peer.accept()
        heard.append(await peer.message())
        peer.reply(observation(1.0))
        heard.extend([await peer.message(), await peer.receive()])
        await peer.ended()

    async with serving(stubborn) as place:
        env = client(place)
        await env.reset()
        await env.close()
        await place.finish()
    assert heard == [{"type": "reset", "data": {}}, {"type": "close"}, (CLOSE, b"\x03\xe8")]


async def test_close_during_a_call_does_not_wait_for_it():
    async def busy(peer):
        await peer.accept()
        await peer.message()
        assert await peer.receive() == (CLOSE, b"\x03\xe8")
        peer.close(1000)
        await peer.ended()

    async with serving(busy) as place:
        env = client(place)
        reset = asyncio.create_task(env.reset())
        await until(lambda: env._held and env._held._protocol.outstanding)
        await env.close()
        with pytest.raises(ConnectionFailed):
            await reset


async def test_after_close_nothing_is_left():
    async with serving(conversation) as place:
        env = client(place)
        await env.reset()
        before = asyncio.all_tasks()
        await env.close()
        await env.close()
        await place.finish()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        assert len(before) > 1


# Messages.


@pytest.mark.parametrize(
    "answer",
    [
        b"hello",
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"type":"observation"}',
        b'{"type":"observation","data":[]}',
        b'{"type":"state","data":{}}',
        b'{"type":"error","data":"no"}',
        b'{"type":["observation"],"data":{}}',
        b"\xff\xfe",
        b'{"type":"observation","data":' + b"[" * 5000,
    ],
)
async def test_an_answer_that_is_none_ends_the_connection(answer):
    async def wrong(peer):
        await peer.accept()
        await peer.message()
        peer.send(TEXT, answer)
        await peer.ended()

    async with serving(then(wrong, conversation)) as place:
        env = client(place)
        with pytest.raises(ProtocolViolation):
            await env.reset()
        with pytest.raises(SessionLost):
            await env.step({})
        assert (await env.reset()).reward == 1.0
        assert len(place.peers) == 2
        await env.close()


async def test_a_frame_that_cannot_be_handled_is_the_end_and_nobody_waits_forever():
    class Clumsy:
        def __init__(self):
            self.end = asyncio.get_running_loop().create_future()

        def received(self, frame):
            raise LookupError("oh")

        def lost(self, error):
            self.end.set_result(error)

    async def behave(peer):
        await peer.accept()
        peer.send(TEXT, b"{}")
        await peer.ended()

    async with serving(behave) as place:
        clumsy = Clumsy()
        options = websocket.WebSocketOptions(PATIENCE_S, MIB, None, None)
        transport = await websocket.connect(place.url.replace("http", "ws") + "/ws", lambda _: clumsy, options)
        error = await asyncio.wait_for(clumsy.end, PATIENCE_S)
        assert isinstance(error, ProtocolViolation)
        assert isinstance(error.__cause__, LookupError)
        await asyncio.wait_for(transport.aclose(), PATIENCE_S)


async def test_an_answer_that_nobody_asked_for_ends_the_connection():
    async def eager(peer):
        await peer.accept()
        await peer.message()
        peer.reply(observation(1.0))
        peer.reply(observation(2.0))
        await peer.ended()

    async with serving(then(eager, conversation)) as place:
        env = client(place)
        assert (await env.reset()).reward == 1.0
        with pytest.raises(ConnectionFailed, match="answered nothing"):
            await env.step({})
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_a_server_that_talks_before_it_is_asked_is_left():
    """Its words arrive together with its answer to the handshake."""

    async def talkative(peer):
        await peer.accept()
        peer.send(TEXT, b"welcome")
        await peer.ended()

    async with serving(then(talkative, conversation)) as place:
        env = client(place)
        with pytest.raises(ConnectionFailed, match="welcome"):
            await env.reset()
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_a_reply_without_an_observation_leaves_the_conversation_in_order():
    async def empty(peer):
        await peer.accept()
        await peer.message()
        peer.reply({"type": "observation", "data": {}})
        await peer.message()
        peer.reply(observation(2.0))
        assert await peer.message() == {"type": "close"}
        peer.close(1000)
        await peer.ended()

    async with serving(empty) as place:
        env = client(place)
        with pytest.raises(ProtocolViolation, match="without an observation"):
            await env.reset()
        assert (await env.step({})).reward == 2.0
        await env.close()


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x83\x00", b"\x09\x00", b"\x81\x85\x00\x00\x00\x00hello"])
async def test_what_is_no_websocket_frame_ends_the_connection(raw):
    async def wrong(peer):
        await peer.accept()
        await peer.message()
        peer.writer.write(raw)
        await peer.ended()

    async with serving(then(wrong, conversation)) as place:
        env = client(place)
        with pytest.raises(ProtocolViolation) as caught:
            await env.reset()
        assert not caught.value.retryable
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_a_binary_frame_is_read_as_the_message_it_holds():
    async def binary(peer):
        await peer.accept()
        await peer.message()
        peer.send(BINARY, b'{"type":"observation","data":{"observation":{},"reward":4.0,"done":false}}')
        await peer.message()
        peer.send(BINARY, b"\x93\x01\x02\x03")
        await peer.ended()

    async with serving(binary) as place:
        env = client(place)
        assert (await env.reset()).reward == 4.0
        with pytest.raises(ProtocolViolation):
            await env.step({})
        await env.close()


async def test_a_message_in_fragments_with_a_ping_between_them():
    async def piecemeal(peer):
        await peer.accept()
        await peer.message()
        message = b'{"type":"observation","data":{"observation":{"word":"\xc3\xa9"},"reward":7.0,"done":true}}'
        peer.send(TEXT, message[:50], fin=False)
        peer.send(PING, b"there?")
        for place in range(50, len(message)):
            peer.send(CONTINUATION, message[place : place + 1], fin=False)
        peer.send(CONTINUATION)
        assert await peer.receive() == (PONG, b"there?")
        await conversation_from_here(peer)

    async def conversation_from_here(peer):
        assert await peer.message() == {"type": "close"}
        peer.close(1000)
        await peer.ended()

    async with serving(piecemeal) as place:
        async with client(place) as env:
            result = await env.reset()
        assert result.observation == {"word": "é"}
        assert (result.reward, result.done) == (7.0, True)


@pytest.mark.parametrize("pieces", [1, 4])
async def test_a_message_that_is_too_large_names_sizes_and_setting(pieces):
    async def verbose(peer):
        await peer.accept()
        await peer.message()
        for number in range(pieces):
            peer.send(CONTINUATION if number else TEXT, b"x" * (3000 // pieces), fin=number == pieces - 1)
        await peer.ended()

    async with serving(then(verbose, conversation)) as place:
        env = client(place, max_message_size_mb=1000 / MIB)
        with pytest.raises(
            MessageTooLarge, match=r"limit of 1000 bytes \(max_message_size_mb\).*\b(1500|2250|3000)\b"
        ):
            await env.reset()
        with pytest.raises(SessionLost):
            await env.step({})
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_a_message_at_the_limit_is_not_too_large():
    async with serving(conversation) as place:
        frame = b'{"type":"step","data":{"text":""}}'
        async with client(place, max_message_size_mb=1000 / MIB) as env:
            await env.reset()
            assert (await env.step({"text": "x" * (1000 - len(frame))})).reward == 2.0


async def test_a_message_over_the_limit_is_not_sent_and_the_next_reply_is_its_own():
    async with serving(conversation) as place, client(place, max_message_size_mb=1000 / MIB) as env:
        await env.reset()
        for _ in range(2):
            with pytest.raises(MessageTooLarge, match=r"2034 bytes.*1000.*max_message_size_mb"):
                await env.step({"text": "x" * 2000})
        assert (await env.step({})).reward == 2.0
        assert await env.state() == {"step_count": 3.0}


@pytest.mark.slow
async def test_a_large_message_each_way():
    async def generous(peer):
        await peer.accept()
        text = (await peer.message())["data"]["text"]
        peer.reply(observation(float(len(text)), text=text))
        await peer.ended()

    async with serving(generous) as place:
        env = client(place)
        result = await env.reset(text="é" * 200_000)
        assert result.reward == 200_000.0
        assert result.observation["text"] == "é" * 200_000
        await env.close()


# Late replies.


@pytest.mark.slow
async def test_a_late_reply_never_reaches_the_next_call():
    late = asyncio.Event()

    async def slow(peer):
        await peer.accept()
        for reward in (1.0, 2.0):
            await peer.message()
            if reward == 1.0:
                await late.wait()
            peer.reply(observation(reward))
        await peer.ended()

    async with serving(slow) as place:
        env = client(place, message_timeout_s=SHORT_S)
        with pytest.raises(StepTimeout):
            await env.reset()
        env._message_timeout_s = PATIENCE_S
        second = asyncio.create_task(env.step({}))
        await asyncio.sleep(0)
        late.set()
        assert (await second).reward == 2.0
        await env.close()


@pytest.mark.slow
async def test_a_call_cancelled_as_its_reply_arrives():
    """The frame is read in the same turn of the loop in which the caller gives up."""
    replied = asyncio.Event()

    async def ready(peer):
        await peer.accept()
        for reward in range(1, 14):
            await peer.message()
            peer.reply(observation(float(reward)))
            replied.set()
        await peer.ended()

    async with serving(ready) as place:
        env = client(place)
        await env.reset()
        for turns in range(6):
            replied.clear()
            step = asyncio.create_task(env.step({}))
            await replied.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait([step])
            assert (await env.step({})).reward == float(3 + 2 * turns)
        await env.close()


# Pings.


async def test_a_server_that_answers_no_ping_is_found_out():
    async def dead(peer):
        await peer.accept()
        await peer.message()
        kinds = [(await peer.receive())[0], (await peer.receive())[0]]
        assert kinds == [PING, CLOSE]
        await peer.ended()

    async with serving(dead) as place:
        env = client(place, websocket_ping_interval_s=SHORT_S, websocket_ping_timeout_s=SHORT_S)
        with pytest.raises(ConnectionLost):
            await env.reset()
        await env.close()


async def test_a_slow_server_that_answers_pings_is_waited_for():
    async def slow(peer):
        await peer.accept()
        await peer.message()
        for _ in range(3):
            kind, payload = await peer.receive()
            assert kind == PING
            peer.send(PONG, payload)
        peer.reply(observation(1.0))
        await peer.ended()

    async with serving(slow) as place:
        env = client(place, websocket_ping_interval_s=SHORT_S, websocket_ping_timeout_s=SHORT_S)
        assert (await env.reset()).reward == 1.0
        await env.close()


@pytest.mark.slow
@pytest.mark.parametrize("interval", [None, 0])
async def test_pings_can_be_turned_off(interval):
    async def quiet(peer):
        await peer.accept()
        await peer.message()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.25):
                await peer.reader.readexactly(1)
        peer.reply(observation(1.0))
        await peer.ended()

    async with serving(quiet) as place:
        env = client(place, websocket_ping_interval_s=interval, websocket_ping_timeout_s=SHORT_S)
        assert (await env.reset()).reward == 1.0
        await env.close()


# A v1 server that is not ours.


async def test_a_v1_server_that_is_full():
    full = (
        '{"type":"error","data":{"message":"no room","code":"CAPACITY_REACHED","active_sessions":3,"max_sessions":3}}'
    )

    async def handler(connection):
        await connection.send(full)
        await connection.close()

    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        env = GenericEnvClient(f"ws://127.0.0.1:{port}")
        for _ in range(2):
            with pytest.raises(ServerFull, match="no room") as caught:
                await env.reset()
            assert (caught.value.active_sessions, caught.value.max_sessions) == (3, 3)
        await env.close()


async def test_a_v1_server_whose_replies_say_no_more_than_v1_does():
    async def handler(connection):
        async for frame in connection:
            if '"close"' in frame:
                break
            if '"bad"' in frame:
                await connection.send('{"type":"error","data":{"message":"boom","code":"EXECUTION_ERROR"}}')
            else:
                await connection.send(
                    iter(['{"type":"observation","data":{"observation":', '{},"reward":true,"done":false}}'])
                )

    async with serve(handler, "127.0.0.1", 0, ping_interval=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with GenericEnvClient(f"ws://127.0.0.1:{port}") as env:
            assert (await env.reset()).reward is True
            with pytest.raises(StepFailed, match="boom"):
                await env.step({"bad": 1})
            assert (await env.step({})).reward is True


async def test_an_error_of_the_session_ends_it_and_its_connection():
    async def refuses(peer):
        await peer.accept()
        await peer.message()
        peer.reply({"type": "error", "data": {"message": "lost it", "code": "SESSION_ERROR"}})
        await peer.ended()

    async with serving(then(refuses, conversation)) as place:
        env = client(place)
        with pytest.raises(SessionLost, match="lost it"):
            await env.reset()
        with pytest.raises(SessionLost):
            await env.state()
        assert (await env.reset()).reward == 1.0
        await env.close()


async def test_connections_say_nothing_in_the_log(caplog):
    caplog.set_level(logging.DEBUG, "openenv")

    async with serving(then(lambda peer: closes_with(peer, 1011), conversation)) as place:
        env = client(place)
        with pytest.raises(ConnectionLost):
            await env.reset()
        await env.reset()
        await env.close()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("openenv")] == []
