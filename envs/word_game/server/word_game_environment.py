"""The environment: one hidden word, and a few guesses to find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from openenv.environment import Environment
from openenv.errors import InvalidArgument, ResetRequired

from ..models import Row, WordGameAction, WordGameObservation, WordGameState
from .board import board_html
from .lexicon import words_of_split
from .marking import candidates_after, marks_of
from .prompt import marked, welcome
from .rules import FOR_NONSENSE, Rules
from .tasks import Tasks, split_named

__all__ = ["WordGameEnvironment"]

OFFERED = 12


class WordGameEnvironment(Tasks, Environment[WordGameAction, WordGameObservation, WordGameState]):
    """Find the hidden word. Each letter of a guess is marked: in its place, elsewhere in the word, or not in it."""

    # Instances share nothing but the word lists, which nobody changes, so a server may hold many of them.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # it has the answer

    def __init__(
        self, length: int = 5, lexicon: int | None = None, max_guesses: int = 6, words_only: bool = True
    ) -> None:
        """The arguments are those of `reset`, for games that do not say otherwise."""
        super().__init__()
        self._usual = Rules(length, lexicon, max_guesses, words_only)
        self._rules = self._usual
        self._state = WordGameState()
        self._board: list[Row] = []
        # Places of words in the list; a tuple, which a copy of the environment shares.
        self._candidates: tuple[int, ...] = ()
        self._playing = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        length: int | None = None,
        lexicon: int | None = None,
        max_guesses: int | None = None,
        words_only: bool | None = None,
        **kwargs: Any,
    ) -> WordGameObservation:
        """Hides a word.

        Args:
            seed: The same seed and arguments hide the same word.
            episode_id: Id of the episode.
            split: `train` or `test` (`train-4`, `test-3`, ... for shorter words); without one it is any word.
            index: Which task of the split (of `train`, without one), from 0; without it the seed chooses.
            length: Letters of the word: 3, 4 or 5.
            lexicon: Play with so many words only; a split then has those of its own among them.
            max_guesses: How many guesses there are, 1 to 20.
            words_only: Whether a guess must be a word of the game; else any letters will do.

        Raises:
            InvalidArgument: There is no such split, task or game.
        """
        if split is None and index is not None:
            split = "train"
        if split is not None:
            of_split = split_named(split).length
            if length is not None and length != of_split:
                raise InvalidArgument(
                    f"split {split!r} has words of {of_split} letters, and length is {length!r:.40}"
                )
            length = of_split
        usual = self._usual
        rules = Rules(
            usual.length if length is None else length,
            usual.lexicon if lexicon is None else lexicon,
            usual.max_guesses if max_guesses is None else max_guesses,
            usual.words_only if words_only is None else words_only,
        )
        self._begin(rules, *self._choose(rules, split, index), episode_id or uuid4().hex)
        # No reward (None, not 0): the agent has not acted yet.
        return self._seen(welcome(rules))

    def step(self, action: WordGameAction, timeout_s: float | None = None, **kwargs: Any) -> WordGameObservation:
        """Marks a guess. What cannot be guessed is said in words and costs a turn: a model learns from it too."""
        if not self._playing:
            raise ResetRequired("no game is running: call reset() to begin one")
        state, rules = self._state, self._rules
        state.step_count += 1
        guess = action.guess.strip().lower()
        fault = rules.fault(guess)
        found = guess == state.answer
        truncated = state.step_count >= rules.max_guesses and not found
        self._playing = not (found or truncated)
        if fault is not None:
            text, reward = f"{guess!r} is not a guess: {fault}.", FOR_NONSENSE
        else:
            reward = self._mark(guess, found)
            text = marked(self._board)
        seen = self._seen(text, valid=fault is None)
        seen.reward, seen.done, seen.terminated, seen.truncated = reward, found or truncated, found, truncated
        return seen

    @property
    def state(self) -> WordGameState:
        return self._state

    def render_web(self, observation: Any) -> str:
        """The board. It is drawn from the observation alone, so it shows what the player knows, and no more."""
        return board_html(observation, self._state.max_guesses)

    def web_actions(self, observation: Any) -> Sequence[tuple[str, dict[str, Any]]]:
        """Some words that would explain all marks so far: those of the list's first ones, the answer or not."""
        if observation.done or not self._playing:
            return []
        words = self._rules.words
        shown = sorted(words[place] for place in self._candidates[:OFFERED])
        return [(word, {"guess": word}) for word in shown]

    def _choose(self, rules: Rules, split: str | None, index: int | None) -> tuple[str, str | None]:
        """The answer, and the name of the task."""
        if split is None:
            return self.rng.choice(rules.words), None
        there = words_of_split(rules.words, split_named(split).type)
        if index is None:
            index = self.rng.randrange(len(there))
        elif not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(there):
            raise InvalidArgument(
                f"split {split!r} has no task {index!r:.40}: there are {len(there)}, from 0 to {len(there) - 1}",
                data={"num_tasks": len(there)},
            )
        return there[index], f"{split}/{index}"

    def _begin(self, rules: Rules, answer: str, task: str | None, episode_id: str) -> None:
        self._rules = rules
        self._board = []
        self._candidates = tuple(range(len(rules.words)))
        self._playing = True
        self._state = WordGameState(
            episode_id=episode_id,
            answer=answer,
            task=task,
            length=rules.length,
            lexicon=len(rules.words),
            max_guesses=rules.max_guesses,
            words_only=rules.words_only,
            candidates=len(self._candidates),
        )

    def _mark(self, guess: str, found: bool) -> float:
        """Puts a guess on the board; returns what it is worth."""
        before = len(self._candidates)
        self._candidates = candidates_after(self._candidates, guess, self._state.answer)
        self._state.candidates = len(self._candidates)
        self._board.append(Row(guess=guess, marks=marks_of(guess, self._state.answer)))
        return self._rules.worth(before, len(self._candidates), found)

    def _seen(self, text: str, valid: bool = True) -> WordGameObservation:
        left = self._rules.max_guesses - self._state.step_count
        over = "" if self._playing else f" The word was {self._state.answer}."
        ask = f" {left} {'guess' if left == 1 else 'guesses'} left." if self._playing else over
        return WordGameObservation(
            text=text + ask,
            valid=valid,
            board=list(self._board),
            length=self._rules.length,
            guesses_left=left,
            answer=None if self._playing else self._state.answer,
        )
