"""The local proxy, before a real application and behind real clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from openenv.errors import NotReady, ProviderFailed
from openenv.providers.sandbox.proxy import proxy_of_this_loop
from openenv.providers.sandbox.relay import ProxyTimeouts

from ..cli.certificates import certificate
from .upstream import KEY, behind_the_proxy, server_of

pytestmark = pytest.mark.real
HEADERS = {"Authorization": f"Bearer {KEY}"}
DEAD = ProviderFailed("the sandbox is gone: its job 7 is ERROR", data={"job": "7", "stage": "ERROR"})


def websocket(url: str) -> str:
    return url.replace("http://", "ws://")


async def test_a_request_arrives_whole_and_its_answer_too() -> None:
    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        answer = await client.post(f"{url}/echo?a=1&b=%2F", content=b"hello", headers={"X-Mine": "yes"})
        seen = answer.json()
        assert answer.status_code == 201
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert (seen["method"], seen["path"], seen["query"], seen["body"]) == ("POST", "/echo", "a=1&b=%2F", "hello")
        assert ["x-mine", "yes"] in seen["headers"]


async def test_the_sandbox_is_shown_the_tokens_that_are_for_it_and_no_local_one() -> None:
    async with behind_the_proxy() as (url, _, place, _), httpx.AsyncClient(headers=HEADERS) as client:
        seen = (await client.get(f"{url}/echo", headers={"X-OpenEnv-Key": "forged"})).json()["headers"]
        assert [value for name, value in seen if name == "authorization"] == [place.headers["Authorization"]]
        assert [value for name, value in seen if name == "x-openenv-key"] == [KEY]
        assert [value for name, value in seen if name == "host"] == [place.url.removeprefix("http://")]


async def test_nothing_is_added_to_a_request_and_nothing_is_kept_for_the_next() -> None:
    async with behind_the_proxy() as (url, _, _, _):
        head = f"GET /there/echo HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        seen = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            writer.write(head)
            await reader.readuntil(b"\r\n\r\n")
            seen.append(json.loads(await reader.readuntil(b"}")))
            writer.close()
            await writer.wait_closed()
        names = {name for name, _ in seen[1]["headers"]}
        assert names == {"host", "authorization", "x-openenv-key"}


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {KEY}"}])
async def test_who_has_no_key_reaches_nothing(headers: dict[str, str]) -> None:
    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/echo", headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"] == "Unauthorized"
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/ws", additional_headers=headers)
        assert refusal.value.response.status_code == 401


async def test_where_no_sandbox_is_there_is_nothing() -> None:
    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        for path in ("", "/", "/other/echo", "/there2/echo"):
            assert (await client.get(server_of(url) + path)).status_code == 404


async def test_an_answer_is_passed_on_while_it_comes() -> None:
    async with behind_the_proxy() as (url, upstream, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        async with client.stream("GET", f"{url}/stream") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"first"
            upstream.go.set()
            assert await anext(parts) == b"second"


async def test_a_request_is_passed_on_while_it_comes_and_large_ones_too() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(262_144)

    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        answer = await client.post(f"{url}/size", content=body())
        assert len(answer.content) == 64 * 262_144


@pytest.mark.parametrize("status", [400, 404, 422, 500, 502, 503])
async def test_the_applications_own_errors_stay_as_they_are(status: int) -> None:
    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        answer = await client.get(f"{url}/fail?status={status}")
        assert (answer.status_code, answer.json(), answer.headers["x-own"]) == (status, {"error": "mine"}, "yes")


async def test_a_place_at_the_sandbox_becomes_one_behind_the_proxy() -> None:
    async with behind_the_proxy() as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        answer = await client.get(f"{url}/away")
        assert (answer.status_code, answer.headers["location"]) == (307, "/there/echo?there=1")
        assert (await client.get(f"{url}/away", follow_redirects=True)).status_code == 201


@pytest.mark.parametrize("status", [404, 502, 503])
async def test_when_the_sandbox_died_whatever_stands_in_its_place_is_answered_502(status: int) -> None:
    async with behind_the_proxy() as (url, _, place, _), httpx.AsyncClient(headers=HEADERS) as client:
        place.check = lambda: None if place.looks == 0 else _raise(DEAD)
        answer = await client.get(f"{url}/fail?status={status}")
        facts = answer.json()
        assert (answer.status_code, facts["blame"], facts["retryable"]) == (502, "infrastructure", False)
        assert (facts["job"], facts["stage"]) == ("7", "ERROR")


async def test_an_answer_that_stops_in_the_middle_is_not_taken_for_a_whole_one() -> None:
    for read_s in (0.05, 1.0, 10.0):  # which is also how long its beginning may take
        async with behind_the_proxy(ProxyTimeouts(read_s=read_s)) as (url, _, _, _):
            async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
                try:
                    answer = await client.get(f"{url}/stream")
                except httpx.RemoteProtocolError:
                    return
        assert answer.status_code == 504
    raise AssertionError("it never began")


async def test_a_sandbox_that_does_not_answer_is_answered_504_in_time() -> None:
    taken: list[asyncio.StreamWriter] = []
    hanging = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    async with behind_the_proxy(ProxyTimeouts(read_s=0.05, connect_s=0.05)) as (url, _, place, _):
        place.url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
        async with httpx.AsyncClient(headers=HEADERS) as client:
            answer = await client.get(f"{url}/echo")
            assert (answer.status_code, answer.json()["blame"]) == (504, "infrastructure")
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        assert refusal.value.response.status_code == 504
    hanging.close()
    for writer in taken:
        writer.close()
        await writer.wait_closed()


async def test_one_that_refuses_connections_is_answered_502() -> None:
    async with behind_the_proxy() as (url, _, place, _), httpx.AsyncClient(headers=HEADERS) as client:
        place.url = "http://127.0.0.1:9"
        answer = await client.get(f"{url}/echo")
        assert (answer.status_code, answer.json()["blame"]) == (502, "infrastructure")
        assert answer.json()["retryable"] is True
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        assert refusal.value.response.status_code == 502


async def test_one_that_dies_without_a_word_while_an_answer_is_due_is_answered_502() -> None:
    taken: list[asyncio.StreamWriter] = []
    hanging = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    async with behind_the_proxy(ProxyTimeouts(ping_s=0.05)) as (url, _, place, _):
        place.url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
        place.check = lambda: None if place.looks < 2 else _raise(DEAD)
        async with httpx.AsyncClient(headers=HEADERS) as client:
            answer = await client.get(f"{url}/echo")
        assert (answer.status_code, answer.json()["stage"]) == (502, "ERROR")
    hanging.close()
    for writer in taken:
        writer.close()
        await writer.wait_closed()


async def test_one_that_is_not_there_yet_is_answered_503() -> None:
    async with behind_the_proxy() as (url, _, place, _), httpx.AsyncClient(headers=HEADERS) as client:
        place.end = NotReady("job 7 is SCHEDULING")
        answer = await client.get(f"{url}/echo")
        assert (answer.status_code, answer.json()["blame"]) == (503, "infrastructure")
        assert answer.headers["retry-after"] == "1"


async def test_messages_pass_both_ways_as_text_and_as_bytes() -> None:
    async with behind_the_proxy() as (url, _, _, _):
        async with connect(f"{websocket(url)}/ws", additional_headers=HEADERS) as there:
            for message in ("text", "", "ünïcode", b"bytes", b"", bytes(range(256))):
                await there.send(message)
                assert await there.recv() == message


async def test_large_messages_pass_both_ways_also_in_fragments() -> None:
    async with behind_the_proxy() as (url, _, _, _):
        async with connect(f"{websocket(url)}/ws", additional_headers=HEADERS, max_size=None) as there:
            large = b"0123456789abcdef" * 524_288
            await there.send(large)
            assert await there.recv() == large
            await there.send(["a" * 100_000] * 5)
            assert await there.recv() == "a" * 500_000


async def test_a_handshake_carries_subprotocol_and_headers() -> None:
    async with behind_the_proxy() as (url, _, place, _):
        offered = ["one", "two"]
        async with connect(f"{websocket(url)}/ws?x=1", subprotocols=offered, additional_headers=HEADERS) as there:
            assert there.subprotocol == "two"
            assert there.response is not None
            assert there.response.headers["x-own"] == "yes"
            await there.send("headers")
            seen = json.loads(await there.recv())
            assert (seen["authorization"], seen["x-openenv-key"]) == (place.headers["Authorization"], KEY)


@pytest.mark.parametrize("code", [1000, 1008, 1011, 4321])
async def test_a_close_code_passes_from_the_sandbox_to_the_client(code: int) -> None:
    async with behind_the_proxy() as (url, _, _, _):
        there = await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        await there.send(f"close {code}")
        with pytest.raises(ConnectionClosed):
            await there.recv()
        assert (there.close_code, there.close_reason) == (code, "as asked")


@pytest.mark.parametrize("code", [1000, 4321])
async def test_a_close_code_passes_from_the_client_to_the_sandbox(code: int) -> None:
    async with behind_the_proxy() as (url, upstream, _, _):
        there = await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        await there.close(code)
        assert await upstream.left.get() == code


async def test_a_client_that_is_lost_is_lost_to_the_sandbox_too() -> None:
    async with behind_the_proxy() as (url, upstream, _, _):
        there = await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        there.transport.abort()
        assert await upstream.left.get() in {1005, 1006}
        await there.wait_closed()


async def test_an_application_that_refuses_a_handshake_says_so_itself() -> None:
    async with behind_the_proxy() as (url, _, _, _):
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/refuse", additional_headers=HEADERS)
        assert refusal.value.response.status_code == 418
        assert json.loads(refusal.value.response.body or b"") == {"error": "mine"}


async def test_a_handshake_with_a_sandbox_that_died_is_answered_502() -> None:
    async with behind_the_proxy() as (url, _, place, _):
        place.end = DEAD
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        assert refusal.value.response.status_code == 502
        assert json.loads(refusal.value.response.body or b"")["blame"] == "infrastructure"


async def test_a_slow_reader_holds_the_sandbox_back() -> None:
    async with behind_the_proxy() as (url, upstream, _, _):
        there = await connect(f"{websocket(url)}/flood", additional_headers=HEADERS, max_size=None, max_queue=1)
        before = -1
        while upstream.sent != before or before < 2:  # until it cannot send any more
            before = upstream.sent
            await asyncio.sleep(0.2)
        assert upstream.sent < 100, "a sandbox may send without end to a client that does not read"
        there.transport.abort()
        await there.wait_closed()
        await upstream.left.get()


async def test_a_client_that_leaves_in_the_middle_ends_the_answer() -> None:
    async with behind_the_proxy() as (url, upstream, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        async with client.stream("GET", f"{url}/stream") as answer:
            await anext(answer.aiter_raw())
        await upstream.left.get()


async def test_closing_the_route_ends_all_that_is_open_and_the_proxy() -> None:
    async with behind_the_proxy() as (url, _, _, route), httpx.AsyncClient(headers=HEADERS) as client:
        there = await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        async with client.stream("GET", f"{url}/stream") as answer:
            parts = answer.aiter_raw()
            await anext(parts)
            await proxy_of_this_loop().remove(route)
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(parts)
        with pytest.raises(ConnectionClosed):
            await there.recv()
        assert there.close_code == 1001
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/echo")
        await proxy_of_this_loop().remove(route)


async def test_a_sandbox_behind_tls_is_reached_if_its_certificate_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path)
    async with behind_the_proxy(tls=tls) as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        answer = await client.get(f"{url}/echo")
        assert (answer.status_code, answer.json()["blame"]) == (502, "infrastructure")
        with pytest.raises(InvalidStatus) as refusal:
            await connect(f"{websocket(url)}/ws", additional_headers=HEADERS)
        assert refusal.value.response.status_code == 502
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.chain))
    async with behind_the_proxy(tls=tls) as (url, _, _, _), httpx.AsyncClient(headers=HEADERS) as client:
        assert (await client.get(f"{url}/echo")).status_code == 201
        async with connect(f"{websocket(url)}/ws", additional_headers=HEADERS) as there:
            await there.send("hello")
            assert await there.recv() == "hello"


async def test_a_client_that_leaves_during_the_handshake_leaves_nothing() -> None:
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # the request, and then the end
        writer.close()
        ended.set()

    asked = asyncio.Event()
    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with behind_the_proxy() as (url, _, place, _):
        place.url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
        connecting = asyncio.ensure_future(connect(f"{websocket(url)}/ws", additional_headers=HEADERS).__aenter__())
        await asked.wait()
        connecting.cancel()
        await asyncio.wait([connecting])
        async with asyncio.timeout(5):
            await ended.wait()
    hanging.close()


async def test_a_client_that_leaves_while_the_hub_is_asked_leaves_no_connection() -> None:
    looking, ended = asyncio.Event(), asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\n")
        await reader.read()
        ended.set()
        writer.close()

    async def verify() -> None:
        looking.set()
        await asyncio.Event().wait()

    refusing = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with behind_the_proxy() as (url, _, place, _), httpx.AsyncClient(headers=HEADERS) as client:
        place.url = f"http://127.0.0.1:{refusing.sockets[0].getsockname()[1]}"
        place.verify = verify
        asking = asyncio.ensure_future(client.get(f"{url}/echo"))
        await looking.wait()
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(5):
            await ended.wait()
    refusing.close()


def _raise(error: Exception) -> None:
    raise error
