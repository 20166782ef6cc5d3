"""The environment: a walker in a level."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, get_args
from uuid import uuid4

from openenv.chat import Chat
from openenv.environment import Environment
from openenv.errors import InvalidArgument, ResetRequired

from ..models import (
    LARGEST,
    SMALLEST,
    GridworldAction,
    GridworldObservation,
    GridworldState,
    Kind,
)
from .generation import generate
from .level import Cell, Level
from .picture import picture
from .search import shortest_path
from .tasks import SPLITS, Tasks, check_task

__all__ = ["FOR_LAVA", "FOR_THE_GOAL", "FOR_THE_KEY", "PER_STEP", "GridworldEnvironment"]

PER_STEP = -0.01
FOR_THE_KEY = 0.2
FOR_THE_GOAL = 1.0
FOR_LAVA = -1.0
STEPS_PER_CELL = 2
_BUTTONS = (
    ("↑ up", {"move": "up"}),
    ("← left", {"move": "left"}),
    ("→ right", {"move": "right"}),
    ("↓ down", {"move": "down"}),
)


class GridworldEnvironment(Tasks, Environment[GridworldAction, GridworldObservation, GridworldState]):
    """Walk to the flag: past walls and lava, and through a door that needs a key. Every level can be solved."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    # A step takes some microseconds, less than a call on a thread.
    execution = "inline"
    chat = Chat(
        system="Walk from @ to the goal G, one cell at a time. # is a wall, ~ is lava, which ends the walk, "
        "k is a key, D is a door that needs the key, / is an open door.",
        observation="{rows}\nYou are at {position}, the goal is at {goal} (row, column). Key: {has_key}. "
        "Steps left: {steps_left}.",
    )

    def __init__(self, kind: Kind = "door", size: int = 8) -> None:
        """The arguments are the defaults for the arguments of `reset`."""
        super().__init__()
        self._defaults = _check_options(kind, size)
        self._state = GridworldState()
        self._level: Level | None = None
        self._cell: Cell = (0, 0)
        self._has_key = False
        self._steps_left = 0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        kind: str | None = None,
        size: int | None = None,
        **kwargs: Any,
    ) -> GridworldObservation:
        """Starts an episode in a level.

        Args:
            seed: The same seed and arguments make the same level.
            episode_id: Id of the episode.
            split: `train` (1000 levels) or `test` (200 others). Without a split and an index, the seed determines the
                level.
            index: Index of the level in the split (by default `train`), from 0. By default the seed chooses it.
            kind: `open` (walls), `lava` (walls and lava), `door` (walls, lava, and a door with its key).
            size: Number of cells per side, 4 to 16.

        Raises:
            InvalidArgument: The split, level, kind or size does not exist.
        """
        chosen = _check_options(
            self._defaults[0] if kind is None else kind, self._defaults[1] if size is None else size
        )
        task = self._task(split, index)
        # A task is the same level for every seed.
        random = self.rng if task is None else Random(task)  # noqa: S311 - a game
        self._level, path = generate(random, *chosen)
        self._cell, self._has_key = self._level.start, False
        self._steps_left = STEPS_PER_CELL * self._level.size**2
        best = FOR_THE_GOAL + PER_STEP * len(path) + (FOR_THE_KEY if self._level.door else 0)
        self._state = GridworldState(
            episode_id=episode_id or uuid4().hex,
            task=task,
            kind=chosen[0],
            size=chosen[1],
            optimal_steps=len(path),
            optimal_return=round(best, 9),
        )
        # No reward (None, not 0): the agent has not acted yet.
        return self._seen(self._level)

    def step(self, action: GridworldAction, timeout_s: float | None = None, **kwargs: Any) -> GridworldObservation:
        """Walks one step, unless the walker is blocked."""
        level = self._level
        if level is None or not self._steps_left:
            raise ResetRequired("no episode is running: call reset() first")
        state = self._state
        state.step_count += 1
        self._cell = level.after(self._cell, self._has_key, action.move)
        reward = PER_STEP
        if self._cell == level.key and not self._has_key:
            self._has_key = True
            reward += FOR_THE_KEY
        won, burnt = self._cell == level.goal, self._cell in level.lava
        reward += FOR_THE_GOAL if won else FOR_LAVA if burnt else 0.0
        terminated = won or burnt
        self._steps_left -= 1
        seen = self._seen(level)
        seen.terminated, seen.truncated = terminated, not self._steps_left and not terminated
        seen.reward, seen.done = reward, terminated or seen.truncated
        state.return_so_far = round(state.return_so_far + reward, 9)
        if terminated:
            self._steps_left = 0
        return seen

    @property
    def state(self) -> GridworldState:
        return self._state

    def oracle(self) -> GridworldAction:
        """The next step of a shortest path."""
        if self._level is None:
            raise ResetRequired("no episode is running: call reset() first")
        return GridworldAction(move=(shortest_path(self._level, self._cell, self._has_key) or ["up"])[0])

    def return_range(self) -> tuple[float, float]:
        """The return of a walker that takes the same steps in each level, and that of a shortest path."""
        return 0.0, self._state.optimal_return

    def render_web(self, observation: Any) -> str:
        """The level from above."""
        return picture(observation)

    def web_actions(self, observation: Any) -> Sequence[tuple[str, dict[str, Any]]]:
        """An arrow for each direction, until the end of the episode."""
        return () if observation.done else _BUTTONS

    def _task(self, split: str | None, index: int | None) -> str | None:
        if split is None and index is None:
            return None
        split = "train" if split is None else split
        if index is None:
            check_task(split, 0)
            index = self.rng.randrange(SPLITS[split])
        return check_task(split, index)

    def _seen(self, level: Level) -> GridworldObservation:
        return GridworldObservation(
            rows=level.rows(self._cell, self._has_key),
            position=self._cell,
            goal=level.goal,
            has_key=self._has_key,
            steps_left=self._steps_left,
        )


def _check_options(kind: Any, size: Any) -> tuple[Kind, int]:
    if kind not in get_args(Kind):
        raise InvalidArgument(f"kind must be open, lava or door, not {kind!r:.40}")
    if not isinstance(size, int) or isinstance(size, bool) or not SMALLEST <= size <= LARGEST:
        raise InvalidArgument(f"size must be {SMALLEST} to {LARGEST} cells, not {size!r:.40}")
    return kind, size
