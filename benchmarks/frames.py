"""`openenv bench frames`: environments with images, next to Gymnasium's vector environments and a bare socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from openenv.adapters.gymnasium import RemoteVectorEnv
from openenv.bench.machine import resident_bytes
from openenv.bench.served import ServedTarget
from openenv.errors import UsageError

from .bare import ROOT, BareServers, BareVectorEnv
from .image_envs import IMAGES, target_of
from .turns import BARE, OPENENV, SYNC, WARM_UP, Policy, TurnPlan, TurnRate, VectorSystem, measure_turns

SPARE_SESSIONS = 8
# Batches of actions, which are drawn before the measurement and repeated.
BATCHES = 64
ASYNC, MEMCPY = "AsyncVectorEnv", "memcpy"
_MODES = {ASYNC: "async", SYNC: "sync"}
INSTALL = (
    "If its package is missing, use .venv-trainers (`make test-trainers`), or install ale-py and "
    "opencv-python-headless (ALE), minigrid (MiniGrid), mujoco and imageio (MuJoCo), gymnasium[box2d] (CarRacing)"
)


@dataclass(frozen=True, slots=True)
class Frames:
    """What to measure.

    Attributes:
        shape: Shape of an observation, if `env_id` is None.
        env_id: A real environment; see `image_envs.target_of`.
        workers: Processes of the server, and of the bare one.
        plan: How to measure.
    """

    shape: tuple[int, ...]
    env_id: str | None
    workers: int
    plan: TurnPlan

    @property
    def target(self) -> tuple[str, dict[str, Any]]:
        """Name and arguments of the environment in Gymnasium's registry."""
        return target_of(self.env_id) if self.env_id else (IMAGES, {"shape": list(self.shape)})

    @property
    def served(self) -> str:
        """The target of `openenv serve`."""
        env_id, kwargs = self.target
        return f"gymnasium:{env_id}" + (f"?{urlencode(kwargs)}" if kwargs else "")


@dataclass(frozen=True, slots=True)
class FrameMemory:
    """Resident memory with all environments open, after some steps, in bytes.

    Attributes:
        arrays: Size of one batch of observations.
        server_base: The server, after a session in each worker.
        server: Growth of the server.
        client: Growth of this process, without the spaces of the environments and the memory that it shares with the
            server, which the server's growth has.
    """

    arrays: int
    server_base: int
    server: int
    client: int

    @property
    def by_arrays(self) -> float:
        """Growth of both sides by the size of the arrays."""
        return (self.server + self.client) / self.arrays


@dataclass(frozen=True, slots=True)
class FrameResult:
    """The results.

    Attributes:
        rates: Results of each turn, by system.
        memory: Memory of openenv's two sides.
    """

    rates: dict[str, list[TurnRate]]
    memory: FrameMemory


class CopiedBatch:
    """Copies the bytes of a batch from one array to another instead of a step: the speed of the memory.

    Args:
        space: Space of one environment's observations.
        num_envs: Number of environments.
    """

    def __init__(self, space: Space[Any], num_envs: int):
        shape = (num_envs, *(space.shape or ()))
        self._from, self._to = (np.ones(shape, space.dtype) for _ in range(2))

    def reset(self, *, seed: int | None = None) -> tuple[NDArray[Any], Any]:
        """Returns the array."""
        return self._to, {}

    def step(self, actions: Any) -> tuple[NDArray[Any], ...]:
        """Copies the batch."""
        np.copyto(self._to, self._from)
        return (self._to,)

    def close(self) -> None:
        """Does nothing."""


def measure_frames(frames: Frames, stage: Callable[[str], None] = lambda text: None) -> FrameResult:
    """Serves the environment, and measures all systems in turns.

    Raises:
        UsageError: The environment cannot be made, or its observations are not one array.
        LaunchFailed, NotReady: A server did not start.
    """
    env_id, kwargs = frames.target
    count, workers = frames.plan.num_envs, frames.workers
    with ExitStack() as stack:
        envs = {name: stack.enter_context(closing(_made(env_id, count, name, kwargs))) for name in _MODES}
        space, actions = envs[SYNC].single_observation_space, envs[SYNC].action_space
        if not isinstance(space, Box):
            raise UsageError(f"{env_id} has observations of {space}: give --env one whose observations are an array")
        chosen: Iterator[Any] = cycle([actions.sample() for _ in range(BATCHES)])

        def policy(observations: Any) -> Any:
            return next(chosen)

        stage(f"serving {frames.env_id or 'images'} with {workers} worker(s)")
        server = stack.enter_context(ServedTarget(frames.served, workers, count + SPARE_SESSIONS, cwd=ROOT))
        ours, memory = _opened(server, frames, policy)
        stack.enter_context(closing(ours))
        bare = stack.enter_context(BareServers(env_id, count, workers, "sync", kwargs))
        direct = stack.enter_context(closing(BareVectorEnv(bare, space)))
        systems = {
            OPENENV: VectorSystem(ours, policy, server),
            **{name: VectorSystem(made, policy) for name, made in envs.items()},
            BARE: VectorSystem(direct, policy, bare),
            MEMCPY: VectorSystem(CopiedBatch(space, count), policy),
        }
        return FrameResult(measure_turns(systems, frames.plan, stage), memory)


def _made(env_id: str, count: int, name: str, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    try:
        return gymnasium.make_vec(env_id, count, _MODES[name], **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise UsageError(f"Gymnasium cannot make {kwargs.get('played', env_id)}: {error}. {INSTALL}") from error


def _opened(server: ServedTarget, frames: Frames, policy: Policy) -> tuple[RemoteVectorEnv, FrameMemory]:
    """The environments after a few steps, and the memory that they take on both sides."""
    count, workers = frames.plan.num_envs, frames.workers

    def made(count: int) -> RemoteVectorEnv:
        return RemoteVectorEnv(server.url, count, connections=min(workers, count))

    def play(envs: RemoteVectorEnv) -> None:
        envs.reset(seed=0)
        for _ in range(WARM_UP):
            envs.step(policy(None)[: envs.num_envs])

    # What the first sessions import and allocate, and the bounds of Gymnasium's spaces, are not counted.
    with closing(made(min(workers, count))) as first:
        play(first)
    envs = made(count)
    base, own = server.resident_bytes(), _private_bytes()
    play(envs)
    grown = server.resident_bytes() - base, _private_bytes() - own
    return envs, FrameMemory(envs.observation_space.sample().nbytes, base, *grown)


def _private_bytes() -> int:
    """Resident memory of this process, without shared memory."""
    status = Path("/proc/self/status").read_text()
    shared = next((line.split()[1] for line in status.splitlines() if line.startswith("RssShmem:")), "0")
    return resident_bytes([os.getpid()]) - 1024 * int(shared)
