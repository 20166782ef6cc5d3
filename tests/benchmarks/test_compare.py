"""Measurements side by side."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.compare import NO_DIFFERENCE, compare
from benchmarks.result import Result
from openenv.errors import UsageError

from ..bench.rows import cost, summary

WORKLOAD = {"target": "echo", "sessions": 64, "vector": False, "action": {}}


def steps(name, *trials, **workload):
    return Result(Path(name), "steps", WORKLOAD | workload, {"": [asdict(trial) for trial in trials]})


def scale(name, **cases):
    return Result(
        Path(name),
        "scale",
        {"target": "benchmark"},
        {case: [asdict(s) for s in some] for case, some in cases.items()},
    )


def server_us(*values):
    return [cost(server_us_per_step=value) for value in values]


def one(first, second, figure):
    (found,) = [found for found in compare(first, second) if found.figure == figure]
    return found


def test_a_clear_difference_is_told_with_its_interval():
    before, after = steps("a", *server_us(20.0, 20.2, 19.8)), steps("b", *server_us(10.0, 10.1, 9.9))
    found = one(before, after, "server_us_per_step")
    assert (found.first, found.second) == (pytest.approx(20.0), pytest.approx(10.0))
    assert found.ratio == pytest.approx(0.5, abs=0.001)
    assert 0.48 < found.low < 0.5 < found.high < 0.52
    assert found.verdict == "faster"
    back = one(after, before, "server_us_per_step")
    assert (back.low, back.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert back.verdict == "slower"


def test_chance_shows_no_difference():
    found = one(
        steps("a", *server_us(20.0, 25.0, 16.0)), steps("b", *server_us(19.0, 22.0, 15.0)), "server_us_per_step"
    )
    assert found.low < 1 < found.high
    assert found.verdict == NO_DIFFERENCE


def test_a_single_trial_shows_nothing():
    found = one(steps("a", *server_us(20.0)), steps("b", *server_us(1.0)), "server_us_per_step")
    assert (found.ratio, found.low, found.high, found.verdict) == (pytest.approx(0.05), None, None, NO_DIFFERENCE)


@pytest.mark.parametrize(
    ("figure", "below", "above"),
    [
        ("steps_per_second", "slower", "faster"),
        ("p50", "faster", "slower"),
        ("p99", "faster", "slower"),
        ("client_us_per_step", "faster", "slower"),
        ("kib_per_session", "smaller", "larger"),
    ],
)
def test_what_is_better_depends_on_the_figure(figure, below, above):
    few, many = ([cost(**{figure: value + extra}) for extra in (0.0, 0.001)] for value in (1.0, 9.0))
    assert one(steps("a", *many), steps("b", *few), figure).verdict == below
    assert one(steps("a", *few), steps("b", *many), figure).verdict == above


def test_a_figure_that_a_file_does_not_have_is_left_out():
    found = compare(steps("a", *server_us(None, None)), steps("b", *server_us(10.0, 11.0)))
    assert "server_us_per_step" not in {comparison.figure for comparison in found}
    assert "p50" in {comparison.figure for comparison in found}
    none = steps("c", cost(kib_per_session=0.0), cost(kib_per_session=0.0))
    assert "kib_per_session" not in {comparison.figure for comparison in compare(none, none)}


@pytest.mark.parametrize("nothing", ["fast", float("inf"), float("nan"), -1.0])
def test_what_is_no_figure_is_left_out(nothing):
    strange = steps("a", *server_us(nothing, nothing))
    assert "server_us_per_step" not in {comparison.figure for comparison in compare(strange, strange)}


def test_batches_are_compared_with_their_likes():
    before = scale("a", small=[summary(64, total=t) for t in (1.5, 1.51)], large=[summary(2048)] * 2)
    after = scale("b", small=[summary(64, total=t) for t in (1.2, 1.21)], larger=[summary(4096)] * 2)
    found = compare(before, after)
    assert {comparison.case for comparison in found} == {"small"}
    assert {comparison.figure: comparison.verdict for comparison in found} == {
        "total_p50": "faster",
        "total_p99": "faster",
        "requests_per_second": NO_DIFFERENCE,
    }


def test_files_that_say_nothing_about_one_another_are_refused():
    with pytest.raises(UsageError, match="a is of `bench steps` and b of `bench scale`: give two files of the same"):
        compare(steps("a", cost()), scale("b", small=[summary(64)]))
    with pytest.raises(UsageError, match=r"sessions 64 and 128; vector False and True; measure both alike"):
        compare(steps("a", cost()), steps("b", cost(), sessions=128, vector=True))
    with pytest.raises(
        UsageError, match=r"no batch in common: \(small\) and \(large\); measure both with the same grid"
    ):
        compare(scale("a", small=[summary(64)]), scale("b", large=[summary(2048)]))


def test_a_server_that_somebody_else_started_may_serve_the_same():
    assert compare(steps("a", cost(), target=None), steps("b", cost()))
    with pytest.raises(UsageError, match="target 'other' and 'echo'"):
        compare(steps("a", cost(), target="other"), steps("b", cost()))
