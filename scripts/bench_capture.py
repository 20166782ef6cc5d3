"""Measure the capture proxy: CPU and memory of a call, calls a second, and the time that it adds.

    python scripts/bench_capture.py --agents 64 --turns 40 --tokens 512
    python scripts/bench_capture.py --peer .venv-peer/bin/python   # the released proxy, on the same load

An ideal engine (`tests/model_server`) answers at once, in processes of its own. Agents send growing conversations,
first to the engine alone and then through the proxy; the difference of the times is what the proxy adds.
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvloop

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from openenv.llm.sender import HttpSender  # noqa: E402
from openenv.llm.vendors import openai_address  # noqa: E402
from tests.model_server import model_process  # noqa: E402

_TICK = os.sysconf("SC_CLK_TCK")
_ADMIN = "an-admin-key"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory_kb(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def agent(sender: HttpSender, key: str, model: str, said: str, turns: int, times: list[float]) -> None:
    headers = {"authorization": f"Bearer {key}"}
    messages: list[Any] = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": said}]
    for _ in range(turns):
        body = msgspec.json.encode({"model": model, "messages": messages})
        began = time.perf_counter()
        reply = await sender.post("/chat/completions", body, headers=headers)
        times.append(time.perf_counter() - began)
        assert reply.status == 200, reply.content[:500]
        message = msgspec.json.decode(reply.content)["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
        messages.append({"role": "user", "content": said})


async def load(url: str, keys: list[str], model: str, said: str, turns: int) -> list[float]:
    """Plays all agents at once; the seconds of each call."""
    sender = HttpSender(openai_address(f"{url}/v1", ""), connections=0)
    times: list[float] = []
    await asyncio.gather(*(agent(sender, key, model, said, turns, times) for key in keys))
    await sender.close()
    return sorted(times)


def open_session(url: str, name: str) -> str:
    request = urllib.request.Request(  # noqa: S310
        f"{url}/sessions",
        json.dumps({"session_id": name}).encode(),
        {"authorization": f"Bearer {_ADMIN}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:  # noqa: S310
        return str(json.load(reply)["session_id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=512, help="of each answer; the agent's messages have 64")
    parser.add_argument("--rounds", type=int, default=1, help="new sessions that follow each other")
    parser.add_argument("--memory-mb", type=float, default=512.0)
    parser.add_argument("--peer", help="Python of a venv with the released package, whose proxy is measured instead")
    arguments = parser.parse_args()
    model, said = "say:" + "ab" * (arguments.tokens - 1), "cd" * 63
    with TemporaryDirectory() as folder, model_process("--workers", "1") as engine:
        port = "8147"
        command = [sys.executable, "-m", "openenv", "capture", "serve", f"{engine}/v1", "--port", port]
        command += ["--folder", folder, "--memory-mb", str(arguments.memory_mb)]
        if arguments.peer:
            command = [arguments.peer, "-m", "openenv.core.harness.capture.server", "--llm-url", f"{engine}/v1"]
            command += ["--port", port, "--capture-level", "tokens", "--model", model]
        environment = {**os.environ, "OPENENV_CAPTURE_ADMIN_KEY": _ADMIN}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as proxy:  # noqa: S603
            url = f"http://127.0.0.1:{port}"
            try:
                wait_for(url)
                report(arguments, engine, url, proxy.pid, model, said)
            finally:
                proxy.send_signal(signal.SIGTERM)


def report(arguments: argparse.Namespace, engine: str, url: str, pid: int, model: str, said: str) -> None:
    turns = arguments.turns
    warm = [open_session(url, f"warm-{number}") for number in range(4)]
    uvloop.run(load(url, warm, model, said, min(turns, 10)))
    direct = uvloop.run(load(engine, ["none"] * arguments.agents, model, said, turns))
    began, memory = cpu_s(pid), memory_kb(pid)
    calls = arguments.agents * turns
    for number in range(arguments.rounds):
        keys = [open_session(url, f"agent-{number}-{each}") for each in range(arguments.agents)]
        before, started = cpu_s(pid), time.perf_counter()
        times = uvloop.run(load(url, keys, model, said, turns))
        seconds, spent = time.perf_counter() - started, cpu_s(pid) - before
        added = [times[int(len(times) * share)] - direct[int(len(direct) * share)] for share in (0.5, 0.99)]
        print(
            f"{calls} calls: {calls / seconds:.0f}/s, CPU {spent / calls * 1000:.3f} ms a call, "
            f"{memory_kb(pid) / 1024:.0f} MB, added P50 {added[0] * 1000:.1f} ms, P99 {added[1] * 1000:.1f} ms",
            flush=True,
        )
    grown = (memory_kb(pid) - memory) / (calls * arguments.rounds)
    print(f"memory {grown:.1f} KB a call; CPU {(cpu_s(pid) - began) / calls / arguments.rounds * 1000:.3f} ms a call")


def wait_for(url: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{url}/health"):  # noqa: S310
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the proxy does not answer")


if __name__ == "__main__":
    main()
