"""The client, which trainers and notebooks import."""

from __future__ import annotations

from openenv.client import EnvClient

from .models import GridworldAction, GridworldObservation, GridworldState

__all__ = ["GridworldEnv"]


class GridworldEnv(EnvClient[GridworldAction, GridworldObservation, GridworldState]):
    """Client of the grid world, for one level at a time.

    Example::

        with GridworldEnv(base_url="http://localhost:8000").sync() as env:
            result = env.reset(seed=7)
            print("\\n".join(result.observation.rows))
            result = env.step(GridworldAction(move="right"))
            print(result.observation.position, result.reward, result.done)

    Keyword arguments of `reset`: `seed`; `split` and `index` for a certain level; `kind` (`open`, `lava` or
    `door`) and `size` (4 to 16 cells per side).

    Asynchronous code awaits the same calls. `GridworldEnv(env=GridworldEnvironment)` needs no server.
    """
