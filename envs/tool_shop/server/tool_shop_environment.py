"""The environment itself: episodes and what they are worth. The shop is in `shop.py`, its tools in `desk.py`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.errors import InvalidAction, ResetRequired
from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment

from ..models import ToolShopObservation, ToolShopState, ToolShopTask
from . import tasks
from .desk import desk
from .shop import Shop

__all__ = ["MOST_CALLS", "ToolShopEnvironment"]

MOST_CALLS = 15


class ToolShopEnvironment(MCPEnvironment):
    """The back office of a shop, with tools over a database. What is wanted, done and nothing else, is worth 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(desk(self._at_work, self._finish))
        self._state = ToolShopState()
        self._task: tasks.Task | None = None
        self._shop: Shop | None = None
        self._playing = False
        self._finished = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **kwargs: Any,
    ) -> ToolShopTask:
        """Sets a task, with a database made anew.

        Args:
            seed: Chooses the task where `index` does not.
            episode_id: Id of the episode.
            split: "train" or "test".
            index: Which task of the split.

        Raises:
            InvalidArgument: There is no such split or task.
        """
        split = tasks.split_named("train" if split is None else split)
        index = self.rng.randrange(tasks.SIZES[split]) if index is None else tasks.checked(split, index)
        self._task = tasks.task(split, index)
        self._renew(self._task.image)
        self._state = ToolShopState(
            episode_id=episode_id or uuid4().hex,
            split=split,
            index=index,
            kind=self._task.kind,
            wanted=sorted(self._task.wanted.elements()),
        )
        self._playing, self._finished = True, False
        # No reward (None, not 0): the agent has not acted yet.
        return ToolShopTask(task=self._task.text, calls_left=MOST_CALLS)

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Calls a tool. A tool that fails is an answer too, for the agent to read, and changes nothing."""
        if not isinstance(action, CallToolAction):  # the list of tools, which is not a step of the episode
            return super().step(action, timeout_s=timeout_s, **kwargs)
        if not self._playing or self._task is None:
            raise ResetRequired("no task is set: call reset() for one")
        answer: CallToolObservation = super().step(action, timeout_s=timeout_s, **kwargs)
        self._state.step_count += 1
        calls_left = MOST_CALLS - self._state.step_count
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = calls_left == 0 and not self._finished
        self._playing = not (self._finished or truncated)
        if not self._playing:
            self._state.score = tasks.score(self._task, self._open()) if self._finished else 0.0
        return ToolShopObservation(
            tool_name=answer.tool_name,
            result=answer.result,
            error=answer.error,
            calls_left=calls_left,
            reward=self._state.score or 0.0,
            done=not self._playing,
            terminated=self._finished,
            truncated=truncated,
        )

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Handles actions other than tool calls, which this environment does not have."""
        raise InvalidAction(f"{type(action).__name__} is not a tool call: this environment has no other actions")

    @property
    def state(self) -> ToolShopState:
        # Compared here and not in `step`: tools are also called without one.
        if self._task is not None and self._shop is not None:
            self._state.made = sorted(tasks.changes(self._task, self._shop).elements())
        return self._state

    def save_state(self) -> dict[str, Any]:
        """The database as it is, and where the episode is."""
        return {
            "image": None if self._shop is None else self._shop.image(),
            "state": self._state,
            "playing": self._playing,
            "finished": self._finished,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on with a copy of that database."""
        self._state = state["state"]
        self._playing, self._finished = state["playing"], state["finished"]
        index = self._state.index
        self._task = None if index is None else tasks.task(self._state.split, index)
        if state["image"] is not None:
            self._renew(state["image"])

    def close(self) -> None:
        if self._shop is not None:
            self._shop.close()
            self._shop = None

    # The tasks, as servers and clients ask for them.

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(tasks.SIZES)

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return tasks.SIZES[split]

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        return tasks.task(split, index).public()

    @classmethod
    def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return [tasks.task(split, index).public() for index in range(tasks.SIZES[split])[start:stop]]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return cls.get_task_range(split)

    def _open(self) -> Shop:
        if self._shop is None:
            raise ResetRequired("the shop is closed: call reset() to open it")
        return self._shop

    def _at_work(self) -> Shop:
        """The shop for a tool, which may also be called at `/mcp`, where there are no steps."""
        if self._finished:
            raise ResetRequired("the episode has ended with finish: call reset() for another task")
        return self._open()

    def _finish(self) -> None:
        self._finished = True

    def _renew(self, image: bytes) -> None:
        if self._shop is not None:
            self._shop.close()
        self._shop = Shop(image)
