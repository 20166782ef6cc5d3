"""The environment itself: here is what you replace with your own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastmcp import FastMCP

from openenv.errors import InvalidAction, ResetRequired
from openenv.mcp import CallToolAction, CallToolObservation, MCPEnvironment

from ..models import MyObservation, MyState, MyTask

__all__ = ["MyEnvironment"]

PRICES = {"bread": 2.5, "cake": 4.5, "jam": 3.0, "milk": 1.5, "tea": 3.5}
MOST_CALLS = 12


class MyEnvironment(MCPEnvironment):
    """A shop with tools. A basket with exactly what is on the list is worth 1 at the till; 12 calls at most."""

    # Instances share nothing, so a server may hold many of them. Keep everything in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(self._shop())
        self._state = MyState()
        self._playing = False
        self._paid = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyTask:
        """Writes a list. Nothing of the last episode remains: the basket is empty.

        Args:
            seed: The same seed writes the same list. `self.rng` has been started from it when this is called, so take
                all random numbers from there.
            episode_id: A name for the episode.
        """
        wanted = {item: self.rng.randint(1, 3) for item in self.rng.sample(sorted(PRICES), 2)}
        self._state = MyState(episode_id=episode_id or uuid4().hex, wanted=wanted)
        self._playing, self._paid = True, False
        words = " and ".join(f"{count} {item}" for item, count in wanted.items())
        # No reward: nothing was done yet, and none is not the same as 0.
        return MyTask(task=f"Buy {words}, and nothing else. Then pay.")

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Calls a tool, and says what that was worth. A tool that fails is an answer too, for the agent to read."""
        if not isinstance(action, CallToolAction):  # the list of tools, which is no step of the episode
            return super().step(action, timeout_s=timeout_s, **kwargs)
        if not self._playing:
            raise ResetRequired("no errand is running: call reset() to begin one")
        answer: CallToolObservation = super().step(action, timeout_s=timeout_s, **kwargs)
        self._state.step_count += 1
        # An episode ends by itself (terminated) or is cut short (truncated); trainers treat the two differently.
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
        """Actions that are no tool call; there are none here."""
        raise InvalidAction(f"{type(action).__name__} is no tool call: this environment takes nothing else")

    @property
    def state(self) -> MyState:
        return self._state

    def _shop(self) -> FastMCP:
        """The tools. Their names, annotations and docstrings are what a model is told of them."""
        mcp: FastMCP = FastMCP("my_env")

        @mcp.tool
        def prices() -> dict[str, float]:
            """What there is, and what one of each costs."""
            return PRICES

        @mcp.tool
        def take(item: str, count: int = 1) -> dict[str, int]:
            """Puts things into the basket, and says what is in it."""
            if item not in PRICES:
                raise ValueError(f"there is no {item}: there are {', '.join(PRICES)}")
            if count < 1:
                raise ValueError(f"count is {count}: it must be at least 1")
            self._state.basket[item] = self._state.basket.get(item, 0) + count
            return self._state.basket

        @mcp.tool
        def put_back(item: str) -> dict[str, int]:
            """Takes all of a thing out of the basket, and says what is left in it."""
            self._state.basket.pop(item, None)
            return self._state.basket

        @mcp.tool
        def pay() -> float:
            """Pays for the basket, which ends the errand, and says how much it was."""
            self._paid = True
            return sum(PRICES[item] * count for item, count in self._state.basket.items())

        return mcp
