from __future__ import annotations

import asyncio
import logging

import pytest

from openenv.errors import JudgeFailed, ModelFailed, ModelUnavailable
from openenv.rubrics import LLMJudge, Sequential, WeightedSum

from .rubrics import Constant, Model

TEMPLATE = "{action} led to {observation}. How good was it, from 0 to 1?"
AT_ONCE = {"backoff_s": 0.0}


async def asked(*answers, **settings):
    """The score of a judge whose model answers so."""
    return await LLMJudge(TEMPLATE, Model(*answers), **AT_ONCE, **settings)("a move", "a board")


# What it asks


async def test_the_prompt_has_the_action_and_the_observation():
    model = Model("0.5")
    await LLMJudge(TEMPLATE + ' Answer as {{"score": 0.5}}.', model)("{observation}", "a board")
    assert model.prompts == ['{observation} led to a board. How good was it, from 0 to 1? Answer as {"score": 0.5}.']


async def test_the_prompt_may_name_a_field():
    model = Model("0.5")
    await LLMJudge("{action.real} {observation[text]}", model)(3, {"text": "a board"})
    assert model.prompts == ["3 a board"]


@pytest.mark.parametrize("template", ["{prompt}", "{}", '{"score": 1}', "{action", "{0}"])
def test_a_template_with_a_place_that_nothing_fills_is_refused(template):
    with pytest.raises(ValueError, match="prompt_template.*braces"):
        LLMJudge(template, Model("1"))
    judge = LLMJudge(TEMPLATE, Model("1"))
    with pytest.raises(ValueError, match="prompt_template.*braces"):
        judge.load_state_dict({"prompt_template": template})
    assert judge.prompt_template == TEMPLATE


async def test_a_subclass_fills_its_own_places():
    class Tasked(LLMJudge):
        def _render_prompt(self, action, observation):
            return self.prompt_template.format(task="win", action=action)

    model = Model("1")
    assert await Tasked("{task}: {action}", model)("e4", None) == 1.0
    assert model.prompts == ["win: e4"]


async def test_a_client_may_be_synchronous():
    class Plain:
        def complete(self, prompt):
            return "0.5"

    assert await LLMJudge(TEMPLATE, Plain())(None, None) == 0.5


# What it reads


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("0.8", 0.8),
        ("Score: 0.7, since it is good", 0.7),
        (".5", 0.5),
        ("1", 1.0),
        ("1.", 1.0),
        ("+0.25", 0.25),
        ("score-0.5", 0.5),
        ("5e-1", 0.5),
        ("**0.9**\n", 0.9),
    ],
)
async def test_the_first_number_is_the_score(answer, score):
    assert await asked(answer) == score


@pytest.mark.parametrize(
    ("pattern", "answer", "score"),
    [
        (r"SCORE=(\S+)", "2 of 3 moves were good. SCORE=0.7", 0.7),
        (r"\d$", "10 points, so 1", 1.0),
        (r"good: (\d)|bad: (\d)", "bad: 0", 0.0),
    ],
)
async def test_a_pattern_says_where_the_score_stands(pattern, answer, score):
    assert await asked(answer, score_pattern=pattern) == score


def test_a_pattern_must_be_one():
    with pytest.raises(ValueError, match="score_pattern"):
        LLMJudge(TEMPLATE, Model("1"), score_pattern="(")


@pytest.mark.parametrize(("answer", "score"), [("85", 1.0), ("-3", 0.0), ("8/10", 1.0), ("1e300", 1.0)])
async def test_a_score_out_of_range_is_moved_to_its_end_and_told(answer, score, caplog):
    assert await asked(answer) == score
    assert "outside of [0, 1]" in caplog.text


async def test_out_of_range_is_an_error_where_nothing_may_be_guessed():
    with pytest.raises(JudgeFailed, match=r"score 85 is outside of \[0, 1\]"):
        await asked("85", strict=True)


async def test_without_normalizing_any_number_is_a_score(caplog):
    assert await asked("-85", normalize=False, strict=True) == -85.0
    assert caplog.text == ""


PROSE = ["", "I would say it was rather good.", "nan", "infinity", "1e999"]


@pytest.mark.parametrize("answer", PROSE)
async def test_prose_is_no_score(answer):
    judge = LLMJudge(TEMPLATE, Model(answer))
    with pytest.raises(JudgeFailed, match=r"no score in its answer .*score_pattern.*default_score") as failed:
        await judge(None, None)
    assert (judge.last_score, judge.unreadable, failed.value.retryable) == (None, 1, False)


@pytest.mark.parametrize("answer", PROSE)
async def test_a_default_that_was_given_stands_in_for_prose_and_is_told(answer, caplog):
    judge = LLMJudge(TEMPLATE, Model(answer), default_score=0.0)
    assert await judge(None, None) == 0.0
    assert judge.unreadable == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the score is default_score, 0" in caplog.text


async def test_strictness_can_be_chosen():
    assert await asked("prose", strict=False) == 0.0
    with pytest.raises(JudgeFailed):
        await asked("prose", strict=True, default_score=0.5)


async def test_a_pattern_that_finds_a_word_finds_no_score():
    with pytest.raises(JudgeFailed, match="no score"):
        await asked("Score: high", score_pattern=r"Score: (\w+)")


@pytest.mark.parametrize("default", [float("nan"), float("inf")])
def test_a_default_must_be_finite(default):
    with pytest.raises(ValueError, match="default_score"):
        LLMJudge(TEMPLATE, Model("1"), default_score=default)


async def test_a_subclass_reads_answers_its_own_way():
    class Verdict(LLMJudge):
        def _parse_score(self, response):
            return {"yes": 1.0, "no": 0.0}[response]

    assert await Verdict(TEMPLATE, Model("no"))(None, None) == 0.0


@pytest.mark.parametrize("answer", [None, 0.5, b"0.5"])
async def test_a_client_that_returns_no_text_is_told(answer):
    with pytest.raises(JudgeFailed, match=type(answer).__name__):
        await asked(answer)


# When it cannot ask


@pytest.mark.parametrize(
    "error", [ModelUnavailable("busy", status=429), ConnectionError("refused"), TimeoutError("late")]
)
async def test_a_failure_that_may_pass_is_tried_again(error):
    assert await asked(error, error, "0.5") == 0.5


async def test_after_the_last_try_there_is_no_score():
    model = Model(ModelUnavailable("answered 500"))
    with pytest.raises(JudgeFailed, match=r"gave no score: answered 500 .*has no reward") as failed:
        await LLMJudge(TEMPLATE, model, retries=2, backoff_s=0.0)(None, None)
    assert len(model.prompts) == 3
    assert isinstance(failed.value.__cause__, ModelUnavailable)
    assert failed.value.data["cause"] == "ModelUnavailable"


@pytest.mark.parametrize("error", [ModelFailed("answered 401", status=401), KeyError("choices"), ValueError("what?")])
async def test_a_failure_that_stays_is_not_tried_again(error):
    model = Model(error)
    told = error.message if isinstance(error, ModelFailed) else type(error).__name__
    with pytest.raises(JudgeFailed, match=rf"LLMJudge gave no score: {told}"):
        await LLMJudge(TEMPLATE, model, **AT_ONCE)(None, None)
    assert len(model.prompts) == 1


async def test_a_judge_that_is_late_has_no_score():
    judge = LLMJudge(TEMPLATE, Model("1", before=asyncio.Event().wait), timeout_s=0.01)
    with pytest.raises(JudgeFailed, match=r"did not answer within 0\.01 s.*timeout_s") as failed:
        await judge(None, None)
    assert (judge.last_score, failed.value.blame, failed.value.data["cause"]) == (
        None,
        "infrastructure",
        "ModelTimeout",
    )


async def test_the_deadline_covers_all_attempts_and_tells_of_the_one_before():
    async def fail_once_then_wait():
        if len(model.prompts) == 1:
            raise ModelUnavailable("answered 503")
        await asyncio.Event().wait()

    model = Model("1", before=fail_once_then_wait)
    with pytest.raises(JudgeFailed, match=r"the attempt before: answered 503"):
        await LLMJudge(TEMPLATE, model, timeout_s=0.02, retries=100, backoff_s=0.0)(None, None)


async def test_a_pause_beyond_the_deadline_is_not_begun():
    model = Model(ModelUnavailable("busy", status=429, retry_after_s=3600.0))
    with pytest.raises(JudgeFailed, match="busy"):
        await LLMJudge(TEMPLATE, model)(None, None)
    assert len(model.prompts) == 1


async def test_a_cancelled_judge_stops_asking():
    asks = asyncio.Event()

    async def ask_for_ever():
        asks.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(LLMJudge(TEMPLATE, Model("1", before=ask_for_ever))(None, None))
    await asks.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# In a tree


async def test_judges_of_a_tree_ask_at_the_same_time():
    everybody = asyncio.Barrier(3)
    judges = [LLMJudge(TEMPLATE, Model(answer, before=everybody.wait)) for answer in ("0", "0.5", "1")]
    assert await WeightedSum(judges, [0.25, 0.5, 0.25])(None, None) == 0.5


async def test_a_cheap_check_saves_the_judge():
    model = Model("1")
    assert Sequential(Constant(0.0), LLMJudge(TEMPLATE, model))(None, None) == 0.0
    assert model.prompts == []


async def test_a_failure_names_the_judge_by_its_place():
    with pytest.raises(JudgeFailed, match=r"rubric 'rubric_1' \(LLMJudge\) gave no score"):
        await WeightedSum([Constant(), LLMJudge(TEMPLATE, Model("prose"))], [0.5, 0.5])(None, None)


async def test_the_settings_go_into_another_judge():
    judge = LLMJudge(TEMPLATE, Model("7"), score_pattern=r"(\d)", default_score=0.25, normalize=False)
    other = LLMJudge("{action}", Model("7 or 8"))
    state = judge.state_dict()
    assert {key: state[key] for key in ("prompt_template", "score_pattern", "default_score", "normalize")} == {
        "prompt_template": TEMPLATE,
        "score_pattern": r"(\d)",
        "default_score": 0.25,
        "normalize": False,
    }
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert await other(None, None) == 7.0
