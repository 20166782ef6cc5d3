from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.errors import RubricFailed
from openenv.rubrics import Gate, Rubric, RubricDict, RubricList, Sequential, WeightedSum

from .rubrics import Constant, Late

# Sequential


def test_a_sequence_gives_the_last_score():
    assert Sequential(Constant(1.0), Constant(0.3))(None, None) == 0.3


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, False])
def test_a_sequence_stops_at_the_first_zero(zero):
    rubric = Sequential(Constant(1.0), Constant(zero), Constant(0.7))
    assert rubric(None, None) == 0.0
    assert [part.calls for part in rubric] == [1, 1, 0]


def test_an_empty_sequence_gives_one():
    assert Sequential()(None, None) == 1.0


async def test_a_sequence_mixes_both_kinds_in_their_order():
    last = Late(0.5, waits=True)
    rubric = Sequential(Late(1.0), Constant(0.7), last)
    call = asyncio.ensure_future(rubric(None, None))
    await last.asked.wait()
    assert rubric[1].calls == 1
    last.may_answer.set()
    assert await call == 0.5


async def test_an_asynchronous_zero_stops_a_sequence():
    rubric = Sequential(Late(0.0), Constant(0.7))
    assert await rubric(None, None) == 0.0
    assert rubric[1].calls == 0


# Gate


@pytest.mark.parametrize(
    ("score", "threshold", "passes"), [(0.5, 0.5, 0.5), (0.5, 0.6, 0.0), (2, 1.0, 2), (0.99, 1.0, 0.0)]
)
async def test_a_gate_lets_through_what_reaches_its_threshold(score, threshold, passes):
    assert Gate(Constant(score), threshold)(None, None) == passes
    assert await Gate(Late(score), threshold)(None, None) == passes


def test_a_gate_wants_all_unless_told_otherwise():
    gate = Gate(Constant(0.9))
    assert (gate.threshold, gate(None, None)) == (1.0, 0.0)
    assert gate.get_rubric("rubric").last_score == 0.9


def test_a_gate_keeps_its_threshold():
    gate = Gate(Constant(0.5), 0.25)
    other = Gate(Constant(0.5))
    other.load_state_dict(gate.state_dict())
    assert other(None, None) == 0.5


def test_a_threshold_that_nothing_reaches_is_refused():
    with pytest.raises(ValueError, match="threshold"):
        Gate(Constant(), float("nan"))


# WeightedSum


def test_a_sum_weighs_its_rubrics():
    rubric = WeightedSum([Constant(1.0), Constant(0.5)], [0.25, 0.75])
    assert rubric(None, None) == pytest.approx(0.625)
    assert rubric.weights == [0.25, 0.75]


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([0.5, 0.6], "sum to 1.1"),
        ([0.0, 0.0], "sum to 0"),
        ([float("nan"), 1.0], "sum to nan"),
        ([float("inf"), 0.0], "sum to inf"),
        ([1.0], "match"),
        ([0.2, 0.3, 0.5], "match"),
    ],
)
def test_weights_must_sum_to_one_and_be_as_many_as_the_rubrics(weights, told):
    with pytest.raises(ValueError, match=told):
        WeightedSum([Constant(), Constant()], weights)
    rubric = WeightedSum([Constant(), Constant()], [0.5, 0.5])
    with pytest.raises(ValueError, match=told):
        rubric.load_state_dict({"weights": weights})
    assert rubric.weights == [0.5, 0.5]


@given(st.lists(st.tuples(st.floats(0.01, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=20))
def test_a_sum_lies_between_its_least_and_its_greatest_score(parts):
    whole = sum(weight for weight, _ in parts)
    scores = [score for _, score in parts]
    given_ = WeightedSum([Constant(score) for score in scores], [weight / whole for weight, _ in parts])(None, None)
    assert min(scores) - 1e-6 <= given_ <= max(scores) + 1e-6


async def test_asynchronous_rubrics_of_a_sum_run_concurrently():
    parts = [Late(1.0, waits=True), Late(0.5, waits=True), Constant(0.0)]
    rubric = WeightedSum(parts, [0.25, 0.5, 0.25])
    call = asyncio.ensure_future(rubric(None, None))
    for part in parts[:2]:
        await part.asked.wait()
    for part in parts[:2]:
        part.may_answer.set()
    assert await call == 0.5


async def test_if_one_rubric_of_a_sum_fails_the_others_are_cancelled():
    waiting, broken = Late(1.0, waits=True), Late(float("nan"), waits=True)
    call = asyncio.ensure_future(WeightedSum([waiting, broken], [0.5, 0.5])(None, None))
    await waiting.asked.wait()
    await broken.asked.wait()
    broken.may_answer.set()
    with pytest.raises(RubricFailed, match="rubric_1"):
        await call
    assert waiting.cancelled


async def test_a_cancelled_sum_cancels_its_rubrics():
    parts = [Late(waits=True), Late(waits=True)]
    call = asyncio.ensure_future(WeightedSum(parts, [0.5, 0.5])(None, None))
    for part in parts:
        await part.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [part.cancelled for part in parts] == [True, True]


async def test_a_synchronous_failure_leaves_no_coroutine_behind():
    within = WeightedSum([Late(), Sequential(Late())], [0.5, 0.5])
    rubric = WeightedSum([Late(), within, Constant(None)], [0.25, 0.25, 0.5])
    with pytest.raises(RubricFailed, match="rubric_2"):
        rubric(None, None)


def test_a_subclass_may_have_further_children():
    class Penalised(WeightedSum):
        def __init__(self):
            super().__init__([Constant(1.0)], [1.0])
            self.penalty = Constant(0.25)

        def forward(self, action, observation):
            return super().forward(action, observation) - self.penalty(action, observation)

    rubric = Penalised()
    assert rubric(None, None) == 0.75
    assert [name for name, _ in rubric.named_children()] == ["rubric_0", "penalty"]
    assert len(rubric) == 1


# Lists and dicts


def test_a_list_of_rubrics_is_a_list():
    one, two, three = Constant(), Constant(), Constant()
    rubrics = RubricList([one])
    rubrics.append(two)
    rubrics.extend([three])
    assert (len(rubrics), list(rubrics)) == (3, [one, two, three])
    assert (rubrics[0], rubrics[-1], rubrics[1:]) == (one, three, [two, three])
    assert [name for name, _ in rubrics.named_children()] == ["rubric_0", "rubric_1", "rubric_2"]
    with pytest.raises(IndexError):
        rubrics[3]


def test_a_dict_of_rubrics_is_a_dict():
    pong, go = Constant(), Sequential(Constant())
    rubrics = RubricDict({"pong": pong})
    rubrics["go"] = go
    rubrics.update({"chess": Constant()})
    assert (list(rubrics), list(rubrics.keys()), len(rubrics)) == (
        ["pong", "go", "chess"],
        ["pong", "go", "chess"],
        3,
    )
    assert list(rubrics.items())[:2] == [("pong", pong), ("go", go)]
    assert next(rubrics.values()) is pong
    assert rubrics["go"] is rubrics.go is go
    assert rubrics.get_rubric("go.rubric_0") is go[0]
    del rubrics["chess"]
    assert "chess" not in rubrics
    for missing in ("chess", "_nobody"):
        with pytest.raises(KeyError, match=missing):
            rubrics[missing]
        with pytest.raises(AttributeError, match=missing):
            getattr(rubrics, missing)
    with pytest.raises(KeyError, match="chess"):
        del rubrics["chess"]


def test_a_name_of_a_dict_may_be_that_of_a_method():
    rubrics = RubricDict({"forward": Constant(0.25)})
    assert rubrics["forward"](None, None) == 0.25
    assert [path for path, _ in rubrics.named_rubrics()] == ["forward"]


@pytest.mark.parametrize("empty", [RubricList(), RubricDict(), Sequential()])
def test_an_empty_container_is_still_a_rubric(empty):
    assert bool(empty)
    assert list(empty.named_rubrics()) == []


@pytest.mark.parametrize("rubrics", [RubricList([Constant()]), RubricDict({"a": Constant()})])
def test_lists_and_dicts_have_no_score_of_their_own(rubrics):
    with pytest.raises(NotImplementedError, match="WeightedSum"):
        rubrics(None, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda other: Sequential(other),
        lambda other: Gate(other),
        lambda other: WeightedSum([other], [1.0]),
        lambda other: RubricList([other]),
        lambda other: RubricDict({"a": other}),
    ],
)
@pytest.mark.parametrize("other", [Constant, lambda action, observation: 1.0, None])
def test_containers_take_rubrics_alone(make, other):
    with pytest.raises(TypeError, match="instances of Rubric"):
        make(other)


async def test_a_parent_gathers_a_list_as_it_likes():
    class Best(Rubric):
        def __init__(self):
            super().__init__()
            self.judges = RubricList([Late(0.25), Late(0.75)])

        async def forward(self, action, observation):
            return max(await asyncio.gather(*(judge(action, observation) for judge in self.judges)))

    rubric = Best()
    assert await rubric(None, None) == 0.75
    assert [path for path, _ in rubric.named_rubrics()] == ["judges", "judges.rubric_0", "judges.rubric_1"]
