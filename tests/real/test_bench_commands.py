"""`openenv bench` against real servers, with small numbers."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from openenv.bench.batch import BatchSummary, RequestRow
from openenv.bench.served import ServedTarget
from openenv.cli.bench import app

from ..bench.pictures import is_png
from .bench_environments import RAISE
from .bench_processes import children_of, left_of

pytestmark = [pytest.mark.real, pytest.mark.slow]
HERE = Path(__file__).parent
# Its wait ends at once when its server does.
WAITS = "openenv.envs.benchmark.server.benchmark_environment:AsyncBenchmarkEnvironment"
GAMES = ("CartPole-v1", "Blackjack-v1")


@pytest.fixture(scope="module")
def moody():
    with ServedTarget("bench_environments:Moody", max_sessions=32, cwd=HERE) as server:
        yield server


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def lines_of(folder):
    return [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]


def table_of(folder):
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_scale_serves_measures_and_writes(tmp_path):
    result = run(
        *("scale", "--serve", "benchmark", "--requests-grid", "2,4", "--wait-grid", "0,0.05", "--reps", 1),
        *("--output-dir", tmp_path / "out", "--processes", 2),
    )
    assert result.exit_code == 0, result.output
    rows, batches = lines_of(tmp_path / "out"), table_of(tmp_path / "out")
    assert len(rows) == 2 * (2 + 4)
    assert all(list(row) == RequestRow.columns() for row in rows)
    assert all(row["success"] and row["mode"] == "ws" for row in rows)
    assert all(list(batch) == BatchSummary.columns() for batch in batches)
    assert [(batch["num_requests"], batch["wait_seconds"], batch["repetition"]) for batch in batches] == [
        (size, wait, "1") for wait in ("0.0", "0.05") for size in "24"
    ]
    assert all(batch["error_rate"] == "0.0" and float(batch["total_p99"]) > 0 for batch in batches)
    assert [batch["unique_sessions"] for batch in batches] == [batch["num_requests"] for batch in batches]
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert pictures == ["latency.png", "max_batch.png", "p99_heatmap.png", "success_rate.png"]
    assert all(is_png((tmp_path / "out" / name).read_bytes()) for name in pictures)
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("data:image/png;base64,") == 4
    (tmp_path / "out" / "report.html").unlink()
    assert run("report", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "report.html").read_text() == report
    result_file = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result_file["workload"] == {"target": "benchmark", "mode": "ws"}
    assert [batch["num_requests"] for batch in result_file["batches"]] == [2, 4, 2, 4]
    assert "Max batch with a step of 0.05 s: 4 (the largest tried)" in result.output
    assert "repetition 1: connect 4/4, reset 4/4, step 4/4, close 4/4" in result.output


def test_scale_measures_http_too(tmp_path, moody):
    result = run(
        *("scale", "--url", moody.url, "--mode", "http", "--requests-grid", 2, "--wait-grid", 0, "--reps", 2),
        *("--output-dir", tmp_path),
    )
    assert result.exit_code == 0, result.output
    assert [(batch["mode"], batch["successful"], batch["repetition"]) for batch in table_of(tmp_path)] == [
        ("http", "2", "1"),
        ("http", "2", "2"),
    ]


def test_scale_tells_what_failed(tmp_path, moody):
    result = run(
        *("scale", "--url", moody.url, "--requests-grid", 2, "--wait-grid", f"0,{RAISE}", "--reps", 1),
        *("--output-dir", tmp_path, "--server-cores", 16),
    )
    assert result.exit_code == 0
    assert "2 x StepFailed" in result.output
    assert "No batch with a step of 0.003 s" in result.output
    assert [batch["error_rate"] for batch in table_of(tmp_path)] == ["0.0", "1.0"]
    report = (tmp_path / "report.html").read_text()
    assert "not in the mood" in report
    assert "<dd>16</dd>" in report


def test_scale_fails_where_nothing_succeeds(tmp_path, moody):
    result = run(
        *("scale", "--url", moody.url, "--requests-grid", 1, "--wait-grid", RAISE, "--reps", 1),
        *("--output-dir", tmp_path),
    )
    assert result.exit_code == 1
    assert lines_of(tmp_path)[0]["error_type"] == "StepFailed"


def test_steps_prints_a_table(moody):
    (pid,) = moody.pids()
    result = run("steps", "--url", moody.url, "--sessions", 2, "--duration", 0.2, "--server-pid", pid)
    assert result.exit_code == 0, result.output
    assert "steps per second" in result.output
    assert "not known" not in result.output


def test_steps_prints_json():
    result = run("steps", "--serve", "benchmark", "--sessions", 2, "--duration", 0.2, "--json", "--action", "{}")
    assert result.exit_code == 0, result.output
    cost = json.loads(result.stdout)
    assert cost["sessions"] == 2
    assert cost["steps"] >= 2
    assert cost["server_us_per_step"] > 0
    assert len(cost["trials"]) == 1
    assert cost["command"].split()[0] == "openenv"
    assert cost["server"] == "benchmark, 1 worker(s)"
    assert cost["workload"] == {"target": "benchmark", "sessions": 2, "vector": False, "action": {}}


def test_results_of_steps_can_be_compared(tmp_path, moody):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        result = run("steps", "--url", moody.url, "--vector", 3, "--duration", 0.1, "--trials", 2, "--json")
        assert result.exit_code == 0, result.output
        path.write_text(result.stdout)
    table = run("compare", *paths)
    assert table.exit_code == 0, table.output
    assert "steps per second" in table.output
    found = {line["figure"]: line for line in json.loads(run("compare", *paths, "--json").stdout)}
    assert set(found) == {"steps_per_second", "p50", "p99", "client_us_per_step"}
    for line in found.values():
        assert line["low"] <= line["ratio"] <= line["high"]
        assert line["verdict"] in {"faster", "slower", "no difference shown"}


def test_batches_of_scale_can_be_compared(tmp_path, moody):
    for name in "ab":
        result = run(
            *("scale", "--url", moody.url, "--requests-grid", 2, "--wait-grid", 0, "--reps", 1),
            *("--output-dir", tmp_path / name),
        )
        assert result.exit_code == 0, result.output
    result = run("compare", *(tmp_path / name / "result.json" for name in "ab"))
    assert result.exit_code == 0, result.output
    assert "2 sessions, 0 s wait" in result.output
    assert "no difference shown" in result.output
    assert "One trial gives no confidence interval" in result.output


def test_steps_measures_the_floor_too(moody):
    result = run("steps", "--url", moody.url, "--sessions", 2, "--duration", 0.1, "--floor")
    assert result.exit_code == 0, result.output
    assert "empty server" in result.output


def test_steps_fails_where_a_session_does():
    with ServedTarget("bench_environments:Moody", max_sessions=2, cwd=HERE) as server:
        result = run("steps", "--url", server.url, "--sessions", 3, "--duration", 0.2)
    assert result.exit_code == 1
    assert "1 session(s) failed: ServerFull" in result.output


def test_the_demo_runs_all_its_workloads(tmp_path):
    result = run("demo", "--output-dir", tmp_path, "--sessions", 12, "--episodes", 6, "--concurrency", 3)
    assert result.exit_code == 0, result.output
    rows, table = lines_of(tmp_path), table_of(tmp_path)
    assert [row["workload"] for row in rows] == ["benchmark"] * 12 + [game for game in GAMES for _ in range(6)]
    assert all(row["success"] for row in rows)
    assert [line["workload"] for line in table] == ["benchmark", *GAMES]
    assert [line["success_rate"] for line in table] == ["1.0"] * 3
    assert all(float(line["step_p50"]) >= 1.0 for line in table if line["workload"] == "benchmark")
    assert (tmp_path / "report.html").read_text().count("data:image/svg+xml;base64,") == 9
    for words in ("serving benchmark", "12 sessions at once", "close 12/12", "episodes 6/6", "KB/session", "P99"):
        assert words in result.output


def test_the_demo_fails_where_an_episode_does(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.demo.GAMES", {"Blackjack-v1": 1000})
    monkeypatch.setattr("benchmarks.demo.WAIT_S", 0.0)
    result = run("demo", "--output-dir", tmp_path, "--sessions", 2, "--episodes", 4, "--concurrency", 2)
    assert result.exit_code == 1
    assert "failed" in result.output
    assert {row["error_type"] for row in lines_of(tmp_path)} == {None, "InvalidAction"}


def test_a_benchmark_that_is_told_to_end_leaves_no_server(tmp_path):
    command = [sys.executable, "-m", "openenv", "bench", "scale", "--serve", WAITS]
    command += ["--wait-grid", "30", "--requests-grid", "4", "--output-dir", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            # The server is up, and the sessions wait.
            if "reset 4/4" in line:
                break
        children = children_of(process.pid)
        assert any("serve" in words for words in children.values())
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert left_of(children) == []
