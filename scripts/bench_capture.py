"""Measure the capture proxy: CPU, memory and time of a call, the delay of a stream's chunks, memory over many turns.

    python scripts/bench_capture.py --peer .venv-peer/bin/python   # the released proxy, on the same load
    python scripts/bench_capture.py --engine-s 0.5                 # with an engine that takes its time
    python scripts/bench_capture.py stream
    python scripts/bench_capture.py soak

Agents send growing conversations, to the engine alone and through the proxy; the difference of the times is what the
proxy adds. Engine, proxy and agents are processes of their own. Without `--engine-s`, agents call again at once and
the engine answers at once: with one call of each agent in the queue of the proxy at any time, that gives the most
calls a second, and the longest times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from openenv.llm.http import HttpAnswer  # noqa: E402
from openenv.llm.sender import HttpSender  # noqa: E402
from openenv.llm.vendors import openai_address  # noqa: E402
from tests.model_server import model_process  # noqa: E402
from tests.ports import held_port  # noqa: E402

_TICK = os.sysconf("SC_CLK_TCK")
_ADMIN = "an-admin-key"
# Agents, turns, tokens of an answer, rounds of new sessions.
_CASES = ((64, 10, 64, 4), (64, 40, 512, 1))
_CHUNKS = 50
_CHUNK_S = 0.02
_STREAMS = 8


@dataclass
class ProxyProcess:
    """A proxy that runs.

    Attributes:
        url: Its address.
        pid: Its process.
        folder: Where it records.
    """

    url: str
    pid: int
    folder: Path

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    @property
    def memory_kb(self) -> float:
        """Resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024

    @property
    def disk_kb(self) -> float:
        """Size of the records."""
        return sum(path.stat().st_size for path in self.folder.iterdir()) / 1024

    def open_sessions(self, name: str, count: int) -> list[str]:
        """Opens sessions; their keys."""
        keys = []
        headers = {"authorization": f"Bearer {_ADMIN}", "content-type": "application/json"}
        for number in range(count):
            body = json.dumps({"session_id": f"{name}-{number}"}).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{self.url}/sessions", body, headers)) as reply:  # noqa: S310
                keys.append(str(json.load(reply)["session_id"]))
        return keys


@contextmanager
def proxy_process(engine: str, model: str, peer: str | None = None, *options: str) -> Iterator[ProxyProcess]:
    """Runs a proxy in front of an engine: ours, or the released one of the Python `peer`."""
    with TemporaryDirectory() as folder, held_port() as port:
        command = [sys.executable, "-m", "openenv", "capture", "serve", f"{engine}/v1", "--port", str(port)]
        command += ["--folder", folder, *options]
        if peer:
            command = [peer, "-m", "openenv.core.harness.capture.server", "--llm-url", f"{engine}/v1"]
            command += ["--port", str(port), "--capture-level", "tokens", "--model", model]
        environment, quiet = {**os.environ, "OPENENV_CAPTURE_ADMIN_KEY": _ADMIN}, subprocess.DEVNULL
        with subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet) as process:  # noqa: S603
            try:
                proxy = ProxyProcess(f"http://127.0.0.1:{port}", process.pid, Path(folder))
                wait_for(proxy.url)
                yield proxy
            finally:
                process.send_signal(signal.SIGTERM)


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health"):  # noqa: S310
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the proxy does not answer")


async def agent(sender: HttpSender, key: str, model: str, turns: int, start_s: float, times: list[float]) -> None:
    headers = {"authorization": f"Bearer {key}"}
    said = "cd" * 63  # 64 tokens
    messages: list[Any] = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": said}]
    await asyncio.sleep(start_s)
    for _ in range(turns):
        body = msgspec.json.encode({"model": model, "messages": messages})
        began = time.perf_counter()
        reply = await sender.post("/chat/completions", body, headers=headers)
        times.append(time.perf_counter() - began)
        assert reply.status == 200, reply.content[:500]
        message = msgspec.json.decode(reply.content)["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
        messages.append({"role": "user", "content": said})


async def load(url: str, keys: Sequence[str], model: str, turns: int, spread_s: float = 0.0) -> list[float]:
    """Plays all agents at once; the seconds of each call.

    Args:
        spread_s: Seconds within which the agents begin.
    """
    sender = HttpSender(openai_address(f"{url}/v1", ""), connections=0)
    times: list[float] = []
    starts = [spread_s * number / len(keys) for number in range(len(keys))]
    work = (agent(sender, key, model, turns, start, times) for key, start in zip(keys, starts, strict=True))
    await asyncio.gather(*work)
    await sender.close()
    return times


def quantiles_ms(times: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def bench_calls(arguments: argparse.Namespace) -> None:
    """Prints a line for each proxy and case."""
    cases = _CASES
    if arguments.tokens:
        cases = ((arguments.agents, arguments.turns, arguments.tokens, arguments.rounds),)
    for agents, turns, tokens, rounds in cases:
        model = f"tokens:{tokens}"
        print(
            f"{agents} agents, {turns} turns, {tokens} tokens; the engine takes {arguments.engine_s:g} s", flush=True
        )
        with model_process("--workers", "1", "--latency-s", str(arguments.engine_s)) as engine:
            direct = uvloop.run(load(engine, ["none"] * agents, model, turns, arguments.engine_s))
            print(f"  engine alone: P50 {quantiles_ms(direct)[0]:.1f} ms, P99 {quantiles_ms(direct)[1]:.1f} ms")
            for peer in (None, arguments.peer) if arguments.peer else (None,):
                with proxy_process(engine, model, peer) as proxy:
                    warm = proxy.open_sessions("warm", 4)
                    uvloop.run(load(proxy.url, warm, model, min(turns, 10)))
                    measure(proxy, "released" if peer else "ours", (agents, turns, rounds), model, direct, arguments)


def measure(
    proxy: ProxyProcess,
    name: str,
    case: tuple[int, int, int],
    model: str,
    direct: Sequence[float],
    arguments: argparse.Namespace,
) -> None:
    agents, turns, rounds = case
    calls = agents * turns * rounds
    keys = [proxy.open_sessions(f"agent-{number}", agents) for number in range(rounds)]
    cpu_s, memory_kb, disk_kb, began = proxy.cpu_s, proxy.memory_kb, proxy.disk_kb, time.perf_counter()
    times: list[float] = []
    for number in range(rounds):
        times += uvloop.run(load(proxy.url, keys[number], model, turns, arguments.engine_s))
    seconds, cpu_ms = time.perf_counter() - began, (proxy.cpu_s - cpu_s) / calls * 1000
    added = [through - alone for through, alone in zip(quantiles_ms(times), quantiles_ms(direct), strict=True)]
    print(
        f"  {name}: {calls / seconds:.0f} calls/s; a call: CPU {cpu_ms:.3f} ms, "
        f"memory {(proxy.memory_kb - memory_kb) / calls:.1f} KB, disk {(proxy.disk_kb - disk_kb) / calls:.1f} KB; "
        f"added P50 {added[0]:.1f} ms, P99 {added[1]:.1f} ms",
        flush=True,
    )


async def stream_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine whose chunks are the time at which it writes them."""
    while (await reader.readline()).startswith(b"POST"):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(_CHUNKS):
            await asyncio.sleep(_CHUNK_S)
            choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant"}, "token_ids": [7]}
            choice["logprobs"] = {"content": [{"token": "t", "logprob": -0.5}]}
            choice["finish_reason"] = "stop" if number == _CHUNKS - 1 else None
            chunk: dict[str, Any] = {"id": "c", "model": "m", "created": 0, "object": "chat.completion.chunk"}
            chunk |= {"choices": [choice], **({} if number else {"prompt_token_ids": [1, 2, 3]})}
            choice["delta"]["content"] = f"{time.perf_counter()} "
            data = b"data: " + msgspec.json.encode(chunk) + b"\n\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        data = b"data: [DONE]\n\n"
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))


async def read_streams(url: str, keys: Sequence[str]) -> list[float]:
    """Seconds from the engine's write to the client's read of each chunk but the last, which is recorded first."""
    delays: list[float] = []

    async def ask(key: str, start_s: float) -> None:
        rest = b""

        def read(answer: HttpAnswer, data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            now = time.perf_counter()
            chunks = [msgspec.json.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
            choices = [choice for chunk in chunks for choice in chunk["choices"] if not choice["finish_reason"]]
            delays.extend(now - float(choice["delta"]["content"]) for choice in choices)

        await asyncio.sleep(start_s)
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
        reply = await sender.post("/chat/completions", body, headers={"authorization": f"Bearer {key}"}, on_part=read)
        assert reply.status == 200, reply.content

    sender = HttpSender(openai_address(f"{url}/v1", ""), connections=0)
    await asyncio.gather(*(ask(key, number * _CHUNK_S / len(keys)) for number, key in enumerate(keys)))
    await sender.close()
    return delays


async def measure_streams() -> None:
    server = await asyncio.start_server(stream_chunks, "127.0.0.1", 0)
    engine = "http://{}:{}".format(*server.sockets[0].getsockname())
    alone = quantiles_ms(await read_streams(engine, ["none"] * _STREAMS))
    print(f"{_STREAMS} streams, a chunk each {_CHUNK_S * 1000:g} ms; from the engine's write to the client's read")
    print(f"  engine alone: P50 {alone[0]:.2f} ms, P99 {alone[1]:.2f} ms")
    with proxy_process(engine, "m") as proxy:
        keys = await asyncio.to_thread(proxy.open_sessions, "stream", _STREAMS + 1)
        await read_streams(proxy.url, keys[_STREAMS:])
        through = quantiles_ms(await read_streams(proxy.url, keys[:_STREAMS]))
    print(f"  through the proxy: P50 {through[0]:.2f} ms, P99 {through[1]:.2f} ms; ", end="")
    print(f"added P50 {through[0] - alone[0]:.2f} ms, P99 {through[1] - alone[1]:.2f} ms")


def bench_stream(arguments: argparse.Namespace) -> None:
    uvloop.run(measure_streams())


def bench_soak(arguments: argparse.Namespace) -> None:
    """Plays a thousand sessions of ten turns at a time, and prints the memory after each tenth of all turns."""
    sessions, turns, model = 1000, 10, "tokens:64"
    options = ("--memory-mb", str(arguments.memory_mb))
    with model_process("--workers", "1") as engine, proxy_process(engine, model, arguments.peer, *options) as proxy:
        print(f"{sessions} sessions of {turns} turns at a time; {proxy.memory_kb / 1024:.0f} MB before", flush=True)
        for number in range(10):
            began = time.perf_counter()
            keys = proxy.open_sessions(f"soak-{number}", sessions)
            uvloop.run(load(proxy.url, keys, model, turns))
            calls = sessions * turns
            rate = calls / (time.perf_counter() - began)
            print(
                f"  {(number + 1) * calls:7,} turns: {proxy.memory_kb / 1024:.0f} MB; {rate:.0f} calls/s", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    benches = {"calls": bench_calls, "stream": bench_stream, "soak": bench_soak}
    parser.add_argument("bench", nargs="?", default="calls", choices=benches)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, help="of each answer; by default two cases are measured")
    parser.add_argument("--rounds", type=int, default=1, help="new sessions that follow each other")
    parser.add_argument("--engine-s", type=float, default=0.0, help="seconds that the engine takes for an answer")
    parser.add_argument("--memory-mb", type=float, default=64.0, help="of the proxy, in the soak")
    parser.add_argument("--peer", help="Python of a venv with the released package, whose proxy is measured too")
    arguments = parser.parse_args()
    benches[arguments.bench](arguments)


if __name__ == "__main__":
    main()
