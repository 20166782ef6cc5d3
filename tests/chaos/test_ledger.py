"""The ledger finds what must not happen."""

from __future__ import annotations

import pytest

from .ledger import PROBES, Ledger


@pytest.fixture
def read(tmp_path):
    def read(*lines: str) -> Ledger:
        path = tmp_path / "ledger"
        path.write_text("".join(f"{line}\n" for line in lines))
        return Ledger(path)

    return read


def report(answered: dict[str, int], **unanswered: list[int]) -> dict:
    return {"answered": answered, "unanswered": {name[1:]: numbers for name, numbers in unanswered.items()}}


def test_counts_that_agree(read):
    ledger = read("made -1 0 7", "reset 100000 0 7", "step 100000 1 7", "step 100000 2 8", "closed 100000 0 8")
    assert ledger.differences(report({"100000": 2})) == []
    assert (ledger.total, ledger.places, ledger.most_at_once) == (2, {1: 8}, 1)


def test_a_step_that_was_executed_twice(read):
    ledger = read("reset 5 0 7", "step 5 1 7", "step 5 1 7")
    assert "executed twice: [1]" in ledger.differences(report({"5": 1}))[0]


def test_a_step_that_was_answered_and_not_executed(read):
    assert "2 answered, 1 executed" in read("step 5 1 7").differences(report({"5": 2}))[0]


def test_a_step_that_nobody_knows_of(read):
    assert "0 answered, 1 executed" in read("step 5 1 7").differences(report({}))[0]


def test_a_step_without_an_answer_may_have_been_executed_once(read):
    for lines in (["step 5 1 7"], ["step 5 1 7", "step 5 2 7"]):
        assert read(*lines).differences(report({"5": 1}, _5=[2])) == []
    assert "twice" in read("step 5 1 7", "step 5 2 7", "step 5 2 7").differences(report({"5": 1}, _5=[2]))[0]


def test_an_episode_that_was_begun_twice(read):
    ledger = read("reset 5 0 7", "step 5 1 7", "reset 5 0 7")
    assert ledger.differences(report({"5": 1})) == ["episode 5: reset 2 times"]


def test_probes_are_nobodys(read):
    assert read(f"step {PROBES} 1 7", "step -1 1 7", "reset -1 0 7").differences(report({})) == []
