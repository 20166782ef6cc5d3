"""`openenv eval`, of a server that runs and of one that it starts."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from openenv.bench.served import ServedTarget
from openenv.cli import main
from openenv.client.recorded import recorder_at

from ..evals import policies

EVALS = Path(__file__).parent.parent / "evals"
POLICIES = policies.__name__
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def dice() -> Iterator[str]:
    with ServedTarget("environments:TellsSuccess", max_sessions=16, cwd=EVALS) as server:
        yield server.url


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `openenv eval ...` in this process; returns its exit code, output and complaints."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["openenv", "eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return (code, *capsys.readouterr())

    return run


def test_it_tells_how_good_a_policy_is(command: Command, dice: str) -> None:
    code, output, complaints = command(dice, "--policy", f"{POLICIES}:go_on", "--seeds", "0-49", "--concurrency", 8)
    assert code == 0, complaints
    head, columns, returns, lengths, success, about = output.splitlines()
    assert head.startswith(f"{POLICIES}:go_on in TellsSuccess: 50 episodes in ")
    assert columns.split() == ["mean", "95", "%", "interval", "least", "median", "most", "episodes"]
    assert returns.split()[0] == "return"
    assert lengths.split()[0] == "length"
    assert success.split()[0] == "success"
    assert all(line.endswith(" 50") for line in (returns, lengths, success))
    assert about == "  intervals: of the mean over other seeds"


def test_json_is_one_document_and_nothing_else(command: Command, dice: str, tmp_path: Path) -> None:
    asked = ("--policy", "random", "--episodes", 10, "--seed", 3, "--json", "-o", tmp_path / "result.json")
    code, output, _ = command(dice, *asked)
    assert code == 0
    document = json.loads(output)
    assert document == json.loads((tmp_path / "result.json").read_text())
    assert document["about"]["policy"] == "random"
    assert document["summary"]["scored"] == len(document["episodes"]) == 10
    again = json.loads(command(dice, *asked)[1])
    assert [each["score"] for each in again["episodes"]] == [each["score"] for each in document["episodes"]]


def test_failures_are_told_apart_and_exit_with_1(command: Command, dice: str) -> None:
    code, output, _ = command(dice, "--policy", f"{POLICIES}:raises", "--episodes", 3)
    assert code == 1
    assert "no episode has a return" in output
    assert "3 failed by the policy's fault" in output
    assert "3 x KeyError" in output


def test_runs_are_compared(command: Command, dice: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert command(dice, "--policy", f"{POLICIES}:stop_at_ten", "--seeds", "0-30", "-o", first)[0] == 0
    code, output, _ = command(
        *(dice, "--policy", f"{POLICIES}:go_on", "--seeds", "0-30", "-o", second, "--against", first)
    )
    assert code == 0
    assert "31 pairs" in output
    assert "higher" in output
    code, compared, _ = command("compare", first, second)
    assert code == 0
    assert output.endswith(compared)
    assert "not played alike" not in compared
    other = second.read_text().replace('"max_steps": 1000', '"max_steps": 7')
    (tmp_path / "other.json").write_text(other.replace("TellsSuccess", "Tells\\u001b[2JSuccess"))
    compared = command("compare", tmp_path / "other.json", tmp_path / "other.json")[1]
    assert "\x1b" not in compared
    (tmp_path / "other.json").write_text(other)
    compared = command("compare", first, tmp_path / "other.json")[1]
    assert "the runs used different options: --max-steps 1000 in A, 7 in B" in compared
    found = json.loads(command("compare", first, second, "--json")[1])
    assert [each["figure"] for each in found] == ["return", "success", "length"]
    assert found[0]["method"] == "paired"
    assert found[0]["low"] > 0


def test_what_cannot_be_done_is_said_before_anything_is_started(command: Command, tmp_path: Path) -> None:
    wrong: dict[tuple[object, ...], str] = {
        ("echo",): "--policy",
        ("echo", "--policy", "none"): "module:function",
        ("echo", "--policy", "no_such_module:act"): "no module 'no_such_module'",
        ("echo", "--policy", "random", "--seeds", "5-1"): "must rise",
        ("echo", "--policy", "random", "--seeds", "0-9", "--episodes", 11): "11 episodes",
        ("echo", "--policy", "random", "--seeds", "0-9", "--split", "test"): "--split",
        ("echo", "--policy", "random", "--repeats", 2): "--repeats",
        ("echo", "--policy", "random", "--seed", -1): "--seed",
        ("echo", "--policy", "random", "--concurrency", 0): "--concurrency",
        ("echo", "--policy", "random", "--against", tmp_path / "x.json"): "cannot read",
        ("echo", "--policy", "random", "-o", tmp_path / "missing" / "x.json"): "cannot be written",
        ("compare", tmp_path / "x.json", tmp_path / "y.json"): "cannot read",
        ("compare", "x.json"): "B.json",
        ("echo", "more", "--policy", "random"): "more",
    }
    for arguments, words in wrong.items():
        code, output, complaints = command(*arguments)
        assert code in {1, 2}, arguments
        assert words in complaints, arguments
        assert complaints.startswith("error: ")
        assert len(complaints.splitlines()) == 1
        assert not output


@pytest.mark.slow
def test_every_task_of_a_split_is_played_and_other_splits_are_refused(command: Command) -> None:
    with ServedTarget("games:Guess", max_sessions=4, cwd=EVALS) as server:
        asked = (server.url, "--policy", f"{POLICIES}:guesses_up", "--concurrency", 2, "--json", "--split")
        code, output, _ = command(*asked, "test", "--repeats", 2)
        assert code == 0
        assert [each["length"] for each in json.loads(output)["episodes"]] == [1, 1, 2, 2, 3, 3, 4, 4]
        code, output, _ = command(*(each for each in asked if each != "--json"), "test", "--repeats", 2)
        assert "over other tasks like these; repeats of one task are one cluster" in output
        assert [line.split()[0] for line in output.splitlines()[-5:]] == [
            "task",
            "3",
            "2",
            "1",
            "0",
        ]  # lowest return first
        code, output, complaints = command(*asked, "none")
    assert (code, output) == (1, "")
    assert "no split 'none': there are test" in complaints


def test_a_result_that_cannot_be_written_in_the_end_is_printed(
    command: Command, dice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(policies, "place", place)
    asked = ("--policy", f"{POLICIES}:removes_a_folder", "--episodes", 1, "-o", place / "result.json")
    code, output, complaints = command(dice, *asked)
    assert code == 1
    assert "1 episode in" in output
    assert "cannot be written" in complaints


def test_a_server_that_is_not_there_is_said(command: Command) -> None:
    code, _, complaints = command("127.0.0.1:9", "--policy", "random", "--episodes", 1)
    assert code == 1
    assert "127.0.0.1:9" in complaints
    code, output, _ = command("127.0.0.1:9", "--policy", f"{POLICIES}:go_on", "--episodes", 1, "--retries", 0)
    assert code == 1
    assert "1 failed by a fault of the infrastructure" in output


def test_without_arguments_and_with_help_it_shows_its_options(command: Command) -> None:
    code, output, _ = command("--help")
    assert code == 0
    for word in ("Usage: openenv eval [OPTIONS] TARGET", "--policy", "--seeds", "--against", "compare"):
        assert word in output
    assert command()[0] == 2
    assert "A.json" in command("compare", "--help")[1]


@pytest.mark.slow
def test_an_environment_for_one_session_says_how_it_can_be_played(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EVALS)
    asked = ("environments:Exclusive", "--policy", "random", "--episodes", 3)
    code, _, complaints = command(*asked)
    assert code == 1
    assert complaints.splitlines()[-1].endswith("play one episode at a time: --concurrency 1")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, output, complaints = command(*asked, "--concurrency", 1)
    assert code == 0
    assert "3 episodes" in output
    assert "warning: the seed " in complaints


@pytest.mark.slow
def test_a_server_that_ends_is_said_with_what_was_played(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(EVALS)
    code, output, complaints = command(
        *("environments:Deadly", "--policy", f"{POLICIES}:go_on", "--episodes", 9, "--concurrency", 1),
        *("-o", tmp_path / "result.json"),
    )
    assert code == 1
    assert "ended with exit code 3" in complaints
    assert "interrupted after 2 of 9 episodes" in output
    assert json.loads((tmp_path / "result.json").read_text())["interrupted"] is True


def test_what_is_played_can_be_recorded(command: Command, dice: str, tmp_path: Path) -> None:
    asked = ("--policy", f"{POLICIES}:go_on", "--seeds", "3,5", "--json", "--record", tmp_path / "episodes")
    code, output, _ = command(dice, *asked)
    assert code == 0
    names = [each["episode_id"] for each in json.loads(output)["episodes"]]
    assert names == ["seed-3", "seed-5"]
    recorder_at(tmp_path / "episodes").close()
    (record,) = (tmp_path / "episodes").glob("*.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {line["episode_id"] for line in lines} == set(names)
    scores = {name: sum(line["reward"] or 0 for line in lines if line["episode_id"] == name) for name in names}
    assert [each["score"] for each in json.loads(output)["episodes"]] == list(scores.values())
    code, _, complaints = command(dice, *asked[:-1], "/proc/none")
    assert code == 1
    assert "cannot record into" in complaints
