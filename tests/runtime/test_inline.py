from __future__ import annotations

import threading

import pytest

from openenv.runtime.loop import InlineExecutor
from openenv.runtime.profile import profile_of
from openenv.types import Action

from ..environments import Diary, InlinePlain


class Answers(list):
    def done(self, result, error):
        self.append((result, error))


def test_everything_happens_before_the_call_returns():
    answers, notes = Answers(), []
    executor = InlineExecutor()
    profile = profile_of(Diary)
    executor.start(lambda: Diary(notes), answers.done)
    executor.submit(profile.reset, {}, answers.done)
    executor.submit(profile.step, Action(), answers.done)
    executor.cancel()
    executor.close(answers.done)
    assert [error for _, error in answers] == [None] * 4
    here = threading.get_ident()
    assert notes == [("init", here), ("reset", here), ("step", here), ("close", here)]


def test_an_environment_that_was_made_elsewhere():
    answers, environment = Answers(), InlinePlain()
    executor = InlineExecutor(environment)
    executor.submit(lambda found, _: found, None, answers.done)
    executor.close(answers.done)
    assert answers == [(environment, None), (None, None)]
    assert environment.closings == 1


def test_a_fault_of_whoever_is_told_is_not_taken_for_the_environments():
    executor = InlineExecutor(InlinePlain())
    calls = []

    def done(result, error):
        calls.append((result, error))
        raise LookupError("the listener's own")

    with pytest.raises(LookupError):
        executor.submit(lambda environment, _: 1, None, done)
    assert calls == [(1, None)]
