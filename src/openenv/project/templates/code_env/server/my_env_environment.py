"""The environment: replace this class with your own."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.chat import Chat, TagAnswer
from openenv.environment import Environment
from openenv.errors import ResetRequired

from ..models import MyAction, MyObservation, MyState
from .program import MOST_OUTPUT, Run, run
from .tasks import task

__all__ = ["MyEnvironment"]

MOST_ATTEMPTS = 5


class MyEnvironment(Environment[MyAction, MyObservation, MyState]):
    """Solve a task with a Python program. The right answer is worth 1; there are five attempts."""

    # A server may run many instances, since they share no data. Keep all data in `self`.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state has the answer
    # Each session has its own process, which ends with all of its children. Programs run in child processes, so that
    # they cannot read the answer.
    execution = "process"
    # How a language model plays it: what it reads, and how its answer becomes an action.
    chat = Chat(
        system="Solve the task with a Python program that prints the answer and nothing else. End each answer with "
        "the program: <code>print(42)</code>",
        observation="{task}\n\n{output}\nAttempts left: {attempts_left}",
        answer=TagAnswer(tag="code"),
    )

    def __init__(self) -> None:
        super().__init__()
        self._state = MyState()
        self._task = ""
        self._playing = False

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> MyObservation:
        """Sets a task.

        Args:
            seed: The same seed sets the same task. `self.rng` is already seeded with it: take all random numbers
                from there.
            episode_id: Id of the episode.
        """
        self._task, answer = task(self.rng)
        self._state = MyState(episode_id=episode_id or uuid4().hex, answer=answer)
        self._playing = True
        # No reward (None, not 0): the agent has not acted yet.
        return MyObservation(task=self._task, attempts_left=MOST_ATTEMPTS)

    def step(self, action: MyAction, timeout_s: float | None = None, **kwargs: Any) -> MyObservation:
        """Runs a program, and compares what it prints with the answer. A program that fails is an attempt, too."""
        if not self._playing:
            raise ResetRequired("no task is set: call reset() for one")
        done = run(action.code)
        self._state.step_count += 1
        return self._judged(done, MOST_ATTEMPTS - self._state.step_count)

    @property
    def state(self) -> MyState:
        return self._state

    # For `openenv validate --level semantic`, which checks that only a solution is paid.

    def oracle(self) -> MyAction:
        """The next action of a solution."""
        return MyAction(code=f"print({self._state.answer!r})")

    def return_range(self) -> tuple[float, float]:
        """The return of a player that does not read the task, and that of a solution."""
        return 0.0, 1.0

    def _judged(self, done: Run, attempts_left: int) -> MyObservation:
        solved = done.exit_code == 0 and done.output.strip() == self._state.answer
        # An episode ends in a final state (terminated) or at a limit (truncated). Trainers treat the two differently.
        truncated = attempts_left == 0 and not solved
        self._playing = not (solved or truncated)
        return MyObservation(
            task=self._task,
            output=done.output,
            output_cut=len(done.output.encode()) >= MOST_OUTPUT,
            exit_code=done.exit_code,
            timed_out=done.exit_code is None,
            attempts_left=attempts_left,
            reward=1.0 if solved else 0.0,
            done=solved or truncated,
            terminated=solved,
            truncated=truncated,
        )
