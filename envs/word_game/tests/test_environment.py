"""Tests of this environment. Run them with `pytest` in the folder of openenv.yaml."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from math import isclose
from types import SimpleNamespace
from typing import Any

import pytest
from word_game import WordGameAction, WordGameEnv, WordGameObservation, WordGameState
from word_game.plot import VocabularyPlayer, episode
from word_game.server.lexicon import LENGTHS, words
from word_game.server.marking import candidates_after, marks_of
from word_game.server.word_game_environment import WordGameEnvironment

from openenv import SyncEnvClient
from openenv.errors import InvalidAction, InvalidArgument, ResetRequired
from openenv.testing import EnvironmentConformance

Env = SyncEnvClient[WordGameAction, WordGameObservation, WordGameState]


class TestConformance(EnvironmentConformance):
    """The checks for all environments: seeds, isolated sessions, invalid actions, and more."""

    def app(self) -> Any:
        return WordGameEnvironment

    def actions(self) -> list[dict[str, Any]]:
        return [{"guess": guess} for guess in ("crane", " MOIST ", "no word", "", "pulse", "zebra")]


@pytest.fixture
def env() -> Iterator[Env]:
    """A client of an environment in this process, with the same calls and rules as over a network."""
    with WordGameEnv(env=WordGameEnvironment).sync() as client:
        yield client


def signs(guess: str, answer: str) -> str:
    return "".join({"hit": "+", "near": "?", "miss": "-"}[mark] for mark in marks_of(guess, answer))


@pytest.mark.parametrize(
    ("guess", "answer", "expected"),
    [
        ("crane", "crane", "+++++"),
        ("crane", "moist", "-----"),
        ("sweet", "geese", "?-+?-"),  # three e in the answer, two in the guess
        ("geese", "sweet", "-?+?-"),  # the third e of the guess is one too many
        ("eerie", "sweet", "??---"),
        ("allow", "llama", "?+?--"),
    ],
)
def test_letters_are_marked_as_often_as_the_word_has_them(guess: str, answer: str, expected: str) -> None:
    assert signs(guess, answer) == expected


@pytest.mark.parametrize("length", LENGTHS)
def test_the_word_lists_are_unique_lower_case_words_of_their_length(length: int) -> None:
    there = words(length)
    assert len(set(there)) == len(there) >= 200
    assert all(len(word) == length and word.isascii() and word.islower() for word in there)


def test_candidates_are_the_words_that_fit_the_marks() -> None:
    there = words(5)
    left = candidates_after(tuple(range(len(there))), "crane", "cheap")
    assert {there[place] for place in left} == {word for word in there if signs("crane", word) == "+-?-?"}


def test_a_found_word_earns_one_and_all_information_minus_the_guesses(env: Env) -> None:
    for seed in range(5):
        env.reset(seed=seed)
        guesses = ["crane", "moist", env.state().answer]
        results = [env.step(WordGameAction(guess=guess)) for guess in guesses]
        assert results[-1].terminated
        assert results[-1].observation.answer == guesses[-1]
        assert isclose(sum(float(result.reward or 0) for result in results), 1.5 - 3 * 0.05)
    with pytest.raises(ResetRequired):
        env.step(WordGameAction(guess="crane"))


def test_information_alone_earns_at_most_half(env: Env) -> None:
    env.reset(seed=4)
    answer = env.state().answer
    others = [word for word in words(5) if word != answer][:6]
    results = [env.step(WordGameAction(guess=word)) for word in others]
    assert results[-1].truncated
    assert not results[-1].terminated
    assert results[-1].observation.answer == answer
    assert -0.3 <= sum(float(result.reward or 0) for result in results) <= 0.5 - 0.3 + 1e-9


@pytest.mark.parametrize("guess", ["", "zzzzz", "two words", "crânes", "abcdefgh", "12345", "\x00" * 5])
def test_an_invalid_guess_costs_a_turn_and_the_game_continues(env: Env, guess: str) -> None:
    first = env.reset(seed=1)
    result = env.step(WordGameAction(guess=guess))
    assert (result.reward, result.done, result.observation.valid) == (-0.1, False, False)
    assert result.observation.guesses_left == first.observation.guesses_left - 1
    assert result.observation.board == []


def test_a_text_over_the_limit_is_an_invalid_action(env: Env) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidAction, match="guess"):
        env.step(WordGameAction.model_construct(guess="crane" * 100))
    assert env.step(WordGameAction(guess="  CRANE ")).observation.board[0].guess == "crane"


def test_observations_do_not_contain_the_word_before_the_end(env: Env) -> None:
    for seed in range(20):
        result = env.reset(seed=seed)
        answer = env.state().answer
        while not result.done:
            shown = result.observation
            assert shown.answer is None
            assert answer not in shown.text
            result = env.step(WordGameAction(guess="crane" if answer != "crane" else "moist"))


def test_the_same_seed_hides_the_same_word(env: Env) -> None:
    hidden = []
    for seed in (7, 7, 8, 9, 10):
        env.reset(seed=seed)
        hidden.append(env.state().answer)
    assert hidden[0] == hidden[1]
    assert len(set(hidden)) > 2


def test_splits_share_no_word_and_contain_all_words(env: Env) -> None:
    tasks = WordGameEnvironment()
    assert [split["name"] for split in tasks.list_splits()] == [
        "train",
        "test",
        "train-4",
        "test-4",
        "train-3",
        "test-3",
    ]
    for ending, length in (("", 5), ("-4", 4), ("-3", 3)):
        hidden: dict[str, set[str]] = {}
        for split in ("train", "test"):
            tasks_there = tasks.list_tasks(split + ending)
            assert len(tasks_there) == tasks.num_tasks(split + ending)
            environment = WordGameEnvironment()
            hidden[split] = set()
            for task in tasks_there:
                environment.reset(split=task["split"], index=task["index"])
                assert environment.state.task == task["id"]
                hidden[split].add(environment.state.answer)
        assert hidden["train"] | hidden["test"] == set(words(length))
        assert not hidden["train"] & hidden["test"]


def test_the_seed_chooses_a_task_of_the_split(env: Env) -> None:
    seen = set()
    for seed in (1, 1, 2, 3):
        env.reset(seed=seed, split="test-4")
        seen.add(env.state().task)
    assert 1 < len(seen) < 4
    assert all(str(task).startswith("test-4/") for task in seen)


def test_reset_options_make_a_game_smaller(env: Env) -> None:
    env.reset(seed=1, length=3, lexicon=16, max_guesses=2, words_only=False)
    state = env.state()
    assert (state.length, state.lexicon, state.candidates) == (3, 16, 16)
    assert state.answer in words(3)[:16]
    result = env.step(WordGameAction(guess="qqq"))
    assert result.observation.valid
    assert env.step(WordGameAction(guess="xyz")).truncated
    env.reset(seed=1)
    assert env.state().length == 5


def test_constructor_options_make_games_smaller() -> None:
    environment = WordGameEnvironment(length=4, lexicon=20, max_guesses=3, words_only=False)
    assert environment.reset(seed=1).guesses_left == 3
    assert environment.state.lexicon == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "tain"}, "no split 'tain': there are train, test"),
        ({"split": "test", "index": 176}, "there are 176, from 0 to 175"),
        ({"index": -1}, "no task -1"),
        ({"index": "first"}, "no task 'first'"),
        ({"length": 6}, "length must be 3, 4 or 5"),
        ({"length": True}, "length must be"),
        ({"length": 4, "split": "train"}, "has words of 5 letters"),
        ({"lexicon": 3}, "lexicon must be 4 to 880"),
        ({"lexicon": 881}, "lexicon must be 4 to 880"),
        ({"max_guesses": 0}, "max_guesses must be 1 to 20"),
        ({"words_only": "no"}, "words_only must be true or false"),
    ],
)
def test_an_invalid_option_raises_and_the_running_game_continues(
    env: Env, arguments: dict[str, Any], message: str
) -> None:
    env.reset(seed=1)
    with pytest.raises(InvalidArgument, match=message):
        env.reset(**arguments)
    assert env.step(WordGameAction(guess="crane")).observation.guesses_left == 5


def test_a_fork_is_independent() -> None:
    environment = WordGameEnvironment()
    environment.rng.seed(5)  # chooses a word that no guess here finds
    environment.reset()
    environment.step(WordGameAction(guess="crane"))
    fork = copy.deepcopy(environment)
    there, here = fork.step(WordGameAction(guess="moist")), environment.step(WordGameAction(guess="moist"))
    assert there == here
    fork.step(WordGameAction(guess="pulse"))
    assert environment.state.step_count == 2
    assert [fork.reset().length, fork.state.answer] == [environment.reset().length, environment.state.answer]


def test_the_web_page_has_a_board_and_buttons_and_no_script() -> None:
    environment = WordGameEnvironment()
    first = environment.reset(split="train", index=0)
    assert environment.render_web(first).count('class="row"') == 6 + 3
    buttons = environment.web_actions(first)
    assert buttons
    assert all(environment._rules.fault(action["guess"]) is None for _, action in buttons)
    seen = environment.step(WordGameAction(guess="crane"))
    assert 'class="tile' in environment.render_web(seen)
    plain = SimpleNamespace(**seen.model_dump())  # as the server passes it for the page
    assert environment.render_web(plain) == environment.render_web(seen)
    assert environment.web_actions(plain) == environment.web_actions(seen)
    seen = environment.step(WordGameAction(guess="<b>hi"))
    assert "not a word of the game" in environment.render_web(seen)
    assert "<b>" not in environment.render_web(seen)
    while not seen.done:
        guess = environment.web_actions(seen)[0][1]["guess"]
        seen = environment.step(WordGameAction(guess=guess))
    assert environment.web_actions(seen) == []
    assert ("Found with" in environment.render_web(seen)) == seen.terminated


def test_a_player_that_learns_words_earns_more(env: Env) -> None:
    """The learner of plot.py, in a small game."""
    player, small = VocabularyPlayer(seed=1), {"length": 3, "lexicon": 40, "split": "train-3"}
    rewards = [episode(env, player, True, seed=seed, **small)[0] for seed in range(120)]
    thirds = [sum(rewards[start : start + 40]) / 40 for start in (0, 40, 80)]
    assert all(earlier < later for earlier, later in pairwise(thirds))
