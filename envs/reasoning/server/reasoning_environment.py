"""The environment: a question, and an answer to it."""

from __future__ import annotations

from html import escape
from typing import Any
from uuid import uuid4

from openenv.chat import Chat, TagAnswer
from openenv.environment import Environment
from openenv.errors import InvalidArgument, ResetRequired

from ..models import MOST_TRIES, ReasoningAction, ReasoningObservation, ReasoningState
from .bank import Question, checked_name, question, score
from .tasks import Tasks, split_named

__all__ = ["ReasoningEnvironment"]


class ReasoningEnvironment(Tasks, Environment[ReasoningAction, ReasoningObservation, ReasoningState]):
    """Questions of a hundred kinds, generated from seeds. The reward is the score of the answer, 0 to 1."""

    # Instances share the datasets, which generate the same questions for each.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state has the answer
    chat = Chat(
        system="Solve the task. Reason step by step, and end with the answer alone in a tag, in the form that the "
        "task requires: <answer>42</answer>",
        observation="{question}\n\n{note}",
        answer=TagAnswer(tag="answer"),
    )

    def __init__(self, task: str | None = None, tries: int = 1) -> None:
        """Sets the defaults of `task` and `tries` for `reset`.

        Raises:
            InvalidArgument: The task does not exist, or `tries` is not 1 to 10.
        """
        super().__init__()
        self._default_task = None if task is None else checked_name(task)
        self._default_tries = _checked(tries)
        self._state = ReasoningState()
        self._asked: Question | None = None
        self._tries_left = 0

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: str | None = None,
        index: int | None = None,
        tries: int | None = None,
        **kwargs: Any,
    ) -> ReasoningObservation:
        """Asks a question.

        Args:
            seed: Chooses the question, unless `index` does.
            episode_id: Id of the episode.
            task: A dataset, such as `leg_counting`. By default a question of any dataset.
            split: `train` (the default) or `test`; `train/leg_counting` also sets the task.
            index: Index of the question in the split, from 0; with a task, among its questions in the split.
            tries: Number of allowed answers, 1 to 10.

        Raises:
            InvalidArgument: The task, split or question does not exist, or `tries` is not 1 to 10.
        """
        allowed = _checked(self._default_tries if tries is None else tries)
        kind = "train" if split is None else split
        if task is None and "/" not in str(kind):
            task = self._default_task
        named = split_named(kind, task)
        name, place = named.place(self.rng.randrange(len(named)) if index is None else index)
        asked = question(name, named.kind, place)
        self._asked, self._tries_left = asked, allowed
        self._state = ReasoningState(
            episode_id=episode_id or uuid4().hex,
            id=asked.id,
            task=name,
            category=asked.category,
            split=named.kind,
            index=place,
            answer=asked.answer,
            tries=allowed,
        )
        # No reward (None, not 0): the agent has not acted yet.
        return self._seen(asked)

    def step(self, action: ReasoningAction, timeout_s: float | None = None, **kwargs: Any) -> ReasoningObservation:
        """Scores an answer. The reward is its gain over the best one so far, so the return is the best score.

        Raises:
            ResetRequired: No question is open.
        """
        asked = self._asked
        if asked is None or not self._tries_left:
            raise ResetRequired("no question is open: call reset() first")
        earned, note = score(asked, action.answer)
        state = self._state
        state.step_count += 1
        reward = max(earned - state.best, 0.0)
        state.best = max(earned, state.best)
        self._tries_left = 0 if earned == 1.0 else self._tries_left - 1
        seen = self._seen(asked)
        seen.score, seen.correct, seen.note = earned, earned == 1.0, note
        seen.reward, seen.done, seen.terminated = reward, not self._tries_left, not self._tries_left
        return seen

    @property
    def state(self) -> ReasoningState:
        return self._state

    def oracle(self) -> ReasoningAction | None:
        """A right answer; None for a dataset that has none."""
        return None if self._state.answer is None else ReasoningAction(answer=self._state.answer)

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that gives the same answer to each question, and that of a right one."""
        return 0.1, 1.0

    def render_web(self, observation: Any) -> str:
        """The question in a monospaced font, which boards and tables need."""
        verdict = ""
        if self._state.step_count:
            said = "Right." if observation.correct else f"Worth {observation.score:.2f}. {escape(observation.note)}"
            verdict = f"<p><b>{said}</b> {observation.tries_left} tries left.</p>"
        style = "white-space:pre-wrap;font:14px/1.5 ui-monospace,monospace;background:#f4f1ea;padding:1em"
        return (
            f'<h3>{escape(observation.task)}</h3><div style="{style}">{escape(observation.question)}</div>{verdict}'
        )

    def _seen(self, asked: Question) -> ReasoningObservation:
        return ReasoningObservation(
            question=asked.entry["question"], task=asked.name, best=self._state.best, tries_left=self._tries_left
        )


def _checked(tries: Any) -> int:
    if not isinstance(tries, int) or isinstance(tries, bool) or not 1 <= tries <= MOST_TRIES:
        raise InvalidArgument(f"tries must be 1 to {MOST_TRIES}, not {tries!r:.40}")
    return tries
