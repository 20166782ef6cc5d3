"""The environment: replace this class with your own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.chat import Chat, TagAnswer
from openenv.environment import Environment
from openenv.errors import ResetRequired

from ..models import HIGHEST, MOST_GUESSES, MyAction, MyObservation, MyState

__all__ = ["MyEnvironment"]


class MyEnvironment(Environment[MyAction, MyObservation, MyState]):
    """Guess a number between 1 and 100. Finding it is worth 1, and the game ends after ten guesses."""

    # A server may run many instances, since they share no data. Keep all data in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state has the number
    # How a language model plays it: what it reads, and how its answer becomes an action.
    chat = Chat(
        system="Guess a number between 1 and 100. End each answer with a guess: <guess>50</guess>",
        observation="Hint: {hint}. Guesses left: {guesses_left}.",
        answer=TagAnswer(tag="guess"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._state = MyState()
        self._playing = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyObservation:
        """Chooses a number.

        Args:
            seed: The same seed gives the same number. `self.rng` is already seeded with it: take all random numbers
                from there.
            episode_id: Id of the episode.
        """
        self._state = MyState(episode_id=episode_id or uuid4().hex, secret=self.rng.randint(1, HIGHEST))
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return MyObservation(hint="start", guesses_left=MOST_GUESSES)

    def step(self, action: MyAction, timeout_s: float | None = None, **kwargs: Any) -> MyObservation:
        """Compares a guess with the number. The action is already validated: its guess is between 1 and 100."""
        if not self._playing:
            raise ResetRequired("no game is running: call reset() to begin one")
        self._state.step_count += 1
        guesses_left = MOST_GUESSES - self._state.step_count
        found = action.guess == self._state.secret
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = guesses_left == 0 and not found
        self._playing = not (found or truncated)
        return MyObservation(
            hint="found" if found else "higher" if action.guess < self._state.secret else "lower",
            guesses_left=guesses_left,
            reward=1.0 if found else 0.0,
            done=found or truncated,
            terminated=found,
            truncated=truncated,
        )

    @property
    def state(self) -> MyState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> MyAction:
        """The next action of a solution."""
        return MyAction(guess=self._state.secret)

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that ignores the hints (ten of a hundred numbers), and that of a solution."""
        return MOST_GUESSES / HIGHEST, 1.0
