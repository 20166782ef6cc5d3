"""Vector environments that step in turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from openenv.bench.steps import Metered

# Steps before each turn, for a system to be in the caches again.
WARM_UP = 5
# The system that the others are compared with, and others that several benchmarks have.
OPENENV, SYNC, BARE = "openenv", "SyncVectorEnv", "bare socket"

Policy = Callable[[Any], Any]


class Steppable(Protocol):
    """The part of a vector environment that is measured."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, Any]:
        """Starts an episode in each environment. The first item is the observations."""

    def step(self, actions: Any) -> tuple[Any, ...]:
        """Takes a step in each environment. The first item is the observations."""

    def close(self) -> object:
        """Ends it."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """How to measure.

    Attributes:
        num_envs: Number of environments of each system.
        rounds: Number of turns of each system.
        duration_s: Duration of a turn in seconds.
    """

    num_envs: int
    rounds: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class TurnRate:
    """The result of one turn.

    Attributes:
        steps_per_second: Steps of all environments together, by second.
        server_us_per_step: CPU microseconds of the server's processes for one of them. None without a server.
        client_us_per_step: CPU microseconds of this process.
    """

    steps_per_second: float
    server_us_per_step: float | None
    client_us_per_step: float


@dataclass(frozen=True, slots=True)
class VectorSystem:
    """A system to measure.

    Attributes:
        envs: Its vector environment.
        policy: Chooses the actions from the observations. Its time counts.
        server: Its server, if it has one.
    """

    envs: Steppable
    policy: Policy
    server: Metered | None = None


def measure_turns(
    systems: Mapping[str, VectorSystem], plan: TurnPlan, stage: Callable[[str], None] = lambda text: None
) -> dict[str, list[TurnRate]]:
    """Measures systems in turns: each of them in a round, then the next round.

    Args:
        systems: The systems by name.
        plan: How to measure.
        stage: Called with a sentence at the start of each turn.
    """
    observations = {name: system.envs.reset(seed=0)[0] for name, system in systems.items()}
    rates: dict[str, list[TurnRate]] = {name: [] for name in systems}
    for number in range(1, plan.rounds + 1):
        for name, system in systems.items():
            stage(f"{name}: {plan.num_envs:,} environments step for {plan.duration_s:g} s, round {number}")
            rate, observations[name] = _turn(system, observations[name], plan)
            rates[name].append(rate)
    return rates


def _turn(system: VectorSystem, observations: Any, plan: TurnPlan) -> tuple[TurnRate, Any]:
    step, policy, clock = system.envs.step, system.policy, time.perf_counter
    for _ in range(WARM_UP):
        observations = step(policy(observations))[0]
    served = system.server.cpu_seconds() if system.server is not None else 0.0
    batches, cpu, began = 0, time.process_time(), clock()
    end = began + plan.duration_s
    while clock() < end:
        observations = step(policy(observations))[0]
        batches += 1
    seconds, cpu = clock() - began, time.process_time() - cpu
    steps = batches * plan.num_envs
    server_us = 1e6 * (system.server.cpu_seconds() - served) / steps if system.server is not None else None
    return TurnRate(steps / seconds, server_us, 1e6 * cpu / steps), observations


def median_of(rates: Sequence[TurnRate], figure: str) -> float | None:
    """The median of a figure over the rounds. None if it is unknown."""
    values = [value for rate in rates if (value := getattr(rate, figure)) is not None]
    return median(values) if values else None


def ratios(rates: Mapping[str, Sequence[TurnRate]]) -> dict[str, float]:
    """Steps per second of openenv by those of each system: the median of the ratios of each round."""
    return {
        name: median(
            ours.steps_per_second / theirs.steps_per_second
            for ours, theirs in zip(rates[OPENENV], rounds, strict=True)
        )
        for name, rounds in rates.items()
    }
