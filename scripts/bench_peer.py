"""Compare this package with the released one: the same environment and load, in alternation.

    python scripts/bench_peer.py [--peer-python .venv-peer/bin/python] [--rounds 2] [--scale-grid 512,2048]

The released package is installed in its own virtual environment and never imported here. It is served as its
default install does (`peer`: asyncio and h11) and with uvloop and httptools (`tuned`). Where there are two cores,
server and load each get one for the cost of a step; for the storms both use all of them. All servers
get the same load, except for `both sides`: there each package drives its server with its own client, this one with
its vector client.
CPU time and memory are read from the operating system. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from openenv import GenericEnvClient
from openenv.bench.batch import Mode, RequestBatch, run_batch, summarize
from openenv.bench.machine import machine
from openenv.bench.served import ServedProcess, ServedTarget
from openenv.bench.steps import ClosedLoop, measure_steps

SCRIPTS = Path(__file__).resolve().parent
FORMS = ("sync", "async", "inline")
MAX_SESSIONS = 20_000
WAIT_S = 1.0
TIMEOUT_S = 120.0

Start = Callable[..., ServedProcess]
# Values by name of the system, and the ratios of ours to the others.
Medians = dict[str, float]


def main() -> None:
    """Measures, and prints two tables and a line of JSON."""
    options = _options()
    console = Console(highlight=False)
    log = Console(stderr=True, highlight=False)
    systems: dict[str, Start] = {
        "peer": _peer(options.peer_python, "asyncio", "h11"),
        "tuned": _peer(options.peer_python, "uvloop", "httptools"),
        "ours": _ours,
    }
    costs, both, memory = _costs(systems, options, log)
    storms = {
        sessions: {
            name: _storm(start("sync", workers=options.workers), sessions, options, f"{name}, {sessions}", log)
            for name, start in systems.items()
        }
        for sessions in options.scale_grid
    }
    console.print(_cost_table(costs, both, memory))
    console.print(_storm_table(storms))
    document = {
        "command": " ".join(sys.argv),
        "machine": machine(),
        "us_per_step": costs,
        "us_per_step_both_sides": both,
        "kb_per_idle_session": memory,
        "scale": storms,
    }
    sys.stdout.write(json.dumps(document) + "\n")


def _costs(
    systems: dict[str, Start], options: argparse.Namespace, log: Console
) -> tuple[dict[str, Medians], Medians, Medians]:
    """The cost of a step for the server by form, and for both sides, and the memory of a session."""
    cores = sorted(os.sched_getaffinity(0))
    # The two sides of a step run in turns: with one core each, they do not disturb each other.
    server_core, load_core = ({cores[0]}, {cores[1]}) if len(cores) > 1 else (set(cores), set(cores))
    os.sched_setaffinity(0, load_core)
    costs = {}
    for form in options.forms:
        costs[form] = _alternate(
            systems,
            options.rounds,
            lambda start: _step_cost(start(form, cpus=server_core), options),  # noqa: B023  called at once
            lambda name, value: log.print(f"{form}, {name}: {value:.1f} us of CPU a step"),  # noqa: B023
        )
    both = _alternate(
        systems,
        options.rounds,
        lambda start: _both_sides(start("inline", cpus=server_core), start is _ours, options),
        lambda name, value: log.print(f"both sides, {name}: {value:.1f} us of CPU a step"),
    )
    memory = _alternate(
        systems,
        1,
        lambda start: _idle_memory(start("async", cpus=server_core), options.idle_sessions),
        lambda name, value: log.print(f"async, {name}: {value:.1f} KB an idle session"),
    )
    os.sched_setaffinity(0, set(cores))
    return costs, both, memory


def _ours(form: str, workers: int = 1, cpus: set[int] | None = None) -> ServedProcess:
    return ServedTarget(f"peer_env:app_{form}", workers, MAX_SESSIONS, cpus=cpus, cwd=SCRIPTS)


def _peer(python: Path, loop: str, http: str) -> Start:
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run `make bench-peer`, or give --peer-python")

    def start(form: str, workers: int = 1, cpus: set[int] | None = None) -> ServedProcess:
        port = _free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--workers", str(workers), "--log-level", "error"]
        options += ["--loop", loop, "--http", http]
        # Not resolved: the location of the link determines the virtual environment of a Python.
        command = [str(python.absolute()), "-m", "uvicorn", f"peer_env:app_{form}", *options]
        return ServedProcess(command, f"http://127.0.0.1:{port}", workers, cwd=SCRIPTS, cpus=cpus)

    return start


def _alternate(
    systems: dict[str, Start],
    rounds: int,
    measure: Callable[[Start], float],
    report: Callable[[str, float], None],
) -> Medians:
    """The median of each system, measured A B C A B C, and the ratios of ours to the others."""
    values: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, start in systems.items():
            values[name].append(measure(start))
            report(name, values[name][-1])
    medians = {name: statistics.median(found) for name, found in values.items()}
    ratios = {"ratio": medians["ours"] / medians["peer"], "ratio_tuned": medians["ours"] / medians["tuned"]}
    return {**medians, **ratios}


def _step_cost(process: ServedProcess, options: argparse.Namespace) -> float:
    """CPU microseconds of the server per step."""
    with process as server:
        loop = ClosedLoop(server.url, options.sessions, options.duration, {"wait_seconds": 0.0})
        cost = measure_steps(loop, server=server)
    if cost.failed:
        raise SystemExit(f"{cost.failed} sessions failed: {cost.errors}")
    assert cost.server_us_per_step is not None
    return cost.server_us_per_step


def _both_sides(process: ServedProcess, ours: bool, options: argparse.Namespace) -> float:
    """CPU microseconds of server and client per step."""
    with process as server:
        if ours:
            loop = ClosedLoop(
                server.url, options.vector_sessions, options.duration, {"wait_seconds": 0.0}, vector=True
            )
            cost = measure_steps(loop, server=server)
            assert cost.us_per_step is not None
            return cost.us_per_step
        arguments = [server.url, str(options.vector_sessions), str(options.duration)]
        command = [str(options.peer_python.absolute()), str(SCRIPTS / "peer_load.py"), *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:  # noqa: S603
            assert load.stdin is not None
            assert load.stdout is not None
            if load.stdout.readline() != "ready\n":
                raise SystemExit(f"the peer's client did not start: exit code {load.wait()}")
            before = server.cpu_seconds()
            load.stdin.write("\n")
            load.stdin.flush()
            found = json.loads(load.stdout.readline())
            used = server.cpu_seconds() - before + found["cpu_s"]
    return 1e6 * used / int(found["steps"])


def _idle_memory(process: ServedProcess, sessions: int) -> float:
    """KB of resident memory of the server for an idle session after its reset."""

    async def grown(server: ServedProcess) -> int:
        before = server.resident_bytes()
        clients = [GenericEnvClient(server.url, websocket_ping_interval_s=None) for _ in range(sessions)]
        for client in clients:
            await client.reset()
        after = server.resident_bytes()
        await asyncio.gather(*(client.close() for client in clients))
        return after - before

    with process as server:
        return asyncio.run(grown(server)) / sessions / 1024


def _storm(
    process: ServedProcess, sessions: int, options: argparse.Namespace, label: str, log: Console
) -> dict[str, Any]:
    with process as server:
        batch = RequestBatch(server.url, Mode.WS, sessions, WAIT_S, TIMEOUT_S)
        done = run_batch(batch, options.processes)
    summary = summarize(done.rows, done.wall_s, 1)
    success = summary.successful / sessions
    log.print(f"{label} sessions: {100 * success:.1f} %, P99 {_seconds(summary.total_p99)}")
    return {"success": success, "p99_s": summary.total_p99, "wall_s": summary.total_wall_time}


def _cost_table(costs: dict[str, Medians], both: Medians, memory: Medians) -> Table:
    table = Table(title="cost for the server", title_justify="left")
    for name in ("", "peer", "tuned", "ours", "ours / peer", "ours / tuned"):
        table.add_column(name, justify="right" if name else "left")
    rows = [(f"CPU a step, {form} (us)", values) for form, values in costs.items()]
    rows += [("CPU a step, both sides (us)", both), ("memory of an idle session, async (KB)", memory)]
    for name, values in rows:
        figures = [f"{values[system]:.1f}" for system in ("peer", "tuned", "ours")]
        table.add_row(name, *figures, f"{values['ratio']:.3f}", f"{values['ratio_tuned']:.3f}")
    return table


def _storm_table(storms: dict[int, dict[str, dict[str, Any]]]) -> Table:
    table = Table(title=f"sessions at once, sync, a step of {WAIT_S:g} s", title_justify="left")
    for name in ("sessions", "", "success", "P99", "ours / this"):
        table.add_column(name, justify="right")
    for sessions, systems in storms.items():
        ours = systems["ours"]["p99_s"]
        for name, found in systems.items():
            known = ours is not None and found["p99_s"] is not None
            ratio = f"{ours / found['p99_s']:.3f}" if known else "-"
            success = f"{100 * found['success']:.1f} %"
            table.add_row(f"{sessions:,}", name, success, _seconds(found["p99_s"]), ratio)
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares this package with the released one.")
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=SCRIPTS.parent / ".venv-peer" / "bin" / "python",
        help="Python that has the released package",
    )
    parser.add_argument(
        "--forms", type=lambda text: text.split(","), default=FORMS, help="forms to measure: sync, async, inline"
    )
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each")
    parser.add_argument("--sessions", type=int, default=64, help="sessions that step at the same time")
    parser.add_argument("--vector-sessions", type=int, default=256, help="sessions of each package's own client")
    parser.add_argument("--idle-sessions", type=int, default=1024, help="sessions whose memory is measured")
    parser.add_argument("--duration", type=float, default=4.0, help="duration of each measurement in seconds")
    parser.add_argument(
        "--scale-grid",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[512, 2048],
        help="sessions at once",
    )
    parser.add_argument("--workers", type=int, default=2, help="workers of the server, for the storms")
    parser.add_argument("--processes", type=int, default=2, help="processes of the load, for the storms")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
