"""Rollouts against a model endpoint that answers at once, or after a latency: turns a second, CPU, memory.

    python scripts/bench_rollouts.py [--sessions 64,2000] [--rollouts 2000] [--turns 10] [--latency-s 0.0]
        [--rounds 2] [--folder] [--peer collect=PYTHON] [--peer verifiers=PYTHON] [--peer-rollouts 100]

Environment server and endpoint run in processes of their own. Each run of the engine is a process of its own, whose
time, CPU and memory are measured after its imports. `--folder` records the run.
`--peer` names an interpreter with the released package, or with verifiers 0.4, openai and websockets: there
`rollout_peers.py` plays the same episodes, in turns with ours.
Prints a line for each run, and the share of the ideal time if there is a latency; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from openenv.bench.served import ServedProcess

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


async def play(plan: dict[str, Any]) -> dict[str, Any]:
    """Plays the rollouts of a plan in this process, and measures it."""
    from openenv.rollouts import OpenAIModel, RolloutBudget, rollouts

    model = OpenAIModel("tool", plan["model"], max_requests=4096)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    run = rollouts(
        plan["env"],
        model,
        range(plan["rollouts"]),
        sessions=plan["sessions"],
        requests=plan["sessions"],
        budget=RolloutBudget(turns=plan["turns"]),
        folder=plan["folder"],
    )
    async for _ in run:
        pass
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    await model.aclose()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    turns, rewarded = run.progress.turns, run.progress.rewarded
    return {"turns": turns, "rewarded": rewarded, "seconds": seconds, "cpu_s": cpu_s, "memory_kib": memory}


def run(plan: dict[str, Any], python: str = sys.executable, script: Path = Path(__file__)) -> dict[str, Any]:
    """Runs a plan in a process of its own, and returns what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        plan = {**plan, "folder": folder if plan["folder"] else None}
        command = [python, str(script), "--plan", json.dumps(plan)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        raise SystemExit(f"{plan['system']}: {ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**found, "system": plan["system"], "sessions": plan["sessions"], "rollouts": plan["rollouts"]}


def told(found: dict[str, Any], options: argparse.Namespace) -> str:
    """A line for a run."""
    turns, sessions = found["turns"], found["sessions"]
    if not turns:
        return f"{found['system']:>10} {sessions:>5} sessions: no turn ended, {found['seconds']:.0f} s"
    line = (
        f"{found['system']:>10} {sessions:>5} sessions: {turns / found['seconds']:>8,.0f} turns/s, "
        f"{1000 * found['cpu_s'] / turns:6.3f} ms CPU a turn, "
        f"{found['memory_kib'] / sessions:7.1f} KiB a live rollout, {found['rollouts'] - found['rewarded']} lost"
    )
    if options.latency_s:
        waves = -(-found["rollouts"] // sessions)
        line += f", {waves * options.turns * options.latency_s / found['seconds']:.1%} of the ideal time"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=json.loads, help="plays one plan, in this process")
    parser.add_argument("--sessions", default="64,2000")
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", action="store_true")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--peer-rollouts", type=int, default=100)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(uvloop.run(play(options.plan))))
        return
    from tests.model_server import model_process

    serve = [sys.executable, "-m", "openenv", "serve", "peer_env:app_inline", "--port", "0"]
    rows = []
    with (
        ServedProcess(serve, cwd=ROOT / "scripts") as server,
        model_process("--workers", "2", "--latency-s", str(options.latency_s)) as endpoint,
    ):
        plan = {"env": server.url, "model": endpoint, "turns": options.turns, "folder": options.folder}
        for _ in range(options.rounds):
            for sessions in map(int, options.sessions.split(",")):
                ours = {**plan, "system": "openenv", "sessions": sessions, "rollouts": options.rollouts}
                rows.append(run(ours))
                print(told(rows[-1], options), flush=True)
                for name, _, python in (peer.partition("=") for peer in options.peer):
                    theirs = {**ours, "system": name, "rollouts": options.peer_rollouts}
                    rows.append(run(theirs, python, ROOT / "scripts/rollout_peers.py"))
                    print(told(rows[-1], options), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
