"""The environment: replace this class with your own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP

from openenv.chat import Chat
from openenv.errors import InvalidAction, ResetRequired
from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment

from ..models import MyObservation, MyState, MyTask

__all__ = ["MyEnvironment"]

PRICES = {"bread": 2.5, "cake": 4.5, "jam": 3.0, "milk": 1.5, "tea": 3.5}
MOST_CALLS = 12


class MyEnvironment(MCPEnvironment):
    """A shop with tools. A basket with exactly what is on the list is worth 1 at the till; 12 calls at most."""

    # A server may run many instances, since they share no data. Keep all data in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True
    # What a language model reads before the first call. It plays with the tools.
    chat = Chat(system="You are in a shop. Do the task with the tools, and pay at the end.", observation="{task}")

    def __init__(self) -> None:
        super().__init__(self._shop())
        self._state = MyState()
        self._playing = False
        self._paid = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyTask:
        """Writes a list, and empties the basket.

        Args:
            seed: The same seed writes the same list. `self.rng` is already seeded with it: take all random numbers
                from there.
            episode_id: Id of the episode.
        """
        wanted = {item: self.rng.randint(1, 3) for item in self.rng.sample(sorted(PRICES), 2)}
        self._state = MyState(episode_id=episode_id or uuid4().hex, wanted=wanted)
        self._playing, self._paid = True, False
        words = " and ".join(f"{count} {item}" for item, count in wanted.items())
        # No reward (None, not 0): the agent has not acted yet.
        return MyTask(task=f"Buy {words}, and nothing else. Then pay.")

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Calls a tool, and computes the reward. The failure of a tool is an observation that the agent can read."""
        if not isinstance(action, CallToolAction):  # the list of tools, which is not a step of the episode
            return super().step(action, timeout_s=timeout_s, **kwargs)
        if not self._playing:
            raise ResetRequired("no errand is running: call reset() to begin one")
        answer: CallToolObservation = super().step(action, timeout_s=timeout_s, **kwargs)
        self._state.step_count += 1
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = self._state.step_count >= MOST_CALLS and not self._paid
        self._playing = not (self._paid or truncated)
        return MyObservation(
            tool_name=answer.tool_name,
            result=answer.result,
            error=answer.error,
            reward=1.0 if self._paid and self._state.basket == self._state.wanted else 0.0,
            done=not self._playing,
            terminated=self._paid,
            truncated=truncated,
        )

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Handles actions other than tool calls, which this environment does not have."""
        raise InvalidAction(f"{type(action).__name__} is not a tool call: this environment has no other actions")

    @property
    def state(self) -> MyState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> CallToolAction:
        """The next action of a solution."""
        for item, count in self._state.wanted.items():
            if item not in self._state.basket:
                return CallToolAction(tool_name="take", arguments={"item": item, "count": count})
        return CallToolAction(tool_name="pay", arguments={})

    def return_range(self) -> tuple[float, float]:
        """The return of a player that does not read the list, and that of a solution."""
        return 0.0, 1.0

    def _shop(self) -> FastMCP:
        """The tools. A model sees their names, annotations and docstrings."""
        mcp: FastMCP = FastMCP("my_env")

        @mcp.tool
        def prices() -> dict[str, float]:
            """Lists the items of the shop with their prices."""
            return PRICES

        @mcp.tool
        def take(item: str, count: int = 1) -> dict[str, int]:
            """Puts items into the basket. Returns its contents."""
            if item not in PRICES:
                raise ValueError(f"there is no {item}: there are {', '.join(PRICES)}")
            if count < 1:
                raise ValueError(f"count is {count}: it must be at least 1")
            self._state.basket[item] = self._state.basket.get(item, 0) + count
            return self._state.basket

        @mcp.tool
        def put_back(item: str) -> dict[str, int]:
            """Removes all of an item from the basket. Returns its contents."""
            self._state.basket.pop(item, None)
            return self._state.basket

        @mcp.tool
        def pay() -> float:
            """Pays for the basket, which ends the errand. Returns the total."""
            self._paid = True
            return sum(PRICES[item] * count for item, count in self._state.basket.items())

        return mcp
