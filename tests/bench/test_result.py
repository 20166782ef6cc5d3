"""Results in files."""

import json

import pytest

from benchmarks.result import read_result, turns_document
from openenv.bench.scale import scale_document
from openenv.bench.steps import ClosedLoop, steps_document
from openenv.errors import UsageError

from .rows import cost, summary

LOOP = ClosedLoop("http://localhost:1", 64, 5.0, {"by": 1})


@pytest.fixture
def write(tmp_path):
    def write(document, name="result.json"):
        path = tmp_path / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    return write


def test_steps_say_what_was_typed_where_and_what_was_found(write):
    document = steps_document(LOOP, "openenv bench steps", "echo", "echo, 1 worker(s)", [cost(), cost(p50=0.0041)])
    assert document["command"] == "openenv bench steps"
    assert document["server"] == "echo, 1 worker(s)"
    assert document["machine"]["cores"]
    assert document["workload"] == {"target": "echo", "sessions": 64, "vector": False, "action": {"by": 1}}
    assert document["p50"] == pytest.approx(0.0036)
    assert document["floor"] == []
    result = read_result(write(document))
    assert (result.kind, result.workload) == ("steps", document["workload"])
    (case,) = result.cases
    assert case == ""
    assert [trial["p50"] for trial in result.cases[case]] == [0.0031, 0.0041]


def test_a_floor_stands_beside(write):
    document = steps_document(LOOP, "", None, "", [cost()], [cost(server_us_per_step=9.0)])
    assert [trial["server_us_per_step"] for trial in document["floor"]] == [9.0]


def test_batches_of_one_kind_are_the_trials_of_a_case(write):
    batches = [summary(64), summary(64, repetition=2), summary(2048), summary(64, wait=0.1)]
    document = scale_document(batches, "openenv bench scale", "benchmark", "benchmark, 2 worker(s)")
    assert document["workload"] == {"target": "benchmark", "mode": "ws"}
    result = read_result(write(document))
    assert result.kind == "scale"
    assert {case: len(trials) for case, trials in result.cases.items()} == {
        "64 sessions, 1 s wait": 2,
        "2,048 sessions, 1 s wait": 1,
        "64 sessions, 0.1 s wait": 1,
    }


@pytest.mark.parametrize("kind", ["frames", "batched"])
def test_turns_of_a_system_are_the_trials_of_a_case(write, kind):
    systems = {"openenv": [{"steps_per_second": 7.0}, {"steps_per_second": 8.0}], "memcpy": [{}]}
    document = turns_document(kind, {"envs": 4}, f"openenv bench {kind}", "images", systems, memory={"arrays": 1})
    assert (document["server"], document["memory"]) == ("images", {"arrays": 1})
    result = read_result(write(document))
    assert (result.kind, result.workload, result.cases) == (kind, {"envs": 4}, systems)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "sessions,wait",
        "[]",
        "7",
        {},
        {"bench": "steps"},
        {"bench": "steps", "workload": [], "trials": [{}]},
        {"bench": "steps", "workload": {}, "trials": 5},
        {"bench": "steps", "workload": {}, "trials": []},
        {"bench": "steps", "workload": {}, "trials": ["a"]},
        {"bench": "scale", "workload": {}, "batches": [1]},
        {"bench": "frames", "workload": {}},
        {"bench": "frames", "workload": {}, "systems": {"openenv": []}},
        {"bench": "storm", "workload": {}, "batches": []},
    ],
)
def test_what_is_no_result_is_refused_with_a_way_to_get_one(write, document):
    with pytest.raises(
        UsageError, match=r"not the result of a measurement: use the output of `openenv bench steps --json`"
    ):
        read_result(write(document))


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="cannot read .*nowhere.json: No such file"):
        read_result(tmp_path / "nowhere.json")
