"""`openenv bench batched`: many worlds in one environment, next to other ways to step them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import gymnasium
from numpy.typing import NDArray

from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.bench.served import ServedTarget
from openenv.client import BatchedEnvClient

from .bare import BATCHED, ROOT, BareServers, BareVectorEnv
from .turns import BARE, OPENENV, SYNC, TurnPlan, TurnRate, VectorSystem, measure_turns
from .worlds import WORLDS, LocalBatch, World

VECTOR, LOCAL, GATHERED, ORDINARY = "RemoteVectorEnv", "in process", "sessions of the batch", "ordinary sessions"
# The environment of one session, of the worlds that have one.
SINGLE = {"cartpole": "CartPole-v1"}
SPARE_SESSIONS = 8
# Worlds up to which sessions and `SyncVectorEnv` are measured: with more, one of their steps takes too long.
MOST_SINGLE = 1024


@dataclass(frozen=True, slots=True)
class Batched:
    """What to measure.

    Attributes:
        world: Name of the environment, of `WORLDS`.
        workers: Processes of the server of ordinary sessions.
        plan: How to measure.
    """

    world: str
    workers: int
    plan: TurnPlan


class OwnedBatch:
    """The client that owns a whole batch, with the interface of a vector environment.

    Args:
        url: URL of the server.
    """

    def __init__(self, url: str):
        self._client = BatchedEnvClient(url).sync()

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[Any], Any]:
        """Starts all episodes."""
        return self._client.reset(seed).observation["observation"], {}

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Steps all worlds."""
        result = self._client.step(actions)
        return result.observation["observation"], result.reward, result.terminated, result.truncated

    def close(self) -> None:
        """Closes the client."""
        self._client.close()


def measure_batched(batched: Batched, stage: Callable[[str], None] = lambda text: None) -> dict[str, list[TurnRate]]:
    """Serves the environment, and measures all systems in turns.

    Raises:
        UsageError: A package is not installed.
        LaunchFailed, NotReady: A server did not start.
    """
    world, count, plan = WORLDS[batched.world], batched.plan.num_envs, batched.plan
    policy = world.policy
    with ExitStack() as stack:
        local = stack.enter_context(closing(LocalBatch(world, count)))
        stage(f"serving {count:,} worlds of {batched.world}")
        server = stack.enter_context(
            ServedTarget(_target(world, count), max_sessions=2 * count + SPARE_SESSIONS, cwd=ROOT)
        )
        bare = stack.enter_context(BareServers(batched.world, count, 1, BATCHED, {}))
        direct = stack.enter_context(closing(BareVectorEnv(bare, world.observation_space)))
        owner = stack.enter_context(closing(OwnedBatch(server.url)))
        vector = stack.enter_context(closing(RemoteVectorEnv(server.url, count)))
        systems = {
            OPENENV: VectorSystem(owner, policy, server),
            VECTOR: VectorSystem(vector, policy, server),
            BARE: VectorSystem(direct, policy, bare),
            LOCAL: VectorSystem(local, policy),
        }
        if batched.world in SINGLE and count <= MOST_SINGLE:
            systems |= _single_sessions(stack, batched)
        return measure_turns(systems, plan, stage)


def _single_sessions(stack: ExitStack, batched: Batched) -> dict[str, VectorSystem]:
    """Systems with a session for each world."""
    world, count, single = WORLDS[batched.world], batched.plan.num_envs, SINGLE[batched.world]
    # With a world more than the client has, the client owns sessions and not the batch.
    shared = ServedTarget(_target(world, count + 1), max_sessions=count + SPARE_SESSIONS, cwd=ROOT)
    ordinary = ServedTarget(f"gymnasium:{single}", batched.workers, count + SPARE_SESSIONS)
    systems = {}
    for name, server, connections in ((GATHERED, shared, 1), (ORDINARY, ordinary, batched.workers)):
        url = stack.enter_context(server).url
        envs = stack.enter_context(closing(RemoteVectorEnv(url, count, connections=connections)))
        systems[name] = VectorSystem(envs, world.policy, server)
    sync = stack.enter_context(closing(gymnasium.make_vec(single, count, "sync")))
    return {**systems, SYNC: VectorSystem(sync, world.policy)}


def _target(world: World, count: int) -> str:
    """The target of `openenv serve` for a number of worlds."""
    return f"{World.__module__}:{world.base.__name__}{count}"
