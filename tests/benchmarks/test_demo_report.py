"""What the demo writes, from made-up workloads. `tests/real/test_bench_demo.py` runs it."""

import csv
import json
import re

import pytest

from benchmarks.demo_report import demo_report, write_demo
from benchmarks.games import DemoWorkload, EpisodeRow
from openenv.bench.batch import Mode

from ..bench.pictures import EXTERNAL
from ..bench.rows import play, workload

pytestmark = pytest.mark.slow


@pytest.fixture
def workloads():
    broken = EpisodeRow(3, Mode.WS, 0.0, None, 4, workload="Blackjack-v1", connect_latency=0.5)
    broken.fail(ConnectionError("the line went dead"))
    cards = [play(number, (1.0 if number % 2 else -1.0,), "Blackjack-v1") for number in range(3)]
    return [workload("benchmark"), workload("CartPole-v1"), workload("Blackjack-v1", [*cards, broken])]


def test_three_files_are_written(tmp_path, workloads):
    write_demo(tmp_path, workloads)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw.jsonl", "report.html", "summary.csv"]


def test_every_request_and_episode_has_its_line(tmp_path, workloads):
    write_demo(tmp_path, workloads)
    lines = [json.loads(line) for line in (tmp_path / "raw.jsonl").read_text().splitlines()]
    assert [line["workload"] for line in lines] == ["benchmark"] * 20 + ["CartPole-v1"] * 20 + ["Blackjack-v1"] * 4
    assert (lines[-1]["success"], lines[-1]["error_type"]) == (False, "ConnectionError")


def test_every_workload_has_its_line(tmp_path, workloads):
    write_demo(tmp_path, workloads)
    with (tmp_path / "summary.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [line["workload"] for line in found] == ["benchmark", "CartPole-v1", "Blackjack-v1"]
    assert (found[2]["requests"], found[2]["successful"], found[2]["success_rate"]) == ("4", "3", "0.75")
    assert (found[1]["memory_per_session_kb"], found[1]["sessions_per_second"]) == ("48.0", "8.0")
    assert found[1]["step_p99"] == "0.003"
    assert set(found[0]) > {"connect_p50", "reset_p95", "total_p99", "steps_per_second"}


def test_the_report_says_what_failed_and_answers_nine_questions(workloads):
    html = demo_report(workloads).html()
    assert "1 failed." in html
    assert "the line went dead" in html
    questions = re.findall(r"<figure><h2>([^<]+)</h2>", html)
    assert len(questions) == len(set(questions)) == html.count("data:image/svg+xml;base64,") == 9
    assert all(question.endswith("?") for question in questions)
    assert "Half of the steps took at most: benchmark 3.0 ms, CartPole-v1 3.0 ms, Blackjack-v1 3.0 ms." in html
    assert "Mean of 3 episodes by a random policy: -0.333." in html
    text = re.sub(r'src="data:[^"]*"', "", html)
    assert [mark for mark in EXTERNAL if mark in text] == []


def test_the_table_has_a_column_for_each_workload(workloads):
    html = demo_report(workloads).html()
    assert re.findall(r'<th scope="col">([^<]+)', html)[:4] == [
        "workload",
        "benchmark",
        "CartPole-v1",
        "Blackjack-v1",
    ]
    assert '<th scope="row">success %</th><td>100.00</td><td>100.00</td><td>75.00</td>' in html
    assert '<th scope="row">step P99</th><td>3.0</td><td>3.0</td><td>3.0</td>' in html


def test_every_word_of_the_table_and_the_axes_is_explained(workloads):
    html = demo_report(workloads).html()
    terms = html.partition("<h2>Terms</h2>")[2]
    words = {word for row in re.findall(r'<th scope="row">([^<]+)', html) for word in re.findall(r"[\w/]+", row)}
    assert {"connect", "P95", "KB/session"} < words
    words -= {"ConnectionError", "Blackjack", "v1"}
    for word in sorted(words | {"workload", "session", "worker", "episode", "return", "length", "random policy"}):
        assert re.search(rf"<dt>[^<]*\b{word}\b[^<]*</dt>", terms), word


def test_the_report_says_that_all_went_well(workloads):
    html = demo_report(workloads[:2]).html()
    assert "20 sessions of the benchmark environment" in html
    assert "20 episodes of CartPole-v1 over 4 sessions: all succeeded." in html
    assert "Failures" not in html


class TestWorkload:
    def test_it_counts(self, workloads):
        cards = workloads[2]
        assert (cards.successful, cards.failed, cards.steps) == (3, 1, 3)

    def test_steps_are_measured_one_by_one_and_connects_once_a_session(self):
        found = DemoWorkload("game", 2, 1.0, 0.0, [play(0, (1.0, 1.0)), play(9, (1.0,))])
        assert found.latencies("step") == [0.003, 0.003, 0.003]
        assert found.latencies("connect") == [0.01]
        assert found.latencies("total") == pytest.approx([0.008, 0.005])

    def test_what_failed_lends_no_latency(self, workloads):
        assert max(workloads[2].latencies("connect")) == 0.01

    def test_its_line_sums_it_up(self, workloads):
        line = workloads[1].line()
        assert (line.requests, line.successful, line.failed, line.success_rate) == (20, 20, 0, 1.0)
        assert line.steps == sum(row.steps for row in workloads[1].rows)
        assert line.steps_per_second == line.steps / 0.5
