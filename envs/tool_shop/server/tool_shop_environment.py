"""The environment: episodes and their rewards. The shop is in `shop.py`, its tools are in `desk.py`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.chat import Chat
from openenv.errors import InvalidAction, ResetRequired
from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment

from ..models import ToolShopObservation, ToolShopState, ToolShopTask
from . import tasks
from .desk import create_tools
from .shop import Shop

__all__ = ["MOST_CALLS", "ToolShopEnvironment"]

MOST_CALLS = 15


class ToolShopEnvironment(MCPEnvironment):
    """The back office of a shop, with tools over a database. The reward is 1 for the goal without other changes."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state has the goal
    chat = Chat(
        system="You work in the back office of a shop. Do what the request asks, and nothing else, with the tools. "
        "Look things up before you change them. When it is done, or cannot be done, call `finish`.",
        observation="{task}\n\nYou have {calls_left} tool calls.",
    )

    def __init__(self) -> None:
        super().__init__(create_tools(self._shop_for_tools, self._finish))
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
        """Starts an episode of a task, with a new database.

        Args:
            seed: Chooses the task if there is no `index`.
            episode_id: Id of the episode.
            split: `train` or `test`. By default `train`.
            index: Index of the task in the split, from 0.

        Raises:
            InvalidArgument: The split or task does not exist.
        """
        split = tasks.check_split("train" if split is None else split)
        index = self.rng.randrange(tasks.SIZES[split]) if index is None else tasks.check_index(split, index)
        self._task = tasks.task(split, index)
        self._replace_shop(self._task.image)
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
        """Calls a tool. A tool that fails changes nothing, and the agent can read its `error` in the observation."""
        if not isinstance(action, CallToolAction):  # the request for the list of tools is not a step of the episode
            return super().step(action, timeout_s=timeout_s, **kwargs)
        if not self._playing or self._task is None:
            raise ResetRequired("no episode is running: call reset() first")
        answer: CallToolObservation = super().step(action, timeout_s=timeout_s, **kwargs)
        self._state.step_count += 1
        calls_left = MOST_CALLS - self._state.step_count
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = calls_left == 0 and not self._finished
        self._playing = not (self._finished or truncated)
        if not self._playing:
            self._state.score = tasks.score(self._task, self._require_shop()) if self._finished else 0.0
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
        # `step` cannot keep this up to date: clients also call tools without a step.
        if self._task is not None and self._shop is not None:
            self._state.made = sorted(tasks.changes(self._task, self._shop).elements())
        return self._state

    def oracle(self) -> CallToolAction:
        """The next tool call of a solution."""
        if self._task is None:
            raise ResetRequired("no episode is running: call reset() first")
        calls = [*self._task.solution, ("finish", {})]
        name, arguments = calls[min(self._state.step_count, len(calls) - 1)]
        return CallToolAction(tool_name=name, arguments=arguments)

    def return_range(self) -> tuple[float, float]:
        """The return of an agent that does not read the request, and that of a solution."""
        return 0.0, 1.0

    def save_state(self) -> dict[str, Any]:
        """The database, and the state of the episode."""
        return {
            "image": None if self._shop is None else self._shop.image(),
            "state": self._state,
            "playing": self._playing,
            "finished": self._finished,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues the saved episode with a copy of its database."""
        self._state = state["state"]
        self._playing, self._finished = state["playing"], state["finished"]
        index = self._state.index
        self._task = None if index is None else tasks.task(self._state.split, index)
        if state["image"] is not None:
            self._replace_shop(state["image"])

    def close(self) -> None:
        if self._shop is not None:
            self._shop.close()
            self._shop = None

    # The task API (`TaskProvider`).

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

    def _require_shop(self) -> Shop:
        if self._shop is None:
            raise ResetRequired("no episode is running: call reset() first")
        return self._shop

    def _shop_for_tools(self) -> Shop:
        """The shop, until `finish`. Tools check this too, since a client can call them at `/mcp` without a step."""
        if self._finished:
            raise ResetRequired("the episode has ended with finish: call reset() to start another one")
        return self._require_shop()

    def _finish(self) -> None:
        self._finished = True

    def _replace_shop(self, image: bytes) -> None:
        if self._shop is not None:
            self._shop.close()
        self._shop = Shop(image)
