"""Measure the cost of recording, and the loss of records when a server is killed.

.venv/bin/python scripts/bench_recording.py load [--rate 10000] [--sessions 256] [--seconds 10] [--rounds 5]
    Steps at a fixed rate against one worker, recorded and not recorded in turns: latencies, CPU of the worker. It
    prints the medians of the percentiles of every half second. Other work of the machine disturbs only a few of
    these, but recording affects all.
.venv/bin/python scripts/bench_recording.py kill [--times 20]
    Kills a recording server at a random moment, repeatedly, and compares the answers that clients received with the
    records on disk, before and after a restart.
.venv/bin/python scripts/bench_recording.py tap
    CPU of the event loop for the record of one step, by size of the record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from openenv.environment import Environment
from openenv.recording import Subject, Tap, TapFactory
from openenv.recording.storage import Blob
from openenv.runtime.admission import Limits
from openenv.runtime.manager import SessionManager
from openenv.runtime.session import Session
from openenv.types import Action, Observation, State

LOST_S = 1.0
WINDOW_S = 0.5
STEP = b'{"type":"step","data":{"message":"what an agent says in one step of its episode"}}'
# Cores of server and load, on machines with at least two.
CORES = sorted(os.sched_getaffinity(0))[:2]


class Player(WSListener):
    """One session: resets, then steps on request. It skips a step while the last one is not answered."""

    latencies: ClassVar[list[float]] = []
    missed = 0

    def __init__(self, number: int) -> None:
        self.number = number
        self.busy = True
        self.sent = 0.0
        # Time of the answer to each call; the first one is the reset.
        self.answers: list[float] = []

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.transport = transport
        reset = {"type": "reset", "data": {"episode_id": f"player-{self.number}"}}
        transport.send(WSMsgType.TEXT, json.dumps(reset).encode())

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        now = time.monotonic()
        self.busy = False
        self.answers.append(now)
        if self.sent:
            Player.latencies.append(now - self.sent)

    def step(self) -> None:
        if self.busy:
            Player.missed += 1
            return
        self.busy, self.sent = True, time.monotonic()
        self.transport.send(WSMsgType.TEXT, STEP)


@contextmanager
def serving(record: Path | None, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server of one worker on its own core: its process and the address of its WebSocket."""
    command = [sys.executable, "-m", "openenv", "serve", "echo", "--port", "0", "--max-sessions", "2000"]
    command += ["--api-key", "none", *options, *(() if record is None else ("--record", str(record)))]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)  # noqa: S603 - our own
    try:
        os.sched_setaffinity(process.pid, CORES[:1])
        while not (found := re.search(rb"http://(127\.0\.0\.1:\d+)", log.read_bytes())):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        yield process, f"ws://{found[1].decode()}/ws"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


async def connect(url: str, sessions: int) -> list[Player]:
    players = []
    for number in range(sessions):
        _, player = await ws_connect(lambda number=number: Player(number), url)
        players.append(player)
    while any(player.busy for player in players):  # noqa: ASYNC110 - the transport receives the answers
        await asyncio.sleep(0.01)
    return players


async def pace(players: list[Player], rate: float, until: float) -> None:
    """Steps at a rate, at independent random times, one session after the other."""
    due = time.monotonic()
    turn = 0
    while (now := time.monotonic()) < until:
        while due <= now:
            players[turn % len(players)].step()
            turn += 1
            due += random.expovariate(rate)
        await asyncio.sleep(0)  # busy wait on its own core, which is more exact than a timer


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loop_s(pid: int) -> float:
    """CPU seconds of the main thread, which runs the event loop."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(url: str, pid: int, options: argparse.Namespace) -> dict[str, float]:
    players = await connect(url, options.sessions)
    await pace(players, options.rate, time.monotonic() + 1.0)
    Player.latencies, Player.missed = [], 0
    cpu, loop, began = cpu_s(pid), loop_s(pid), time.monotonic()
    windows = []
    for number in range(1, int(options.seconds / WINDOW_S) + 1):
        first = len(Player.latencies)
        await pace(players, options.rate, began + number * WINDOW_S)
        windows.append(sorted(Player.latencies[first:]))
    seconds = time.monotonic() - began
    await asyncio.sleep(0.2)
    steps = len(Player.latencies)
    for player in players:
        player.transport.disconnect()
    return {
        "steps_per_s": steps / seconds,
        "missed": Player.missed,
        "p50_us": 1e6 * statistics.median(window[len(window) // 2] for window in windows),
        "p99_us": 1e6 * statistics.median(window[len(window) * 99 // 100] for window in windows),
        "all_p99_us": 1e6 * sorted(Player.latencies)[steps * 99 // 100],
        "cpu_us": 1e6 * (cpu_s(pid) - cpu) / steps,
        "loop_us": 1e6 * (loop_s(pid) - loop) / steps,
    }


def load(options: argparse.Namespace, scratch: Path) -> None:
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES[1:])
    names = ("steps_per_s", "p50_us", "p99_us", "all_p99_us", "cpu_us", "loop_us", "missed")
    print("                ", *(f"{name:>12}" for name in names), "   recorded")
    results: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(options.rounds * 2):
        recorded = turn % 4 in {1, 2}  # off on on off: neither is always the first
        folder = scratch / f"records-{turn}"
        with serving(folder if recorded else None, scratch / "log") as (process, url):
            found = uvloop.run(measure(url, process.pid, options))
        results[recorded].append(found)
        lines = sum(count_lines(folder)) if recorded else 0
        shown = " ".join(f"{found[name]:12.1f}" for name in names)
        print(f"{'recorded' if recorded else 'not recorded':16} {shown}    {lines}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    for recorded, found in results.items():
        shown = " ".join(f"{statistics.median(each[name] for each in found):12.1f}" for name in names)
        print(f"{'median, recorded' if recorded else 'median, not':16} {shown}")
    p99 = [statistics.median(each["p99_us"] for each in results[recorded]) for recorded in (False, True)]
    print(f"P99 with recording: {100 * (p99[1] / p99[0] - 1):+.1f} %")


def count_lines(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if path.suffix == ".jsonl":
            yield path.read_bytes().count(b"\n")
        elif path.suffix == ".parquet":
            import pyarrow.parquet as pq

            yield pq.read_metadata(path).num_rows


def found_in(folder: Path) -> tuple[set[tuple[str, int]], int]:
    """Episode and step of each complete line, and the number of files with a torn last line. Raises for others."""
    while True:
        try:
            return _found_at_once(folder)
        except FileNotFoundError:  # rotation replaced a file by Parquet; it continues after the server was killed
            continue


def _found_at_once(folder: Path) -> tuple[set[tuple[str, int]], int]:
    found: set[tuple[str, int]] = set()
    torn = 0
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(path, columns=["episode_id", "step"]).to_pydict()
            found.update(zip(table["episode_id"], table["step"], strict=True))
        elif path.suffix == ".jsonl":
            *lines, rest = path.read_bytes().split(b"\n")
            torn += bool(rest)
            found.update((line["episode_id"], line["step"]) for line in map(json.loads, lines))
    return found, torn


def kill(options: argparse.Namespace, scratch: Path) -> None:
    random.seed(options.seed)
    print("   after    answered     on disk   not on disk: all   older than 1 s   oldest    torn: killed   restarted")
    worst = 0.0
    for turn in range(options.times):
        folder, moment = scratch / f"records-{turn}", random.uniform(0.2, 3.0)  # noqa: S311 - no secret
        small = {"OPENENV_RECORD_FILE_MB": "1.1"}  # so that some servers die during a rotation
        os.environ.update(small)
        with serving(folder, scratch / "log") as (process, url):
            players, killed = uvloop.run(play_until_killed(url, process.pid, moment, options.rate))
        answers = {
            (f"player-{player.number}", step): at
            for player in players
            for step, at in enumerate(player.answers)
            if at <= killed
        }
        found, torn = found_in(folder)
        missing = [killed - at for name, at in answers.items() if name not in found]
        with serving(folder, scratch / "log"):
            time.sleep(1.0)
        again, torn_again = found_in(folder)
        late = sum(age > LOST_S for age in missing)
        worst = max([worst, *missing])
        print(
            f"{moment:6.2f} s {len(answers):11} {len(found):11} {len(missing):18} {late:16} "
            f"{max(missing, default=0.0):6.3f} s {torn:15} {torn_again:11}",
            flush=True,
        )
        if late or torn_again or not again >= found:
            kept = Path(tempfile.mkdtemp()) / "records"
            shutil.copytree(folder, kept)
            gone, new = len(found - again), len(again - found)
            raise SystemExit(f"records were lost or torn (after the restart: {gone} fewer, {new} more); see {kept}")
        shutil.rmtree(folder)
    print(
        f"{options.times} kills: no record older than {LOST_S:g} s is lost (oldest: {worst:.3f} s), no line is torn"
    )


async def play_until_killed(url: str, pid: int, moment: float, rate: float) -> tuple[list[Player], float]:
    players = await connect(url, 64)
    until = time.monotonic() + moment
    await pace(players, rate, until)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    await asyncio.sleep(0.1)
    return players, killed


class LastLineRecorder:
    """A recorder that only keeps the last line."""

    epoch = 0.0
    line = b""

    def append(self, line: bytes, blobs: list[Blob] | None = None) -> None:
        self.line = line


class Talk(Action):
    message: str = "what an agent says in a step"


class Heard(Observation):
    text: str = "what an environment says in one step of an episode"
    numbers: list[float] = []  # noqa: RUF012 - pydantic copies it


class Idle(Environment[Talk, Heard, State]):
    """Does nothing, on the event loop."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    execution = "inline"
    said = Heard(reward=1.0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Heard:
        return Heard()

    def step(self, action: Talk, timeout_s: float | None = None, **kwargs: Any) -> Heard:
        return self.said

    @property
    def state(self) -> State:
        return State()


async def live(tapping: TapFactory | None) -> Session:
    manager = SessionManager(Idle, Limits(max_sessions=2))
    manager.tapping = tapping
    session = manager.create(lambda error: None)
    manager.open(session)
    session.reset({}, lambda result, error: None)
    return session


async def tap_cost() -> None:
    track, action = LastLineRecorder(), Talk()
    tail = Subject("idle", "1.0.0", "0123456789abcdef").tail
    sessions = [await live(None), await live(lambda name: Tap(track, tail, name))]

    def done(result: Any, error: BaseException | None) -> None:
        pass

    for numbers in (0, 4, 64, 512):
        Idle.said = Heard(reward=1.0, numbers=[0.1234567] * numbers)
        costs: list[list[float]] = [[], []]
        for _ in range(300):  # in turns, so that other work of the machine disturbs both
            for session, found in zip(sessions, costs, strict=True):
                began = time.process_time()
                for _ in range(300):
                    session.step(action, done)
                found.append((time.process_time() - began) / 300 * 1e6)
        best = min(costs[1]) - min(costs[0])
        median = statistics.median(costs[1]) - statistics.median(costs[0])
        print(
            f"{numbers:4} numbers, a line of {len(track.line):5} bytes: {best:5.2f} us minimum, {median:5.2f} median"
        )


def tap(options: argparse.Namespace, scratch: Path) -> None:
    asyncio.run(tap_cost())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "kill", "tap"))
    parser.add_argument("--rate", type=float, default=10_000)
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        {"load": load, "kill": kill, "tap": tap}[options.what](options, Path(scratch))


if __name__ == "__main__":
    main()
