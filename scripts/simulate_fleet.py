"""Simulate an autoscaler with recorded episodes: beside its measured runs, and for a fleet that cannot be run here.

.venv/bin/python scripts/bench_autoscaling.py local      (before; and costs, swarm, kubernetes)
.venv/bin/python scripts/simulate_fleet.py [--nodes 1000 --sessions 1000000 ...]

Time passes in steps. In each, sessions end as recorded episodes do, and others take their place at the servers with
the fewest; the rule is the autoscaler's own. Writes out/autoscaling/simulation.json and simulation.svg.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_autoscaling import start_s, traces_of

from openenv._plots import COLOURS, canvas, file_of
from openenv.providers import ScalingRule
from openenv.providers.autoscaler import IDLE_LOOKS, LOOK_S, ScalingHistory

OFF, STARTING, ACCEPTING, DRAINING = range(4)


@dataclass(frozen=True, kw_only=True)
class FleetModel:
    """What a simulation assumes.

    Attributes:
        rule: The autoscaler's.
        slots: Sessions of each server.
        start_s: Seconds from the decision for a server until it accepts sessions.
        episode_s: Seconds of recorded episodes, one of which each session takes; shape (episodes,).
        gap_s: Seconds that a client needs to end a session and to open the next one.
        step_s: Seconds that pass in one step of the simulation.
    """

    rule: ScalingRule
    slots: int
    start_s: float
    episode_s: np.ndarray
    gap_s: float = 0.0
    step_s: float = 0.25

    def run(self, users: list[tuple[float, float]], seconds: float) -> dict[str, np.ndarray]:
        """Simulates a load: times in seconds and sessions wanted then, with straight lines between them.

        Returns:
            Columns over time, each of shape (steps,): at, wanted, sessions, waiting, accepting, draining, starting,
            opened (sessions since the step before).
        """
        rng = np.random.default_rng(1)
        lengths = np.maximum(1, np.round((self.episode_s + self.gap_s) / self.step_s)).astype(int)
        state = np.full(2 * self.rule.most, OFF)
        state[: self.rule.servers(round(users[0][1]), self.slots)] = ACCEPTING
        ready, idle = np.zeros(len(state)), np.zeros(len(state), int)
        held = np.zeros(len(state), int)
        ends = np.zeros((len(state), lengths.max() + 1), int)  # sessions that end in a later step; a ring
        history, waiting, rows = ScalingHistory(self.rule), 0, []
        looks = max(1, round(LOOK_S / self.step_s))
        for number in range(round(seconds / self.step_s)):
            at, here = number * self.step_s, number % ends.shape[1]
            held -= ends[:, here]
            ends[:, here] = 0
            state[(state == STARTING) & (ready <= at)] = ACCEPTING
            wanted = round(float(np.interp(at, *zip(*users, strict=True))))
            waiting = max(waiting, 0) + max(0, wanted - int(held.sum()) - waiting)
            places = np.flatnonzero(state == ACCEPTING)
            more = spread(held[places], waiting, self.slots)
            opened = int(more.sum())
            waiting -= opened
            held[places] += more
            where = np.repeat(places, more)
            np.add.at(ends, (where, (here + rng.choice(lengths, opened)) % ends.shape[1]), 1)
            if number % looks == 0:
                self._look(at, history, waiting, state, held, ready, idle)
            counts = [int(np.count_nonzero(state == each)) for each in (ACCEPTING, DRAINING, STARTING)]
            rows.append((at, wanted, int(held.sum()), waiting, *counts, opened))
        names = ("at", "wanted", "sessions", "waiting", "accepting", "draining", "starting", "opened")
        return dict(zip(names, np.array(rows).T, strict=True))

    def _look(
        self,
        at: float,
        history: ScalingHistory,
        waiting: int,
        state: np.ndarray,
        held: np.ndarray,
        ready: np.ndarray,
        idle: np.ndarray,
    ) -> None:
        """What the autoscaler does once a second; changes `state`, `ready` and `idle`."""
        count = int(np.count_nonzero((state == ACCEPTING) | (state == STARTING)))
        wanted = history.decide(at, count, int(held.sum()) + waiting, self.slots)
        accepting = np.flatnonzero(state == ACCEPTING)
        leaving = accepting[np.argsort(held[accepting], kind="stable")][: max(0, count - wanted)]
        state[leaving], idle[leaving] = DRAINING, 0
        draining = np.flatnonzero(state == DRAINING)
        back = draining[np.argsort(-held[draining], kind="stable")][: max(0, wanted - count)]
        state[back] = ACCEPTING
        new = np.flatnonzero(state == OFF)[: max(0, wanted - count - len(back))]
        state[new], ready[new] = STARTING, at + self.start_s
        idle[:] = np.where((state == DRAINING) & (held == 0), idle + 1, 0)
        state[idle > IDLE_LOOKS] = OFF


def spread(held: np.ndarray, sessions: int, slots: int) -> np.ndarray:
    """How many of new sessions each server gets, if each goes to the one with the fewest. Shapes: (servers,)."""
    sessions = min(sessions, int(np.maximum(slots - held, 0).sum()))
    low, high = 0, slots
    while low < high:  # the level up to which all servers are filled
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(level - held, 0).sum() <= sessions else (low, level - 1)
    more = np.maximum(low - held, 0)
    rest = sessions - int(more.sum())
    more[np.flatnonzero(held + more == low)[:rest]] += 1
    return more


def beside(result: dict[str, Any], traces: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Simulates a measured run. Returns the columns, and the mean difference of sessions and of servers."""
    plan, samples = result["plan"], result["samples"]
    model = FleetModel(
        rule=ScalingRule(**plan["rule"]),
        slots=plan["slots"],
        start_s=start_s(samples) or 0.0,
        episode_s=np.array(traces["episode_s"]),
    )
    found = model.run([*plan["users"], (plan["users"][-1][0] + 0.01, 0)], samples[-1]["at"])
    apart = {}
    for name in ("sessions", "accepting"):
        measured = np.interp(found["at"], [row["at"] for row in samples], [row[name] for row in samples])
        apart[name] = round(float(np.abs(measured - found[name]).mean()), 2)
    return found, apart


def needs(options: argparse.Namespace, traces: dict[str, Any], costs: dict[str, Any]) -> dict[str, Any]:
    """Simulates a day of a fleet, and adds up what it needs."""
    slots = math.ceil(options.sessions / options.nodes / options.utilization)
    shape = np.array(traces["episode_s"])
    episode_s = shape / shape.mean() * options.episode_s
    hour = 3600.0
    users = [(0, 0.2), (6 * hour, 0.2), (9 * hour, 1.0), (17 * hour, 1.0), (20 * hour, 0.2), (24 * hour, 0.2)]
    model = FleetModel(
        rule=ScalingRule(least=1, most=options.nodes, utilization=options.utilization, settle_s=options.settle),
        slots=slots,
        start_s=options.start,
        episode_s=episode_s,
        step_s=15.0,
    )
    found = model.run([(at, part * options.sessions) for at, part in users], 24 * hour)
    there = found["accepting"] + found["draining"] + found["starting"]
    peak, opened = float(found["sessions"].max()), float(np.percentile(found["opened"] / model.step_s, 99))
    pace = options.step_every
    gateway, server = costs["gateway"], costs["server"]
    busy = peak / pace * gateway["step_cpu_us"] / 1e6 + opened * gateway["start_cpu_us"] / 1e6
    of_node = slots * options.utilization
    node_cpu = of_node / pace * (server["step_cpu_us"] / 1e6 + options.environment_cpu)
    node_memory = of_node * (server["session_kib"] / 1024 + options.environment_memory) + server["base_mib"]
    node_hours = float(there.sum()) * model.step_s / hour
    facts = {
        "sessions at the peak": f"{peak:,.0f}",
        "sessions that waited, at most": f"{found['waiting'].max():,.0f}",
        "servers at the peak, and at night": f"{there.max():,.0f}, {there.min():,.0f}",
        "slots of each server": f"{slots:,}",
        "steps per second, all sessions": f"{peak / pace:,.0f}",
        "sessions opened per second (99 % of the time at most)": f"{opened:,.0f}",
        "connections of the gateways (client and server side)": f"{2 * peak:,.0f}",
        "CPU of the gateways, cores": f"{busy:,.1f}",
        "memory of the gateways, GiB": f"{peak * gateway['session_kib'] / 2**20:,.0f}",
        "CPU of a node, cores": f"{node_cpu:,.2f}",
        "memory of a node, GiB": f"{node_memory / 1024:,.1f}",
        "CPU of the autoscaler, cores": f"{there.max() * costs['look_cpu_us'] / 1e6 / LOOK_S:,.2f}",
        "node hours of a day, and without an autoscaler": f"{node_hours:,.0f}, {24 * options.nodes:,}",
        "money of a day": f"{node_hours * options.price:,.0f} (instead of {24 * options.nodes * options.price:,.0f})",
    }
    return {"columns": found, "facts": facts}


def draw(runs: list[tuple[dict[str, Any], dict[str, np.ndarray]]], fleet: dict[str, np.ndarray]) -> bytes:
    """Measured and simulated sessions and servers of each run, then the fleet, as SVG."""
    with canvas(len(runs) + 1, 2) as (figure, panels):
        for number, (result, found) in enumerate(runs):
            at = [row["at"] for row in result["samples"]]
            for panel, name in zip(panels[2 * number :], ("sessions", "accepting"), strict=False):
                panel.plot(at, [row[name] for row in result["samples"]], color=COLOURS[0], label="measured")
                panel.plot(found["at"], found[name], color=COLOURS[1], linestyle="--", label="simulated")
                panel.set_title(f"{result['place']}: {'sessions' if name == 'sessions' else 'servers that accept'}")
                panel.set_xlabel("seconds")
                panel.legend()
        sessions, servers = panels[2 * len(runs) :]
        for panel, names in ((sessions, ("sessions",)), (servers, ("accepting", "draining", "starting"))):
            for colour, name in zip(COLOURS, names, strict=False):
                panel.plot(fleet["at"] / 3600, fleet[name], color=colour, label=name)
            panel.set_title(f"a fleet, simulated: {'servers' if panel is servers else 'sessions'}")
            panel.set_xlabel("hours")
            panel.legend()
        return file_of(figure, "svg")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("out/autoscaling"), help="what bench_autoscaling.py wrote"
    )
    parser.add_argument(
        "--records", type=Path, help="episodes of yours (openenv serve --record); default: local.json"
    )
    for name, value, words in (
        ("nodes", 1000, "one server on each"),
        ("sessions", 1_000_000, "at the peak"),
        ("utilization", 0.8, "part of the slots that sessions take"),
        ("settle", 300.0, "seconds before a server drains"),
        ("start", 60.0, "seconds until a further node serves"),
        ("episode-s", 300.0, "mean seconds of an episode; the records give the distribution around it"),
        ("step-every", 10.0, "seconds between two steps of a session"),
        ("environment-cpu", 0.01, "CPU seconds of the environment for a step"),
        ("environment-memory", 8.0, "MiB of the environment for a session"),
        ("price", 0.4, "of an hour of a node"),
    ):
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{words} (default: {value})")
    return parser.parse_args()


def main() -> None:
    options = arguments()

    def read(name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((options.folder / f"{name}.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise SystemExit(f"{error}: run scripts/bench_autoscaling.py {name} first") from None
        return found

    local, costs = read("local"), read("costs")
    own = local["traces"] if options.records is None else traces_of(options.records)
    places = [name for name in ("local", "swarm", "kubernetes") if (options.folder / f"{name}.json").exists()]
    runs = []
    for name in places:
        result = read(name)
        found, apart = beside(result, local["traces"])
        runs.append((result, found))
        print(f"{name}: sessions {apart['sessions']} apart on average, servers {apart['accepting']}")
    fleet = needs(options, own, costs)
    assumed = {name: value for name, value in vars(options).items() if name not in {"folder", "records"}}
    for title, rows in (("assumed", assumed), ("needed", fleet["facts"])):
        print(f"\n| {title} | |\n|---|---|")
        print("\n".join(f"| {name.replace('_', '-')} | {value} |" for name, value in rows.items()))
    (options.folder / "simulation.json").write_text(
        json.dumps({"assumed": assumed, "costs": costs, "needed": fleet["facts"]}) + "\n", encoding="utf-8"
    )
    (options.folder / "simulation.svg").write_bytes(draw(runs, fleet["columns"]))


if __name__ == "__main__":
    main()
