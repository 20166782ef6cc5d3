"""Measure an autoscaler under a load that rises and falls, or what a session and a step cost its gateway.

.venv/bin/python scripts/bench_autoscaling.py local|swarm|kubernetes [--short]
.venv/bin/python scripts/bench_autoscaling.py costs

Writes out/autoscaling/PLACE.json, PLACE.csv and PLACE.svg, and out/autoscaling/costs.json. `swarm` starts two Docker
engines, `kubernetes` a cluster, as the tests do (root; see CONTRIBUTING.md).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from openenv._plots import COLOURS, canvas, file_of  # noqa: E402
from openenv.client import GenericEnvClient  # noqa: E402
from openenv.errors import CapacityError, OpenEnvError  # noqa: E402
from openenv.providers import Autoscaler, Gateway, LaunchSpec, LocalProvider, Provider, ScalingRule  # noqa: E402
from openenv.providers.autoscaler import ServerLoad  # noqa: E402
from openenv.recording import Recording  # noqa: E402

SAMPLE_S = 0.25
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """A load and its autoscaler.

    Attributes:
        rule: The autoscaler's.
        slots: Sessions of each server.
        users: Times in seconds and number of concurrent sessions then, with straight lines between them.
        steps: Least and most steps of an episode, each as probable.
        step_s, think_s: Mean times of the environment and of the model for one step, log-normal with sigma 0.5.
        settled_s: Seconds after the last time within which the servers must be down to the minimum.
    """

    rule: ScalingRule = field(default_factory=lambda: ScalingRule(least=1, most=4, utilization=0.75, settle_s=5.0))
    slots: int = 8
    users: tuple[tuple[float, float], ...] = ((0, 2), (5, 2), (25, 22), (40, 22), (60, 2))
    steps: tuple[int, int] = (4, 12)
    step_s: float = 0.1
    think_s: float = 0.4
    settled_s: float = 60.0

    def wanted(self, at: float) -> int:
        """Number of concurrent sessions at a time."""
        return round(float(np.interp(at, *zip(*self.users, strict=True))))


SHORT = LoadPlan(
    rule=ScalingRule(least=1, most=2, utilization=0.75, settle_s=2.0),
    slots=4,
    users=((0, 1), (1, 5), (25, 5), (26, 1)),  # a busy machine takes a while to start the second server
    steps=(2, 4),
)


class RisingLoad:
    """Plays episodes through a gateway, as many at once as the plan says.

    Attributes:
        open: Sessions that are open.
        episodes, steps: Finished ones.
        refused: Sessions that got no slot.
        lost: Episodes that failed, or whose steps were lost or repeated.
        failures: The messages of both.
    """

    def __init__(self, plan: LoadPlan, url: str, api_key: str | None):
        self.open = self.episodes = self.steps = self.refused = self.lost = 0
        self.failures: list[str] = []
        self._plan, self._url, self._api_key = plan, url, api_key
        self._random = random.Random(1)  # noqa: S311 - a repeatable load

    async def run(self, began: float) -> None:
        """Plays until the plan is over and every episode has ended."""
        users: set[asyncio.Task[None]] = set()
        clock = asyncio.get_running_loop().time
        end = self._plan.users[-1][0]
        while (at := clock() - began) < end:
            for _ in range(self._plan.wanted(at) - len(users)):
                task = asyncio.create_task(self._play())
                users.add(task)
                task.add_done_callback(users.discard)
            await asyncio.sleep(SAMPLE_S / 5)
        await asyncio.gather(*users)

    def _time(self, mean_s: float) -> float:
        return self._random.lognormvariate(np.log(mean_s) - 0.125, 0.5)

    async def _play(self) -> None:
        playing = False
        try:
            async with GenericEnvClient(self._url, api_key=self._api_key, connect_timeout_s=60.0) as env:
                await env.reset(timeout_s=90.0)
                self.open, playing = self.open + 1, True
                for number in range(1, self._random.randint(*self._plan.steps) + 1):
                    await asyncio.sleep(self._time(self._plan.think_s))
                    result = await env.step({"wait_seconds": self._time(self._plan.step_s)})
                    self.steps += 1
                    if result.observation["step_count"] != number:
                        raise OpenEnvError(f"step {number} is the environment's {result.observation['step_count']}")
            self.episodes += 1
        except OpenEnvError as error:
            if isinstance(error, CapacityError) or not playing:
                self.refused += 1
            else:
                self.lost += 1
            self.failures.append(repr(error))
        finally:
            self.open -= playing


def _usage(pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE


def _children() -> dict[int, str]:
    """The processes that this one has started, with their names."""
    lists = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for found in lists for pid in found.read_text().split()]
    return {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids}


async def measure(plan: LoadPlan, provider: Provider, spec: LaunchSpec) -> dict[str, Any]:
    """Runs the load against an autoscaler until it is down to the minimum again. Returns what was seen over time."""
    variables = {**spec.env_vars, "OPENENV_MAX_SESSIONS": str(plan.slots)}
    samples: list[dict[str, Any]] = []
    async with (
        Gateway() as gateway,
        Autoscaler(gateway, spec.changed(env_vars=variables), provider, plan.rule) as fleet,
    ):
        load = RisingLoad(plan, gateway.url, fleet.api_key)
        clock = asyncio.get_running_loop().time
        began = clock()

        async def sample() -> None:
            while True:
                states = [server.state for server in fleet.servers]
                at = clock() - began
                counts = {state: states.count(state) for state in ("accepting", "draining")}
                row = {"at": round(at, 2), "wanted": plan.wanted(at), "sessions": load.open, **counts}
                samples.append(row | {name: getattr(load, name) for name in ("refused", "lost", "episodes")})
                samples[-1]["starting"] = fleet.starting
                await asyncio.sleep(SAMPLE_S)

        sampling = asyncio.create_task(sample())
        try:
            await load.run(began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plan.settled_s):
                    while len(fleet.servers) > plan.rule.least:  # noqa: ASYNC110 - no event tells of it
                        await asyncio.sleep(SAMPLE_S)
        finally:
            sampling.cancel()
            await asyncio.wait([sampling])
    facts = {name: getattr(load, name) for name in ("episodes", "steps", "refused", "lost", "failures")}
    return {"plan": asdict(plan), **facts, "start_s": start_s(samples), "samples": samples}


def start_s(samples: list[dict[str, Any]]) -> float | None:
    """Mean seconds from the decision for a further server until it accepts sessions."""
    begun: list[float] = []
    times = []
    for before, row in pairwise(samples):
        came = max(0, row["accepting"] + row["draining"] - before["accepting"] - before["draining"])
        begun += [row["at"]] * (row["starting"] - before["starting"] + came)
        times += [row["at"] - begun.pop(0) for _ in range(min(came, len(begun)))]
    return round(float(np.mean(times)), 2) if times else None


def traces_of(folder: str | Path) -> dict[str, Any]:
    """Recorded episodes: of each its seconds and steps; and the mean seconds of a step and of the pause before it."""
    episodes, steps, durations, pauses = [], [], [], []
    for episode in Recording(folder).episodes():
        lines = list(episode.transitions(arrays=False))
        episodes.append(round(episode.ended - episode.began, 3))
        steps.append(episode.steps)
        durations += [line.duration_s for line in lines if line.step]
        pauses += [after.time - before.time - before.duration_s for before, after in pairwise(lines)]
    if not episodes:
        raise SystemExit(f"{folder} has no episodes: record some with `openenv serve --record {folder}`")
    means = {"step_s": round(float(np.mean(durations)), 4), "think_s": round(float(np.mean(pauses)), 4)}
    return {"episode_s": episodes, "steps": steps, **means}


@contextlib.asynccontextmanager
async def place(name: str) -> AsyncIterator[tuple[Provider, LaunchSpec]]:
    """A provider and the servers of the benchmark environment there."""
    with contextlib.ExitStack() as stack:
        if name == "local":
            yield LocalProvider(), LaunchSpec(target="benchmark")
        elif name == "swarm":
            from openenv.providers import DockerSwarmProvider
            from tests.infra.parts.image import QUICK
            from tests.infra.parts.swarm import everywhere, swarm_of

            nodes = stack.enter_context(swarm_of(2))
            everywhere(nodes)
            os.environ["DOCKER_HOST"] = nodes[0].engine.host
            swarm = DockerSwarmProvider(publish="host", auto_init_swarm=False)
            stack.callback(swarm.close)
            options = {"mounts": QUICK.mounts, "workdir": "/", "init": True}
            command = QUICK.serving("benchmark")
            yield swarm, LaunchSpec(image=QUICK.image, command=command, env_vars=QUICK.variables, options=options)
        else:
            from openenv.providers import KubernetesProvider
            from tests.kubernetes.conftest import PROGRAMS
            from tests.kubernetes.parts.cluster import cluster_of

            cluster = stack.enter_context(cluster_of(PROGRAMS))
            kubeconfig = cluster.account("autoscaling")
            yield KubernetesProvider(kubeconfig=kubeconfig, reach="cluster"), pods()


def pods() -> LaunchSpec:
    """The benchmark environment in Pods of the tests' cluster."""
    from tests.kubernetes.parts.images import mounted

    words = ["-m", "openenv", "serve", "benchmark", "--host", "0.0.0.0", "--port", "8000"]  # noqa: S104 - in a Pod
    return LaunchSpec(command=[sys.executable, *words], **mounted())


async def run(name: str, plan: LoadPlan) -> dict[str, Any]:
    """Measures at a place. On this machine, its episodes are recorded for simulations."""
    async with place(name) as (provider, spec):
        if name != "local":
            return {"place": name, **await measure(plan, provider, spec)}
        with tempfile.TemporaryDirectory() as folder:
            result = await measure(plan, provider, spec.changed(env_vars={"OPENENV_RECORD": folder}))
            return {"place": name, **result, "traces": await asyncio.to_thread(traces_of, folder)}


async def costs(sessions: int = 400, rounds: int = 25) -> dict[str, Any]:
    """CPU and memory of Envoy and of one server: for each session that stays open, for its start, and for a step."""
    variables = {"OPENENV_MAX_SESSIONS": str(sessions)}
    rule = ScalingRule(least=1, most=1)
    async with Gateway(threads=1) as gateway, contextlib.AsyncExitStack() as stack:
        spec = LaunchSpec(target="openenv.envs.benchmark.server.app:app_inline", env_vars=variables)
        fleet = await stack.enter_async_context(Autoscaler(gateway, spec, LocalProvider(), rule))
        pids = {("gateway" if name.startswith("envoy") else "server"): pid for pid, name in _children().items()}

        def usage() -> dict[str, tuple[float, int]]:
            return {name: _usage(pid) for name, pid in pids.items()}

        async def client() -> GenericEnvClient:
            env = await stack.enter_async_context(GenericEnvClient(gateway.url, api_key=fleet.api_key))
            await env.reset()
            return env

        await client()
        before = usage()
        clients = [await client() for _ in range(sessions - 1)]
        opened = usage()
        began = time.monotonic()
        for _ in range(rounds):
            await asyncio.gather(*(env.step({"wait_seconds": 0.0}) for env in clients))
        seconds = time.monotonic() - began
        stepped = usage()
        spent = time.process_time()
        for _ in range(rounds):
            ServerLoad.read(fleet.servers[0].deployment.url, fleet.api_key)
        look_us = round(1e6 * (time.process_time() - spent) / rounds)
    steps = rounds * len(clients)
    found: dict[str, Any] = {"sessions": len(clients), "steps": steps, "look_cpu_us": look_us}
    found["steps_per_second"] = round(steps / seconds)
    for name in pids:
        found[name] = {
            "start_cpu_us": round(1e6 * (opened[name][0] - before[name][0]) / len(clients)),
            "step_cpu_us": round(1e6 * (stepped[name][0] - opened[name][0]) / steps),
            "session_kib": round((opened[name][1] - before[name][1]) / len(clients) / 1024, 1),
            "base_mib": round(before[name][1] / 2**20),
        }
    return found


def draw(result: dict[str, Any]) -> bytes:
    """Sessions, servers, and refused and lost sessions over time, as SVG."""
    rows = result["samples"]
    at = [row["at"] for row in rows]

    def column(*names: str) -> list[int]:
        return [sum(row[name] for name in names) for row in rows]

    with canvas(3, 1) as (figure, (sessions, servers, failures)):
        sessions.plot(at, column("wanted"), color=COLOURS[5], linestyle=":", label="load")
        sessions.plot(at, column("sessions"), color=COLOURS[0], label="open sessions")
        slots = [result["plan"]["slots"] * each for each in column("accepting")]
        sessions.step(at, slots, color=COLOURS[2], label="slots", where="post")
        states = {"starting": COLOURS[4], "draining": COLOURS[1], "accepting": COLOURS[2]}
        for number, (state, colour) in enumerate(states.items()):
            servers.step(at, column(*list(states)[number:]), color=colour, label=state, where="post")
        failures.plot(at, column("refused"), color=COLOURS[4], label="refused")
        failures.plot(at, column("lost"), color=COLOURS[1], linestyle="--", label="lost")
        failures.set_ylim(-0.5, max(5, *column("refused"), *column("lost")))
        titles = ("sessions", "servers, stacked", "sessions that failed")
        for panel, title in zip((sessions, servers, failures), titles, strict=True):
            panel.set_title(title)
            panel.legend(loc="upper right")
        played = f"{result['episodes']:,} episodes, {result['steps']:,} steps"
        failures.set_xlabel(f"seconds ({result['place']}: {played})")
        return file_of(figure, "svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", choices=["local", "swarm", "kubernetes", "costs"])
    parser.add_argument("--short", action="store_true", help="a few seconds, two servers")
    parser.add_argument("--output-dir", type=Path, default=Path("out/autoscaling"))
    options = parser.parse_args()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    plan = SHORT if options.short else LoadPlan()
    if options.place == "kubernetes" and not options.short:  # a Pod takes longer to start
        plan = replace(plan, settled_s=120.0)
    result = asyncio.run(costs() if options.place == "costs" else run(options.place, plan))
    (options.output_dir / f"{options.place}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    if options.place == "costs":
        print(json.dumps(result, indent=2))
        return
    with (options.output_dir / f"{options.place}.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, result["samples"][0])
        table.writeheader()
        table.writerows(result["samples"])
    (options.output_dir / f"{options.place}.svg").write_bytes(draw(result))
    most = max(row["accepting"] for row in result["samples"])
    words = f"{result['episodes']} episodes, at most {most} servers, {result['samples'][-1]['accepting']} at the end"
    print(f"{words}, a start takes {result['start_s']} s, {result['refused']} refused, {result['lost']} lost")
    print("\n".join(sorted(set(result["failures"]))))


if __name__ == "__main__":
    main()
