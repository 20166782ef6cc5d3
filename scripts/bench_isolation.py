"""Measure the cost of a process per session: a step (compared with the event loop), opening, memory.

.venv/bin/python scripts/bench_isolation.py [--sandbox]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from openenv.envs.benchmark.models import BenchmarkAction
from openenv.envs.benchmark.server.benchmark_environment import InlineBenchmarkEnvironment
from openenv.runtime.loop import InlineExecutor
from openenv.runtime.process import ProcessExecutor, ProcessPool
from openenv.runtime.profile import profile_of
from openenv.settings import ServerSettings

STEPS = 20_000
OPENINGS = 50
# Time for the pool to start a new process.
PAUSE_S = 0.06


async def answer(call: Callable[..., None], *arguments: Any) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any, error: BaseException | None) -> None:
        future.set_exception(error) if error else future.set_result(result)

    call(*arguments, done)
    return await future


async def measure_steps(name: str, executor: Any) -> None:
    made = await answer(executor.start, InlineBenchmarkEnvironment)
    profile = getattr(made, "profile", None) or profile_of(InlineBenchmarkEnvironment)
    first = await answer(executor.submit, profile.reset, {})
    pid = first["pid"] if isinstance(first, dict) else None
    action = BenchmarkAction(wait_seconds=0.0)
    times = []
    before = time.process_time() + cpu_s(pid)
    for _ in range(STEPS):
        begun = time.perf_counter()
        await answer(executor.submit, profile.step, action)
        times.append(1e6 * (time.perf_counter() - begun))
    cpu = 1e6 * (time.process_time() + cpu_s(pid) - before) / STEPS
    times.sort()
    print(f"step {name:8} min {times[0]:6.1f} us  P50 {times[STEPS // 2]:6.1f} us  CPU of both sides {cpu:6.1f} us")
    if pid is not None:
        print(f"private memory of a session: {private_mb(pid):.1f} MiB")
    await answer(executor.close)


def cpu_s(pid: int | None) -> float:
    return 0.0 if pid is None else int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1024


async def measure_opening(pool: ProcessPool) -> None:
    times = []
    for _ in range(OPENINGS):
        await asyncio.sleep(PAUSE_S)
        executor = ProcessExecutor(pool)
        begun = time.perf_counter()
        await answer(executor.start, InlineBenchmarkEnvironment)
        times.append(1e3 * (time.perf_counter() - begun))
        await answer(executor.close)
    print(f"opening from the pool  min {min(times):.2f} ms  P50 {statistics.median(times):.2f} ms")


async def main() -> None:
    sandbox = "bwrap" if "--sandbox" in sys.argv else "none"
    pool = ProcessPool(InlineBenchmarkEnvironment, ServerSettings(sandbox=sandbox))
    try:
        await measure_opening(pool)
        await measure_steps("inline", InlineExecutor())
        if sandbox == "none":
            await measure_steps("process", ProcessExecutor(pool))
    finally:
        await pool.aclose()


if __name__ == "__main__":
    uvloop.run(main())
