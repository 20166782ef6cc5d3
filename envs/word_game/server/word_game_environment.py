"""The environment: a hidden word, and a few guesses to find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from openenv.chat import Chat, TagAnswer
from openenv.environment import Environment
from openenv.errors import InvalidArgument, ResetRequired

from ..models import Row, WordGameAction, WordGameObservation, WordGameState
from .board import board_html
from .lexicon import words_of_split
from .marking import candidates_after, marks_of
from .prompt import marked, welcome
from .rules import FOR_NONSENSE, Rules
from .tasks import Tasks, find_split

__all__ = ["WordGameEnvironment"]

MAX_SUGGESTIONS = 12


class WordGameEnvironment(Tasks, Environment[WordGameAction, WordGameObservation, WordGameState]):
    """Find the hidden word. Each letter of a guess gets a mark: in its place, elsewhere in the word, or not in it."""

    # Instances share only the word lists, which never change, so a server can run many sessions.
    SUPPORTS_CONCURRENT_SESSIONS = True
    SHOW_STATE = False  # the state contains the answer
    chat = Chat(
        system="Find the hidden word. Think if it helps, and end each answer with one guess: <guess>word</guess>",
        observation="{text}",
        answer=TagAnswer(tag="guess"),
    )

    def __init__(
        self, length: int = 5, lexicon: int | None = None, max_guesses: int = 6, words_only: bool = True
    ) -> None:
        """The arguments are the defaults for the arguments of `reset`."""
        super().__init__()
        self._defaults = Rules(length, lexicon, max_guesses, words_only)
        self._rules = self._defaults
        self._state = WordGameState()
        self._board: list[Row] = []
        # Indices in the word list. A copy of the environment shares this tuple.
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
        """Starts a game with a hidden word.

        Args:
            seed: The same seed and arguments hide the same word.
            episode_id: Id of the episode.
            split: `train` or `test` (`train-4`, `test-3`, ... for shorter words). Without a split and an index, the
                game can hide any of its words.
            index: Index of the task in the split (by default `train`), from 0. By default the seed chooses it.
            length: Number of letters of the word: 3, 4 or 5.
            lexicon: Number of words in the game. A split has a part of them.
            max_guesses: Number of guesses, 1 to 20.
            words_only: Whether a guess must be a word of the game. If False, any letters are a guess.

        Raises:
            InvalidArgument: The split or task does not exist, or an option is out of bounds.
        """
        if split is None and index is not None:
            split = "train"
        if split is not None:
            split_length = find_split(split).length
            if length is not None and length != split_length:
                raise InvalidArgument(
                    f"split {split!r} has words of {split_length} letters, and length is {length!r:.40}"
                )
            length = split_length
        defaults = self._defaults
        rules = Rules(
            defaults.length if length is None else length,
            defaults.lexicon if lexicon is None else lexicon,
            defaults.max_guesses if max_guesses is None else max_guesses,
            defaults.words_only if words_only is None else words_only,
        )
        self._begin(rules, *self._choose(rules, split, index), episode_id or uuid4().hex)
        # No reward (None, not 0): the agent has not acted yet.
        return self._seen(welcome(rules))

    def step(self, action: WordGameAction, timeout_s: float | None = None, **kwargs: Any) -> WordGameObservation:
        """Marks a guess. An invalid one costs a turn, and its observation has the reason: models learn from both."""
        if not self._playing:
            raise ResetRequired("no game is running: call reset() first")
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

    def oracle(self) -> WordGameAction:
        """The hidden word."""
        return WordGameAction(guess=self._state.answer)

    def return_range(self) -> tuple[float, float]:
        """The mean return of a player that makes the same guesses in each game, and that of the word at once."""
        return 0.25, self._rules.reward(len(self._rules.words), 1, True)

    def render_web(self, observation: Any) -> str:
        """The board, drawn from the observation alone, so that the page never shows the hidden word during a game."""
        return board_html(observation, self._state.max_guesses)

    def web_actions(self, observation: Any) -> Sequence[tuple[str, dict[str, Any]]]:
        """The first words of the list that fit all marks so far. The answer need not be among them."""
        if observation.done or not self._playing:
            return []
        words = self._rules.words
        shown = sorted(words[index] for index in self._candidates[:MAX_SUGGESTIONS])
        return [(word, {"guess": word}) for word in shown]

    def _choose(self, rules: Rules, split: str | None, index: int | None) -> tuple[str, str | None]:
        """The answer, and the id of the task."""
        if split is None:
            return self.rng.choice(rules.words), None
        answers = words_of_split(rules.words, find_split(split).type)
        if index is None:
            index = self.rng.randrange(len(answers))
        elif not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(answers):
            raise InvalidArgument(
                f"split {split!r} has no task {index!r:.40}: there are {len(answers)}, from 0 to {len(answers) - 1}",
                data={"num_tasks": len(answers)},
            )
        return answers[index], f"{split}/{index}"

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
        """Puts a guess on the board and returns its reward."""
        before = len(self._candidates)
        self._candidates = candidates_after(self._candidates, guess, self._state.answer)
        self._state.candidates = len(self._candidates)
        self._board.append(Row(guess=guess, marks=marks_of(guess, self._state.answer)))
        return self._rules.reward(before, len(self._candidates), found)

    def _seen(self, text: str, valid: bool = True) -> WordGameObservation:
        left = self._rules.max_guesses - self._state.step_count
        over = "" if self._playing else f" The word was {self._state.answer}."
        note = f" {left} {'guess' if left == 1 else 'guesses'} left." if self._playing else over
        return WordGameObservation(
            text=text + note,
            valid=valid,
            board=list(self._board),
            length=self._rules.length,
            guesses_left=left,
            answer=None if self._playing else self._state.answer,
        )
