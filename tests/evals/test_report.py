from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from openenv.errors import UsageError
from openenv.evals.report import EvalReport, RunInfo, compare, read_report, summary_of, write_report
from openenv.evals.runner import EpisodeFailure, EpisodeResult

FAILED = EpisodeFailure(blame="infrastructure", error="ConnectionLost", message="gone")


def report_of(episodes: Iterable[EpisodeResult], **about: Any) -> EvalReport:
    played = list(episodes)
    facts = {"target": "x", "policy": "p", "concurrency": 1, "max_steps": 9, "retries": 0, "openenv": "1", "began": 0}
    return EvalReport(about=RunInfo(**{**facts, **about}), summary=summary_of(played, len(played)), episodes=played)


def scored(seeds: Iterable[int], gain: float = 0.0, noise: float = 0.1) -> list[EpisodeResult]:
    """Seeds differ much in how hard they are."""
    found = []
    for seed in seeds:
        hard, luck = Random(seed).gauss(0, 10), Random(f"{gain}{seed}").gauss(0, noise)
        found.append(EpisodeResult(seed=seed, score=hard + gain + luck, length=5, end="terminated"))
    return found


def test_pairs_show_what_the_choice_of_seeds_would_hide() -> None:
    first, second = report_of(scored(range(50))), report_of(scored(range(50), gain=1.0))
    found = compare(first, second)[0]
    assert (found.figure, found.method, found.first_count, found.verdict) == ("return", "paired", 50, "higher")
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.0 < found.high < 1.2
    back = compare(second, first)[0]
    assert back.verdict == "lower"
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))
    others = compare(first, report_of(scored(range(50, 100), gain=1.0)))[0]
    assert (others.method, others.verdict) == ("Welch", "no difference shown")


def test_the_same_run_twice_is_no_difference() -> None:
    found = compare(report_of(scored(range(9))), report_of(scored(range(9))))
    assert {comparison.verdict for comparison in found} == {"no difference shown"}
    assert found[0].difference == 0


def test_only_cases_that_both_have_are_pairs() -> None:
    found = compare(report_of(scored(range(30))), report_of(scored(range(20, 60))))[0]
    assert (found.method, found.first_count, found.second_count) == ("paired", 10, 10)


def test_one_pair_is_none() -> None:
    found = compare(report_of(scored(range(5))), report_of(scored(range(4, 9))))[0]
    assert (found.method, found.first_count, found.second_count) == ("Welch", 5, 5)


def test_what_failed_is_in_no_figure() -> None:
    broken = [EpisodeResult(seed=seed, end="failed", length=1, failure=FAILED) for seed in range(5)]
    found = compare(report_of(scored(range(20))), report_of([*broken, *scored(range(5, 20))]))
    assert all(comparison.first_count == comparison.second_count == 15 for comparison in found)
    with pytest.raises(UsageError, match="0 of 5 episodes of B have a return"):
        compare(report_of(scored(range(5))), report_of(broken))


def test_tasks_are_pairs_by_their_index_and_repeat() -> None:
    def tasks(gain: float) -> list[EpisodeResult]:
        return [
            EpisodeResult(
                seed=index + int(10 * gain), split="test", index=index, repeat=repeat, score=gain, end="terminated"
            )
            for index in range(4)
            for repeat in range(2)
        ]

    found = compare(report_of(tasks(0.0), split="test"), report_of(tasks(1.0), split="test"))[0]
    assert (found.method, found.first_count, found.low, found.high) == ("paired", 8, 1.0, 1.0)


def test_success_is_compared_where_it_is_told() -> None:
    def told(share: float) -> list[EpisodeResult]:
        return [
            EpisodeResult(seed=seed, score=1.0, end="terminated", success=Random(seed).random() < share)
            for seed in range(100)
        ]

    found = {comparison.figure: comparison for comparison in compare(report_of(told(0.2)), report_of(told(0.6)))}
    assert found["success"].verdict == "higher"
    assert found["return"].verdict == "no difference shown"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ({"environment": "Chess"}, {"environment": "Go"}, "'Chess'.*'Go'"),
        ({"split": "train"}, {"split": "test"}, "split"),
        ({"split": "train"}, {}, "seeds"),
    ],
)
def test_runs_that_have_nothing_to_do_with_one_another_are_refused(
    ours: dict[str, str], theirs: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        compare(report_of(scored(range(5)), **ours), report_of(scored(range(5)), **theirs))


def test_a_report_goes_through_a_file(tmp_path: Path) -> None:
    report = report_of([*scored(range(3)), EpisodeResult(seed=9, end="failed", failure=FAILED, attempts=3)])
    write_report(report, tmp_path / "result.json")
    assert read_report(tmp_path / "result.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["summary"]["failures"] == {"infrastructure": {"ConnectionLost": 1}}
    assert document["episodes"][3]["score"] is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"bench": "steps"}', '{"openenv_result": "eval", "version": 2}'])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"result.json is not the result of an evaluation.*--output"):
        read_report(path)


def test_files_that_cannot_be_read_or_written_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_report(tmp_path / "missing.json")
    with pytest.raises(UsageError, match="cannot be written"):
        write_report(report_of(scored(range(2))), tmp_path / "missing" / "result.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read"):
        read_report(tmp_path / "bytes.json")


def repeated(tasks: int, repeats: int, gain: float = 0.0) -> list[EpisodeResult]:
    """Tasks whose repeats always end alike."""
    return [
        EpisodeResult(
            split="test", index=index, repeat=repeat, score=index % 2 + gain, success=index % 2 == 1, end="terminated"
        )
        for index in range(tasks)
        for repeat in range(repeats)
    ]


def test_repeats_of_a_task_are_one_cluster() -> None:
    once, often = summary_of(repeated(10, 1), 10), summary_of(repeated(10, 8), 80)
    assert once.returns is not None
    assert often.returns is not None
    assert (often.returns.low, often.returns.high) == pytest.approx((once.returns.low, once.returns.high))
    assert once.success is not None
    assert often.success is not None
    assert often.success.low <= once.success.low
    assert (once.intervals_over, often.intervals_over) == ("tasks", "tasks")
    assert summary_of(scored(range(3)), 3).intervals_over == "seeds"
    assert summary_of(repeated(1, 8), 8).intervals_over == "repeats"


def test_repeated_tasks_have_a_table_and_pass_at_k() -> None:
    summary = summary_of(repeated(4, 6), 24)
    assert [(task.index, task.success and task.success.hits) for task in summary.tasks] == [
        (0, 0),
        (1, 6),
        (2, 0),
        (3, 6),
    ]
    assert all(task.returns is not None and task.returns.count == 6 for task in summary.tasks)
    assert [(chance.k, chance.share) for chance in summary.pass_at] == [(2, 0.5), (4, 0.5), (6, 0.5)]
    once = summary_of(repeated(4, 1), 4)
    assert (once.tasks, once.pass_at) == ([], [])


def test_a_comparison_does_not_count_repeats_as_independent() -> None:
    def noisy(repeats: int, gain: float) -> list[EpisodeResult]:
        return [
            each.model_copy(update={"score": Random(f"{each.index} {gain}").gauss(gain, 2)})
            for each in repeated(12, repeats)
        ]

    found = [
        compare(report_of(noisy(count, 0), split="test"), report_of(noisy(count, 1), split="test"))
        for count in (1, 20)
    ]
    assert [(each[0].low, each[0].high) for each in found][1] == pytest.approx((found[0][0].low, found[0][0].high))


def test_a_result_of_an_earlier_version_can_be_read(tmp_path: Path) -> None:
    document = json.loads(report_of(scored(range(3))).model_dump_json())
    for name in ("intervals_over", "tasks", "pass_at"):
        del document["summary"][name]
    (tmp_path / "result.json").write_text(json.dumps(document))
    assert read_report(tmp_path / "result.json").summary.intervals_over is None
