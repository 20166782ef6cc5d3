"""The HTTP client of models, against servers that send what the test says, byte by byte."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from openenv.errors import InvalidArgument, ModelFailed, ModelTimeout, ModelUnavailable
from openenv.llm.sender import Address, HttpSender, ModelReply

from ..asynchronous import PATIENCE_S
from ..cli.certificates import certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server."""

    handlers: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers[asyncio.current_task()] = writer
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client has left
        finally:
            writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
    for writer in handlers.values():
        writer.transport.abort()
    await asyncio.gather(*filter(None, handlers))


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


def answering(*answers: bytes, close: bool = False) -> Serve:
    """Answers the requests of each connection in order, then waits for its end, or closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
        if not close:
            await reader.read()

    return serve


def sender_of(root: str, connections: int = 0, **headers: str) -> HttpSender:
    return HttpSender(Address(root, "openai", "", {}, headers), connections)


async def post(sender: HttpSender, stall_s: float | None = None) -> ModelReply:
    async with asyncio.timeout(PATIENCE_S):
        return await sender.post("/chat", {"a": 1}, stall_s=stall_s)


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (OK, b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n1\r\n]\r\n0\r\n\r\n", b"[]"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
    ],
    ids=["length", "continue", "chunks", "empty"],
)
async def test_an_answer_of_any_form_is_whole_and_the_connection_is_kept(answer, content):
    async with serving(answering(answer, answer)) as port:
        sender = sender_of(f"http://127.0.0.1:{port}")
        assert [(await post(sender)).content for _ in range(2)] == [content] * 2
        await sender.close()


async def test_an_answer_without_a_length_ends_with_the_connection():
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\n[1]", close=True)) as port:
        sender = sender_of(f"http://127.0.0.1:{port}")
        assert [(await post(sender)).content for _ in range(2)] == [b"[1]"] * 2
        await sender.close()


async def test_a_server_that_closes_after_an_answer_gets_a_new_connection():
    async with serving(answering(OK.replace(b"content", b"connection: close\r\ncontent"))) as port:
        sender = sender_of(f"http://127.0.0.1:{port}")
        assert [(await post(sender)).content for _ in range(2)] == [b"{}"] * 2
        await sender.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n", "closed the connection"),
        (b"<html>\r\n\r\n", "no HTTP"),
        (OK + OK, "no HTTP"),
    ],
    ids=["nothing", "short", "chunks", "html", "two"],
)
async def test_an_answer_that_is_broken_is_an_error(answer, said):
    async with serving(answering(answer, close=True)) as port:
        with pytest.raises(ModelUnavailable, match=said):
            await post(sender_of(f"http://127.0.0.1:{port}"))


async def test_bytes_that_nobody_asked_for_close_the_connection():
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(OK)
        await asked.wait()
        writer.write(OK)
        await reader.read()
        closed.set()

    asked = asyncio.Event()
    async with serving(serve) as port:
        sender = sender_of(f"http://127.0.0.1:{port}")
        await post(sender)
        asked.set()
        async with asyncio.timeout(PATIENCE_S):
            await closed.wait()


async def test_silence_within_an_answer_is_an_error():
    async with serving(answering(b"HTTP/1.1 200 OK\r\n")) as port:
        with pytest.raises(ModelTimeout, match="sent no byte for 0.05 s"):
            await post(sender_of(f"http://127.0.0.1:{port}"), stall_s=0.05)


async def test_a_slow_answer_is_no_silence():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        loop = asyncio.get_running_loop()
        for number in range(30):
            loop.call_later(0.02 * number, writer.write, b"x")
        await reader.read()

    async with serving(serve) as port:
        sender = sender_of(f"http://127.0.0.1:{port}")
        assert (await post(sender, stall_s=0.5)).content == b"x" * 30
        await sender.close()


async def test_a_cancelled_call_closes_its_connection():
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await reader.read()
        closed.set()

    async with serving(serve) as port:
        call = asyncio.ensure_future(post(sender_of(f"http://127.0.0.1:{port}")))
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
            call.cancel()
            await closed.wait()
            with pytest.raises(asyncio.CancelledError):
                await call


async def test_calls_beyond_the_limit_wait_for_a_connection():
    async with serving(answering(OK, OK, OK)) as port:
        sender = sender_of(f"http://127.0.0.1:{port}", connections=1)
        replies = await asyncio.gather(*(post(sender) for _ in range(3)))
        assert [reply.content for reply in replies] == [b"{}"] * 3
        await sender.close()


async def test_a_server_behind_tls_must_have_a_known_certificate(tmp_path, monkeypatch):
    paths = certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(paths.chain, paths.key)
    async with serving(answering(OK), tls) as port:
        with pytest.raises(ModelUnavailable, match="certificate"):
            await post(sender_of(f"https://127.0.0.1:{port}"))
        monkeypatch.setenv("SSL_CERT_FILE", str(paths.chain))
        sender = sender_of(f"https://127.0.0.1:{port}")
        assert (await post(sender)).content == b"{}"
        await sender.close()


def through_proxy(monkeypatch: pytest.MonkeyPatch, port: int) -> HttpSender:
    """A sender to a host behind a proxy."""
    monkeypatch.setenv("HTTPS_PROXY", f"me:secret@127.0.0.1:{port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    return sender_of("https://models.example/v1")


async def test_tls_goes_through_a_proxy_to_the_server_itself(tmp_path, monkeypatch):
    paths = certificate(tmp_path, host="models.example")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(paths.chain, paths.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(paths.chain))
    heads = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await writer.start_tls(tls)
        await answering(OK, OK)(reader, writer)

    async with serving(proxy) as port:
        sender = through_proxy(monkeypatch, port)
        assert [(await post(sender)).content for _ in range(2)] == [b"{}"] * 2
        await sender.close()
    assert len(heads) == 1
    assert heads[0].startswith(b"CONNECT models.example:443 HTTP/1.1\r\n")
    assert b"proxy-authorization: Basic bWU6c2VjcmV0\r\n" in heads[0]


async def test_a_proxy_that_refuses_is_an_error(monkeypatch):
    async with serving(answering(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n")) as port:
        with pytest.raises(ModelUnavailable, match=r"the proxy 127\.0\.0\.1 answered 407"):
            await post(through_proxy(monkeypatch, port))


def test_a_proxy_of_another_kind_is_refused(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(InvalidArgument, match="'socks5'.*http one"):
        sender_of("https://models.example/v1")


async def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(InvalidArgument, match="authorization has a line break.*API key"):
        sender_of("http://127.0.0.1:9", authorization="Bearer key\n")


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_host_that_is_no_name_is_an_error(host):
    with pytest.raises(ModelFailed, match="no answer from"):
        await post(sender_of(f"http://{host}"))
