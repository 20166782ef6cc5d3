"""What is particular to `MultiConnection` and the server around it, on one event loop and without a transport."""

from __future__ import annotations

import asyncio
import json
import logging

import msgspec
import pytest

from openenv.server import HTTPEnvServer
from openenv.settings import ServerSettings

from ..asynchronous import PATIENCE_S
from .probe import AsyncProbe, InlineProbe, ProbeAction, ProbeEnvironment, ProbeObservation


class Client:
    """The other end of a connection: a channel that keeps what it is sent."""

    def __init__(self, server, subprotocol="openenv.v2.json"):
        self.binary = subprotocol == "openenv.v2.msgpack"
        self.closed: int | None = None
        self._inbox: asyncio.Queue = asyncio.Queue()
        self._last_id = 0
        self.connection = server.connect(self, subprotocol)

    def send(self, frame):
        self._inbox.put_nowait(msgspec.msgpack.decode(frame) if self.binary else json.loads(frame))

    def close(self, code):
        self.closed = code

    def pause(self): ...

    def resume(self): ...

    def tell(self, op, **fields):
        self._last_id += 1
        message = {"id": self._last_id, "op": op, **fields}
        if self.binary:
            self.connection.receive_binary(msgspec.msgpack.encode(message))
        else:
            self.connection.receive(json.dumps(message).encode())
        return self._last_id

    async def receive(self):
        return await asyncio.wait_for(self._inbox.get(), PATIENCE_S)

    async def ask(self, op, **fields):
        number = self.tell(op, **fields)
        while (message := await self.receive()).get("id") != number:
            pass
        return message

    @property
    def unread(self):
        return self._inbox.qsize()


def server_of(environment=InlineProbe, **settings):
    ProbeEnvironment.forget()
    return HTTPEnvServer(
        environment,
        ProbeAction,
        ProbeObservation,
        max_concurrent_envs=4,
        settings=ServerSettings.read({}, **settings),
    )


def step(seq, kind="ok", number=0, session="one"):
    return {"session": session, "seq": seq, "action": {"kind": kind, "number": number}}


async def test_draining_is_announced_and_running_sessions_go_on():
    server = server_of()
    clients = [Client(server), Client(server, "openenv.v2.msgpack")]
    await clients[0].ask("open", session="one")
    server.drain(12.5)
    for client in clients:
        while (message := await client.receive()).get("event") != "draining":
            pass
        assert message == {"event": "draining", "grace_s": 12.5}
    assert (await clients[1].ask("open"))["error"]["error"] == "Draining"
    assert (await clients[0].ask("step", **step(1, number=3)))["observation"]["value"] == 3
    await server.aclose()


async def test_sessions_that_wait_when_the_server_drains_are_refused():
    server = server_of(max_sessions=1, queue_timeout_s=20)
    client = Client(server)
    await client.ask("open", session="one")
    waiting = client.tell("open", session="two")
    server.drain(1)
    messages = [await client.receive() for _ in range(2)]
    refusal = next(message for message in messages if message.get("id") == waiting)
    assert refusal["error"]["error"] == "Draining"
    await server.aclose()


async def test_a_stopping_server_ends_the_sessions_and_says_so():
    server = server_of(AsyncProbe)
    client = Client(server)
    await client.receive()
    await client.ask("open", session="one")
    running, waiting = client.tell("step", **step(1, "hang")), client.tell("step", **step(2))
    await server.aclose()
    messages = [await client.receive() for _ in range(3)]
    event = next(message for message in messages if "event" in message)
    assert (event["event"], event["session"], event["error"]["error"]) == ("session_lost", "one", "SessionLost")
    assert "stopping" in event["reason"]
    replies = {message["id"]: message["error"]["error"] for message in messages if "id" in message}
    assert replies == {running: "SessionLost", waiting: "SessionLost"}
    assert server.active_sessions == 0


async def test_a_server_knows_its_connections_for_as_long_as_they_last():
    server = server_of()
    client, other = Client(server), Client(server)
    other.connection.disconnected()
    other.connection.disconnected()
    server.drain(1)
    await client.receive()
    assert (await client.receive())["event"] == "draining"
    assert other.unread == 1  # hello
    await client.connection.aclose()
    await server.aclose()


async def test_an_end_waits_for_the_environments():
    server = server_of(ProbeEnvironment)
    client = Client(server)
    for name in "abc":
        await client.ask("open", session=name)
    await client.connection.aclose()
    assert ProbeEnvironment.closed.is_set()
    assert server.active_sessions == 0


async def test_an_end_waits_for_environments_that_the_client_has_closed_just_before():
    server = server_of(ProbeEnvironment)
    client = Client(server)
    await client.ask("open", session="one")
    running = client.tell("step", **step(1, "wait"))
    await asyncio.to_thread(ProbeEnvironment.waiting.wait, PATIENCE_S)
    client.tell("close", session="one")
    assert {(await client.receive())["id"] for _ in range(2)} == {running, client._last_id}
    ending = asyncio.create_task(client.connection.aclose())
    await asyncio.sleep(0)
    assert not ending.done()
    ProbeEnvironment.gate.set()
    await asyncio.wait_for(ending, PATIENCE_S)
    assert ProbeEnvironment.closed.is_set()
    assert server.active_sessions == 0


async def test_an_end_does_not_wait_for_sessions_that_another_connection_has_taken_over():
    server = server_of()
    first, second = Client(server), Client(server)
    token = (await first.ask("open", session="one"))["token"]
    await second.ask("attach", session="one", token=token)
    await asyncio.wait_for(first.connection.aclose(), PATIENCE_S)
    assert server.active_sessions == 1
    await second.connection.aclose()
    assert server.active_sessions == 0


async def test_what_arrives_after_the_end_is_not_answered():
    server = server_of()
    client = Client(server)
    await client.ask("open", session="one")
    client.connection.failed()
    assert client.closed == 1011
    client.tell("step", **step(1))
    client.tell("heartbeat")
    client.connection.announce(1)
    client.connection.receive_binary(b"")
    client.connection.oversized(5)
    assert client.unread == 0
    await server.aclose()


async def test_a_session_moves_from_one_codec_to_another_with_its_last_reply():
    server = server_of()
    first, second = Client(server), Client(server, "openenv.v2.msgpack")
    token = (await first.ask("open", session="one"))["token"]
    reply = await first.ask("step", **step(1, number=3))
    attached = await second.ask("attach", session="one", token=token)
    assert attached["last"] == {name: value for name, value in reply.items() if name != "id"}
    again = await second.ask("step", **step(1))
    assert {**again, "id": 0} == {**reply, "id": 0}
    error = await second.ask("step", **step(2, "raise"))
    back = await first.ask("attach", session="one", token=token)
    assert back["last"] == {"error": error["error"]}
    assert (await first.ask("state", session="one"))["state"]["step_count"] == 2
    await server.aclose()


async def test_a_session_whose_last_reply_the_other_codec_cannot_tell_stays_where_it_is():
    server = server_of()
    first, second = Client(server), Client(server, "openenv.v2.msgpack")
    token = (await first.ask("open", session="one"))["token"]
    reply = await first.ask("step", **step(1, number=2**70))
    assert reply["observation"]["value"] == 2**70
    error = (await second.ask("attach", session="one", token=token))["error"]
    assert (error["error"], second.closed) == ("UsageError", None)
    assert "attach with the subprotocol" in error["message"]
    again = await first.ask("step", **step(1))
    assert again["observation"] == reply["observation"]
    await first.ask("step", **step(2))
    attached = await second.ask("attach", session="one", token=token)
    assert attached["seq"] == 2
    await second.connection.aclose()
    assert server.active_sessions == 0


async def test_a_session_that_moves_while_it_opens():
    server = server_of(ProbeEnvironment)
    first, second = Client(server), Client(server)
    opening = first.tell("open", session="one")
    token = server.manager.find("one").user.token
    attached = await second.ask("attach", session="one", token=token)
    assert attached["state"] == "starting"
    while (reply := await first.receive()).get("id") != opening:
        pass
    assert reply["error"]["error"] == "SessionLost"
    assert (await second.ask("step", **step(1, number=3)))["observation"]["value"] == 3
    await server.aclose()


async def test_a_session_that_moves_while_its_state_is_read():
    server = server_of(ProbeEnvironment)
    first, second = Client(server), Client(server, "openenv.v2.msgpack")
    token = (await first.ask("open", session="one"))["token"]
    first.tell("state", session="one")
    await second.ask("attach", session="one", token=token)
    assert (await second.ask("step", **step(1, number=3)))["observation"]["value"] == 3
    await server.aclose()


async def test_sessions_of_v1_cannot_be_attached_to():
    server = server_of()
    v1 = Client(server, None)
    error = (await Client(server).ask("attach", session=v1.connection.session_id, token=""))["error"]
    assert error["error"] == "UnknownSession"
    await v1.connection.aclose()
    await server.aclose()


async def test_the_name_of_a_session_that_is_closing_is_not_free_yet():
    server = server_of(ProbeEnvironment)
    client = Client(server)
    await client.ask("open", session="one")
    client.tell("step", **step(1, "wait"))
    await client.ask("close", session="one")
    error = (await client.ask("open", session="one"))["error"]
    assert (error["error"], error["retryable"]) == ("CapacityError", True)
    assert "closing" in error["message"]
    ProbeEnvironment.gate.set()
    await server.aclose()


async def test_the_log_names_the_session_or_says_how_many():
    server = server_of()
    client = Client(server)
    assert client.connection.session_id == "(0 of one connection)"
    await client.ask("open", session="one")
    assert client.connection.session_id == "one"
    await client.ask("open", session="two")
    assert client.connection.session_id == "(2 of one connection)"
    await client.connection.aclose()


def test_another_event_loop_is_refused_for_as_long_as_the_first_has_sessions():
    server = server_of()

    async def first() -> None:
        client = Client(server)
        await client.ask("open", session="one")

        def second() -> None:
            async def ask() -> None:
                error = (await Client(server).ask("open", session="two"))["error"]
                assert (error["error"], "event loop" in error["message"]) == ("UsageError", True)

            asyncio.run(ask())

        await asyncio.to_thread(second)
        await client.connection.aclose()

    asyncio.run(first())


def test_an_unknown_subprotocol_is_no_business_of_ours():
    with pytest.raises(ValueError, match="no codec"):
        Client(server_of(), "openenv.v3")


async def test_a_client_in_process_may_go_on_as_soon_as_it_hears_that_its_call_is_cancelled():
    server = server_of(ProbeEnvironment)
    client = Client(server)
    await client.ask("open", session="one")
    client.tell("step", **step(1, "wait"))
    waiting = client.tell("step", **step(2))

    class Eager(Client):
        def send(self, frame):
            super().send(frame)
            if json.loads(frame).get("id") == waiting:
                self.tell("step", **step(3))

    client.__class__ = Eager
    client.tell("cancel", target=waiting)
    ProbeEnvironment.gate.set()
    messages = [await client.receive() for _ in range(4)]
    counts = [message["observation"]["step_count"] for message in messages if "observation" in message]
    assert counts == [1, 2]
    await server.aclose()


async def test_what_a_client_calls_a_session_cannot_write_lines_of_the_log(caplog):
    caplog.set_level(logging.WARNING, "openenv.server")
    server = server_of()
    client = Client(server)
    for name in ("one\nERROR all is lost", "x" * 10_000):
        assert (await client.ask("state", session=name))["error"]["error"] == "UnknownSession"
    assert (await client.ask("open", options={"gpu\nERROR all is lost": 1}))["error"]["error"] == "UsageError"
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert not any("\n" in message for message in messages)
    assert max(map(len, messages)) < 3000
    await server.aclose()
